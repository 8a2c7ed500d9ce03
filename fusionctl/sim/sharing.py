"""Max-min fair sharing: which flows may ever share a track, and at what rates they then go."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from fusionctl.sim.network import Floats, Ints, Moves, Network

ROUNDING = 1e-13
"""Relative difference up to which two times are one event, and two shares of a track are equal."""


def groups_of(steps: list[Moves], network: Network) -> Ints:
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


class Group:
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
