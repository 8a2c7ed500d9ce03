"""The replay: what it accepts, what it says about each fault, and that no single change of a schedule escapes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fusionctl.plan import PLANNERS
from fusionctl.plan.direct import direct
from fusionctl.plan.ring import allgather, reduce_scatter, ring
from fusionctl.plan.schedule import CollectiveName, Schedule, ScheduleError, Send, Step
from fusionctl.plan.topology import Link, Topology, fully_connected
from fusionctl.plan.topology import ring as ring_topology
from fusionctl.plan.verify import verify


def schedule_of(
    *steps: list[Send], size: int = 3, n_chunks: int = 1, collective: CollectiveName = "allreduce"
) -> Schedule:
    return Schedule("made", collective, size, n_chunks, tuple(map(Step, steps)))


def plus(src: int, dst: int, chunk: int = 0, channel: int = 0) -> Send:
    return Send(chunk, src, dst, True, channel)


def copy(src: int, dst: int, chunk: int = 0, channel: int = 0) -> Send:
    return Send(chunk, src, dst, False, channel)


COLLECT = [plus(1, 0), plus(2, 0)]
SPREAD = [copy(0, 1), copy(0, 2)]


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("size", range(1, 18))
def test_every_planner_reduces_everything_everywhere(planner: str, size: int) -> None:
    schedule = PLANNERS[planner](size)
    assert verify(schedule, fully_connected(size)) is schedule


def test_the_halves_of_an_allreduce_do_their_part() -> None:
    for size in range(1, 9):
        verify(reduce_scatter(size), ring_topology(size))
        verify(allgather(size), ring_topology(size))


def test_several_ranks_may_reduce_into_one_chunk_in_one_step() -> None:
    verify(schedule_of(COLLECT, SPREAD))


def test_a_send_carries_what_its_rank_held_when_the_step_started() -> None:
    with pytest.raises(ScheduleError, match=r": rank 0 lacks the contribution of rank 2 to chunk 0$"):
        verify(schedule_of([plus(2, 1), plus(1, 0)], collective="reduce_scatter"))
    verify(schedule_of([plus(2, 1)], [plus(1, 0)], collective="reduce_scatter"))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            schedule_of(COLLECT),
            "made, at the end of 1 steps: rank 1 lacks the contribution of ranks 0, 2 to chunk 0",
        ),
        (
            schedule_of([plus(1, 0)], [copy(0, 1)]),
            "made, step 1: =0 0->1: rank 1 would replace chunk 0 by a copy that lacks the contribution of rank 2",
        ),
        (
            schedule_of(COLLECT, [plus(0, 1)]),
            "made, step 1: +0 0->1: rank 1 would count the contribution of rank 1 to chunk 0 twice",
        ),
        (
            schedule_of([plus(1, 0)], [plus(1, 2)], [plus(2, 0)]),
            "made, step 2: +0 2->0: rank 0 would count the contribution of rank 1 to chunk 0 twice",
        ),
        (
            schedule_of(COLLECT, SPREAD, [copy(1, 0)]),
            "made, step 2: =0 1->0: rank 0 already holds all of chunk 0",
        ),
        (
            schedule_of(COLLECT, [copy(0, 1)], [copy(0, 2), copy(1, 2)]),
            "made, step 2: rank 2 receives chunk 0 2 times, once at least to replace its own: =0 0->2, =0 1->2",
        ),
        (
            schedule_of(COLLECT, [copy(0, 1)], [plus(0, 2), copy(1, 2)]),
            "made, step 2: rank 2 receives chunk 0 2 times, once at least to replace its own: +0 0->2, =0 1->2",
        ),
        (schedule_of([plus(1, 3)]), "made, step 0: +0 1->3: there is no rank 3 among 3"),
        (schedule_of([], [plus(-1, 0)]), "made, step 1: +0 -1->0: there is no rank -1 among 3"),
        (schedule_of([plus(1, 1)]), "made, step 0: +0 1->1: rank 1 sends chunk 0 to itself"),
        (schedule_of([plus(1, 0, chunk=1)]), "made, step 0: +1 1->0: there is no chunk 1 among 1"),
        (schedule_of([plus(1, 0, channel=-1)]), "made, step 0: +0 1->0 @-1: a channel is 0 or more"),
        (
            schedule_of([copy(1, 2)], collective="allgather"),
            "made, step 0: =0 1->2: rank 2 would replace chunk 0 by a copy "
            "that lacks the contribution of ranks 0, 1, 2",
        ),
        (
            schedule_of([plus(1, 0)], collective="allgather"),
            "made, step 0: +0 1->0: rank 1 holds nothing of chunk 0 yet that could be reduced",
        ),
        (
            schedule_of([plus(0, 1)], collective="allgather"),
            "made, step 0: +0 0->1: rank 1 holds nothing of chunk 0 yet that could be reduced",
        ),
        (
            schedule_of([copy(0, 1)], collective="allgather"),
            "made, at the end of 1 steps: rank 2 lacks the contribution of ranks 0, 1, 2 to chunk 0",
        ),
        (
            schedule_of([plus(1, 0)], collective="reduce_scatter"),
            "made, at the end of 1 steps: rank 0 lacks the contribution of rank 2 to chunk 0",
        ),
        (schedule_of(n_chunks=0), "made: 3 ranks and 0 chunks: there must be 1 or more of each"),
        (schedule_of(size=0), "made: 0 ranks and 1 chunks: there must be 1 or more of each"),
    ],
)
def test_a_fault_is_named_with_its_step_rank_and_chunk(schedule: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError) as raised:
        verify(schedule)
    assert str(raised.value) == message


def test_chunks_that_go_together_are_one_message() -> None:
    steps = [[plus(1, 0), plus(1, 0, chunk=1)], [copy(0, 1), copy(0, 1, chunk=1)]]
    verify(schedule_of(*steps, size=2, n_chunks=2))


def test_two_chunks_may_share_a_link_on_two_channels() -> None:
    steps = [[plus(1, 0), plus(1, 0, chunk=1, channel=1)], [copy(0, 1), copy(0, 1, chunk=1, channel=1)]]
    verify(schedule_of(*steps, size=2, n_chunks=2))


def test_a_schedule_runs_on_a_topology_that_has_its_links() -> None:
    for size in range(1, 9):
        verify(ring(size), ring_topology(size))
    with pytest.raises(ScheduleError) as raised:
        verify(direct(4), ring_topology(4))
    assert str(raised.value) == ("direct(4), step 0: +2 0->2: topology ring(4) has no link from 0 to 2")


def star(channels: int = 1) -> Topology:
    """Three ranks around a switch, node 3."""
    link = Link(channels=channels)
    return Topology("star", 3, {pair: link for rank in range(3) for pair in ((rank, 3), (3, rank))}, switches=1)


def over(send: Send, channel: int = 0) -> Send:
    return send._replace(via=(3,), channel=channel)


def test_a_way_takes_all_its_links() -> None:
    apart = schedule_of(*[[over(send)] for send in (*COLLECT, *SPREAD)])
    verify(apart, star())
    assert str(apart.steps[0]) == "+0 1->3->0"
    with pytest.raises(ScheduleError, match=r"step 0: \+0 1->3->0 and \+0 2->3->0 conflict: the link from 3 to 0 "):
        verify(schedule_of([over(send) for send in COLLECT], [over(send) for send in SPREAD]), star())
    verify(
        schedule_of(*[[over(send, number) for number, send in enumerate(each)] for each in (COLLECT, SPREAD)]), star(2)
    )


def test_a_link_has_so_many_channels() -> None:
    with pytest.raises(ScheduleError, match="the link from 1 to 3 of topology star has 2 channels, of which 2 is none"):
        verify(schedule_of([over(plus(1, 0), 2)]), star(2))


def test_a_schedule_and_its_topology_have_as_many_ranks() -> None:
    with pytest.raises(ScheduleError, match=r"^ring\(4\) is for 4 ranks, but topology small has 3$"):
        verify(ring(4), Topology("small", 3, {}))


def changed(schedule: Schedule, step: int, sends: list[Send]) -> Schedule:
    return replace(schedule, steps=(*schedule.steps[:step], Step(sends), *schedule.steps[step + 1 :]))


@st.composite
def mutants(draw: st.DrawFn) -> tuple[Schedule, Schedule]:
    """A planner's schedule, and the same after one send was dropped, duplicated, or changed in one of its fields."""
    schedule = draw(st.sampled_from(sorted(PLANNERS.items())))[1](draw(st.integers(2, 7)))
    step = draw(st.integers(0, len(schedule.steps) - 1))
    sends = list(schedule.steps[step].sends)
    send = sends.pop(draw(st.integers(0, len(sends) - 1)))
    ranks, chunks = st.integers(0, schedule.size - 1), st.integers(0, schedule.n_chunks - 1)
    kind = draw(st.sampled_from(["drop", "duplicate", "src", "dst", "chunk", "reduce"]))
    if kind == "drop":
        return schedule, changed(schedule, step, sends)
    if kind == "duplicate":
        other = draw(st.integers(0, len(schedule.steps) - 1))
        return schedule, changed(
            schedule, other, [*schedule.steps[other].sends, send._replace(channel=draw(st.integers(0, 1)))]
        )
    fields = {"src": ranks, "dst": ranks, "chunk": chunks, "reduce": st.just(not send.reduce)}
    altered = Send(**(send._asdict() | {kind: draw(fields[kind])}))
    assume(altered != send)
    return schedule, changed(schedule, step, [*sends, altered])


