"""Schedules timed on modelled networks: in lock-step, by flows that share links, and on an optical ring."""

from typing import Protocol

from fusionctl.plan import Topology
from fusionctl.sim.flow import flow as _flow
from fusionctl.sim.network import Source, Track
from fusionctl.sim.optical import Optics
from fusionctl.sim.optical import optical as _optical
from fusionctl.sim.result import EVENTS, Result, Use
from fusionctl.sim.steps import steps as _steps


class Simulator(Protocol):
    """Times a verified schedule on a topology, for a buffer of `nbytes` bytes; without `events` to save memory."""

    def __call__(self, schedule: Source, topology: Topology, nbytes: int, *, events: bool = True) -> Result:
        """The times of all steps and sends."""


SIMULATORS: dict[str, Simulator] = {
    "flow": _flow,
    "optical": _optical,
    "steps": _steps,
}
"""The simulators by name."""

__all__ = [
    "EVENTS",
    "SIMULATORS",
    "Optics",
    "Result",
    "Simulator",
    "Source",
    "Track",
    "Use",
]
