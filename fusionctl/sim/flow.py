"""Flow-level timing: sends are flows that share the tracks of their ways max-min fairly, and ranks drift apart.

Two exact ways to the same numbers.  Where each track only ever carries the sends of one rank, and no two of one step,
nothing is shared, for a rank starts its part of a step when its sends of the one before are done: then a step is a few
array operations (`_unshared`).  Otherwise time goes from event to event (`_shared`), an event being all that begins or
ends at that time; rates change only within the groups of flows that may share tracks (`sharing`).
"""

from __future__ import annotations

import heapq

import numpy as np

from fusionctl.plan import Topology
from fusionctl.sim.network import Floats, Ints, Moves, Network, Source
from fusionctl.sim.result import Recorder, Result, grown
from fusionctl.sim.sharing import ROUNDING, Group, groups_of


def flow(schedule: Source, topology: Topology, nbytes: int, *, events: bool = True) -> Result:
    """Time a schedule as the engine executes it, on links that are shared max-min fairly.

    A rank starts its sends of a step when its own part of the one before, what it sends and what it receives, is
    complete; a rank without a part in a step passes over it.  A send is a flow: after the sum of the latencies of its
    way it moves its chunk at the rate that progressive filling gives it on the tracks of the way, whether or not the
    receiver has come to that step.  Where links are shared, a few bytes more may take less time, as ranks drift apart.

    ScheduleError if a way, a link or a channel does not exist or the numbers of ranks differ; UsageError for bytes
    below 0.
    """
    return _unshared(schedule, topology, nbytes, events) or _shared(schedule, topology, nbytes, events)


def _unshared(schedule: Source, topology: Topology, nbytes: int, events: bool) -> Result | None:
    """The times if each track belongs to one rank, else None."""
    network = Network(schedule, topology, nbytes)
    recorder = Recorder(network, schedule, nbytes, events)
    owner = np.empty(0, np.int64)
    ready = np.zeros(topology.size)
    for step in schedule.steps:
        moves = network.moves(step)
        owner = grown(owner, len(network.tracks), fill=-1)
        holder = moves.src[moves.move]
        if not moves.apart or np.any((owner[moves.track] != -1) & (owner[moves.track] != holder)):
            return None
        owner[moves.track] = holder
        start = ready[moves.src]
        end = start + (moves.latency + moves.wire)
        recorder.add(moves, start, end, float(ready.max()))
        recorder.hold(moves.track, (end - start)[moves.move])
        np.maximum.at(ready, moves.src, end)
        np.maximum.at(ready, moves.dst, end)
    return recorder.result("flow")


def _shared(schedule: Source, topology: Topology, nbytes: int, events: bool) -> Result:
    """The times in general."""
    network = Network(schedule, topology, nbytes)
    recorder = Recorder(network, schedule, nbytes, events)
    steps = [network.moves(step) for step in schedule.steps]
    start, end = _Race(steps, network).run()
    now, first = 0.0, 0
    for moves in steps:
        part = slice(first, first + moves.src.size)
        recorder.add(moves, start[part], end[part], now)
        now, first = max(now, float(end[part].max(initial=0.0))), part.stop
    way = np.concatenate([np.empty(0, np.int64), *(moves.way for moves in steps)])
    recorder.hold(*_held(*network.tracks_of(way), start, end))
    return recorder.result("flow")


def _held(move: Ints, track: Ints, start: Floats, end: Floats) -> tuple[Ints, Floats]:
    """Tracks, and for how long any flow was on each."""
    order = np.lexsort((start[move], track))
    tracks, first = np.unique(track[order], return_index=True)
    seconds = np.zeros(tracks.size)
    for i, moves in enumerate(np.split(move[order], first[1:]) if tracks.size else ()):
        until = np.maximum.accumulate(end[moves])
        seconds[i] = np.maximum(until - np.maximum(start[moves], np.concatenate([[0.0], until[:-1]])), 0.0).sum()
    return tracks, seconds