def own_links(schedule: Schedule) -> Topology:
    """No links but those that the unchanged schedule uses."""
    sends = [send for step in schedule.steps for send in step.sends]
    return Topology("own", schedule.size, {(send.src, send.dst): Link() for send in sends})


@given(mutants())
def test_no_single_change_escapes_on_the_links_that_the_schedule_needs(mutant: tuple[Schedule, Schedule]) -> None:
    original, mutated = mutant
    with pytest.raises(ScheduleError):
        verify(mutated, own_links(original))


def replayed(schedule: Schedule) -> list[list[int]]:
    """What each rank holds of each chunk if rank r contributes (size + 1) ** r, so that each count can be read."""
    held = [[(schedule.size + 1) ** rank] * schedule.n_chunks for rank in range(schedule.size)]
    for step in schedule.steps:
        before = [list(chunks) for chunks in held]
        for send in step.sends:
            own = held[send.dst][send.chunk] if send.reduce else 0
            held[send.dst][send.chunk] = own + before[send.src][send.chunk]
    return held


def accepted(schedule: Schedule) -> bool:
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


@given(mutants())
def test_what_is_accepted_gives_every_rank_the_sum_of_all(mutant: tuple[Schedule, Schedule]) -> None:
    total = sum((mutant[1].size + 1) ** rank for rank in range(mutant[1].size))
    for schedule in filter(accepted, mutant):
        assert replayed(schedule) == [[total] * schedule.n_chunks] * schedule.size
