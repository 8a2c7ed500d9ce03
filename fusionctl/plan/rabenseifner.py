"""Rabenseifner's all-reduce: log2 N steps that halve what is exchanged, and as many that double it."""

from __future__ import annotations

from collections.abc import Iterator

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology, size_of


def rabenseifner(topology: Topology | int) -> Schedule:
    """All-reduce by recursive halving and doubling (Thakur, Rabenseifner, Gropp, IJHPCA 2005).

    Partners at distance N/2, N/4, ..., 1 give each other half of what they still reduce, until rank c has chunk c;
    at distance 1, 2, ..., N/2 they then give each other all they have.  As few bytes as the ring, in 2 log2 N steps.
    Where N is no power of two, each rank r beyond the greatest one, P, first adds its vector to rank r - P's, and
    gets the result in the end.

    Four ranks:

    >>> print(rabenseifner(4))
    rabenseifner(4): allreduce, 4 ranks, 4 chunks, 4 steps
    0: +2 0->2, +3 0->2, +2 1->3, +3 1->3, +0 2->0, +1 2->0, +0 3->1, +1 3->1
    1: +1 0->1, +0 1->0, +3 2->3, +2 3->2
    2: =0 0->1, =1 1->0, =2 2->3, =3 3->2
    3: =0 0->2, =1 0->2, =0 1->3, =1 1->3, =2 2->0, =3 2->0, =2 3->1, =3 3->1
    """
    size = size_of(topology)
    power = 1 << (size.bit_length() - 1)
    extra = range(power, size)
    chunks = range(power)
    before = [Step(Send(chunk, rank, rank - power, True) for rank in extra for chunk in chunks)] if extra else []
    after = [Step(Send(chunk, rank - power, rank, False) for rank in extra for chunk in chunks)] if extra else []
    steps = (*before, *halvings(power), *doublings(power), *after)
    return lay(Schedule(f"rabenseifner({size})", "allreduce", size, power, steps), topology)


def halvings(power: int) -> Iterator[Step]:
    """The reduce-scatter among a power of two of ranks, the farthest partners first."""
    for distance in reversed(_distances(power)):
        yield Step(
            Send(chunk, rank, rank ^ distance, reduce=True)
            for rank in range(power)
            for chunk in _around(rank ^ distance, distance)
        )


def doublings(power: int) -> Iterator[Step]:
    """The all-gather among a power of two of ranks, the nearest partners first."""
    for distance in _distances(power):
        yield Step(
            Send(chunk, rank, rank ^ distance, reduce=False)
            for rank in range(power)
            for chunk in _around(rank, distance)
        )


def _distances(power: int) -> list[int]:
    return [1 << bit for bit in range(power.bit_length() - 1)]


def _around(rank: int, length: int) -> range:
    """The chunks of a rank while it has so many: those whose numbers differ from its own in the lowest bits only."""
    return range(rank - rank % length, rank - rank % length + length)
