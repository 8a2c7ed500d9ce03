"""What a simulation gives: when each message began and ended, how long steps took, and how busy each track was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fusionctl.plan import Send
from fusionctl.sim.network import Floats, Ints, Moves, Network, Source, Track, Way, messages, text

EVENTS = np.dtype([("start", "f8"), ("end", "f8"), ("step", "i4"), ("way", "i4"), ("chunks", "i4")])
"""One message: when it started and when its last byte arrived, in seconds; its way, an index into `Result.ways`; and
how many chunks it has."""

CHUNKS = np.dtype([("chunk", "i4"), ("reduce", "?")])
"""A chunk of a message, and whether the receiver reduces it into its own or replaces that."""

Interval = tuple[float, float]
"""Start and end, in seconds."""


Scalar = TypeVar("Scalar", bound=np.generic)


class Use(NamedTuple):
    """How long messages held a track, latencies included and overlaps counted once, and the bytes moved over it."""

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A schedule of the given name, timed on a topology for a buffer of `nbytes` bytes; times are in seconds from 0.

    `steps` has the first start and the last end of each step, shape (steps, 2); those of a step without sends are
    equal.  `tracks` are the channels of links that were used at all.  `events` has dtype EVENTS, in the order of the
    schedule, and is empty if it was not asked for; `chunks`, of dtype CHUNKS, are those of the first event, then those
    of the second, and so on; `ways` are the nodes and the channel of the ways that events name.  `reconfigurations`
    are the times in which an optical network sets its circuits.
    """

    simulator: str
    schedule: str
    topology: str
    nbytes: int
    seconds: float
    steps: Floats
    tracks: Mapping[Track, Use] = field(repr=False)
    events: NDArray[np.void] = field(repr=False)
    chunks: NDArray[np.void] = field(repr=False)
    ways: Sequence[Way] = field(repr=False)
    reconfigurations: Sequence[Interval] = field(default=(), repr=False)

    def __str__(self) -> str:
        """A head and one line per event, in microseconds."""
        head = f"{self.simulator}: {self.schedule} on {self.topology}, {self.nbytes} bytes: {self.seconds * 1e6:.3f} us"
        times = zip(self.events["start"].tolist(), self.events["end"].tolist(), self.messages(), strict=True)
        return "\n".join([head, *(f"{start * 1e6:.3f} {end * 1e6:.3f} {text(sends)}" for start, end, sends in times)])

    def messages(self) -> list[list[Send]]:
        """The sends of each event, by the way that they took."""
        ways = (self.ways[way] for way in self.events["way"].tolist())
        return messages(self.events["chunks"], self.chunks["chunk"], self.chunks["reduce"], ways)


class Recorder:
    """Collects what happens, step by step, for a Result; keeps events if `events`."""

    def __init__(self, network: Network, source: Source, nbytes: int, events: bool) -> None:
        self._network, self._source, self._nbytes, self._events = network, source, nbytes, events
        self._steps: list[Interval] = []
        self._rows = [np.empty(0, EVENTS)]
        self._chunks = [np.empty(0, CHUNKS)]
        self._seconds = np.zeros(0)
        self._moved = np.zeros(0, np.int64)

    def add(self, moves: Moves, start: Floats, end: Floats, now: float = 0.0) -> None:
        """One step that went so; `now` is the time of a step without sends."""
        self._steps.append((float(start.min()), float(end.max())) if start.size else (now, now))
        self._seconds = grown(self._seconds, len(self._network.tracks))
        self._moved = grown(self._moved, len(self._network.tracks))
        np.add.at(self._moved, moves.track, moves.nbytes[moves.move])
        if self._events:
            rows = np.empty(start.size, EVENTS)
            rows["start"], rows["end"], rows["step"] = start, end, len(self._steps) - 1
            rows["way"], rows["chunks"] = moves.way, moves.chunks
            chunks = np.empty(moves.chunk.size, CHUNKS)
            chunks["chunk"], chunks["reduce"] = moves.chunk, moves.reduce
            self._rows.append(rows)
            self._chunks.append(chunks)

    def hold(self, tracks: Ints, seconds: Floats) -> None:
        """Tracks, each any number of times, were held so long, apart from what else held them."""
        self._seconds = grown(self._seconds, len(self._network.tracks))
        np.add.at(self._seconds, tracks, seconds)

    def result(self, simulator: str, reconfigurations: Sequence[Interval] = ()) -> Result:
        """All of it."""
        uses = zip(self._seconds.tolist(), self._moved.tolist(), strict=True)
        return Result(
            simulator,
            self._source.name,
            self._network.topology.name,
            self._nbytes,
            max((end for _, end in self._steps), default=0.0),
            np.array(self._steps, np.float64).reshape(-1, 2),
            dict(zip(self._network.tracks, (Use(*use) for use in uses), strict=True)),
            np.concatenate(self._rows),
            np.concatenate(self._chunks),
            self._network.ways,
            tuple(reconfigurations),
        )


def grown(array: NDArray[Scalar], size: int, fill: int = 0) -> NDArray[Scalar]:
    """The array, continued to a size; returned as it is if it has that."""
    if array.size == size:
        return array
    return np.concatenate([array, np.full(size - array.size, fill, array.dtype)])
