"""Which schedule reduces which bucket: the meaning of FUSIONCTL_ALLREDUCE."""

from __future__ import annotations

from dataclasses import dataclass

from fusionctl.data.program import Program, program_of
from fusionctl.errors import ConfigError, UsageError
from fusionctl.plan import PLANNERS, Schedule, ScheduleError, Topology
from fusionctl.plan.spec import topology as read_topology
from fusionctl.plan.topology import for_size
from fusionctl.plan.verify import verify

AUTO = "auto"
MPI = "mpi"
SHM = "shm"
ACCEPTED: tuple[str, ...] = (AUTO, MPI, SHM, *PLANNERS)
"""Names that FUSIONCTL_ALLREDUCE accepts; `auto` is `direct` up to `FEW` ranks and `mpi` above."""

FEW = 8
"""Ranks up to which `direct`, with its N - 1 messages of each rank at once, was measured to be the faster one."""

HALF = "direct"
"""The schedule of the 16-bit types, whatever the name: all contributions meet, so a sum is rounded once."""

ADASUM = "recursive"
"""The schedule of Adasum, which combines two vectors at a time."""

MPI_PHASE = "MPI_ALLREDUCE"
SHM_PHASE = "SHM_ALLREDUCE"


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """How one rank all-reduces: `native` for the types that MPI knows, `half` where all must meet, `adasum`.

    A program that is None is MPI_Iallreduce.  The names are those of the schedules, for the timeline.  `native_scales`
    says that the native schedule reduces each chunk once, so that a scale may be applied in the same pass.  `shared`
    says that all but Adasum goes through the node's memory, and by no program.
    """

    shared: bool

    native: Program | None
    half: Program
    adasum: Program
    native_scales: bool
    native_name: str
    half_name: str


def programs(name: str, rank: int, size: int, one_node: bool = False, topology: Topology | None = None) -> Programs:
    """The programs of a rank for a value of FUSIONCTL_ALLREDUCE; every schedule is verified before it is used.

    A named schedule is planned for the topology, if there is one.
    """
    shared = shares_memory(name, size, one_node)
    schedule = None if shared else schedule_for(name, size, topology)
    half = verify(PLANNERS[HALF](size))
    return Programs(
        shared=shared,
        native=None if schedule is None else program_of(schedule, checked(rank, size)),
        half=program_of(half, checked(rank, size)),
        adasum=program_of(verify(PLANNERS[ADASUM](size)), rank),
        native_scales=schedule is not None and reduces_once(schedule),
        native_name=SHM_PHASE if shared else MPI_PHASE if schedule is None else schedule.name,
        half_name=half.name,
    )


def shares_memory(name: str, size: int, one_node: bool) -> bool:
    """Whether all-reduces go through the node's memory; ConfigError where that is asked for and can not be."""
    if name == SHM and not one_node:
        raise ConfigError(
            f"FUSIONCTL_ALLREDUCE={name}: the {size} ranks are on several nodes, which share no memory; choose auto"
        )
    return size > 1 and name == SHM


def reduces_once(schedule: Schedule) -> bool:
    """Whether each chunk is reduced at one rank in one step, as in `direct`: what comes out there is final."""
    reductions = {
        (i, send.dst, send.chunk) for i, step in enumerate(schedule.steps) for send in step.sends if send.reduce
    }
    return len(reductions) == len({chunk for _, _, chunk in reductions})


def topology_of(text: str | None, size: int) -> Topology | None:
    """What FUSIONCTL_TOPOLOGY describes, for so many ranks; ConfigError if it describes none."""
    if text is None:
        return None
    try:
        return for_size(read_topology(text), size)
    except (UsageError, OSError) as error:
        raise ConfigError(f"FUSIONCTL_TOPOLOGY={text}: {error}") from error


def schedule_for(name: str, size: int, topology: Topology | None = None) -> Schedule | None:
    """The verified schedule of that name, or None where none is meant; ConfigError if there is none of it."""
    if name == AUTO:
        name = HALF if size <= FEW else MPI
    if name in (MPI, SHM):
        return None
    if name not in PLANNERS:
        raise ConfigError(f"FUSIONCTL_ALLREDUCE={name}: no such all-reduce; accepted are {', '.join(ACCEPTED)}")
    try:
        return verify(PLANNERS[name](size if topology is None else topology), topology)
    except (UsageError, ScheduleError) as error:
        if isinstance(error, ScheduleError) and topology is None:
            raise  # a planner's fault, not the setting's
        where = "" if topology is None else f" on {topology.name}"
        raise ConfigError(f"FUSIONCTL_ALLREDUCE={name}{where}: {error}") from error


def possible(name: str, size: int) -> str:
    """The name, or `auto` where its schedule is not defined for so many ranks, as those of a process set."""
    try:
        schedule_for(name, size)
    except ConfigError:
        return AUTO
    return name


def checked(rank: int, size: int) -> int:
    """Return a rank that exists among `size`; UsageError otherwise."""
    if not 0 <= rank < size:
        raise UsageError(f"there is no rank {rank} among {size}: give 0 to {size - 1}")
    return rank
