"""Networks in which ranks have one port each."""

from __future__ import annotations

from fusionctl.plan.topologies import both_ways, hosts
from fusionctl.plan.topology import Link, Topology


def one_port(topology: Topology) -> Topology:
    """The network with a switch in the place of each rank, and the rank at it."""
    size = topology.size
    down = both_ways((rank, size + rank) for rank in range(size))
    between = [(size + src, size + dst) for src, dst in topology.links]
    return Topology(f"one_port({topology.name})", size, dict.fromkeys([*down, *between], Link()), switches=size)


def star(size: int, channels: int = 1) -> Topology:
    """All ranks at one switch."""
    links = dict.fromkeys(hosts(1, size).links, Link(channels=channels))
    return Topology(f"star({size},{channels})", size, links, switches=1)
