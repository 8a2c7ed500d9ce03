"""Which rank reaches which over what link: the network that a schedule is planned for, checked against and timed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fusionctl.errors import UsageError

GIGABIT = 1e9 / 8
"""Bytes per second of a link of one Gbit/s."""

BANDWIDTH = 100 * GIGABIT
"""Bytes per second of a link whose bandwidth is not given."""

LATENCY = 1e-6
"""Seconds that a message takes on a link whose latency is not given, before its first byte arrives."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection: `bandwidth` in bytes per second, `latency` in seconds.

    `channels` are what it carries at once, each with the whole bandwidth: the wavelengths of a fibre, else 1.
    """

    bandwidth: float = BANDWIDTH
    latency: float = LATENCY
    channels: int = 1

    def __post_init__(self) -> None:
        """Refuse what no link can have."""
        if not self.bandwidth > 0 or not self.latency >= 0 or not self.channels >= 1:
            raise UsageError(
                f"a link cannot have {self.bandwidth} bytes/s, {self.latency} s and {self.channels} channels: "
                f"the bandwidth must be above 0, the latency 0 or above, the channels 1 or more"
            )


@dataclass(frozen=True, slots=True)
class Topology:
    """The directed links between `size` ranks and `switches` switches, which are the nodes from `size` on.

    `links` is keyed by (source, destination).  `name` carries the parameters that make it, such as `ring(8)`.
    """

    name: str
    size: int
    links: Mapping[tuple[int, int], Link] = field(repr=False, hash=False)
    switches: int = 0

    def __post_init__(self) -> None:
        """Refuse links of nodes that do not exist."""
        positive(self.size)
        for src, dst in self.links:
            if src == dst or not (0 <= src < self.nodes and 0 <= dst < self.nodes):
                switches = f" and {self.switches} switches" if self.switches else ""
                raise UsageError(f"{self.name}: no link can lead from {src} to {dst} of {self.size} ranks{switches}")

    @property
    def nodes(self) -> int:
        """Number of ranks and switches."""
        return self.size + self.switches


def positive(size: int) -> int:
    """Return a number of ranks if it is one; UsageError otherwise."""
    if size < 1:
        raise UsageError(f"there cannot be {size} ranks: give 1 or more")
    return size


def size_of(topology: Topology | int) -> int:
    """Number of ranks of a topology, or the number itself where a planner needs to know no more."""
    return topology.size if isinstance(topology, Topology) else positive(topology)


def ring(size: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """Each rank is linked, both ways, with the next one, the last with the first."""
    link = Link(bandwidth, latency)
    ahead = [(rank, (rank + 1) % positive(size)) for rank in range(size) if size > 1]
    return Topology(f"ring({size})", size, dict.fromkeys(ahead + [(dst, src) for src, dst in ahead], link))


def fully_connected(size: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """Each rank has a link of its own to each other rank."""
    link = Link(bandwidth, latency)
    pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
    return Topology(f"fully_connected({size})", size, dict.fromkeys(pairs, link))
