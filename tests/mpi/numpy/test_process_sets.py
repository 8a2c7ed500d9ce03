"""Process sets: every collective among some of the ranks, sets that overlap, come and go."""

from __future__ import annotations

import numpy as np
import pytest

import fusionctl

SIZES = (1, 3, 4)
RANK = fusionctl.rank
SIZE = fusionctl.size


def pairs() -> list[fusionctl.ProcessSet]:
    """A set of each two neighbours, added on all ranks."""
    return [fusionctl.add_process_set([rank, rank + 1]) for rank in range(SIZE() - 1)]


def remove(sets: list[fusionctl.ProcessSet]) -> None:
    assert all(fusionctl.remove_process_set(each) for each in sets)


def test_overlapping_sets_reduce_their_own_tensors_of_one_name() -> None:
    sets = pairs()
    for _ in range(3):
        for each in sets if RANK() % 2 else reversed(sets):  # no order is common to all ranks
            if each.included():
                handle = fusionctl.allreduce_async(np.full(2, RANK()), "x", fusionctl.Sum, process_set=each)
                assert handle.result(60).tolist() == [sum(each.ranks)] * 2
    remove(sets)


def test_collectives_of_a_set_count_its_members() -> None:
    sets = pairs()
    for each in sets:
        if each.included():
            assert (each.size(), each.ranks[each.rank()]) == (2, RANK())
            last = each.ranks[-1]
            assert fusionctl.broadcast(np.array([RANK()]), last, "b", each).tolist() == [last]
            assert fusionctl.allgather(np.full(each.rank(), RANK()), "g", each).tolist() == [last]
            assert fusionctl.allreduce(np.array([RANK() + 0.5]), "a", process_set=each) == np.mean(each.ranks) + 0.5
            mine = fusionctl.reducescatter(np.arange(2), "r", fusionctl.Sum, process_set=each)
            assert mine.tolist() == [2 * each.rank()]
            fusionctl.barrier("barrier", each)
    remove(sets)


def test_a_set_outside_of_which_this_rank_is() -> None:
    if SIZE() > 1:
        first = fusionctl.add_process_set(fusionctl.ProcessSet([0]))
        if RANK() > 0:
            with pytest.raises(fusionctl.UsageError, match=f"rank {RANK()} is not in process set"):
                fusionctl.allreduce(np.ones(1), process_set=first)
        remove([first])


def test_sets_that_cannot_be() -> None:
    everyone = list(range(SIZE()))
    with pytest.raises(fusionctl.UsageError, match="already"):
        fusionctl.add_process_set(everyone)
    for wrong in ([], [SIZE()], [-1], [0, 0]):
        with pytest.raises(fusionctl.UsageError, match=f"give some of the ranks 0 to {SIZE() - 1}, each once"):
            fusionctl.add_process_set(wrong)
    with pytest.raises(fusionctl.UsageError, match="can not be removed"):
        fusionctl.remove_process_set(fusionctl.global_process_set)
    assert not fusionctl.remove_process_set(fusionctl.ProcessSet([0]))


def test_differing_members_are_a_mismatch_everywhere() -> None:
    if SIZE() > 1:
        with pytest.raises(fusionctl.MismatchError, match=r"^add_process_set\(\) is given \(0,\) on rank 0"):
            fusionctl.add_process_set([RANK()])


def test_a_removed_set_may_come_back() -> None:
    if SIZE() > 1:
        for _ in range(3):
            pair = fusionctl.add_process_set([0, 1])
            if pair.included():
                assert fusionctl.allreduce(np.ones(1), "again", fusionctl.Sum, process_set=pair).tolist() == [2.0]
            remove([pair])
            assert pair.process_set_id is None


def test_ranks_that_add_or_remove_different_sets() -> None:
    if SIZE() == 1:
        return
    first, second = fusionctl.add_process_set([0]), fusionctl.add_process_set([1])
    with pytest.raises(fusionctl.MismatchError, match=r"^remove_process_set\(\) is given .* on rank 0.*give the same"):
        fusionctl.remove_process_set(first if RANK() == 0 else second)
    with pytest.raises(fusionctl.FusionctlError, match=r"^add_process_set\(\) is given|process set of rank 0 already"):
        fusionctl.add_process_set([0] if RANK() == 0 else [0, 1])
    assert fusionctl.allreduce(np.ones(1), "still there", fusionctl.Sum).tolist() == [SIZE()]
    remove([first, second])


def test_a_set_that_is_there_is_refused_on_all_ranks() -> None:
    first = fusionctl.add_process_set([0, SIZE() - 1][: SIZE()]) if SIZE() > 1 else None
    if first is not None:
        with pytest.raises(fusionctl.UsageError, match="already"):
            fusionctl.add_process_set(first.ranks)
        remove([first])


@pytest.mark.parametrize("wrong", ["01", [0.5]])
def test_ranks_that_are_no_numbers(wrong: object) -> None:
    with pytest.raises(fusionctl.UsageError, match="a process set of "):
        fusionctl.add_process_set(wrong)  # type: ignore[arg-type]


def test_handles_that_are_none() -> None:
    for call in (fusionctl.poll, fusionctl.synchronize):
        with pytest.raises(fusionctl.UsageError, match="the handle is 3; give what an _async call returned"):
            call(3)  # type: ignore[arg-type]
