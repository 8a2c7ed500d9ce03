"""The optical ring as a model: its machine, its light budget, and the steps and seconds of all-reduces on it.

Closed forms of Dai et al., "WRHT: efficient all-reduce for distributed DNN training in optical interconnect systems"
(ICPP 2023, arXiv 2207.10982).  `n_bytes` is the size of the vector, seconds are those of the whole all-reduce.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusionctl.errors import UsageError
from fusionctl.plan.topology import GIGABIT


@dataclass(frozen=True, slots=True)
class OpticalMachine:
    """An optical ring: `bandwidth` in bytes/s per wavelength, `reconfiguration` in seconds per change of lightpaths.

    `oeo` are the seconds that converting a packet of `packet` bytes between light and electricity takes, in each step.
    The defaults are those that WRHT is reported with; its `oeo` is not known.
    """

    wavelengths: int = 64
    bandwidth: float = 40 * GIGABIT
    reconfiguration: float = 25e-6
    packet: int = 128
    oeo: float = 0.0

    def transfer(self, n_bytes: float) -> float:
        """Seconds of n bytes on one wavelength that is set up."""
        return n_bytes / self.bandwidth + math.ceil(n_bytes / self.packet) * self.oeo

    def step(self, n_bytes: float) -> float:
        """Seconds of one step in which every lightpath carries n bytes, with the change of lightpaths before it."""
        return self.transfer(n_bytes) + self.reconfiguration


@dataclass(frozen=True, slots=True)
class InsertionLoss:
    """The light budget of a lightpath: losses in dB, `laser` power and receiver `sensitivity` in dBm.

    `per_ring` is lost at each micro-ring resonator that is passed, `coupling` and `drop` once.
    """

    per_ring: float
    coupling: float
    drop: float
    laser: float
    sensitivity: float

    def hops(self) -> int:
        """How many hops light may go: hops * per_ring + coupling + drop <= laser - sensitivity."""
        left = self.laser - self.sensitivity - self.coupling - self.drop
        if not self.per_ring > 0 or left < self.per_ring:
            raise UsageError(
                f"no light arrives: {self.laser} dBm less {self.coupling + self.drop} dB and {self.per_ring} dB a hop "
                f"do not leave {self.sensitivity} dBm after one hop (a hop must lose more than 0 dB)"
            )
        return math.floor(left / self.per_ring)

    def largest_group(self) -> int:
        """The largest group of WRHT whose farthest member reaches the representative in the middle."""
        return 2 * self.hops() + 1


def ring_steps(size: int) -> int:
    """Steps of the ring."""
    return 2 * (size - 1)


def tree_steps(size: int) -> int:
    """Steps of the binary tree, up and down."""
    return 2 * (size - 1).bit_length()


def h_ring_steps(size: int, group: int) -> int:
    """Steps of rings in groups, then a ring across them."""
    return -((3 * group - 2 * (group * group + size)) // group)


def ring_seconds(size: int, n_bytes: float, machine: OpticalMachine) -> float:
    """Seconds of the ring, each step with 1/N of the vector."""
    return ring_steps(size) * machine.step(n_bytes / size)


def tree_seconds(size: int, n_bytes: float, machine: OpticalMachine) -> float:
    """Seconds of the binary tree, each step with the whole vector."""
    return tree_steps(size) * machine.step(n_bytes)


def h_ring_seconds(size: int, group: int, n_bytes: float, machine: OpticalMachine) -> float:
    """Seconds of the hierarchical ring; N / g need not be whole, as in the paper."""
    across = size / group
    inside = 2 * (group - 1) * machine.step(n_bytes / group)
    return inside + 2 * (across - 1) * machine.step(n_bytes / across) + machine.step(n_bytes)


def wrht_seconds(steps: int, n_bytes: float, machine: OpticalMachine) -> float:
    """Seconds of so many steps of WRHT, each with the whole vector; `wrht.wrht_steps` counts them."""
    return steps * machine.step(n_bytes)
