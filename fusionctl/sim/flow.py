"""Flow-level timing: sends are flows that share the tracks of their ways max-min fairly, and ranks drift apart.

Two exact ways to the same numbers.  Where each track only ever carries the sends of one rank, and no two of one step,
nothing is shared, for a rank starts its part of a step when its sends of the one before are done: then a step is a few
array operations (`_unshared`).  Otherwise time goes from event to event, an event being all that begins or ends at
that time, and the rates are shared out anew after each (`_shared`).
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from fusionctl.plan import Topology
from fusionctl.sim.network import Floats, Ints, Moves, Network, Source
from fusionctl.sim.result import Recorder, Result, grown

ROUNDING = 1e-13
"""Relative difference up to which two times are one event, and two shares of a track are equal."""


def flow(schedule: Source, topology: Topology, nbytes: int, *, events: bool = True) -> Result:
    """Time a schedule as the engine executes it, on links that are shared max-min fairly.

    A rank starts its sends of a step when its own part of the one before, what it sends and what it receives, is
    complete; a rank without a part in a step passes over it.  A send is a flow: after the sum of the latencies of its
    way it moves its chunk at the rate that progressive filling gives it on the tracks of the way, whether or not the
    receiver has come to that step.

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
        group_of = _groups(steps, network)
        self._group: list[int] = group_of[way].tolist()
        self._groups = [_Group(network, way, nbytes) for _ in range(int(group_of.max(initial=-1)) + 1)]

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


def _groups(steps: list[Moves], network: Network) -> Ints:
    """The group of each way, -1 for those whose tracks are all taken by one rank's flows only, one in a step."""
    owner, shared = np.full(len(network.tracks), -1), np.zeros(len(network.tracks), np.bool_)
    for moves in steps:
        holder = moves.src[moves.move]
        shared[moves.track[(owner[moves.track] != -1) & (owner[moves.track] != holder)]] = True
        shared |= np.bincount(moves.track, minlength=shared.size) > 1
        owner[moves.track] = holder
    way, track = network.tracks_of(np.arange(len(network.ways)))
    way, track = way[shared[track]], track[shared[track]]
    group = np.arange(shared.size)
    while True:  # the lowest number spreads over the tracks of each way until none changes
        lowest = np.full(len(network.ways), shared.size)
        np.minimum.at(lowest, way, group[track])
        before = group.copy()
        np.minimum.at(group, track, lowest[way])
        group = group[group]
        if np.array_equal(group, before):
            break
    of_way = np.full(len(network.ways), -1)
    of_way[way] = np.unique(group[track], return_inverse=True)[1]
    return of_way


class _Group:
    """Flows that may share tracks: those in their latency, and those that move, in arrays of one length.

    A moving flow has so many bytes left at the time `since`, and its rate from then on.
    """

    def __init__(self, network: Network, way: Ints, nbytes: Floats) -> None:
        self._network, self._way, self._nbytes = network, way, nbytes
        self._capacity = np.array(network.capacity)
        self._late: list[tuple[float, int]] = []
        self._flow = np.empty(0, np.int64)
        self._left, self._since, self._rate, self._end = (np.empty(0) for _ in range(4))

    @property
    def idle(self) -> bool:
        """Whether it has no flows."""
        return not self._late and not self._flow.size

    def begin(self, flow: int, until: float) -> None:
        """A flow has started, whose latency lasts until then."""
        heapq.heappush(self._late, (until, flow))

    def next_event(self) -> float:
        """When the next flow has passed its latency, or ends."""
        return min(self._late[0][0] if self._late else np.inf, float(self._end.min(initial=np.inf)))

    def go_on(self, now: float) -> list[int]:
        """Let time go on to the next event, or to one that it is too early for; the flows that end."""
        soon = now * (1 + ROUNDING)
        arrived = []
        while self._late and self._late[0][0] <= soon:
            arrived.append(heapq.heappop(self._late)[1])
        done = self._end <= soon
        ended: list[int] = self._flow[done].tolist()
        if arrived or ended:
            self._replace(~done, np.array(arrived, np.int64), now)
            move, track = self._network.tracks_of(self._way[self._flow])
            self._share(fair_rates(move, track, self._capacity, self._flow.size), now)
        return ended

    def _replace(self, kept: NDArray[np.bool_], arrived: Ints, now: float) -> None:
        times = np.full(arrived.size, now)
        self._flow = np.concatenate([self._flow[kept], arrived])
        self._left = np.concatenate([self._left[kept], self._nbytes[arrived]])
        self._since = np.concatenate([self._since[kept], times])
        self._rate = np.concatenate([self._rate[kept], np.zeros(arrived.size)])
        self._end = np.concatenate([self._end[kept], times])

    def _share(self, rate: Floats, now: float) -> None:
        """Give each flow a rate from now on; where it is what it was, the end stays as it is, to the last bit."""
        other = rate != self._rate
        moved = self._rate[other] * (now - self._since[other])
        self._left[other] = np.maximum(self._left[other] - moved, 0.0)
        self._since[other], self._rate[other] = now, rate[other]
        self._end[other] = now + self._left[other] / rate[other]


def fair_rates(move: Ints, track: Ints, capacity: Floats, n: int) -> Floats:
    """Max-min fair rates of n flows, in bytes per second: none can grow but at the cost of one that is no faster.

    Entry j says that flow move[j] takes track[j]; `capacity` is indexed by track.  Progressive filling, in rounds: a
    track is full at its present share if each of its flows finds no smaller share elsewhere on its way; the flows of
    all such tracks get that rate and leave, and what is left is shared by the others.
    """
    rates, left = np.zeros(n), capacity.copy()
    while move.size:
        share = left / np.maximum(np.bincount(track, minlength=left.size), 1)
        lowest = np.full(n, np.inf)
        np.minimum.at(lowest, move, share[track])
        full = np.ones(left.size, np.bool_)
        full[track[lowest[move] < share[track] * (1 - ROUNDING)]] = False
        fixed = np.zeros(n, np.bool_)
        fixed[move[full[track]]] = True
        rates[fixed] = lowest[fixed]
        gone = fixed[move]
        left -= np.bincount(track[gone], weights=rates[move[gone]], minlength=left.size)
        move, track = move[~gone], track[~gone]
    return rates
