"""Swing: whom ranks meet, and that it is for powers of two."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.swing import allgather, partner, reduce_scatter, swing
from fusionctl.plan.topology import ring
from fusionctl.plan.verify import verify


def test_partners_are_one_then_one_then_three_then_five_apart_on_alternating_sides() -> None:
    assert [partner(0, step, 64) for step in range(6)] == [1, 63, 3, 59, 11, 43]
    assert [partner(7, step, 64) for step in range(6)] == [6, 8, 4, 12, 60, 28]


@pytest.mark.parametrize("size", [2, 4, 8, 16, 32, 64])
def test_each_rank_meets_one_that_meets_it(size: int) -> None:
    for step in range(size.bit_length() - 1):
        met = [partner(rank, step, size) for rank in range(size)]
        assert [met[other] for other in met] == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32])
def test_the_halves_of_an_allreduce_do_their_part(size: int) -> None:
    verify(reduce_scatter(size))
    verify(allgather(size))


@pytest.mark.parametrize("size", [3, 5, 6, 7, 12, 63])
def test_the_number_of_ranks_is_a_power_of_two(size: int) -> None:
    for topology in (size, ring(size)):
        with pytest.raises(UsageError) as raised:
            swing(topology)
        assert str(raised.value) == (
            f"swing is for 1, 2, 4, 8, ... ranks, not for {size}: rabenseifner is for any number"
        )
