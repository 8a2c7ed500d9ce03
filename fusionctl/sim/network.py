"""A topology as the simulators see it: the ways that sends take, over numbered tracks of known speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionctl.errors import UsageError
from fusionctl.plan import ScheduleError, Step, Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Track = tuple[int, int, int]
"""One channel of a link: source, destination, channel.  It has the whole bandwidth of the link to itself."""


class Source(Protocol):
    """What is simulated: a Schedule, or its like whose steps are made one by one, as they are asked for.

    Every iteration over `steps` must give all of them again.
    """

    @property
    def name(self) -> str:
        """As a Schedule's."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    @property
    def n_chunks(self) -> int:
        """Number of chunks that the buffer is cut into."""

    @property
    def steps(self) -> Iterable[Step]:
        """The steps in order."""

    def bounds(self, chunk: int, n: int) -> tuple[int, int]:
        """Where a chunk begins and ends in a buffer of n bytes."""


class Moves(NamedTuple):
    """The sends of one step, in its order, as arrays of one length.

    `way` is the number of the send's way in the network; `latency` in seconds, the sum over the links of the way;
    `wire` in seconds, the bytes over the smallest bandwidth of the way.  `move` and `track` say which move takes
    which tracks: entry j says that move[j] goes over the track numbered track[j].
    """

    chunk: Ints
    src: Ints
    dst: Ints
    reduce: NDArray[np.bool_]
    nbytes: Ints
    way: Ints
    latency: Floats
    wire: Floats
    move: Ints
    track: Ints

    @property
    def apart(self) -> bool:
        """Whether no two moves take the same track."""
        return self.track.size < 2 or int(np.bincount(self.track).max()) == 1


