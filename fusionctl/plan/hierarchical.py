"""The hierarchical all-reduce: within each host, then across the hosts, then within each host again."""

from __future__ import annotations

from fusionctl.errors import UsageError
from fusionctl.plan.grid import phases, shape_of
from fusionctl.plan.layout import lay
from fusionctl.plan.schedule import Schedule, Step
from fusionctl.plan.topology import Topology, size_of


def hierarchical(topology: Topology | int, local: int | None = None) -> Schedule:
    """All-reduce in three phases (BlueConnect: Cho et al., MLSys 2019), for hosts of `local` consecutive ranks each.

    A ring within each host reduce-scatters; local rank l of each host then all-reduces its part with the local
    ranks l of the others, in a ring; a ring within each host all-gathers.  The bytes of a ring over all, of which
    only 1/local cross hosts; 2 (local - 1) + 2 (hosts - 1) steps.  On a topology whose hosts have one link each to
    the others, the local ranks take turns on it, in `local` times as many steps across.
    Unless given, `local` is the last extent of the topology's grid, or for a number of ranks its greatest divisor
    that is not above the root.  UsageError if the hosts would not be equally large.

    Four ranks on two hosts:

    >>> print(hierarchical(4, local=2))
    hierarchical(2x2): allreduce, 4 ranks, 4 chunks, 4 steps
    0: +2 0->1, +3 0->1, +0 1->0, +1 1->0, +2 2->3, +3 2->3, +0 3->2, +1 3->2
    1: +1 0->2, +3 1->3, +0 2->0, +2 3->1
    2: =0 0->2, =2 1->3, =1 2->0, =3 3->1
    3: =0 0->1, =1 0->1, =2 1->0, =3 1->0, =0 2->3, =1 2->3, =2 3->2, =3 3->2
    """
    size = size_of(topology)
    local = _local(topology) if local is None else local
    if local < 1 or size % local:
        raise UsageError(f"hierarchical({size}): {size} ranks are not {local} on each host: give a divisor of {size}")
    steps = [Step(sends) for phase in phases((size // local, local), order=(1, 0)) for sends in phase]
    return lay(Schedule(f"hierarchical({size // local}x{local})", "allreduce", size, size, tuple(steps)), topology)


def _local(topology: Topology | int) -> int:
    if isinstance(topology, Topology) and topology.shape:
        return topology.shape[-1]
    return min(shape_of(topology))
