"""Tree packing: the bound of the narrowest cut, exact, and trees that load no link beyond it."""

from __future__ import annotations

import doctest
from collections import Counter
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fusionctl.plan.packing as module
import fusionctl.plan.splitting as splitting
from fusionctl.errors import UsageError
from fusionctl.plan import multitree
from fusionctl.plan.packing import allgather, packing
from fusionctl.plan.schedule import Schedule
from fusionctl.plan.splitting import split_off
from fusionctl.plan.throughput import cut_short, optimum
from fusionctl.plan.topologies import bigraph, dgx, hosts, leaf_spine, mesh, torus
from fusionctl.plan.topology import Link, Topology, fully_connected, ring
from fusionctl.plan.verify import verify
from ports import one_port, star

BOUNDS = [
    (torus(4, 4), Fraction(15, 4), 4),
    (torus(8, 8), Fraction(63, 4), 4),
    (mesh(4, 4), Fraction(15, 2), 2),
    (mesh(8, 8), Fraction(63, 2), 2),
    (leaf_spine(64, 8), Fraction(63), 1),
    (bigraph(64, 4), Fraction(63), 1),
    (fully_connected(9), Fraction(1), 1),
    (ring(6), Fraction(5, 2), 2),
    (hosts(4, 4), Fraction(12), 1),
    (dgx(2), Fraction(15, 13), 13),
    (ring(1), Fraction(0), 1),
]
"""Chunk-times of an all-gather and the trees of each rank."""

STEPS = [
    (torus(2, 2), 3, 3),
    (torus(3, 3), 2, 3),
    (torus(4, 4), 15, 15),
    (torus(4, 6), 23, 23),
    (mesh(3, 3), 4, 4),
    (mesh(4, 4), 15, 15),
    (mesh(3, 5), 7, 8),
    (ring(8), 7, 7),
    (torus(2, 3, 4), 23, 23),
    (star(5), 4, 4),
    (hosts(2, 2), 2, 3),
    (leaf_spine(12, 4), 11, 19),
    (leaf_spine(16, 4), 15, 26),
    (one_port(torus(4, 4)), 15, 26),
    (bigraph(32, 4), 31, 37),
]
"""The bound in steps of one of k trees, and how many steps there are."""


def named(value: object) -> str | None:
    return value.name if isinstance(value, Topology) else None


def test_the_worked_example_is_what_the_planner_gives() -> None:
    assert doctest.testmod(module) == (0, 3)


@pytest.mark.parametrize(("topology", "bound", "trees"), BOUNDS, ids=named)
def test_the_bound_is_that_of_the_narrowest_cut(topology: Topology, bound: Fraction, trees: int) -> None:
    assert optimum(topology)[:2] == (bound, trees)


@pytest.mark.parametrize(("topology", "bound", "steps"), STEPS, ids=named)
def test_the_steps_against_the_bound(topology: Topology, bound: int, steps: int) -> None:
    best = optimum(topology)
    assert best.bound * best.trees == bound
    assert len(allgather(topology).steps) == steps


def load(schedule: Schedule, topology: Topology) -> Fraction:
    """The time that the busiest link is busy with an all-gather, if steps overlap."""
    carried = Counter(hop for step in schedule.steps for send in step.sends for hop in send.hops)
    slowest = min(link.bandwidth for link in topology.links.values())
    chunk = Fraction(topology.size, schedule.n_chunks)
    links = topology.links
    return max(
        count * chunk * Fraction(slowest) / (Fraction(links[hop].bandwidth) * links[hop].channels)
        for hop, count in carried.items()
    )


@pytest.mark.parametrize("topology", [topology for topology, _, _ in STEPS], ids=named)
def test_the_busiest_link_is_as_busy_as_the_bound_says(topology: Topology) -> None:
    schedule = verify(allgather(topology), topology)
    assert load(schedule, topology) == optimum(topology).bound
    whole = verify(packing(topology), topology)
    assert len(whole.steps) == 2 * len(schedule.steps)


@pytest.mark.parametrize("topology", [torus(8, 8), mesh(8, 8)], ids=named)
def test_on_64_ranks_it_beats_multitree_and_reaches_the_bound_in_steps(topology: Topology) -> None:
    best, schedule = optimum(topology), verify(allgather(topology), topology)
    chunk_times = Fraction(len(schedule.steps), best.trees)
    assert chunk_times == load(schedule, topology) == best.bound < len(multitree.allgather(topology).steps)


