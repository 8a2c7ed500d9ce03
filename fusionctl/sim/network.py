"""A topology as the simulators see it: the ways that messages take, over numbered tracks of known speed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionctl.errors import UsageError
from fusionctl.plan import ScheduleError, Send, Step, Topology
from fusionctl.plan.topology import route

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Track = tuple[int, int, int]
"""One channel of a link: source, destination, channel.  It has the whole bandwidth of the link to itself."""

Way = tuple[tuple[int, ...], int]
"""Nodes, from source to destination, and channel."""

Pattern = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Source, destination, channel and via of each send of a step."""


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
    """The messages of one step, in the order of their first sends, as arrays of one length.

    `chunks` is how many chunks the message consists of, `nbytes` the sum of their bytes; `way` is the number of its
    way in the network; `latency` in seconds, the sum over the links of the way; `wire` in seconds, the bytes over the
    smallest bandwidth of the way.  `chunk` and `reduce` have an entry per send, message by message.  `move` and `track`
    say which move takes which tracks: entry j says that move[j] goes over the track numbered track[j].
    """

    chunk: Ints
    reduce: NDArray[np.bool_]
    nbytes: Ints
    wire: Floats
    src: Ints
    dst: Ints
    chunks: Ints
    way: Ints
    latency: Floats
    move: Ints
    track: Ints

    @property
    def apart(self) -> bool:
        """Whether no two moves take the same track."""
        return self.track.size < 2 or int(np.bincount(self.track).max()) == 1


class Network:
    """Numbers ways and tracks of a topology as sends ask for them, for a buffer of `nbytes` bytes.

    A send goes by `via` if it has one, else the way that `route` gives, on its channel of all links.  The sends of a
    step that go the same way on the same channel are one message.  `ways` are nodes and channel of each way, `tracks`
    the tracks, `capacity` the bytes per second of each.

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
        self.ways: list[Way] = []
        self.tracks: list[Track] = []
        self.capacity: list[float] = []
        self._name = source.name
        self._sizes = np.array([end - start for start, end in _bounds(source, nbytes)], np.int64)
        self._numbers: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
        self._track_numbers: dict[Track, int] = {}
        self._first = [0]
        self._taken: list[int] = []
        self._latency: list[float] = []
        self._bandwidth: list[float] = []
        self._table = self._tables()
        self._pattern: Pattern = ((), (), (), ())
        self._messages = self._grouped(self._pattern)

    def moves(self, step: Step) -> Moves:
        """A step as arrays; ScheduleError if a send's way, link or channel does not exist."""
        columns = zip(*step.sends, strict=True) if step.sends else ((),) * 6
        chunk, src, dst, reduce, channel, via = columns
        if (src, dst, channel, via) != self._pattern:
            self._messages = self._grouped((src, dst, channel, via))
            self._pattern = (src, dst, channel, via)
        order, first, bandwidth, same = self._messages
        chunks = np.array(chunk, np.int64)[order]
        nbytes = np.add.reduceat(self._sizes[chunks], first)
        return Moves(chunks, np.array(reduce, np.bool_)[order], nbytes, nbytes / bandwidth, *same)

    def _grouped(
        self, pattern: Pattern
    ) -> tuple[Ints, Ints, Floats, tuple[Ints, Ints, Ints, Ints, Floats, Ints, Ints]]:
        """The sends message by message, where each message begins, its bandwidth, and what Moves has from `src` on."""
        sends: dict[int, list[int]] = {}
        for i, key in enumerate(zip(*pattern, strict=True)):
            sends.setdefault(self._number(*key), []).append(i)
        if len(self._table[1]) < len(self.ways):
            self._table = self._tables()
        order = np.array([i for message in sends.values() for i in message], np.int64)
        chunks = np.array([len(message) for message in sends.values()], np.int64)
        first, way = np.cumsum(chunks) - chunks, np.array(list(sends), np.int64)
        src, dst = (np.array(ends, np.int64)[order[first]] for ends in pattern[:2])
        _, latency, bandwidth, _ = self._table
        return order, first, bandwidth[way], (src, dst, chunks, way, latency[way], *self.tracks_of(way))

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
        if key not in self._numbers:
            nodes = (src, *via, dst)
            if not via and (src, dst) not in self.topology.links:
                nodes = self._route(src, dst)
            whole = src, dst, channel, nodes[1:-1]
            if whole not in self._numbers:
                self._add(nodes, channel)
                self._numbers[whole] = len(self.ways) - 1
            self._numbers[key] = self._numbers[whole]
        return self._numbers[key]

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
        try:
            return (src, *route(self.topology, src, dst), dst)
        except UsageError as error:
            raise ScheduleError(f"{self._name}: {error}") from None


def messages(chunks: Ints, chunk: Ints, reduce: NDArray[np.bool_], ways: Iterable[Way]) -> list[list[Send]]:
    """The sends of each message, from how many it has, the chunk and the kind of each send, and the ways they go."""
    sends = zip(chunk.tolist(), reduce.tolist(), strict=True)
    return [
        [Send(number, nodes[0], nodes[-1], kind, channel, nodes[1:-1]) for number, kind in islice(sends, n)]
        for n, (nodes, channel) in zip(chunks.tolist(), ways, strict=True)
    ]


def text(message: list[Send]) -> str:
    """`+2 +3 0->1`: as `str(send)`, with all the chunks."""
    return " ".join([*(str(send).split()[0] for send in message[:-1]), str(message[-1])])


def _bounds(source: Source, nbytes: int) -> list[tuple[int, int]]:
    return [source.bounds(chunk, nbytes) for chunk in range(source.n_chunks)]