class _Race:
    """All flows of a schedule, numbered in its order, and how far each rank is.

    A part is what one rank does in one step; parts are numbered by rank, then by step.  A flow on tracks that nobody
    else's flows take has a known end; the others form groups, within which tracks may be shared.
    """

    def __init__(self, steps: list[Moves], network: Network) -> None:
        src, dst, way = (
            np.concatenate([np.empty(0, np.int64), *column])
            for column in zip(*((moves.src, moves.dst, moves.way) for moves in steps), strict=True)
        )
        latency = np.concatenate([moves.latency for moves in steps])
        step = np.repeat(np.arange(len(steps)), [moves.src.size for moves in steps])
        parts, numbers = np.unique(np.concatenate([src, dst]) * len(steps) + np.tile(step, 2), return_inverse=True)
        rank, ranks = parts // len(steps), np.arange(network.topology.size)
        order = np.argsort(numbers[: src.size], kind="stable")
        self._rank: list[int] = rank.tolist()
        self._from: list[int] = numbers[: src.size].tolist()
        self._to: list[int] = numbers[src.size :].tolist()
        self._pending: list[int] = np.bincount(numbers).tolist()
        self._at: list[int] = np.searchsorted(rank, ranks).tolist()
        self._after: list[int] = np.searchsorted(rank, ranks, "right").tolist()
        self._order: list[int] = order.tolist()
        self._sent: list[int] = np.searchsorted(numbers[order], np.arange(parts.size + 1)).tolist()
        self._latency: list[float] = latency.tolist()
        self._took: list[float] = (latency + np.concatenate([moves.wire for moves in steps])).tolist()
        nbytes = np.concatenate([moves.nbytes for moves in steps]).astype(np.float64)
        group_of = groups_of(steps, network)
        self._group: list[int] = group_of[way].tolist()
        self._groups = [Group(network, way, nbytes) for _ in range(int(group_of.max(initial=-1)) + 1)]

    def run(self) -> tuple[Floats, Floats]:
        """When each flow starts and ends."""
        start, end = [0.0] * len(self._from), [0.0] * len(self._from)
        queue: list[tuple[float, int]] = []  # when a flow ends, or ~group looks at its flows
        now = 0.0
        begun = [
            flow for at, after in zip(self._at, self._after, strict=True) if at < after for flow in self._flows(at)
        ]
        while True:
            looks = set()
            for flow in begun:
                start[flow] = now
                if self._group[flow] < 0:
                    heapq.heappush(queue, (now + self._took[flow], flow))
                else:
                    self._groups[self._group[flow]].begin(flow, now + self._latency[flow])
                    looks.add(self._group[flow])
            for group in looks:
                heapq.heappush(queue, (self._groups[group].next_event(), ~group))
            if not queue:
                return np.array(start), np.array(end)
            now, begun = queue[0][0], []
            for flow in self._ended(queue, now):
                end[flow] = now
                begun += self._begun_after(flow)

    def _ended(self, queue: list[tuple[float, int]], now: float) -> list[int]:
        """Take what happens now off the queue; the flows that end."""
        ended, groups = [], set()
        while queue and queue[0][0] <= now * (1 + ROUNDING):
            number = heapq.heappop(queue)[1]
            if number < 0:
                groups.add(~number)
            else:
                ended.append(number)
        for group in groups:
            ended += self._groups[group].go_on(now)
            if not self._groups[group].idle:
                heapq.heappush(queue, (self._groups[group].next_event(), ~group))
        return ended

    def _begun_after(self, flow: int) -> list[int]:
        """The flows that ranks send after this one's end, in the parts that they enter."""
        begun = []
        for part in (self._from[flow], self._to[flow]):
            self._pending[part] -= 1
            rank = self._rank[part]
            while self._at[rank] < self._after[rank] and not self._pending[self._at[rank]]:
                self._at[rank] += 1
                if self._at[rank] < self._after[rank]:
                    begun += self._flows(self._at[rank])
        return begun

    def _flows(self, part: int) -> list[int]:
        """What a rank sends in a part."""
        return self._order[self._sent[part] : self._sent[part + 1]]
