"""Schedules as values: how they print, compare, cut a buffer and are put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.plan.schedule import CollectiveName, Schedule, ScheduleError, Send, Step, concatenate


def empty(size: int, n_chunks: int, collective: CollectiveName = "allreduce", name: str = "empty") -> Schedule:
    return Schedule(name, collective, size, n_chunks, ())


def test_a_schedule_prints_a_head_and_one_line_per_step() -> None:
    steps = (Step([Send(0, 1, 0, reduce=True, channel=2)]), Step([]), Step([Send(0, 0, 1, reduce=False)]))
    assert str(Schedule("example(2)", "allreduce", 2, 1, steps)) == (
        "example(2): allreduce, 2 ranks, 1 chunks, 3 steps\n0: +0 1->0 @2\n1: \n2: =0 0->1"
    )


@given(st.permutations([Send(1, 0, 1, True), Send(0, 0, 1, True, 1), Send(0, 0, 2, True), Send(0, 1, 0, True)]))
def test_a_step_means_the_same_in_whatever_order_its_sends_are_given(sends: list[Send]) -> None:
    assert str(Step(sends)) == "+0 0->1 @1, +1 0->1, +0 0->2, +0 1->0"
    assert Step(sends) == Step(reversed(sends))
    assert hash(Step(sends)) == hash(Step(reversed(sends)))


@given(st.integers(1, 40), st.integers(0, 200))
def test_the_chunks_cover_a_buffer_in_order_and_differ_by_one_element_at_most(n_chunks: int, n: int) -> None:
    bounds = [empty(1, n_chunks).bounds(chunk, n) for chunk in range(n_chunks)]
    assert [bounds[0][0], *(end for _, end in bounds)] == [*(start for start, _ in bounds), n]
    assert {end - start for start, end in bounds} <= {n // n_chunks, -(-n // n_chunks)}


def test_chunks_are_owned_in_rank_order() -> None:
    assert [empty(4, 4).owner(chunk) for chunk in range(4)] == [0, 1, 2, 3]
    assert [empty(2, 6).owner(chunk) for chunk in range(6)] == [0, 0, 0, 1, 1, 1]
    assert empty(5, 1).owner(0) == 0


def test_a_reduce_scatter_and_an_allgather_make_an_allreduce() -> None:
    up, down = Step([Send(0, 1, 0, reduce=True)]), Step([Send(0, 0, 1, reduce=False)])
    halves = Schedule("up", "reduce_scatter", 2, 1, (up,)), Schedule("down", "allgather", 2, 1, (down,))
    assert concatenate("both", *halves) == Schedule("both", "allreduce", 2, 1, (up, down))


def test_only_a_reduce_scatter_and_an_allgather_fit_together() -> None:
    with pytest.raises(ScheduleError, match=r"^both: down is of kind allgather where reduce_scatter was expected$"):
        concatenate("both", empty(2, 2, "allgather", "down"), empty(2, 2, "reduce_scatter", "up"))


@pytest.mark.parametrize(("size", "n_chunks"), [(3, 2), (2, 4)])
def test_halves_of_different_shape_do_not_fit_together(size: int, n_chunks: int) -> None:
    message = f"^both: up has 2 ranks and 2 chunks, down has {size} ranks and {n_chunks} chunks: they must be equal$"
    with pytest.raises(ScheduleError, match=message):
        concatenate("both", empty(2, 2, "reduce_scatter", "up"), empty(size, n_chunks, "allgather", "down"))
