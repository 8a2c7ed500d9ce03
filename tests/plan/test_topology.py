"""Topologies: the links of each constructor, and what no topology can have."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.topology import (
    GIGABIT,
    Link,
    Topology,
    check_connected,
    for_size,
    fully_connected,
    ring,
    route,
    size_of,
)


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


def test_a_grid_has_as_many_places_as_there_are_ranks() -> None:
    with pytest.raises(UsageError, match=r"^grid: a grid of 2x3 is not one of 4 ranks$"):
        Topology("grid", 4, {}, shape=(2, 3))


def test_a_way_has_the_fewest_links() -> None:
    assert [route(ring(7), 0, dst) for dst in range(7)] == [(), (), (1,), (1, 2), (6, 5), (6,), ()]
    assert [route(fully_connected(4), 2, dst) for dst in range(4)] == [(), (), (), ()]


def test_of_ways_as_short_the_first_link_decides() -> None:
    pairs = [(0, 2), (0, 1), (2, 3), (1, 3)]
    assert route(Topology("first", 4, dict.fromkeys(pairs, Link())), 0, 3) == (2,)
    assert route(Topology("first", 4, dict.fromkeys(sorted(pairs), Link())), 0, 3) == (1,)


def test_where_no_way_leads_is_said() -> None:
    line = Topology("line", 3, {(0, 1): Link(), (2, 1): Link()})
    with pytest.raises(UsageError, match=r"^line: no way leads from node 0 to node 2$"):
        route(line, 0, 2)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 1), (1, 0)], "parts: rank 0 cannot reach ranks 2, 3: add the links that are missing"),
        ([(0, 1), (1, 0), (1, 2), (2, 3)], "parts: ranks 2, 3 cannot reach rank 0: add the links that are missing"),
        ([(0, 1), (0, 2), (0, 3), (1, 0), (3, 0)], "parts: rank 2 cannot reach rank 0: add the links that are missing"),
    ],
)
def test_what_is_in_parts_is_said(pairs: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_connected(Topology("parts", 4, dict.fromkeys(pairs, Link())))
    assert str(raised.value) == message


def test_a_switch_that_nothing_leads_to_does_not_matter() -> None:
    idle = Topology("idle", 2, {(0, 1): Link(), (1, 0): Link(), (2, 0): Link()}, switches=1)
    assert check_connected(idle) is idle


def test_a_topology_is_for_its_number_of_ranks() -> None:
    eight = ring(8)
    assert for_size(eight, 8) is eight
    with pytest.raises(UsageError, match=r"^topology ring\(8\) has 8 ranks, but 4 are needed$"):
        for_size(eight, 4)
