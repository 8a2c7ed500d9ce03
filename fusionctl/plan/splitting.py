"""A network without its switches: arcs from rank to rank, each over switches, that carry as many trees together."""

from __future__ import annotations

from fusionctl.errors import UsageError
from fusionctl.plan.flow import FlowNetwork
from fusionctl.plan.throughput import Capacities, Optimum, cut_short
from fusionctl.plan.topology import Topology

Way = tuple[int, ...]
"""The nodes from rank to rank, both included."""

Ways = dict[tuple[int, int], dict[Way, int]]
"""By source and destination, how many trees may take which way."""

Shares = dict[tuple[int, int], int]
"""How much goes from one neighbour of a switch to another through it."""


def split_off(topology: Topology, best: Optimum) -> Ways:
    """Ways between ranks and how many trees each may carry, so that the optimum stays what it was.

    One switch after another is replaced by arcs between its neighbours (edge splitting; Bang-Jensen, Frank and Jackson,
    1995).  What comes in is shared out as evenly as can be; if a maximum flow shows that this costs throughput, pairs
    of links are split one by one, each as far as it costs none.  UsageError if a switch takes in more or less than it
    gives out.
    """
    capacities = dict(best.capacities)
    ways: Ways = {pair: {pair: capacity} for pair, capacity in capacities.items()}
    for switch in range(topology.nodes - 1, topology.size - 1, -1):
        into = {src: capacity for (src, dst), capacity in capacities.items() if dst == switch}
        out = {dst: capacity for (src, dst), capacity in capacities.items() if src == switch}
        if sum(into.values()) != sum(out.values()):
            raise UsageError(
                f"{topology.name}: switch {switch} has links in of {sum(into.values())} units of bandwidth, and links "
                f"out of {sum(out.values())}: they must be equal"
            )
        shares = evenly(into, out)
        if cut_short(topology.size, topology.nodes, without(capacities, switch, shares), best.trees) is not None:
            shares = one_by_one(topology, capacities, switch, best.trees)
        capacities = without(capacities, switch, shares)
        _join(ways, switch, shares)
    return {pair: ways[pair] for pair in capacities}


def without(capacities: Capacities, switch: int, shares: Shares) -> dict[tuple[int, int], int]:
    """The capacities after a switch was replaced by arcs between its neighbours; those that lead back are dropped."""
    left = {pair: capacity for pair, capacity in capacities.items() if switch not in pair}
    for (src, dst), share in shares.items():
        if src != dst:
            left[src, dst] = left.get((src, dst), 0) + share
    return left


def evenly(into: dict[int, int], out: dict[int, int]) -> Shares:
    """Share out what comes in so that the greatest share is as small as can be; nothing goes back if it need not."""
    total = sum(into.values())
    most = max(1, *(-(-capacity // max(1, len(set(out) - {src}))) for src, capacity in into.items()))
    while True:
        network = FlowNetwork(len(into) + len(out) + 2)
        source, sink = len(into) + len(out), len(into) + len(out) + 1
        for i, capacity in enumerate(into.values()):
            network.add(source, i, capacity)
        for i, capacity in enumerate(out.values()):
            network.add(len(into) + i, sink, capacity)
        arcs = {
            (src, dst): network.add(i, len(into) + j, most)
            for i, src in enumerate(into)
            for j, dst in enumerate(out)
            if src != dst or most > total
        }
        if network.flow(source, sink, total) == total:
            return {pair: network.residual[arc ^ 1] for pair, arc in arcs.items() if network.residual[arc ^ 1]}
        most += 1 + most // 8


def one_by_one(topology: Topology, capacities: Capacities, switch: int, trees: int) -> Shares:
    """Split pairs of links of a switch, each as far as all ranks can still be reached by all trees."""
    left = dict(capacities)
    pairs = [(src, dst) for src, via in capacities if via == switch for via, dst in capacities if via == switch]
    shares: Shares = {}
    for src, dst in sorted(pairs, key=lambda pair: pair[0] == pair[1]):
        few, most = 0, min(left[src, switch], left[switch, dst])
        while few < most:
            middle = (few + most + 1) // 2
            cut = cut_short(topology.size, topology.nodes, _split(left, src, switch, dst, middle), trees)
            few, most = (middle, most) if cut is None else (few, middle - 1)
        left = _split(left, src, switch, dst, few)
        shares[src, dst] = few
    if any(capacity for pair, capacity in left.items() if switch in pair):
        raise UsageError(f"{topology.name}: switch {switch} cannot be replaced by links of equal throughput")
    return {pair: share for pair, share in shares.items() if share}


def _split(capacities: Capacities, src: int, switch: int, dst: int, share: int) -> dict[tuple[int, int], int]:
    left = dict(capacities)
    left[src, switch] -= share
    left[switch, dst] -= share
    if src != dst:
        left[src, dst] = left.get((src, dst), 0) + share
    return left


def _join(ways: Ways, switch: int, shares: Shares) -> None:
    """Put ways to a switch and from it together."""
    for (src, dst), share in shares.items():
        left = share
        while left:
            (first, before), (second, after) = ways[src, switch].popitem(), ways[switch, dst].popitem()
            amount = min(left, before, after)
            left -= amount
            if src != dst:
                joined = ways.setdefault((src, dst), {})
                way = first + second[1:]
                joined[way] = joined.get(way, 0) + amount
            if before > amount:
                ways[src, switch][first] = before - amount
            if after > amount:
                ways[switch, dst][second] = after - amount
