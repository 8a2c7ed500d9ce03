"""Networks of today's machines as topologies: rings of light, grids, trees of switches, hosts.

Each link goes both ways unless said otherwise.  `bandwidth` is in bytes per second and `latency` in seconds, both of
one link: a way of two links takes two latencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import isqrt, prod

from fusionctl.errors import UsageError
from fusionctl.plan.topology import BANDWIDTH, GIGABIT, LATENCY, Link, Topology, positive, ring

Pair = tuple[int, int]


def one_way_ring(size: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """Each rank has a link to the next one, the last to the first; there is none back."""
    pairs = [(rank, (rank + 1) % positive(size)) for rank in range(size) if size > 1]
    return Topology(f"one_way_ring({size})", size, dict.fromkeys(pairs, Link(bandwidth, latency)))


def wdm_ring(size: int, wavelengths: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """A ring, both ways, of fibres that carry so many wavelengths, each of the bandwidth given (TeraRack)."""
    link = Link(bandwidth, latency, wavelengths)
    return Topology(f"wdm_ring({size}, {wavelengths})", size, dict.fromkeys(ring(size).links, link))


def torus(*shape: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """A grid of ranks whose edges are joined: `torus(4, 8)` has 4 rows of 8, rank 8 is below rank 0.

    The links of a rank lead, in this order, north (the row above), south, west, east; in general, for one dimension
    after the other, back and forth.  Along a dimension of 2 both lead to the same rank and are one link.
    """
    return _grid("torus", shape, Link(bandwidth, latency), wrap=True)


def mesh(*shape: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """A grid of ranks that ends at its edges; numbers and order of links as in a torus."""
    return _grid("mesh", shape, Link(bandwidth, latency), wrap=False)


def _grid(kind: str, shape: tuple[int, ...], link: Link, wrap: bool) -> Topology:
    name = f"{kind}({', '.join(map(str, shape))})"
    if not shape or min(shape) < 1:
        raise UsageError(f"{name}: a {kind} has one dimension or more, each of 1 rank or more")
    pairs = [
        (number_of(place, shape), number_of(neighbour, shape))
        for place in product(*map(range, shape))
        for neighbour in _around(place, shape, wrap)
    ]
    return Topology(name, prod(shape), dict.fromkeys(pairs, link), shape=shape)


def _around(place: tuple[int, ...], shape: tuple[int, ...], wrap: bool) -> Iterator[tuple[int, ...]]:
    for axis, length in enumerate(shape):
        for at in (place[axis] - 1, place[axis] + 1):
            if length > 1 and (wrap or 0 <= at < length):
                yield (*place[:axis], at % length, *place[axis + 1 :])


def number_of(place: Iterable[int], shape: Iterable[int]) -> int:
    """The rank at a place of a grid, the last coordinate varying fastest."""
    rank = 0
    for at, length in zip(place, shape, strict=True):
        rank = rank * length + at
    return rank


def fat_tree(k: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """Three levels of switches of k ports (Al-Fares et al., SIGCOMM'08): k pods, k*k*k/4 ranks, full bisection.

    Nodes after the ranks: the edge switches, k/2 of each pod; as many aggregation switches; k*k/4 core switches.
    """
    if k < 2 or k % 2:
        raise UsageError(f"fat_tree({k}): switches have an even number of ports, 2 or more")
    half, size = k // 2, k**3 // 4
    edge, aggregation, core = size, size + k * half, size + 2 * k * half
    down = [(rank, edge + rank // half) for rank in range(size)]
    pods = [(edge + pod * half + i, aggregation + pod * half + j) for pod in range(k) for i, j in _square(half)]
    up = [(aggregation + pod * half + i, core + i * half + j) for pod in range(k) for i, j in _square(half)]
    link, switches = Link(bandwidth, latency), k * k + half * half
    return Topology(f"fat_tree({k})", size, dict.fromkeys(both_ways(down + pods + up), link), switches)


def _square(half: int) -> list[Pair]:
    return list(product(range(half), range(half)))


def leaf_spine(size: int, leaf: int | None = None, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> Topology:
    """A fat tree of two levels: `leaf` ranks on each leaf switch, which has a link to each of `leaf` spine switches.

    Nodes after the ranks: the leaf switches, then the spine.  Unless given, `leaf` is the greatest divisor of the
    number of ranks that is not above its root: 4 of 16, 8 of 64.
    """
    leaf = factors(size)[0] if leaf is None else leaf
    if leaf < 1 or positive(size) % leaf:
        raise UsageError(f"leaf_spine({size}, {leaf}): {leaf} ranks on each leaf do not divide {size} ranks")
    leaves = size // leaf
    spine = size + leaves
    down = [(rank, size + rank // leaf) for rank in range(size)]
    up = [(size + i, spine + j) for i in range(leaves) for j in range(leaf)]
    links = dict.fromkeys(both_ways(down + up), Link(bandwidth, latency))
    return Topology(f"leaf_spine({size}, {leaf})", size, links, switches=leaves + leaf)


def bigraph(
    size: int, ranks_each: int | None = None, bandwidth: float = BANDWIDTH, latency: float = LATENCY
) -> Topology:
    """Two layers of switches with ranks on both, each lower switch linked with each upper one (EFLOPS, HPCA'20).

    Each switch has `ranks_each` ranks: the first half of the ranks is on the lower layer, the other on the upper one.
    Unless given, it is the greatest divisor of half the ranks that is not above its root: 4 of 32 and of 64.
    """
    if size < 2 or size % 2:
        raise UsageError(f"bigraph({size}): the two layers have as many ranks each: give an even number, 2 or more")
    ranks_each = factors(size // 2)[0] if ranks_each is None else ranks_each
    if ranks_each < 1 or size // 2 % ranks_each:
        raise UsageError(
            f"bigraph({size}, {ranks_each}): {ranks_each} ranks on each switch do not divide {size // 2} of a layer"
        )
    layer = size // 2 // ranks_each
    down = [(rank, size + rank // ranks_each) for rank in range(size)]
    across = [(size + low, size + layer + high) for low in range(layer) for high in range(layer)]
    links = dict.fromkeys(both_ways(down + across), Link(bandwidth, latency))
    return Topology(f"bigraph({size}, {ranks_each})", size, links, switches=2 * layer)


def hosts(
    hosts: int,
    local: int,
    intra_bandwidth: float = BANDWIDTH,
    intra_latency: float = LATENCY,
    inter_bandwidth: float = 10 * GIGABIT,
    inter_latency: float = 5 * LATENCY,
) -> Topology:
    """Hosts of `local` ranks around a switch each, the hosts' switches around a global one; ranks host by host.

    A link between a rank and its host's switch is `intra`, one between a host and the global switch is `inter`.
    Nodes after the ranks: one switch per host, then the global one, if there are several hosts.
    """
    name = f"hosts({hosts}, {local})"
    if hosts < 1 or local < 1:
        raise UsageError(f"{name}: there must be 1 host or more, and 1 rank or more on each")
    size = hosts * local
    inside = dict.fromkeys(both_ways((r, size + r // local) for r in range(size)), Link(intra_bandwidth, intra_latency))
    pairs = both_ways((size + host, size + hosts) for host in range(hosts) if hosts > 1)
    between = dict.fromkeys(pairs, Link(inter_bandwidth, inter_latency))
    return Topology(name, size, inside | between, switches=hosts + (hosts > 1), shape=(hosts, local))


def dgx(
    nodes: int = 1,
    intra_bandwidth: float = 300e9,
    intra_latency: float = LATENCY,
    inter_bandwidth: float = 200 * GIGABIT,
    inter_latency: float = LATENCY,
) -> Topology:
    """Nodes of 8 ranks around an NVSwitch, each rank with an adapter of its own to a global switch (DGX A100).

    This is the star of the machines with NVSwitch, not the hybrid cube mesh of the DGX-1.
    """
    if nodes < 1:
        raise UsageError(f"dgx({nodes}): there must be 1 node or more")
    size = 8 * nodes
    inside = dict.fromkeys(both_ways((r, size + r // 8) for r in range(size)), Link(intra_bandwidth, intra_latency))
    pairs = both_ways((rank, size + nodes) for rank in range(size) if nodes > 1)
    between = dict.fromkeys(pairs, Link(inter_bandwidth, inter_latency))
    return Topology(f"dgx({nodes})", size, inside | between, switches=nodes + (nodes > 1), shape=(nodes, 8))


def factors(size: int) -> Pair:
    """The two factors of a number that are nearest to its root, the smaller first: 12 is 3 x 4, 7 is 1 x 7."""
    small = next(n for n in range(isqrt(positive(size)), 0, -1) if size % n == 0)
    return small, size // small


def both_ways(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Each pair, and then the same back."""
    for src, dst in pairs:
        yield src, dst
        yield dst, src
