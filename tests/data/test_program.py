"""Programs: their exact words, and what they compute when all ranks run theirs in lockstep, in NumPy."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionctl.data.program import RECV, RECV_REDUCE, SEND, Program, program_of
from fusionctl.plan import PLANNERS, Schedule, ScheduleError, Send, Step
from fusionctl.plan.direct import direct
from fusionctl.plan.ring import ring
from fusionctl.plan.verify import verify

Array = NDArray[Any]


CASES = [(name, size) for name in PLANNERS for size in range(1, 17) if name != "swing" or size & (size - 1) == 0]
"""All planners and the numbers of ranks that they are tested at; Swing is for powers of two."""


def records_by_step(program: Program) -> Iterator[list[list[int]]]:
    words = deque(program.tolist())
    _, n_steps = words.popleft(), words.popleft()
    for _ in range(n_steps):
        n_records = words.popleft()
        yield [[words.popleft() for _ in range(4)] for _ in range(n_records)]
    assert not words


class Lockstep:
    """All ranks of a schedule, each with its program and its buffer; messages of a pair arrive in the order sent."""

    def __init__(self, schedule: Schedule, buffers: list[Array]) -> None:
        self.schedule = schedule
        self.buffers = [buffer.copy() for buffer in buffers]
        self.sent_bytes = [0] * schedule.size
        programs = [program_of(schedule, rank) for rank in range(schedule.size)]
        assert [program[0] for program in programs] == [schedule.n_chunks] * schedule.size
        for step in zip(*map(records_by_step, programs), strict=True):
            self.run(step)

    def run(self, step: tuple[list[list[int]], ...]) -> None:
        wire: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        for rank, records in enumerate(step):
            for _, peer, chunk, _ in (record for record in records if record[0] == SEND):
                wire[rank, peer].append(self.chunk(rank, chunk).copy())
                self.sent_bytes[rank] += wire[rank, peer][-1].nbytes
        for rank, records in enumerate(step):
            self.receive(rank, [record for record in records if record[0] != SEND], wire)
        assert not any(wire.values())

    def receive(self, rank: int, records: list[list[int]], wire: dict[tuple[int, int], deque[Array]]) -> None:
        contributions: dict[int, dict[int, Array]] = defaultdict(dict)
        for kind, peer, chunk, _ in records:
            arrived = wire[peer, rank].popleft()
            if kind == RECV:
                self.chunk(rank, chunk)[:] = arrived
            else:
                assert kind == RECV_REDUCE
                contributions[chunk][peer] = arrived
        for chunk, by_rank in contributions.items():
            by_rank[rank] = self.chunk(rank, chunk).copy()
            self.chunk(rank, chunk)[:] = functools.reduce(np.add, [by_rank[source] for source in sorted(by_rank)])

    def chunk(self, rank: int, chunk: int) -> Array:
        return self.buffers[rank][slice(*self.schedule.bounds(chunk, self.buffers[rank].size))]


def integers(size: int, n: int) -> list[Array]:
    rng = np.random.default_rng(size * 1000 + n)
    return [rng.integers(-(2**40), 2**40, n) for _ in range(size)]


@pytest.mark.parametrize(("planner", "size"), CASES)
@pytest.mark.parametrize("n", [0, 1, 5, 16, 101])
def test_all_programs_together_give_every_rank_the_sum(planner: str, size: int, n: int) -> None:
    arrays = integers(size, n)
    reduced = Lockstep(PLANNERS[planner](size), arrays).buffers
    assert [buffer.tolist() for buffer in reduced] == [np.sum(arrays, axis=0).tolist()] * size


@pytest.mark.parametrize(("planner", "size"), CASES)
@pytest.mark.parametrize("n", [1, 101])
def test_each_rank_sends_the_bytes_that_the_schedule_says(planner: str, size: int, n: int) -> None:
    schedule = PLANNERS[planner](size)
    expected = [0] * size
    for step in schedule.steps:
        for send in step.sends:
            start, end = schedule.bounds(send.chunk, n)
            expected[send.src] += (end - start) * 8
    assert Lockstep(schedule, integers(size, n)).sent_bytes == expected
    if planner in ("direct", "ring"):
        assert sum(expected) == 2 * (size - 1) * n * 8


@pytest.mark.parametrize("size", range(1, 17))
def test_direct_adds_in_rank_order(size: int) -> None:
    arrays = [np.random.default_rng(rank).normal(size=101).astype(np.float32) for rank in range(size)]
    expected = functools.reduce(np.add, arrays)
    assert [buffer.tobytes() for buffer in Lockstep(direct(size), arrays).buffers] == [expected.tobytes()] * size


def test_a_step_lists_its_receives_and_then_its_sends() -> None:
    program = program_of(ring(3), 1)
    assert program.dtype == np.int32
    # n_chunks, n_steps; n_records; kind, peer, chunk, channel
    assert program.tolist() == [
        *(3, 4),
        *(2, RECV_REDUCE, 0, 2, 0, SEND, 2, 0, 0),
        *(2, RECV_REDUCE, 0, 1, 0, SEND, 2, 2, 0),
        *(2, RECV, 0, 0, 0, SEND, 2, 1, 0),
        *(2, RECV, 0, 2, 0, SEND, 2, 0, 0),
    ]  # fmt: skip


def test_receives_are_sorted_by_chunk_and_peer_and_sends_by_peer_and_chunk() -> None:
    assert program_of(direct(3), 1).tolist() == [
        *(3, 2),
        *(4, RECV_REDUCE, 0, 1, 0, RECV_REDUCE, 2, 1, 0, SEND, 0, 0, 0, SEND, 2, 2, 0),
        *(4, RECV, 0, 0, 0, RECV, 2, 2, 0, SEND, 0, 1, 0, SEND, 2, 1, 0),
    ]


def test_channels_are_kept_and_a_step_without_this_rank_is_empty() -> None:
    steps = (
        Step([Send(1, 0, 1, reduce=True, channel=1), Send(0, 0, 1, reduce=True)]),
        Step([]),
        Step([Send(1, 1, 0, reduce=False), Send(0, 1, 0, reduce=False, channel=1)]),
    )
    schedule = verify(Schedule("made(2)", "allreduce", 2, 2, steps))
    assert program_of(schedule, 1).tolist() == [
        *(2, 3),
        *(2, RECV_REDUCE, 0, 0, 0, RECV_REDUCE, 0, 1, 1),
        0,
        *(2, SEND, 0, 0, 1, SEND, 0, 1, 0),
    ]
    assert [buffer.tolist() for buffer in Lockstep(schedule, integers(2, 7)).buffers] == [
        np.sum(integers(2, 7), axis=0).tolist()
    ] * 2


def test_one_rank_has_no_steps() -> None:
    assert [program_of(PLANNERS[name](1), 0).tolist()[1:] for name in PLANNERS] == [[0]] * len(PLANNERS)


def test_a_chunk_cannot_arrive_in_the_place_that_it_is_sent_from() -> None:
    steps = (
        Step([Send(0, 1, 0, reduce=True), Send(0, 2, 0, reduce=True)]),
        Step([Send(0, 0, 1, reduce=False), Send(0, 1, 2, reduce=True)]),
        Step([Send(0, 0, 2, reduce=False)]),
    )
    schedule = verify(Schedule("racy(3)", "allreduce", 3, 1, steps))
    with pytest.raises(ScheduleError) as raised:
        program_of(schedule, 1)
    assert str(raised.value) == (
        "racy(3), step 1: rank 1 sends chunk 0 to rank 2 on channel 0 while rank 0 replaces it: "
        "move one of the two into another step"
    )


def test_a_chunk_may_be_sent_while_contributions_to_it_arrive() -> None:
    steps = (Step([Send(0, 0, 1, reduce=True), Send(0, 1, 0, reduce=True)]),)
    schedule = verify(Schedule("exchange(2)", "allreduce", 2, 1, steps))
    assert [buffer.tolist() for buffer in Lockstep(schedule, integers(2, 7)).buffers] == [
        np.sum(integers(2, 7), axis=0).tolist()
    ] * 2
