"""The optimal throughput of an all-gather on a network, from the cut that limits it; exact, in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from fusionctl.errors import UsageError
from fusionctl.plan.flow import FlowNetwork
from fusionctl.plan.topology import Topology

Capacities = Mapping[tuple[int, int], int]
"""How many trees each link can carry."""


class Optimum(NamedTuple):
    """What limits an all-gather, and in how many trees it reaches the limit.

    `bound` is the greatest of |S| / B(S) over all sets of nodes that lack a rank, where |S| are the ranks of the set
    and B(S) is the bandwidth that leaves it.  It is in the time that the slowest link takes for the data of one rank:
    no schedule can be faster.  With `trees` trees from each rank, no link carries more than its `capacities`.
    """

    bound: Fraction
    trees: int
    capacities: dict[tuple[int, int], int]


def optimum(topology: Topology) -> Optimum:
    """Find the bound and the fewest trees (ForestColl, arXiv 2402.06787, section 5.1).

    Each rank is to send x to all others.  If a maximum flow shows that it cannot, a cut says so, whose own x is taken
    next, until none does: Newton's steps in place of the paper's binary search.  UsageError if a rank is not reached.
    """
    if topology.size == 1:
        return Optimum(Fraction(0), 1, {})
    widths, unit = _widths(topology)
    rate = min(_rate(topology, widths, set(range(topology.nodes)) - {rank}) for rank in range(topology.size))
    while True:
        scaled = {pair: width * rate.denominator for pair, width in widths.items()}
        cut = cut_short(topology.size, topology.nodes, scaled, rate.numerator)
        if cut is None:
            break
        rate = _rate(topology, widths, cut)
    common = gcd(rate.numerator, *widths.values())
    capacities = {pair: width // common * rate.denominator for pair, width in widths.items()}
    return Optimum(unit / rate, rate.numerator // common, capacities)


def _widths(topology: Topology) -> tuple[dict[tuple[int, int], int], int]:
    """Bandwidths of links with all their channels, as whole numbers, and the number of the slowest channel."""
    exact = {pair: Fraction(link.bandwidth) for pair, link in topology.links.items()}
    slowest = min(exact.values(), default=Fraction(1))
    ratios = {pair: width / slowest for pair, width in exact.items()}
    unit = lcm(*(ratio.denominator for ratio in ratios.values()))
    return {pair: int(ratio * unit) * topology.links[pair].channels for pair, ratio in ratios.items()}, unit


def _rate(topology: Topology, widths: Capacities, inside: set[int]) -> Fraction:
    """What each rank inside can send out at most."""
    leaving = sum(width for (src, dst), width in widths.items() if src in inside and dst not in inside)
    if not leaving:
        there = min(rank for rank in range(topology.size) if rank in inside)
        lost = min(rank for rank in range(topology.size) if rank not in inside)
        raise UsageError(f"{topology.name}: there is no way from rank {there} to rank {lost}")
    return Fraction(leaving, sum(node < topology.size for node in inside))


def cut_short(size: int, nodes: int, capacities: Capacities, trees: int) -> set[int] | None:
    """None if every rank can be reached by `trees` trees from each rank, else a set of nodes that fewer can leave."""
    network = FlowNetwork(nodes + 1)
    for rank in range(size):
        network.add(nodes, rank, trees)
    for (src, dst), capacity in capacities.items():
        network.add(src, dst, capacity)
    for rank in range(size):
        network.reset()
        if network.flow(nodes, rank, size * trees) < size * trees:
            return set(network.reached(nodes)) - {nodes}
    return None
