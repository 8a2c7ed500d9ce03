"""Networks: the links of each, in their order, at small sizes; their counts and connections at all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.topologies import (
    bigraph,
    dgx,
    factors,
    fat_tree,
    hosts,
    leaf_spine,
    mesh,
    one_way_ring,
    torus,
    wdm_ring,
)
from fusionctl.plan.topology import GIGABIT, Link, Topology, check_connected, ring, route


def test_a_one_way_ring_has_no_way_back() -> None:
    link = Link(10 * GIGABIT, 5e-6)
    expected = Topology("one_way_ring(3)", 3, dict.fromkeys([(0, 1), (1, 2), (2, 0)], link))
    assert one_way_ring(3, 10 * GIGABIT, 5e-6) == expected
    assert (one_way_ring(1).links, sorted(one_way_ring(2).links)) == ({}, [(0, 1), (1, 0)])


def test_a_fibre_carries_each_wavelength_with_the_whole_bandwidth() -> None:
    light = wdm_ring(4, 64, 40 * GIGABIT, 1e-6)
    assert light == Topology("wdm_ring(4, 64)", 4, dict.fromkeys(ring(4).links, Link(40 * GIGABIT, 1e-6, 64)))


def test_the_links_of_a_torus_lead_north_south_west_and_east() -> None:
    grid = torus(3, 4, bandwidth=16e9, latency=150e-9)
    assert [grid.neighbours(rank) for rank in (0, 5, 11)] == [[8, 4, 3, 1], [1, 9, 4, 6], [7, 3, 10, 8]]
    assert (grid.name, grid.size, grid.shape, grid.switches) == ("torus(3, 4)", 12, (3, 4), 0)
    assert set(grid.links.values()) == {Link(16e9, 150e-9)}


def test_a_mesh_ends_at_its_edges() -> None:
    grid = mesh(3, 4)
    assert [grid.neighbours(rank) for rank in (0, 5, 11)] == [[4, 1], [1, 9, 4, 6], [7, 10]]
    assert (grid.name, grid.size, grid.shape) == ("mesh(3, 4)", 12, (3, 4))


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 2), (1, 4), (2, 3, 4), (3, 1, 2)])
def test_a_grid_links_what_is_one_apart(shape: tuple[int, ...]) -> None:
    places = list(product(*map(range, shape)))
    for grid, wrap in ((torus(*shape), True), (mesh(*shape), False)):
        for (i, a), (j, b) in product(enumerate(places), repeat=2):
            apart = [abs(x - y) for x, y in zip(a, b, strict=True)]
            if wrap:
                apart = [min(d, n - d) for d, n in zip(apart, shape, strict=True)]
            assert ((i, j) in grid.links) == (sum(apart) == 1)


def test_a_torus_of_three_dimensions_has_its_first_one_first() -> None:
    assert torus(3, 3, 3).neighbours(13) == [4, 22, 10, 16, 12, 14]


def test_a_fat_tree_of_four_port_switches() -> None:
    tree = fat_tree(4)
    assert (tree.name, tree.size, tree.switches, len(tree.links)) == ("fat_tree(4)", 16, 20, 2 * 3 * 16)
    assert [tree.neighbours(node) for node in (5, 16, 24, 32, 35)] == [
        [18],
        [0, 1, 24, 25],
        [16, 17, 32, 33],
        [24, 26, 28, 30],
        [25, 27, 29, 31],
    ]
    assert [route(tree, 0, dst) for dst in (1, 2, 4)] == [(16,), (16, 24, 17), (16, 24, 32, 26, 18)]


def test_a_leaf_switch_has_a_link_to_each_spine_switch() -> None:
    tree = leaf_spine(6, 2)
    assert (tree.name, tree.size, tree.switches) == ("leaf_spine(6, 2)", 6, 5)
    assert [tree.neighbours(node) for node in (3, 7, 10)] == [[7], [2, 3, 9, 10], [6, 7, 8]]
    assert [leaf_spine(size).name for size in (16, 64, 7)] == [
        "leaf_spine(16, 4)",
        "leaf_spine(64, 8)",
        "leaf_spine(7, 1)",
    ]


def test_a_bigraph_has_ranks_on_both_layers() -> None:
    graph = bigraph(8, 2)
    assert (graph.name, graph.size, graph.switches) == ("bigraph(8, 2)", 8, 4)
    assert [graph.neighbours(node) for node in (1, 6, 8, 11)] == [[8], [11], [0, 1, 10, 11], [6, 7, 8, 9]]
    assert [bigraph(size).name for size in (32, 64)] == ["bigraph(32, 4)", "bigraph(64, 4)"]


def test_hosts_have_fast_links_inside_and_slow_ones_between() -> None:
    two = hosts(2, 3, 100e9, 200e-9, 10 * GIGABIT, 5e-6)
    inside, between = Link(100e9, 200e-9), Link(10 * GIGABIT, 5e-6)
    assert (two.name, two.size, two.switches, two.shape) == ("hosts(2, 3)", 6, 3, (2, 3))
    assert [two.neighbours(node) for node in (4, 6, 8)] == [[7], [0, 1, 2, 8], [6, 7]]
    assert {pair for pair, link in two.links.items() if link == between} == {(6, 8), (8, 6), (7, 8), (8, 7)}
    assert set(two.links.values()) == {inside, between}
    assert (hosts(1, 3).switches, hosts(2, 1).switches) == (1, 3)


def test_a_dgx_has_a_network_adapter_for_each_rank() -> None:
    assert (dgx().size, dgx().switches, dgx(2).shape) == (8, 1, (2, 8))
    assert [dgx(2).neighbours(node) for node in (3, 12)] == [[16, 18], [17, 18]]
    assert (dgx(2).links[3, 16], dgx(2).links[3, 18]) == (Link(300e9, 1e-6), Link(200 * GIGABIT, 1e-6))


CONSTRUCTORS: list[Callable[[], Topology]] = [
    *[lambda n=n: one_way_ring(n) for n in range(1, 10)],
    *[lambda n=n: wdm_ring(n, 4) for n in range(1, 10)],
    *[lambda a=a, b=b: torus(a, b) for a in range(1, 5) for b in range(1, 5)],
    *[lambda a=a, b=b: mesh(a, b, 2) for a in range(1, 5) for b in range(1, 5)],
    *[lambda k=k: fat_tree(k) for k in (2, 4, 6, 8)],
    *[lambda n=n: leaf_spine(n) for n in range(1, 65)],
    *[lambda n=n: bigraph(n) for n in range(2, 65, 2)],
    *[lambda a=a, b=b: hosts(a, b) for a in range(1, 5) for b in range(1, 5)],
    *[lambda n=n: dgx(n) for n in (1, 2, 3)],
]


@pytest.mark.parametrize("make", CONSTRUCTORS)
def test_all_are_connected_and_have_no_node_without_a_link(make: Callable[[], Topology]) -> None:
    made = check_connected(make())
    assert made.nodes == 1 or all(made.neighbours(node) for node in range(made.nodes))


def test_factors_are_the_ones_nearest_to_the_root() -> None:
    assert [factors(n) for n in (1, 7, 12, 16, 18)] == [(1, 1), (1, 7), (3, 4), (4, 4), (3, 6)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torus(), "torus(): a torus has one dimension or more, each of 1 rank or more"),
        (lambda: mesh(4, 0), "mesh(4, 0): a mesh has one dimension or more, each of 1 rank or more"),
        (lambda: fat_tree(3), "fat_tree(3): switches have an even number of ports, 2 or more"),
        (lambda: leaf_spine(16, 3), "leaf_spine(16, 3): 3 ranks on each leaf do not divide 16 ranks"),
        (lambda: bigraph(7), "bigraph(7): the two layers have as many ranks each: give an even number, 2 or more"),
        (lambda: bigraph(32, 3), "bigraph(32, 3): 3 ranks on each switch do not divide 16 of a layer"),
        (lambda: hosts(0, 3), "hosts(0, 3): there must be 1 host or more, and 1 rank or more on each"),
        (lambda: dgx(0), "dgx(0): there must be 1 node or more"),
        (lambda: one_way_ring(0), "there cannot be 0 ranks: give 1 or more"),
        (lambda: wdm_ring(-1, 4), "there cannot be -1 ranks: give 1 or more"),
        (lambda: leaf_spine(0), "there cannot be 0 ranks: give 1 or more"),
    ],
)
def test_what_cannot_be_built_is_refused(make: Callable[[], Topology], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value) == message
