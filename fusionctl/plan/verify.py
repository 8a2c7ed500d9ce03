"""Symbolic replay of a schedule: who has contributed to each rank's copy of each chunk, step by step.

The state is one bit mask per (rank, chunk), bit r for the contribution of rank r.  Reducing two copies whose masks
overlap would count a contribution twice; a hole at the end is a lost one.  A collective is its masks before and after.
A channel of a link carries one message in each step: the chunks that go the whole way together are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusionctl.plan.schedule import Schedule, ScheduleError, Send, Step
from fusionctl.plan.topology import Topology

Masks = list[list[int]]
"""Contributors as bits, indexed by rank, then by chunk."""

BEFORE = {"allreduce": "own", "reduce_scatter": "own", "allgather": "owner"}
"""Each rank holds its own contribution to each chunk, or the chunk's owner holds the whole and nobody else a part."""

AFTER = {"allreduce": "all", "reduce_scatter": "owner", "allgather": "all"}
"""Each rank holds the whole of each chunk, or the chunk's owner does."""


def verify(schedule: Schedule, topology: Topology | None = None) -> Schedule:
    """Return the schedule if it does what it says, on the links of the topology if one is given.

    ScheduleError names the step, the rank and the chunk, and says what is wrong: a rank, chunk, link or channel that
    does not exist, two messages on one channel of a link in one step, two receives that contradict each other, a
    contribution that is counted twice or lost, a copy that is empty, incomplete or already there.
    """
    if schedule.size < 1 or schedule.n_chunks < 1:
        raise ScheduleError(
            f"{schedule.name}: {schedule.size} ranks and {schedule.n_chunks} chunks: there must be 1 or more of each"
        )
    if topology is not None and topology.size != schedule.size:
        raise ScheduleError(
            f"{schedule.name} is for {schedule.size} ranks, but topology {topology.name} has {topology.size}"
        )
    masks = _before(schedule)
    for i, step in enumerate(schedule.steps):
        where = f"{schedule.name}, step {i}"
        _check_sends(where, schedule, topology, step)
        _replay(where, masks, step, complete=_everyone(schedule))
    _check_end(schedule, masks)
    return schedule


def _everyone(schedule: Schedule) -> int:
    return (1 << schedule.size) - 1


def _before(schedule: Schedule) -> Masks:
    ranks, chunks = range(schedule.size), range(schedule.n_chunks)
    if BEFORE[schedule.collective] == "own":
        return [[1 << rank for _ in chunks] for rank in ranks]
    return [[_everyone(schedule) if schedule.owner(chunk) == rank else 0 for chunk in chunks] for rank in ranks]


def _check_sends(where: str, schedule: Schedule, topology: Topology | None, step: Step) -> None:
    busy: dict[tuple[int, int, int], Send] = {}
    for send in step.sends:
        _check_range(where, schedule, send)
        for src, dst in send.hops:
            if topology is not None:
                _check_hop(f"{where}: {send}", topology, src, dst, send.channel)
            other = busy.setdefault((src, dst, send.channel), send)
            if other.nodes != send.nodes:
                raise ScheduleError(
                    f"{where}: {other} and {send} conflict: the link from {src} to {dst} "
                    f"carries one message at a time on channel {send.channel}"
                )


def _check_hop(where: str, topology: Topology, src: int, dst: int, channel: int) -> None:
    link = topology.links.get((src, dst))
    if link is None:
        raise ScheduleError(f"{where}: topology {topology.name} has no link from {src} to {dst}")
    if channel >= link.channels:
        raise ScheduleError(
            f"{where}: the link from {src} to {dst} of topology {topology.name} has {link.channels} channels, "
            f"of which {channel} is none"
        )


def _check_range(where: str, schedule: Schedule, send: Send) -> None:
    for rank in (send.src, send.dst):
        if not 0 <= rank < schedule.size:
            raise ScheduleError(f"{where}: {send}: there is no rank {rank} among {schedule.size}")
    if send.src == send.dst:
        raise ScheduleError(f"{where}: {send}: rank {send.src} sends chunk {send.chunk} to itself")
    if not 0 <= send.chunk < schedule.n_chunks:
        raise ScheduleError(f"{where}: {send}: there is no chunk {send.chunk} among {schedule.n_chunks}")
    if send.channel < 0:
        raise ScheduleError(f"{where}: {send}: a channel is 0 or more")


def _replay(where: str, masks: Masks, step: Step, complete: int) -> None:
    arrivals: dict[tuple[int, int], list[tuple[Send, int]]] = defaultdict(list)
    for send in step.sends:
        arrivals[send.dst, send.chunk].append((send, masks[send.src][send.chunk]))
    for (rank, chunk), received in arrivals.items():
        sends = [send for send, _ in received]
        if not all(send.reduce for send in sends) and len(sends) > 1:
            raise ScheduleError(
                f"{where}: rank {rank} receives chunk {chunk} {len(sends)} times, once at least to replace its own: "
                + ", ".join(map(str, sends))
            )
        for send, mask in received:
            check = _check_reduce if send.reduce else _check_copy
            check(f"{where}: {send}", send, mask, masks[rank][chunk], complete)
            masks[rank][chunk] |= mask


def _check_reduce(where: str, send: Send, arriving: int, held: int, complete: int) -> None:
    for rank, mask in ((send.src, arriving), (send.dst, held)):
        if mask == 0:
            raise ScheduleError(f"{where}: rank {rank} holds nothing of chunk {send.chunk} yet that could be reduced")
    if arriving & held:
        raise ScheduleError(
            f"{where}: rank {send.dst} would count the contribution of {_ranks(arriving & held)} "
            f"to chunk {send.chunk} twice"
        )


def _check_copy(where: str, send: Send, arriving: int, held: int, complete: int) -> None:
    if arriving != complete:
        raise ScheduleError(
            f"{where}: rank {send.dst} would replace chunk {send.chunk} by a copy "
            f"that lacks the contribution of {_ranks(complete & ~arriving)}"
        )
    if held == complete:
        raise ScheduleError(f"{where}: rank {send.dst} already holds all of chunk {send.chunk}")


def _check_end(schedule: Schedule, masks: Masks) -> None:
    for rank, chunk in _wanted(schedule):
        missing = _everyone(schedule) & ~masks[rank][chunk]
        if missing:
            raise ScheduleError(
                f"{schedule.name}, at the end of {len(schedule.steps)} steps: "
                f"rank {rank} lacks the contribution of {_ranks(missing)} to chunk {chunk}"
            )


def _wanted(schedule: Schedule) -> Iterator[tuple[int, int]]:
    for chunk in range(schedule.n_chunks):
        if AFTER[schedule.collective] == "owner":
            yield schedule.owner(chunk), chunk
        else:
            yield from ((rank, chunk) for rank in range(schedule.size))


def _ranks(mask: int) -> str:
    ranks = [str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
