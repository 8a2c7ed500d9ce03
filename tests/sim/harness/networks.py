"""Topologies and schedules that only these tests make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fusionctl.plan import Link, Schedule, Send, Step, Topology


def torus(rows: int, columns: int, link: Link | None = None) -> Topology:
    """Each rank is linked, both ways, with its neighbours in its row and in its column, around the edges too."""
    pairs = set()
    for row in range(rows):
        for column in range(columns):
            here = row * columns + column
            for there in (row * columns + (column + 1) % columns, (row + 1) % rows * columns + column):
                pairs |= {(here, there), (there, here)} if here != there else set()
    return Topology(f"torus({rows}x{columns})", rows * columns, dict.fromkeys(sorted(pairs), link or Link()))


def fat_tree(leaves: int, width: int, link: Link | None = None) -> Topology:
    """`leaves` switches with `width` ranks each, and `width` spines that are linked with each of them."""
    size = leaves * width
    leaf, spine = range(size, size + leaves), range(size + leaves, size + leaves + width)
    pairs = [(rank, leaf[rank // width]) for rank in range(size)] + [(low, high) for low in leaf for high in spine]
    links = dict.fromkeys([*pairs, *((dst, src) for src, dst in pairs)], link or Link())
    return Topology(f"fat_tree({leaves}x{width})", size, links, switches=leaves + width)


def star(size: int, link: Link | None = None) -> Topology:
    """Each rank is linked, both ways, with the one switch."""
    pairs = [pair for rank in range(size) for pair in ((rank, size), (size, rank))]
    return Topology(f"star({size})", size, dict.fromkeys(pairs, link or Link()), switches=1)


def made(*steps: list[Send], size: int, n_chunks: int = 1) -> Schedule:
    """A schedule that need not achieve anything."""
    return Schedule("made", "allreduce", size, n_chunks, tuple(map(Step, steps)))


def two_levels(groups: int, width: int) -> Schedule:
    """WRHT's three steps on a ring of groups of consecutive ranks, `width` of them, which is odd.

    The middle rank of each group collects its members' whole vectors, each side over its own direction; the middle
    ranks exchange theirs all to all, each pair on a wavelength of its own; and the first step again, backwards.
    """
    size, half = groups * width, width // 2
    heads = [group * width + half for group in range(groups)]
    collect = [_lightpath(head + side * far, head, far - 1, size) for head, side, far in _members(heads, half)]
    spread = [_lightpath(head, head + side * far, far - 1, size) for head, side, far in _members(heads, half)]
    exchange = [_lightpath(src, dst, channel, size) for channel, (src, dst) in enumerate(_pairs(heads))]
    steps = (Step(collect), Step(exchange), Step(send._replace(reduce=False) for send in spread))
    return Schedule(f"two_levels({groups},{width})", "allreduce", size, 1, steps)


def _members(heads: list[int], half: int) -> Iterator[tuple[int, int, int]]:
    return ((head, side, far) for head in heads for side in (-1, 1) for far in range(1, half + 1))


def _pairs(heads: list[int]) -> list[tuple[int, int]]:
    return [(src, dst) for src in heads for dst in heads if src != dst]


def _lightpath(src: int, dst: int, channel: int, size: int) -> Send:
    """The shorter way around the ring; the one to higher numbers if both are as long."""
    ahead = (dst - src) % size
    side, hops = (1, ahead) if 2 * ahead <= size else (-1, size - ahead)
    return Send(0, src, dst, True, channel, tuple((src + side * hop) % size for hop in range(1, hops)))


@dataclass(frozen=True)
class LazyRing:
    """`ring(size)` whose steps are made as they are asked for: at 4,096 ranks it has 33 million sends."""

    size: int

    @property
    def name(self) -> str:
        return f"ring({self.size})"

    @property
    def n_chunks(self) -> int:
        return self.size

    @property
    def steps(self) -> Iterable[Step]:
        size = self.size
        for lag, reduce in [(1 + step, True) for step in range(size - 1)] + [(step, False) for step in range(size - 1)]:
            yield Step(Send((rank - lag) % size, rank, (rank + 1) % size, reduce) for rank in range(size))

    def bounds(self, chunk: int, n: int) -> tuple[int, int]:
        return chunk * n // self.size, (chunk + 1) * n // self.size
