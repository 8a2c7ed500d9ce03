"""The ring: 2(N - 1) steps in which every rank sends 1/N of the data to the next rank, 2(N - 1)/N of it in all."""

from __future__ import annotations

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step, concatenate
from fusionctl.plan.topology import Topology, size_of


def ring(topology: Topology | int) -> Schedule:
    """All-reduce along the ring 0 -> 1 -> ... -> N-1 -> 0: as few bytes as possible, as many steps as ranks.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
    In the reduce-scatter, chunk c starts at rank c + 1 and gathers one contribution per step until rank c has all of
    them; in the all-gather it travels once more around.  A 16-bit sum would be rounded at each of its N - 1 stations.

    Four ranks (`+` reduces a chunk into the receiver's, `=` replaces it):

    >>> print(ring(4))
    ring(4): allreduce, 4 ranks, 4 chunks, 6 steps
    0: +3 0->1, +0 1->2, +1 2->3, +2 3->0
    1: +2 0->1, +3 1->2, +0 2->3, +1 3->0
    2: +1 0->1, +2 1->2, +3 2->3, +0 3->0
    3: =0 0->1, =1 1->2, =2 2->3, =3 3->0
    4: =3 0->1, =0 1->2, =1 2->3, =2 3->0
    5: =2 0->1, =3 1->2, =0 2->3, =1 3->0
    """
    size = size_of(topology)
    return lay(concatenate(f"ring({size})", reduce_scatter(size), allgather(size)), topology)


def reduce_scatter(size: int) -> Schedule:
    """The first half: chunk c of N ends on rank c."""
    steps = tuple(_turn(size, lag=1 + step, reduce=True) for step in range(size - 1))
    return Schedule(f"ring_reduce_scatter({size})", "reduce_scatter", size, size, steps)


def allgather(size: int) -> Schedule:
    """The second half: chunk c of N starts on rank c."""
    steps = tuple(_turn(size, lag=step, reduce=False) for step in range(size - 1))
    return Schedule(f"ring_allgather({size})", "allgather", size, size, steps)


def _turn(size: int, lag: int, reduce: bool) -> Step:
    return Step(Send((rank - lag) % size, rank, (rank + 1) % size, reduce) for rank in range(size))
