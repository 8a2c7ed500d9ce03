"""Swing: recursive halving and doubling with partners that stay near on a ring, alternately on both sides."""

from __future__ import annotations

from functools import cache

from fusionctl.errors import UsageError
from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step, concatenate
from fusionctl.plan.topology import Topology, size_of


def swing(topology: Topology | int) -> Schedule:
    """All-reduce among ranks on a ring in 2 log2 N steps (De Sensi et al., NSDI 2024), the form with the fewest bytes.

    In step s the partner of an even rank is 1, -1, 3, -5, 11, ... further, of an odd rank that much before.  They
    exchange the half of what they hold that the partner, and those whom it meets later, keep; the all-gather goes
    back.  Distances grow as 2**s / 3, where recursive halving has 2**s, so that fewer messages share a link of a ring.
    UsageError unless N is a power of two.

    Four ranks:

    >>> print(swing(4))
    swing(4): allreduce, 4 ranks, 4 chunks, 4 steps
    0: +1 0->1, +2 0->1, +0 1->0, +3 1->0, +0 2->3, +3 2->3, +1 3->2, +2 3->2
    1: +3 0->3, +2 1->2, +1 2->1, +0 3->0
    2: =0 0->3, =1 1->2, =2 2->1, =3 3->0
    3: =0 0->1, =3 0->1, =1 1->0, =2 1->0, =1 2->3, =2 2->3, =0 3->2, =3 3->2
    """
    size = size_of(topology)
    if size & (size - 1):
        raise UsageError(f"swing is for 1, 2, 4, 8, ... ranks, not for {size}: rabenseifner is for any number")
    return lay(concatenate(f"swing({size})", reduce_scatter(size), allgather(size)), topology)


def reduce_scatter(size: int) -> Schedule:
    """The first half, for a power of two of ranks: chunk c ends on rank c."""
    steps = tuple(_exchange(size, step, reduce=True) for step in range(size.bit_length() - 1))
    return Schedule(f"swing_reduce_scatter({size})", "reduce_scatter", size, size, steps)


def allgather(size: int) -> Schedule:
    """The second half, for a power of two of ranks: chunk c starts on rank c."""
    steps = tuple(_exchange(size, step, reduce=False) for step in reversed(range(size.bit_length() - 1)))
    return Schedule(f"swing_allgather({size})", "allgather", size, size, steps)


def partner(rank: int, step: int, size: int) -> int:
    """Whom a rank meets in a step."""
    distance = sum(1 << i if i % 2 == 0 else -(1 << i) for i in range(step + 1))
    return (rank + (distance if rank % 2 == 0 else -distance)) % size


def _exchange(size: int, step: int, reduce: bool) -> Step:
    """What partners give each other: in the reduce-scatter the receiver's chunks, in the all-gather the sender's."""
    sends = []
    for rank in range(size):
        other = partner(rank, step, size)
        kept = _kept(other if reduce else rank, step + 1, size)
        sends += [Send(chunk, rank, other, reduce) for chunk in kept]
    return Step(sends)


@cache
def _kept(rank: int, step: int, size: int) -> tuple[int, ...]:
    """The chunks that a rank reduces from a step on: its own and those of all whom it reaches in it and later."""
    if step == size.bit_length() - 1:
        return (rank,)
    return _kept(rank, step + 1, size) + _kept(partner(rank, step, size), step + 1, size)
