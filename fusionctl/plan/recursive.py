"""Recursive doubling: log2 N steps with whole vectors, for latency, and for what can only be combined two by two."""

from __future__ import annotations

from collections.abc import Iterator

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology, size_of


def recursive(topology: Topology | int) -> Schedule:
    """All-reduce in which partners at distance 1, 2, 4, ... exchange all they have (Thakur et al., IJHPCA 2005).

    Where N is no power of two, each rank r beyond the greatest one, P, first adds its vector to rank r - P's, and gets
    the result in the end.  Both partners combine the same two vectors in the same order, so that ranks stay bit-equal.

    Four ranks:

    >>> print(recursive(4))
    recursive(4): allreduce, 4 ranks, 1 chunks, 2 steps
    0: +0 0->1, +0 1->0, +0 2->3, +0 3->2
    1: +0 0->2, +0 1->3, +0 2->0, +0 3->1
    """
    size = size_of(topology)
    power = 1 << (size.bit_length() - 1)
    extra = range(power, size)
    steps = [Step(Send(0, rank, rank - power, reduce=True) for rank in extra)] if extra else []
    steps += doublings(power)
    steps += [Step(Send(0, rank - power, rank, reduce=False) for rank in extra)] if extra else []
    return lay(Schedule(f"recursive({size})", "allreduce", size, 1, tuple(steps)), topology)


def doublings(power: int) -> Iterator[Step]:
    """The exchanges among a power of two of ranks, the nearest partners first."""
    distance = 1
    while distance < power:
        yield Step(Send(0, rank, rank ^ distance, reduce=True) for rank in range(power))
        distance *= 2
