"""What a simulation gives: when each send began and ended, how long steps took, and how busy each track was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fusionctl.plan import Send
from fusionctl.sim.network import Floats, Ints, Moves, Network, Source, Track

EVENTS = np.dtype([("start", "f8"), ("end", "f8"), ("step", "i4"), ("chunk", "i4"), ("way", "i4"), ("reduce", "?")])
"""One send: when it started and when its last byte arrived, in seconds; `way` is an index into `Result.ways`."""

Interval = tuple[float, float]
"""Start and end, in seconds."""


Scalar = TypeVar("Scalar", bound=np.generic)


class Use(NamedTuple):
    """How long sends held a track, latencies included and overlaps counted once, and the bytes they moved over it."""

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A schedule of the given name, timed on a topology for a buffer of `nbytes` bytes; times are in seconds from 0.

    `steps` has the first start and the last end of each step, shape (steps, 2); those of a step without sends are
    equal.  `tracks` are the channels of links that were used at all.  `events` has dtype EVENTS, in the order of the
    schedule, and is empty if it was not asked for; `ways` are the nodes and the channel of the ways that it names.
    `reconfigurations` are the times in which an optical network sets its circuits.
    """

    simulator: str
    schedule: str
    topology: str
    nbytes: int
    seconds: float
    steps: Floats
    tracks: Mapping[Track, Use] = field(repr=False)
    events: NDArray[np.void] = field(repr=False)
    ways: Sequence[tuple[tuple[int, ...], int]] = field(repr=False)
    reconfigurations: Sequence[Interval] = field(default=(), repr=False)

    def __str__(self) -> str:
        """A head and one line per event, in microseconds."""
        head = f"{self.simulator}: {self.schedule} on {self.topology}, {self.nbytes} bytes: {self.seconds * 1e6:.3f} us"
        times = zip(self.events["start"].tolist(), self.events["end"].tolist(), self.sends(), strict=True)
        return "\n".join([head, *(f"{start * 1e6:.3f} {end * 1e6:.3f} {send}" for start, end, send in times)])

    def sends(self) -> list[Send]:
        """The sends of the events, in their order, by the ways that they took."""
        columns = zip(*(self.events[name].tolist() for name in ("chunk", "way", "reduce")), strict=True)
        return [
            Send(chunk, nodes[0], nodes[-1], reduce, channel, nodes[1:-1])
            for chunk, (nodes, channel), reduce in ((chunk, self.ways[way], reduce) for chunk, way, reduce in columns)
        ]


class Recorder:
    """Collects what happens, step by step, for a Result; keeps events if `events`."""

    def __init__(self, network: Network, source: Source, nbytes: int, events: bool) -> None:
        self._network, self._source, self._nbytes, self._events = network, source, nbytes, events
        self._steps: list[Interval] = []
        self._rows: list[NDArray[np.void]] = []
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
            rows["chunk"], rows["way"], rows["reduce"] = moves.chunk, moves.way, moves.reduce
            self._rows.append(rows)

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
            np.concatenate(self._rows) if self._rows else np.empty(0, EVENTS),
            self._network.ways,
            tuple(reconfigurations),
        )


def grown(array: NDArray[Scalar], size: int, fill: int = 0) -> NDArray[Scalar]:
    """The array, continued to a size; returned as it is if it has that."""
    if array.size == size:
        return array
    return np.concatenate([array, np.full(size - array.size, fill, array.dtype)])
