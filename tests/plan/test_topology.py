"""Topologies: the links of each constructor, and what no topology can have."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.topology import GIGABIT, Link, Topology, fully_connected, ring, size_of


def test_a_ring_links_each_rank_both_ways_with_the_next() -> None:
    link = Link(10 * GIGABIT, 5e-6)
    pairs = [(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)]
    assert ring(4, bandwidth=10 * GIGABIT, latency=5e-6) == Topology("ring(4)", 4, dict.fromkeys(pairs, link))


@pytest.mark.parametrize(("size", "pairs"), [(1, []), (2, [(0, 1), (1, 0)])])
def test_the_smallest_rings_have_no_link_twice_and_none_to_itself(size: int, pairs: list[tuple[int, int]]) -> None:
    assert sorted(ring(size).links) == pairs


def test_a_fully_connected_topology_links_every_pair() -> None:
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert fully_connected(3) == Topology("fully_connected(3)", 3, dict.fromkeys(pairs, Link()))


def test_the_size_is_that_of_the_topology_or_the_number_itself() -> None:
    assert (size_of(ring(5)), size_of(7)) == (5, 7)


@pytest.mark.parametrize("size", [0, -1])
def test_there_is_at_least_one_rank(size: int) -> None:
    for make in (ring, fully_connected, size_of, lambda size: Topology("none", size, {})):
        with pytest.raises(UsageError, match=f"^there cannot be {size} ranks: give 1 or more$"):
            make(size)


@pytest.mark.parametrize("pair", [(0, 0), (0, 2), (-1, 1)])
def test_a_link_leads_from_one_rank_to_another(pair: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=f"^pair: no link can lead from {pair[0]} to {pair[1]} of 2 ranks$"):
        Topology("pair", 2, {pair: Link()})


@pytest.mark.parametrize(("bandwidth", "latency"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1e-9), (float("nan"), 0.0)])
def test_a_link_takes_time_but_not_for_ever(bandwidth: float, latency: float) -> None:
    with pytest.raises(UsageError, match=f"^a link cannot have {bandwidth} bytes/s, {latency} s and 1 channels: "):
        Link(bandwidth, latency)


def test_a_link_has_a_channel() -> None:
    with pytest.raises(UsageError, match=r"s and 0 channels: .* the channels 1 or more$"):
        Link(channels=0)


def test_switches_are_the_nodes_after_the_ranks() -> None:
    star = Topology("star", 2, {(0, 2): Link(), (2, 1): Link()}, switches=1)
    assert star.nodes == 3
    with pytest.raises(UsageError, match=r"^star: no link can lead from 0 to 3 of 2 ranks and 1 switches$"):
        Topology("star", 2, {(0, 3): Link()}, switches=1)
