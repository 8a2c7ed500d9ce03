"""join: ranks without more data change no result of the others; and Adasum, to which nothing adds nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusionctl
from fusionctl import _board, runtime
from fusionctl.request import DTYPES, Collective, Group, Request

RANK = fusionctl.rank
SIZE = fusionctl.size


def steps_of(rank: int) -> int:
    return 2 + 2 * rank


def step(name: str) -> list[list[Any]]:
    """What each collective gives where this rank's value is its rank plus one."""
    value = RANK() + 1
    return [
        fusionctl.allreduce(np.array([value], "float64"), f"{name}.average").tolist(),
        fusionctl.allreduce(np.array([value], "int32"), f"{name}.mean").tolist(),
        fusionctl.allreduce(np.array([value], "float16"), f"{name}.half").tolist(),
        fusionctl.allreduce(np.array([value]), f"{name}.min", fusionctl.Min).tolist(),
        fusionctl.allreduce(np.array([-value], "float32"), f"{name}.max", fusionctl.Max).tolist(),
        fusionctl.allreduce(np.array([value]), f"{name}.product", fusionctl.Product).tolist(),
        fusionctl.allgather(np.full(1, value), f"{name}.rows").tolist(),
    ]


def expected(active: list[int]) -> list[list[Any]]:
    values = [rank + 1 for rank in active]
    mean = sum(values) / len(values)
    return [[mean], [int(mean)], [mean], [min(values)], [-min(values)], [int(np.prod(values))], values]


@pytest.mark.parametrize("name", ["known", "known", "changed"])
def test_the_ranks_that_are_left_go_on_alone(name: str) -> None:
    for count in range(steps_of(RANK())):
        active = [rank for rank in range(SIZE()) if steps_of(rank) > count]
        np.testing.assert_allclose(np.concatenate(step(name)), np.concatenate(expected(active)), rtol=1e-3)
    assert fusionctl.join() == SIZE() - 1
    assert step(name)[-1] == expected(list(range(SIZE())))[-1]


def test_tensors_that_a_joined_rank_has_never_seen() -> None:
    if RANK() == SIZE() - 1:
        total = fusionctl.allreduce(np.full(3, 2.0), "seen by the last rank only", fusionctl.Sum)
        assert total.tolist() == [2.0] * 3
    assert 0 <= fusionctl.join() < SIZE()
    # and all of them with another shape, later
    assert fusionctl.allreduce(np.ones(5), "seen by the last rank only", fusionctl.Sum).tolist() == [SIZE()] * 5


def test_a_broadcast_from_a_rank_that_has_joined_is_an_error() -> None:
    if RANK() > 0:
        with pytest.raises(fusionctl.UsageError, match="the root of this broadcast has joined"):
            fusionctl.broadcast(np.ones(1), 0, "from the joined")
    fusionctl.join()


def test_join_waits_for_nothing_that_is_in_flight() -> None:
    if SIZE() > 1 and RANK() == 0:
        handle = fusionctl.allreduce_async(np.ones(1), "in flight")
        with pytest.raises(fusionctl.UsageError, match="tensor 'in flight' is still in flight on this rank"):
            fusionctl.join()
        handle.result(60)
    elif SIZE() > 1:
        fusionctl.allreduce(np.ones(1), "in flight")
    fusionctl.join()


def test_the_last_rank_is_told_although_the_others_join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = runtime.current()
    agree = here._agree

    def agree_slowly(*args: Any) -> None:
        agree(*args)
        assert fusionctl.allreduce(np.ones(1), "of another thread", fusionctl.Sum).tolist() == [1.0]  # all have joined

    with monkeypatch.context() as patch:
        if RANK() == 0 and SIZE() > 1:
            patch.setattr(here, "_agree", agree_slowly)
        first = fusionctl.join()
    last = fusionctl.join()
    assert set(fusionctl.allgather(np.array([[first, last]])).T.tolist()[0]) == {first}
    assert 0 <= first < SIZE()
    assert SIZE() == 1 or last == 0  # which joined when all others had


def test_the_ranks_that_are_left_disagree_among_themselves() -> None:
    for name in ("disputed", "disputed", "disputed by others"):
        if RANK() < 2 and SIZE() > 1:
            with pytest.raises(fusionctl.MismatchError, match=r"shape is \(2,\) on rank 0 and \(3,\) on rank 1"):
                fusionctl.allreduce(np.ones(2 + RANK()), name)
        fusionctl.join()
        # the ranks that had joined have nothing to do with it
        assert fusionctl.allreduce(np.ones(4), name, fusionctl.Sum).tolist() == [SIZE()] * 4


