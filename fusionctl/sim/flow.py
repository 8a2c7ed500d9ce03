"""Flow-level timing: sends are flows that share the tracks of their ways max-min fairly, and ranks drift apart.

Two exact ways to the same numbers.  Where each track only ever carries the sends of one rank, and no two of one step,
nothing is shared, for a rank starts its part of a step when its sends of the one before are done: then a step is a few
array operations (`_unshared`).  Otherwise time goes from event to event, an event being all that begins or ends at
that time, and the rates are shared out anew after each (`_shared`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

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
    start, end, busy = _Race(steps, network).run()
    now = 0.0
    for moves, (first, last) in zip(steps, pairwise(np.cumsum([0, *(moves.src.size for moves in steps)])), strict=True):
        recorder.add(moves, start[first:last], end[first:last], now)
        now = max(now, float(end[first:last].max(initial=0.0)))
    recorder.hold(np.arange(busy.size), busy)
    return recorder.result("flow")


@dataclass(slots=True)
class _Moving:
    """Flows past their latency, as arrays of one length: number, bytes left at `since`, rate from then on, end."""

    flow: Ints
    left: Floats
    since: Floats
    rate: Floats
    end: Floats

    def keep(self, mask: object) -> None:
        """Drop the others."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name)[mask])

    def join(self, flow: Ints, left: Floats, now: float) -> None:
        """Flows with so many bytes set out; their rate is still to be given."""
        times = np.full(flow.size, now)
        for name, new in zip(self.__slots__, (flow, left, times, np.zeros(flow.size), times), strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), new]))

    def go_on(self, rate: Floats, now: float) -> None:
        """Give each flow a rate from now on; where it is what it was, the end stays as it is, to the last bit."""
        other = rate != self.rate
        self.left[other] = np.maximum(self.left[other] - self.rate[other] * (now - self.since[other]), 0.0)
        self.since[other], self.rate[other] = now, rate[other]
        self.end[other] = now + self.left[other] / rate[other]


class _Race:
    """All flows of a schedule, numbered in its order, and how far each rank is.

    A part is what one rank does in one step; parts are numbered by rank, then by step.
    """

    def __init__(self, steps: list[Moves], network: Network) -> None:
        sizes = [moves.src.size for moves in steps]
        src, dst, self._way, nbytes = (
            np.concatenate([np.empty(0, np.int64), *column])
            for column in zip(*((moves.src, moves.dst, moves.way, moves.nbytes) for moves in steps), strict=True)
        )
        self._network = network
        self._capacity = np.array(network.capacity)
        self._nbytes = nbytes.astype(np.float64)
        self._latency = np.concatenate([moves.latency for moves in steps])
        keys = np.concatenate([src, dst]) * len(steps) + np.tile(np.repeat(np.arange(len(steps)), sizes), 2)
        parts, numbers = np.unique(keys, return_inverse=True)
        self._from, self._to = numbers[: src.size], numbers[src.size :]
        self._rank = parts // len(steps)
        self._pending = np.bincount(numbers).tolist()
        self._at = np.searchsorted(self._rank, np.arange(network.topology.size)).tolist()
        self._after = np.searchsorted(self._rank, np.arange(network.topology.size), "right").tolist()
        self._order = np.argsort(self._from, kind="stable")
        self._sent = np.searchsorted(self._from[self._order], np.arange(parts.size + 1))

    def run(self) -> tuple[Floats, Floats, Floats]:
        """When each flow starts and ends, and for how long each track is held."""
        start, end, busy = (np.zeros(size) for size in (self._way.size, self._way.size, self._capacity.size))
        held = np.zeros(self._capacity.size, np.int64)
        begun = self._flows_of([at for at, after in zip(self._at, self._after, strict=True) if at < after])
        late = np.empty(0, np.int64)  # flows in their latency
        moving = _Moving(late, *(np.empty(0) for _ in range(4)))
        now = 0.0
        while True:
            start[begun] = now
            late = np.concatenate([late, begun])
            np.add.at(held, self._tracks(begun)[1], 1)
            if not late.size + moving.flow.size:
                return start, end, busy
            until = start[late] + self._latency[late]
            before, now = now, float(min(until.min(initial=np.inf), moving.end.min(initial=np.inf)))
            busy[held > 0] += now - before
            soon = now * (1 + ROUNDING)
            done = moving.end <= soon
            ended = moving.flow[done]
            moving.keep(~done)
            moving.join(late[until <= soon], self._nbytes[late[until <= soon]], now)
            late = late[until > soon]
            moving.go_on(fair_rates(*self._tracks(moving.flow), self._capacity, moving.flow.size), now)
            end[ended] = now
            np.subtract.at(held, self._tracks(ended)[1], 1)
            begun = self._flows_of(self._entered(ended))

    def _entered(self, ended: Ints) -> list[int]:
        """The parts that ranks enter when these flows have ended."""
        entered = []
        touched = np.concatenate([self._from[ended], self._to[ended]])
        for part in touched.tolist():
            self._pending[part] -= 1
        for rank in np.unique(self._rank[touched]).tolist():
            while self._at[rank] < self._after[rank] and not self._pending[self._at[rank]]:
                self._at[rank] += 1
                entered.append(self._at[rank])
            if entered and entered[-1] == self._after[rank]:
                entered.pop()
        return entered

    def _flows_of(self, parts: list[int]) -> Ints:
        """What ranks send in these parts."""
        sent = [self._order[self._sent[part] : self._sent[part + 1]] for part in parts]
        return np.concatenate([np.empty(0, np.int64), *sent])

    def _tracks(self, flows: Ints) -> tuple[Ints, Ints]:
        return self._network.tracks_of(self._way[flows])


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
