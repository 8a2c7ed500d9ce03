"""Recursive doubling, whole."""

from __future__ import annotations

import pytest

from fusionctl.plan.recursive import recursive


def test_ranks_beyond_a_power_of_two_add_theirs_first_and_get_the_result_last() -> None:
    assert str(recursive(3)) == (
        "recursive(3): allreduce, 3 ranks, 1 chunks, 3 steps\n0: +0 2->0\n1: +0 0->1, +0 1->0\n2: =0 0->2"
    )


def test_one_rank_has_nothing_to_do() -> None:
    assert str(recursive(1)) == "recursive(1): allreduce, 1 ranks, 1 chunks, 0 steps"


@pytest.mark.parametrize(("size", "steps"), [(2, 1), (4, 2), (5, 4), (8, 3), (15, 5), (16, 4)])
def test_steps_grow_with_the_logarithm(size: int, steps: int) -> None:
    assert len(recursive(size).steps) == steps