def narrowest(topology: Topology) -> Fraction:
    """The bound, from all cuts there are."""
    slowest = min(Fraction(link.bandwidth) for link in topology.links.values())
    found = []
    for count in range(1, topology.nodes):
        for inside in map(set, combinations(range(topology.nodes), count)):
            leaving = [link for (src, dst), link in topology.links.items() if src in inside and dst not in inside]
            ranks = sum(node < topology.size for node in inside)
            if 0 < ranks < topology.size or (ranks and inside.isdisjoint(range(topology.size))):
                found.append(ranks * slowest / sum(Fraction(link.bandwidth) * link.channels for link in leaving))
    return max(found)


@st.composite
def balanced(draw: st.DrawFn) -> Topology:
    """Ranks and switches on a few closed walks, one of which visits all nodes: what goes in comes out of each node."""
    size, switches = draw(st.integers(2, 5)), draw(st.integers(0, 3))
    nodes = list(range(size + switches))
    walks = [draw(st.permutations(nodes))]
    walks += draw(st.lists(st.lists(st.sampled_from(nodes), min_size=2, max_size=5, unique=True), max_size=6))
    both_ways = draw(st.booleans())
    count = Counter(pair for walk in walks for pair in pairwise([*walk, walk[0]]))
    if both_ways:
        count += Counter({(dst, src): number for (src, dst), number in count.items()})
    return Topology("drawn", size, {pair: Link(float(number)) for pair, number in count.items()}, switches)


@given(balanced())
def test_no_cut_is_narrower_and_the_trees_fill_it(topology: Topology) -> None:
    assert optimum(topology).bound == narrowest(topology)
    schedule = verify(allgather(topology), topology)
    assert load(schedule, topology) == optimum(topology).bound
    verify(packing(topology), topology)


@pytest.mark.parametrize("topology", [star(4), leaf_spine(9, 3), bigraph(8, 2), one_port(torus(3, 3))], ids=named)
def test_switches_that_cannot_be_shared_out_evenly_are_split_link_by_link(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "evenly", lambda into, out: {})
    schedule = verify(allgather(topology), topology)
    assert load(schedule, topology) == optimum(topology).bound


@pytest.mark.parametrize("topology", [leaf_spine(16, 4), bigraph(12, 3), one_port(torus(3, 4))], ids=named)
def test_without_its_switches_a_network_carries_as_much(topology: Topology) -> None:
    best = optimum(topology)
    ways = split_off(topology, best)
    assert all(way[0] == src and way[-1] == dst for (src, dst), group in ways.items() for way in group)
    carried: Counter[tuple[int, int]] = Counter()
    for group in ways.values():
        for way, count in group.items():
            carried.update({hop: count * list(pairwise(way)).count(hop) for hop in set(pairwise(way))})
    assert all(carried[pair] <= capacity for pair, capacity in best.capacities.items())
    arcs = {pair: sum(group.values()) for pair, group in ways.items()}
    assert cut_short(topology.size, topology.size, arcs, best.trees) is None


def test_a_link_of_several_channels_counts_as_often() -> None:
    wide = star(3, channels=2)
    assert optimum(wide).bound == 1
    assert len(verify(allgather(wide), wide).steps) == 1


def test_who_cannot_be_reached_is_named() -> None:
    with pytest.raises(UsageError, match=r"^oneway: there is no way from rank 1 to rank 0$"):
        packing(Topology("oneway", 2, {(0, 1): Link()}))
    with pytest.raises(UsageError, match=r"^pairs: there is no way from rank 2 to rank 0$"):
        packing(Topology("pairs", 4, dict.fromkeys([(0, 1), (1, 0), (2, 3), (3, 2)], Link())))


def test_a_switch_must_give_out_what_it_takes_in() -> None:
    links = dict(star(3).links) | {(3, 0): Link(200e9)}
    with pytest.raises(UsageError, match=r"^uneven: switch 3 has links in of \d+ units of bandwidth, "):
        packing(Topology("uneven", 3, links, switches=1))


def test_odd_bandwidths_would_take_too_many_trees() -> None:
    odd = Topology("odd", 3, {pair: Link(1e9 + pair[1]) for pair in ring(3).links})
    with pytest.raises(UsageError, match=r"^odd: the optimum takes \d+ trees from each rank, more than 64: "):
        packing(odd)
