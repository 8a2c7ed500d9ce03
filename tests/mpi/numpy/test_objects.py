"""The law: broadcast_object gives every rank what the root has, allgather_object what each rank has."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import fusionctl

OBJECTS: tuple[Any, ...] = (
    None,
    {"step": 7, "schedule": [0.1, 0.01], "name": "läuft"},
    b"x" * 3_000_000,
    [],
    np.random.default_rng(1),
)


@pytest.mark.parametrize("sent", OBJECTS, ids=lambda sent: type(sent).__name__)
def test_objects_of_any_size_from_every_root(sent: Any) -> None:
    for root in range(fusionctl.size()):
        here = sent if fusionctl.rank() == root else f"not that of rank {fusionctl.rank()}" * fusionctl.rank()
        received = fusionctl.broadcast_object(here, root)
        assert (received is sent) or fusionctl.rank() != root
        if isinstance(sent, np.random.Generator):
            assert received.bit_generator.state == sent.bit_generator.state
        else:
            assert received == sent


def test_only_the_root_needs_an_object() -> None:
    send = fusionctl.broadcast_object_fn(root_rank=fusionctl.size() - 1, name="step")
    for step in range(3):
        assert send(step if fusionctl.rank() == fusionctl.size() - 1 else None) == step


def test_an_object_that_cannot_be_pickled_is_an_error_on_all_ranks() -> None:
    lock = threading.Lock() if fusionctl.rank() == 0 else None
    if fusionctl.rank() == 0:
        with pytest.raises(fusionctl.UsageError, match=r"object 'lock' cannot be pickled .*TypeError: cannot pickle"):
            fusionctl.broadcast_object(lock, name="lock")
    else:
        with pytest.raises(fusionctl.PeerError, match="'lock' was not broadcast: its root, rank 0, cannot pickle it"):
            fusionctl.broadcast_object(lock, name="lock")
    assert fusionctl.broadcast_object(fusionctl.rank(), name="lock") == 0


def test_a_root_that_does_not_exist() -> None:
    with pytest.raises(fusionctl.UsageError, match=f"root_rank is {fusionctl.size()}, but the ranks are 0 to"):
        fusionctl.broadcast_object(1, fusionctl.size())


def test_every_ranks_object_on_every_rank() -> None:
    for size in (0, 1, 3_000_000):
        gathered = fusionctl.allgather_object({"rank": fusionctl.rank(), "bytes": b"x" * size * fusionctl.rank()})
        assert gathered == [{"rank": rank, "bytes": b"x" * size * rank} for rank in range(fusionctl.size())]
    mine = object()
    assert fusionctl.allgather_object(mine, "identity")[fusionctl.rank()] is mine


def test_objects_of_several_types() -> None:
    sent = [OBJECTS[rank % 4] for rank in range(fusionctl.size())]
    assert fusionctl.allgather_object(sent[fusionctl.rank()], "types") == sent


def test_one_object_that_cannot_be_gathered_is_an_error_on_all_ranks() -> None:
    last = fusionctl.size() - 1
    if fusionctl.rank() == last:
        with pytest.raises(fusionctl.UsageError, match=r"object 'lock' cannot be pickled .*TypeError: cannot pickle"):
            fusionctl.allgather_object(threading.Lock(), "lock")
    else:
        with pytest.raises(fusionctl.PeerError, match=f"'lock' was not gathered: rank {last} can not pickle it"):
            fusionctl.allgather_object(1, "lock")
    assert fusionctl.allgather_object(fusionctl.rank(), "lock") == list(range(fusionctl.size()))


def test_objects_within_a_process_set() -> None:
    if fusionctl.size() == 1:
        return
    others = list(range(1, fusionctl.size()))
    chosen = fusionctl.add_process_set(others)
    if chosen.included():
        send = fusionctl.broadcast_object_fn(others[-1], "set", chosen)
        assert send(f"of rank {fusionctl.rank()}") == f"of rank {others[-1]}"
        assert fusionctl.allgather_object(fusionctl.rank(), "set", chosen) == others
        with pytest.raises(fusionctl.UsageError, match="root_rank is 0, but the ranks are"):
            fusionctl.broadcast_object(1, 0, process_set=chosen)
    else:
        with pytest.raises(fusionctl.UsageError, match="rank 0 is not in process set"):
            fusionctl.allgather_object(0, process_set=chosen)
        with pytest.raises(fusionctl.UsageError, match="rank 0 is not in process set"):
            fusionctl.broadcast_object(0, others[0], process_set=chosen)
    fusionctl.remove_process_set(chosen)


def test_a_rank_that_has_joined_has_no_object() -> None:
    if fusionctl.rank() > 0:
        assert fusionctl.allgather_object(fusionctl.rank(), "joined") == list(range(1, fusionctl.size()))
    fusionctl.join()
