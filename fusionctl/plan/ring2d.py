"""The 2D-ring: rings along the rows and the columns of a grid, both at once, each with half of the data."""

from __future__ import annotations

from itertools import zip_longest

from fusionctl.plan.grid import phases, shape_of
from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Step
from fusionctl.plan.topology import Topology, size_of


def ring2d(topology: Topology | int) -> Schedule:
    """All-reduce in rings along the axes of a grid: the baseline 2D-RING of Huang et al., ISCA 2021.

    The first half of the chunks is reduce-scattered along the rows and then along the columns, and gathered back; the
    second half along the columns first.  So the halves never meet on a link: the bytes of the ring, in 4 (L - 1) steps
    where L is the longer side.  Along a mesh, which has no link from the last to the first, that message goes
    back the whole row.  A grid of three axes is treated alike, with a third for each; axes of one rank are left out.
    The grid is that of the topology (`shape`), or else as near to a square as the number of ranks allows.

    Four ranks, 0 1 above 2 3:

    >>> print(ring2d(4))  # doctest: +NORMALIZE_WHITESPACE
    ring2d(2x2): allreduce, 4 ranks, 8 chunks, 4 steps
    0: +2 0->1, +3 0->1, +6 0->2, +7 0->2, +0 1->0, +1 1->0, +6 1->3, +7 1->3, +4 2->0, +5 2->0, +2 2->3, +3 2->3,
       +4 3->1, +5 3->1, +0 3->2, +1 3->2
    1: +5 0->1, +1 0->2, +4 1->0, +3 1->3, +0 2->0, +7 2->3, +2 3->1, +6 3->2
    2: =4 0->1, =0 0->2, =5 1->0, =2 1->3, =1 2->0, =6 2->3, =3 3->1, =7 3->2
    3: =0 0->1, =1 0->1, =4 0->2, =5 0->2, =2 1->0, =3 1->0, =4 1->3, =5 1->3, =6 2->0, =7 2->0, =0 2->3, =1 2->3,
       =6 3->1, =7 3->1, =2 3->2, =3 3->2
    """
    size, shape = size_of(topology), shape_of(topology)
    axes = [axis for axis in reversed(range(len(shape))) if shape[axis] > 1]
    parts = [phases(shape, axes[i:] + axes[:i], first=i * size) for i in range(len(axes))]
    steps = [
        Step(send for sends in at_once for send in sends)
        for phase in zip(*parts, strict=True)
        for at_once in zip_longest(*phase, fillvalue=[])
    ]
    name = f"ring2d({'x'.join(map(str, shape))})"
    return lay(Schedule(name, "allreduce", size, max(1, len(parts)) * size, tuple(steps)), topology)
