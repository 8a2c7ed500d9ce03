"""The binary tree: each step halves the ranks that still have something to add, and then doubles those that know."""

from __future__ import annotations

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology, size_of


def tree(topology: Topology | int) -> Schedule:
    """All-reduce by a reduction to rank 0 and a broadcast from it: 2 ceil(log2 N) steps with whole vectors.

    The binomial form of the tree (Thakur et al., IJHPCA 2005): in step k of the reduction every second one of the
    ranks that are left adds its vector to the one 2**k before it, so that no rank receives from two at once; the
    broadcast is the exact reverse.

    Four ranks:

    >>> print(tree(4))
    tree(4): allreduce, 4 ranks, 1 chunks, 4 steps
    0: +0 1->0, +0 3->2
    1: +0 2->0
    2: =0 0->2
    3: =0 0->1, =0 2->3
    """
    size = size_of(topology)
    distances = [1 << level for level in range((size - 1).bit_length())]
    up = [Step(Send(0, rank, rank - d, reduce=True) for rank in range(d, size, 2 * d)) for d in distances]
    down = [Step(Send(0, rank - d, rank, reduce=False) for rank in range(d, size, 2 * d)) for d in distances]
    return lay(Schedule(f"tree({size})", "allreduce", size, 1, (*up, *reversed(down))), topology)
