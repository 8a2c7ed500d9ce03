"""Which schedule reduces which bucket: the meaning of FUSIONCTL_ALLREDUCE."""

from __future__ import annotations

from dataclasses import dataclass

from fusionctl.data.program import Program, program_of
from fusionctl.errors import ConfigError, UsageError
from fusionctl.plan import PLANNERS, Schedule
from fusionctl.plan.verify import verify

AUTO = "auto"
MPI = "mpi"
ACCEPTED: tuple[str, ...] = (AUTO, MPI, *PLANNERS)
"""Names that FUSIONCTL_ALLREDUCE accepts; `auto` is `direct` up to `FEW` ranks, and MPI's own all-reduce above."""

FEW = 8
"""Ranks up to which `direct`, with its N - 1 messages of each rank at once, was measured to be the faster one."""

HALF = "direct"
"""The schedule of the 16-bit types, whatever the name: all contributions meet, so a sum is rounded once."""

ADASUM = "recursive"
"""The schedule of Adasum, which combines two vectors at a time."""

MPI_PHASE = "MPI_ALLREDUCE"


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """How one rank all-reduces: `native` for the types that MPI knows, `half` where all must meet, `adasum`.

    A program that is None is MPI_Iallreduce.  The names are those of the schedules, for the timeline.  `native_scales`
    says that the native schedule reduces each chunk once, so that a scale may be applied in the same pass.
    """

    native: Program | None
    half: Program
    adasum: Program
    native_scales: bool
    native_name: str
    half_name: str


def programs(name: str, rank: int, size: int) -> Programs:
    """The programs of a rank for a value of FUSIONCTL_ALLREDUCE; every schedule is verified before it is used."""
    schedule = schedule_for(name, size)
    half = verify(PLANNERS[HALF](size))
    return Programs(
        native=None if schedule is None else program_of(schedule, checked(rank, size)),
        half=program_of(half, checked(rank, size)),
        adasum=program_of(verify(PLANNERS[ADASUM](size)), rank),
        native_scales=schedule is not None and reduces_once(schedule),
        native_name=MPI_PHASE if schedule is None else schedule.name,
        half_name=half.name,
    )


def reduces_once(schedule: Schedule) -> bool:
    """Whether each chunk is reduced at one rank in one step, as in `direct`: what comes out there is final."""
    reductions = {
        (i, send.dst, send.chunk) for i, step in enumerate(schedule.steps) for send in step.sends if send.reduce
    }
    return len(reductions) == len({chunk for _, _, chunk in reductions})


def schedule_for(name: str, size: int) -> Schedule | None:
    """The verified schedule of that name, or None where MPI's own all-reduce is meant; ConfigError if there is none."""
    if name == AUTO:
        name = HALF if size <= FEW else MPI
    if name == MPI:
        return None
    if name not in PLANNERS:
        raise ConfigError(f"FUSIONCTL_ALLREDUCE={name}: no such all-reduce; accepted are {', '.join(ACCEPTED)}")
    return verify(PLANNERS[name](size))


def checked(rank: int, size: int) -> int:
    """Return a rank that exists among `size`; UsageError otherwise."""
    if not 0 <= rank < size:
        raise UsageError(f"there is no rank {rank} among {size}: give 0 to {size - 1}")
    return rank
