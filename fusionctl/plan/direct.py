"""The direct exchange: two steps, every rank to every rank, and each sum rounded once."""

from __future__ import annotations

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step, concatenate
from fusionctl.plan.topology import Topology, size_of


def direct(topology: Topology | int) -> Schedule:
    """All-reduce in two steps: rank c collects chunk c from all others, reduces it in rank order, and sends it to all.

    As many bytes as the ring, in two steps instead of 2(N - 1), over N(N - 1) links at once.  All contributions to a
    chunk meet in one place, so that the sum of a 16-bit type is accumulated in float32 and rounded once.

    Four ranks (`+` reduces a chunk into the receiver's, `=` replaces it):

    >>> print(direct(4))
    direct(4): allreduce, 4 ranks, 4 chunks, 2 steps
    0: +1 0->1, +2 0->2, +3 0->3, +0 1->0, +2 1->2, +3 1->3, +0 2->0, +1 2->1, +3 2->3, +0 3->0, +1 3->1, +2 3->2
    1: =0 0->1, =0 0->2, =0 0->3, =1 1->0, =1 1->2, =1 1->3, =2 2->0, =2 2->1, =2 2->3, =3 3->0, =3 3->1, =3 3->2
    """
    size = size_of(topology)
    return lay(concatenate(f"direct({size})", reduce_scatter(size), allgather(size)), topology)


def reduce_scatter(size: int) -> Schedule:
    """The first step: chunk c of N ends on rank c."""
    step = Step(Send(dst, src, dst, reduce=True) for src, dst in _pairs(size))
    return Schedule(f"direct_reduce_scatter({size})", "reduce_scatter", size, size, (step,) if size > 1 else ())


def allgather(size: int) -> Schedule:
    """The second step: chunk c of N starts on rank c."""
    step = Step(Send(src, src, dst, reduce=False) for src, dst in _pairs(size))
    return Schedule(f"direct_allgather({size})", "allgather", size, size, (step,) if size > 1 else ())


def _pairs(size: int) -> list[tuple[int, int]]:
    return [(src, dst) for src in range(size) for dst in range(size) if src != dst]
