"""The ring schedule, whole."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.ring import ring
from fusionctl.plan.topology import ring as ring_topology


def test_three_ranks_take_four_steps() -> None:
    assert str(ring(ring_topology(3))) == (
        "ring(3): allreduce, 3 ranks, 3 chunks, 4 steps\n"
        "0: +2 0->1, +0 1->2, +1 2->0\n"
        "1: +1 0->1, +2 1->2, +0 2->0\n"
        "2: =0 0->1, =1 1->2, =2 2->0\n"
        "3: =2 0->1, =0 1->2, =1 2->0"
    )


def test_two_ranks_exchange_halves_twice() -> None:
    assert str(ring(2)) == ("ring(2): allreduce, 2 ranks, 2 chunks, 2 steps\n0: +1 0->1, +0 1->0\n1: =0 0->1, =1 1->0")


def test_one_rank_has_nothing_to_do() -> None:
    assert str(ring(1)) == "ring(1): allreduce, 1 ranks, 1 chunks, 0 steps"


@pytest.mark.parametrize("size", range(1, 34))
def test_each_rank_sends_one_chunk_in_each_of_two_times_n_minus_one_steps(size: int) -> None:
    schedule = ring(size)
    assert len(schedule.steps) == 2 * (size - 1)
    for step in schedule.steps:
        assert [(send.src, send.dst) for send in step.sends] == [(rank, (rank + 1) % size) for rank in range(size)]


def test_no_ranks_are_no_ring() -> None:
    with pytest.raises(UsageError, match=r"^there cannot be 0 ranks: give 1 or more$"):
        ring(0)
