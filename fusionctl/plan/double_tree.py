"""The double binary tree: two trees, each with half of the data, in which no rank is an inner node twice."""

from __future__ import annotations

from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology, size_of


def double_tree(topology: Topology | int) -> Schedule:
    """All-reduce by a reduction and a broadcast in two trees at once (Sanders, Speck, Traeff, Parallel Comput. 2009).

    The first tree is the balanced one whose inorder is 0, 1, ..., N-1, so that its leaves are the even ranks.  The
    second is its mirror image if N is even, else it is the first shifted by one: its leaves are the odd ranks, and
    for odd N rank 0.  So a rank that adds up and passes on one half of the data does no such work for the other.
    Chunk t belongs to tree t.  In each of 2 floor(log2 N) steps one level of both trees moves.

    Four ranks:

    >>> print(double_tree(4))
    double_tree(4): allreduce, 4 ranks, 2 chunks, 4 steps
    0: +0 0->1, +1 1->2, +0 2->1, +1 3->2
    1: +0 1->3, +1 2->0
    2: =1 0->2, =0 3->1
    3: =0 1->0, =0 1->2, =1 2->1, =1 2->3
    """
    size = size_of(topology)
    trees = [parents(size, second) for second in (False, True)]
    up: list[list[Send]] = [[] for _ in range(size.bit_length() - 1)]
    down: list[list[Send]] = [[] for _ in up]
    for chunk, tree in enumerate(trees):
        for rank, parent in tree.items():
            depth = depth_of(tree, rank)
            up[-depth].append(Send(chunk, rank, parent, reduce=True))
            down[depth - 1].append(Send(chunk, parent, rank, reduce=False))
    steps = tuple(map(Step, up + down))
    return lay(Schedule(f"double_tree({size})", "allreduce", size, 2, steps), topology)


def parents(size: int, second: bool = False) -> dict[int, int]:
    """The parent of each rank but the root, in the first or the second tree."""
    tree = {i - 1: _parent(i, size) - 1 for i in range(1, size + 1) if _parent(i, size)}
    if not second:
        return tree
    moved = [size - 1 - rank if size % 2 == 0 else (rank + 1) % size for rank in range(size)]
    return {moved[rank]: moved[parent] for rank, parent in tree.items()}


def _parent(i: int, size: int) -> int:
    """The parent in the tree whose inorder is 1, 2, ..., size; 0 if there is none.

    The lowest bit that is set is 1 in a leaf, and moves up by one to the parent, unless that is beyond the last.
    """
    bit = i & -i
    up = (i ^ bit) | bit << 1
    return up if up <= size else i ^ bit


def depth_of(tree: dict[int, int], rank: int) -> int:
    """How many edges a rank is away from the root."""
    return 1 + depth_of(tree, tree[rank]) if rank in tree else 0
