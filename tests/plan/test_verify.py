"""The replay: what it accepts, and what it says about each fault."""

from __future__ import annotations

import pytest

from fusionctl.plan.direct import direct
from fusionctl.plan.ring import allgather, reduce_scatter, ring
from fusionctl.plan.schedule import CollectiveName, Schedule, ScheduleError, Send, Step
from fusionctl.plan.topology import Link, Topology
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
