"""Which rank reaches which over what link: the network that a schedule is planned for, checked against and timed on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

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

    `links` is keyed by (source, destination), and its order counts: `route` and planners that search try the links of
    a node in the order in which they are stored.  `name` carries the parameters that make it, such as `ring(8)`.
    `shape` are the extents of the grid that the ranks form, the last one varying fastest: (rows, columns) of a torus,
    (hosts, local ranks); empty where there is none.
    """

    name: str
    size: int
    links: Mapping[tuple[int, int], Link] = field(repr=False, hash=False)
    switches: int = 0
    shape: tuple[int, ...] = ()
    _onward: dict[int, list[int]] = field(init=False, repr=False, compare=False, default_factory=dict)
    _before: dict[int, list[int | None]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse links of nodes that do not exist, and a grid of another number of ranks."""
        positive(self.size)
        if self.shape and prod(self.shape) != self.size:
            raise UsageError(f"{self.name}: a grid of {'x'.join(map(str, self.shape))} is not one of {self.size} ranks")
        for src, dst in self.links:
            if src == dst or not (0 <= src < self.nodes and 0 <= dst < self.nodes):
                switches = f" and {self.switches} switches" if self.switches else ""
                raise UsageError(f"{self.name}: no link can lead from {src} to {dst} of {self.size} ranks{switches}")
            self._onward.setdefault(src, []).append(dst)

    @property
    def nodes(self) -> int:
        """Number of ranks and switches."""
        return self.size + self.switches

    def neighbours(self, node: int) -> list[int]:
        """The nodes that a node has a link to, in the order of the links."""
        return self._onward.get(node, [])


def positive(size: int) -> int:
    """Return a number of ranks if it is one; UsageError otherwise."""
    if size < 1:
        raise UsageError(f"there cannot be {size} ranks: give 1 or more")
    return size


def size_of(topology: Topology | int) -> int:
    """Number of ranks of a topology, or the number itself where a planner needs to know no more."""
    return topology.size if isinstance(topology, Topology) else positive(topology)


def route(topology: Topology, src: int, dst: int) -> tuple[int, ...]:
    """The nodes between two on a way of the fewest links; () where one link leads there.

    Of several such ways it is the one that a breadth-first search from `src` finds first when it tries the links of
    each node in their order.  UsageError if there is no way.
    """
    if src not in topology._before:
        topology._before[src] = _search(topology, src)
    before = topology._before[src]
    via: list[int] = []
    node = before[dst] if dst != src else src
    while node is not None and node != src:
        via.append(node)
        node = before[node]
    if node is None:
        raise UsageError(f"{topology.name}: no way leads from node {src} to node {dst}")
    return tuple(reversed(via))


def _search(topology: Topology, src: int) -> list[int | None]:
    """The node before each node on its way from `src`; None for `src` itself and for what cannot be reached."""
    before: list[int | None] = [None] * topology.nodes
    queue = [src]
    for node in queue:
        for neighbour in topology.neighbours(node):
            if before[neighbour] is None and neighbour != src:
                before[neighbour] = node
                queue.append(neighbour)
    return before


def check_connected(topology: Topology) -> Topology:
    """Return the topology if each rank has a way to each other one; UsageError says which have none."""
    back = Topology(
        topology.name, topology.size, {(d, s): link for (s, d), link in topology.links.items()}, topology.switches
    )
    for directed, verb in ((topology, "rank 0 cannot reach {}"), (back, "{} cannot reach rank 0")):
        before = _search(directed, 0)
        missing = [rank for rank in range(1, topology.size) if before[rank] is None]
        if missing:
            raise UsageError(f"{topology.name}: {verb.format(_ranks(missing))}: add the links that are missing")
    return topology


def for_size(topology: Topology, size: int) -> Topology:
    """Return the topology if it is one of so many ranks; UsageError otherwise."""
    if topology.size != size:
        raise UsageError(f"topology {topology.name} has {topology.size} ranks, but {size} are needed")
    return topology


def _ranks(ranks: Iterable[int]) -> str:
    texts = [str(rank) for rank in ranks]
    return f"rank {texts[0]}" if len(texts) == 1 else f"ranks {', '.join(texts)}"


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
