"""The bidirectional ring: half of the data each way round, so that both directions of the links are in use."""

from __future__ import annotations

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step, concatenate
from fusionctl.plan.topology import Topology, size_of


def biring(topology: Topology | int) -> Schedule:
    """All-reduce along two rings, 0 -> 1 -> ... -> 0 and 0 -> N-1 -> ... -> 0, each with half of the data.

    The ring of Patarasuk and Yuan (JPDC 2009), twice: as many steps and bytes of each rank, over twice the links.
    Even chunks go up, odd ones down; rank r has chunks 2r and 2r + 1 after the reduce-scatter.

    Four ranks (`+` reduces a chunk into the receiver's, `=` replaces it):

    >>> print(biring(4))
    biring(4): allreduce, 4 ranks, 8 chunks, 6 steps
    0: +6 0->1, +3 0->3, +5 1->0, +0 1->2, +7 2->1, +2 2->3, +4 3->0, +1 3->2
    1: +4 0->1, +5 0->3, +7 1->0, +6 1->2, +1 2->1, +0 2->3, +2 3->0, +3 3->2
    2: +2 0->1, +7 0->3, +1 1->0, +4 1->2, +3 2->1, +6 2->3, +0 3->0, +5 3->2
    3: =0 0->1, =1 0->3, =3 1->0, =2 1->2, =5 2->1, =4 2->3, =6 3->0, =7 3->2
    4: =6 0->1, =3 0->3, =5 1->0, =0 1->2, =7 2->1, =2 2->3, =4 3->0, =1 3->2
    5: =4 0->1, =5 0->3, =7 1->0, =6 1->2, =1 2->1, =0 2->3, =2 3->0, =3 3->2
    """
    size = size_of(topology)
    return lay(concatenate(f"biring({size})", reduce_scatter(size), allgather(size)), topology)


def reduce_scatter(size: int) -> Schedule:
    """The first half: chunks 2r and 2r + 1 of 2N end on rank r."""
    steps = tuple(_turn(size, lag=1 + step, reduce=True) for step in range(size - 1))
    return Schedule(f"biring_reduce_scatter({size})", "reduce_scatter", size, 2 * size, steps)


def allgather(size: int) -> Schedule:
    """The second half: chunks 2r and 2r + 1 of 2N start on rank r."""
    steps = tuple(_turn(size, lag=step, reduce=False) for step in range(size - 1))
    return Schedule(f"biring_allgather({size})", "allgather", size, 2 * size, steps)


def _turn(size: int, lag: int, reduce: bool) -> Step:
    up = [Send(2 * ((rank - lag) % size), rank, (rank + 1) % size, reduce) for rank in range(size)]
    down = [Send(2 * ((rank + lag) % size) + 1, rank, (rank - 1) % size, reduce) for rank in range(size)]
    return Step(up + down)
