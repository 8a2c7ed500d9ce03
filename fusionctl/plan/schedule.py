"""These chunks move between these ranks in these steps: the value that is planned once, verified, run and simulated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from fusionctl.errors import FusionctlError

CollectiveName = Literal["allreduce", "reduce_scatter", "allgather"]
"""What a schedule achieves: a reduce-scatter followed by an all-gather is an all-reduce."""


class ScheduleError(FusionctlError):
    """A schedule does not do what it says, or cannot be carried out; names the step, the rank and the chunk."""


class Send(NamedTuple):
    """Rank `src` sends a chunk as it is when the step starts; rank `dst` reduces it into its own, or replaces that.

    `channel` tells apart what a link carries at once: a tree, a ring or a wavelength.  `via` are the nodes in between,
    switches or ranks that are passed by, where the way matters; all links of the way are taken for the whole step.
    Chunks that go the same way on the same channel in one step are one message.
    """

    chunk: int
    src: int
    dst: int
    reduce: bool
    channel: int = 0
    via: tuple[int, ...] = ()

    def __str__(self) -> str:
        """`+3 0->1` reduces chunk 3 into rank 1's, `=3 0->8->1` replaces it, by way of node 8; `@1` is channel 1."""
        channel = f" @{self.channel}" if self.channel else ""
        return f"{'+' if self.reduce else '='}{self.chunk} {'->'.join(map(str, self.nodes))}{channel}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes of the way, from source to destination."""
        return (self.src, *self.via, self.dst)

    @property
    def hops(self) -> list[tuple[int, int]]:
        """The links of the way."""
        return list(pairwise(self.nodes))


@dataclass(frozen=True, slots=True)
class Step:
    """Sends that happen at once; their order means nothing, they are kept sorted by source, destination and chunk."""

    sends: tuple[Send, ...]

    def __init__(self, sends: Iterable[Send]) -> None:
        """Sort the sends."""
        ordered = sorted(sends, key=lambda send: (send.src, send.dst, send.chunk, send.channel))
        object.__setattr__(self, "sends", tuple(ordered))

    def __str__(self) -> str:
        """The sends, in order."""
        return ", ".join(map(str, self.sends))


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective among `size` ranks as steps; a step starts on a rank when its part of the one before is complete.

    A buffer of n elements is cut into `n_chunks` chunks (`bounds`).  `name` carries the parameters, such as `ring(4)`.
    `str` gives one line per step.
    """

    name: str
    collective: CollectiveName
    size: int
    n_chunks: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        """A head and one line per step."""
        head = f"{self.collective}, {self.size} ranks, {self.n_chunks} chunks, {len(self.steps)} steps"
        return "\n".join([f"{self.name}: {head}", *(f"{i}: {step}" for i, step in enumerate(self.steps))])

    def bounds(self, chunk: int, n: int) -> tuple[int, int]:
        """Where a chunk begins and ends in a buffer of n elements; the sizes differ by one at most, and may be 0."""
        return chunk * n // self.n_chunks, (chunk + 1) * n // self.n_chunks

    def owner(self, chunk: int) -> int:
        """The rank that holds the whole of a chunk after a reduce-scatter and before an all-gather."""
        return chunk * self.size // self.n_chunks


def concatenate(name: str, reduce_scatter: Schedule, allgather: Schedule) -> Schedule:
    """The all-reduce that does one after the other; ScheduleError if they do not fit together."""
    for part, collective in ((reduce_scatter, "reduce_scatter"), (allgather, "allgather")):
        if part.collective != collective:
            raise ScheduleError(f"{name}: {part.name} is of kind {part.collective} where {collective} was expected")
    first, second = ((part.size, part.n_chunks) for part in (reduce_scatter, allgather))
    if first != second:
        raise ScheduleError(
            f"{name}: {reduce_scatter.name} has {first[0]} ranks and {first[1]} chunks, "
            f"{allgather.name} has {second[0]} ranks and {second[1]} chunks: they must be equal"
        )
    return Schedule(name, "allreduce", *first, reduce_scatter.steps + allgather.steps)
