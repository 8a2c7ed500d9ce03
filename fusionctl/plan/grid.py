"""Rings along the axes of a grid, one axis after the other: what the 2D-ring and the hierarchical all-reduce share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from fusionctl.plan.schedule import Send
from fusionctl.plan.topologies import factors, number_of
from fusionctl.plan.topology import Topology, size_of

Phase = list[list[Send]]
"""The sends of each step of a ring along one axis."""


def shape_of(topology: Topology | int) -> tuple[int, ...]:
    """The grid of a topology that has one, else the two factors of the number of ranks nearest to its root."""
    return (topology.shape if isinstance(topology, Topology) else ()) or factors(size_of(topology))


def phases(shape: Sequence[int], order: Sequence[int], first: int = 0) -> list[Phase]:
    """An all-reduce of N chunks from `first` on: reduce-scatters along the axes in that order, all-gathers back.

    The chunks are cut into as many blocks as the first axis is long, of which each rank keeps the one of its own
    coordinate; these are cut along the second axis, and so on: a rank ends with one chunk.  Along each axis the
    blocks go as in `ring`, and those chunks that a rank sends at once follow each other.
    """
    ways = [(depth, reduce) for reduce in (True, False) for depth in range(len(order))]
    ways[len(order) :] = reversed(ways[len(order) :])
    return [list(_ring(shape, order, depth, reduce, first)) for depth, reduce in ways]


def _ring(shape: Sequence[int], order: Sequence[int], depth: int, reduce: bool, first: int) -> Iterator[list[Send]]:
    axis, places = order[depth], list(product(*map(range, shape)))
    blocks = [prod(shape[a] for a in order[d + 1 :]) for d in range(depth + 1)]
    for step in range(shape[axis] - 1):
        sends = []
        for src, place in enumerate(places):
            own = first + sum(place[a] * block for a, block in zip(order[:depth], blocks, strict=False))
            start = own + (place[axis] - step - reduce) % shape[axis] * blocks[depth]
            after = (*place[:axis], (place[axis] + 1) % shape[axis], *place[axis + 1 :])
            dst = number_of(after, shape)
            sends += [Send(chunk, src, dst, reduce) for chunk in range(start, start + blocks[depth])]
        yield sends
