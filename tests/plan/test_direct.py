"""The direct exchange, whole."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.direct import direct
from fusionctl.plan.topology import fully_connected


def test_three_ranks_take_two_steps() -> None:
    assert str(direct(fully_connected(3))) == (
        "direct(3): allreduce, 3 ranks, 3 chunks, 2 steps\n"
        "0: +1 0->1, +2 0->2, +0 1->0, +2 1->2, +0 2->0, +1 2->1\n"
        "1: =0 0->1, =0 0->2, =1 1->0, =1 1->2, =2 2->0, =2 2->1"
    )


def test_one_rank_has_nothing_to_do() -> None:
    assert str(direct(1)) == "direct(1): allreduce, 1 ranks, 1 chunks, 0 steps"


@pytest.mark.parametrize("size", range(2, 18))
def test_all_contributions_to_a_chunk_meet_in_one_step(size: int) -> None:
    collect, spread = direct(size).steps
    ranks = range(size)
    assert [(s.chunk, s.src, s.dst) for s in collect.sends] == [(d, r, d) for r in ranks for d in ranks if d != r]
    assert [(s.chunk, s.src, s.dst) for s in spread.sends] == [(r, r, d) for r in ranks for d in ranks if d != r]


def test_no_ranks_exchange_nothing() -> None:
    with pytest.raises(UsageError, match=r"^there cannot be 0 ranks: give 1 or more$"):
        direct(0)
