"""Schedules of collectives: a topology, planners that make a schedule for it, and the check that it is right."""

from collections.abc import Callable

from fusionctl.plan.biring import biring as _biring
from fusionctl.plan.direct import direct as _direct
from fusionctl.plan.double_tree import double_tree as _double_tree
from fusionctl.plan.hierarchical import hierarchical as _hierarchical
from fusionctl.plan.rabenseifner import rabenseifner as _rabenseifner
from fusionctl.plan.recursive import recursive as _recursive
from fusionctl.plan.ring import ring as _ring
from fusionctl.plan.ring2d import ring2d as _ring2d
from fusionctl.plan.schedule import Schedule, ScheduleError, Send, Step, concatenate
from fusionctl.plan.swing import swing as _swing
from fusionctl.plan.topology import Link, Topology
from fusionctl.plan.tree import tree as _tree

Planner = Callable[[Topology | int], Schedule]
"""Makes the schedule of an all-reduce on the links of a topology, or for that many ranks that all reach each other.

UsageError if the algorithm is not defined for the number of ranks.
"""

PLANNERS: dict[str, Planner] = {
    "biring": _biring,
    "direct": _direct,
    "double_tree": _double_tree,
    "hierarchical": _hierarchical,
    "rabenseifner": _rabenseifner,
    "recursive": _recursive,
    "ring": _ring,
    "ring2d": _ring2d,
    "swing": _swing,
    "tree": _tree,
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