def test_a_name_that_meant_another_collective_meanwhile() -> None:
    fusionctl.allreduce(np.ones(2), "meaning")
    if RANK() == 0:
        assert fusionctl.allgather(np.ones(2), "meaning").tolist() == [1.0, 1.0]
    fusionctl.join()
    if SIZE() > 1:
        with pytest.raises(fusionctl.MismatchError, match="collective is allgather on rank 0 and allreduce on rank"):
            fusionctl.allgather(np.ones(2), "meaning") if RANK() == 0 else fusionctl.allreduce(np.ones(2), "meaning")
    assert fusionctl.allreduce(np.ones(2), "meaning", fusionctl.Sum).tolist() == [SIZE()] * 2


def group_of(name: str, counts: dict[str, int], fuses_whole: bool = False) -> Group:
    requests = [Request(member, Collective.ALLREDUCE, "float64", (count,)) for member, count in counts.items()]
    return Group(name, tuple(requests), fuses_whole)


def submit(slot: int, array: Any, result: Any) -> None:
    """What an op in a graph does, which keeps the slot that it was traced with."""
    addresses = [memory.__array_interface__["data"][0] for memory in (array, result)]
    runtime.check_status(*_board.submit(slot, DTYPES.index("float64"), array.shape, *addresses))


def test_members_that_the_ranks_have_in_orders_of_their_own() -> None:
    counts = {"a": 2, "b": 2} if RANK() == 0 else {"b": 2, "a": 2}
    arrays = {"a": np.full(2, 1.0), "b": np.full(2, 10.0)}

    def reduce(slots: list[int]) -> list[float]:
        results = {member: np.zeros(2) for member in counts}
        for slot, member in zip(slots, counts, strict=True):
            submit(slot, arrays[member], results[member])
        runtime.current().wait(slots)
        return [*results["a"], *results["b"]]

    slots = runtime.current().register(group_of("orders", counts))
    assert reduce(slots) == [SIZE()] * 2 + [10 * SIZE()] * 2
    if RANK() == 0:
        assert reduce(runtime.current().register(group_of("orders", counts, fuses_whole=True))) == [1, 1, 10, 10]
    fusionctl.join()
    assert reduce(slots) == [SIZE()] * 2 + [10 * SIZE()] * 2


def test_a_group_whose_shapes_were_others_meanwhile() -> None:
    slots = runtime.current().register(group_of("shapes", {"a": 1, "b": 2}))
    arrays, results = [np.ones(1), np.ones(2)], [np.zeros(1), np.zeros(2)]

    def send(*indices: int) -> None:
        for index in indices:
            submit(slots[index], arrays[index], results[index])

    def received() -> list[float]:
        runtime.current().wait(slots)
        return [*results[0], *results[1]]

    send(0, 1)
    assert received() == [SIZE()] * 3
    if RANK() < SIZE() - 1:
        others = runtime.current().register(group_of("shapes", {"a": 1, "b": 1}))
        for slot, array, result in zip(others, arrays, results, strict=True):
            submit(slot, array[:1], result)
        runtime.current().wait(others)
        assert results[1][0] == SIZE() - 1
    fusionctl.join()
    if RANK() < SIZE() - 1:
        runtime.current().register(group_of("shapes", {"a": 1, "b": 2}))
        send(0, 1)
    else:
        send(0)  # which is as it was meanwhile
    for number in range(3):
        fusionctl.barrier(f"each rank tells what it waits for {number}")
    if RANK() == SIZE() - 1:
        send(1)
    assert received() == [SIZE()] * 3


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adasum_adds_the_orthogonal_and_averages_the_equal(dtype: str) -> None:
    orthogonal = fusionctl.allreduce(2 * np.eye(SIZE(), dtype=dtype)[RANK()], f"orthogonal.{dtype}", fusionctl.Adasum)
    assert orthogonal.tolist() == [2.0] * SIZE()
    equal = fusionctl.grouped_allreduce([np.ones(3, dtype), np.full(4, 2, dtype)], f"equal.{dtype}", fusionctl.Adasum)
    assert [tensor.tolist() for tensor in equal] == [[1.0] * 3, [2.0] * 4]


def test_adasum_combines_neighbours_first() -> None:
    vectors = [np.random.default_rng(rank).normal(size=50) for rank in range(SIZE())]

    def combined(a: Any, b: Any) -> Any:
        return (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b

    power = 1 << (SIZE().bit_length() - 1)
    level = [combined(vectors[r], vectors[power + r]) if power + r < SIZE() else vectors[r] for r in range(power)]
    while len(level) > 1:
        level = [combined(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    result = fusionctl.allreduce(vectors[RANK()], "tree", fusionctl.Adasum)
    np.testing.assert_allclose(result, level[0], rtol=1e-12)