class Network:
    """Numbers ways and tracks of a topology as sends ask for them, for a buffer of `nbytes` bytes.

    A send goes by `via` if it has one, else over the link from its source to its destination, else by the fewest
    links there are, of which the first in the order of node numbers.  On all links it uses its channel.  `ways` are
    nodes and channel of each way, `tracks` the tracks, `capacity` the bytes per second of each.

    UsageError if there are fewer than 0 bytes; ScheduleError if the numbers of ranks differ.
    """

    def __init__(self, source: Source, topology: Topology, nbytes: int) -> None:
        if nbytes < 0:
            raise UsageError(f"{source.name}: a buffer cannot have {nbytes} bytes: give 0 or more")
        if source.size != topology.size:
            raise ScheduleError(
                f"{source.name} is for {source.size} ranks, but topology {topology.name} has {topology.size}"
            )
        self.topology = topology
        self.ways: list[tuple[tuple[int, ...], int]] = []
        self.tracks: list[Track] = []
        self.capacity: list[float] = []
        self._name = source.name
        self._sizes = np.array([end - start for start, end in _bounds(source, nbytes)], np.int64)
        self._numbers: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
        self._track_numbers: dict[Track, int] = {}
        self._ahead: dict[int, list[int]] = {}
        self._parents: dict[int, list[int]] = {}
        self._first = [0]
        self._taken: list[int] = []
        self._latency: list[float] = []
        self._bandwidth: list[float] = []
        self._table = self._tables()
        self._pattern: object = None
        self._way = np.empty(0, np.int64)
        self._entries = self._way, self._way

    def moves(self, step: Step) -> Moves:
        """A step as arrays; ScheduleError if a send's way, link or channel does not exist."""
        columns = zip(*step.sends, strict=True) if step.sends else ((),) * 6
        chunk, src, dst, reduce, channel, via = columns
        if (src, dst, channel, via) != self._pattern:
            keys = zip(src, dst, channel, via, strict=True)
            self._way = np.array([self._number(*key) for key in keys], np.int64)
            if len(self._table[1]) < len(self.ways):
                self._table = self._tables()
            self._entries = self.tracks_of(self._way)
            self._pattern = (src, dst, channel, via)
        _, latency, bandwidth, _ = self._table
        chunks = np.array(chunk, np.int64)
        sizes = self._sizes[chunks]
        ends = np.array(src, np.int64), np.array(dst, np.int64), np.array(reduce, np.bool_)
        way = self._way
        return Moves(chunks, *ends, sizes, way, latency[way], sizes / bandwidth[way], *self._entries)

    def tracks_of(self, way: Ints) -> tuple[Ints, Ints]:
        """The numbers of the tracks of ways: entry j says that way[move[j]] goes over track[j]."""
        first, _, _, taken = self._table
        counts = first[way + 1] - first[way]
        move = np.repeat(np.arange(way.size), counts)
        return move, taken[np.arange(move.size) - np.repeat(np.cumsum(counts) - counts - first[way], counts)]

    def _tables(self) -> tuple[Ints, Floats, Floats, Ints]:
        latency, bandwidth = np.array(self._latency, np.float64), np.array(self._bandwidth, np.float64)
        return np.array(self._first, np.int64), latency, bandwidth, np.array(self._taken, np.int64)

    def _number(self, src: int, dst: int, channel: int, via: tuple[int, ...]) -> int:
        key = src, dst, channel, via
        number = self._numbers.get(key)
        if number is None:
            nodes = (src, *via, dst)
            if not via and (src, dst) not in self.topology.links:
                nodes = self._route(src, dst)
            self._add(nodes, channel)
            number = self._numbers[key] = len(self.ways) - 1
        return number

    def _add(self, nodes: tuple[int, ...], channel: int) -> None:
        hops = list(pairwise(nodes))
        for src, dst in hops:
            self._check(nodes, src, dst, channel)
        links = [self.topology.links[hop] for hop in hops]
        self._taken += [self._track((*hop, channel)) for hop in hops]
        self._first.append(len(self._taken))
        self._latency.append(sum(link.latency for link in links))
        self._bandwidth.append(min(link.bandwidth for link in links))
        self.ways.append((nodes, channel))

    def _check(self, nodes: tuple[int, ...], src: int, dst: int, channel: int) -> None:
        where = f"{self._name}: {'->'.join(map(str, nodes))}"
        link = self.topology.links.get((src, dst))
        if link is None:
            raise ScheduleError(f"{where}: topology {self.topology.name} has no link from {src} to {dst}")
        if not 0 <= channel < link.channels:
            raise ScheduleError(
                f"{where}: the link from {src} to {dst} of topology {self.topology.name} has {link.channels} channels, "
                f"of which {channel} is none"
            )

    def _track(self, track: Track) -> int:
        number = self._track_numbers.setdefault(track, len(self.tracks))
        if number == len(self.tracks):
            self.tracks.append(track)
            self.capacity.append(self.topology.links[track[:2]].bandwidth)
        return number

    def _route(self, src: int, dst: int) -> tuple[int, ...]:
        if src not in self._parents:
            self._parents[src] = self._search(src)
        parents, way = self._parents[src], [dst]
        while way[-1] != src:
            if parents[way[-1]] < 0:
                raise ScheduleError(f"{self._name}: topology {self.topology.name} has no way from {src} to {dst}")
            way.append(parents[way[-1]])
        return tuple(reversed(way))

    def _search(self, root: int) -> list[int]:
        """The node before each node on the way from the root, -1 where none is."""
        if not self._ahead:
            self._ahead = {node: [] for node in range(self.topology.nodes)}
            for src, dst in sorted(self.topology.links):
                self._ahead[src].append(dst)
        parents, queue = [-1] * self.topology.nodes, deque([root])
        parents[root] = root
        while queue:
            node = queue.popleft()
            for ahead in self._ahead[node]:
                if parents[ahead] < 0:
                    parents[ahead] = node
                    queue.append(ahead)
        return parents


def _bounds(source: Source, nbytes: int) -> list[tuple[int, int]]:
    return [source.bounds(chunk, nbytes) for chunk in range(source.n_chunks)]
