"""Schedules of collectives: a topology, planners that make a schedule for it, and the check that it is right."""

from collections.abc import Callable

from fusionctl.plan.direct import direct as _direct
from fusionctl.plan.recursive import recursive as _recursive
from fusionctl.plan.ring import ring as _ring
from fusionctl.plan.schedule import Schedule, ScheduleError, Send, Step, concatenate
from fusionctl.plan.topology import Link, Topology

Planner = Callable[[Topology | int], Schedule]
"""Makes the schedule of an all-reduce for a topology, or for that many ranks."""

PLANNERS: dict[str, Planner] = {
    "direct": _direct,
    "recursive": _recursive,
    "ring": _ring,
}
"""The planners by the name that a user gives."""

__all__ = [
    "PLANNERS",
    "Link",
    "Planner",
    "Schedule",
    "ScheduleError",
    "Send",
    "Step",
    "Topology",
    "concatenate",
]
