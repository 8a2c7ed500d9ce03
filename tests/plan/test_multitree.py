"""MultiTree: the paper's steps on its networks, the trees as its text says, and ways over switches."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fusionctl.plan.multitree as module
from fusionctl.errors import UsageError
from fusionctl.plan.direct import direct
from fusionctl.plan.multitree import allgather, multitree, reduce_scatter
from fusionctl.plan.topologies import bigraph, fat_tree, leaf_spine, mesh, torus
from fusionctl.plan.topology import Link, Topology
from fusionctl.plan.verify import verify
from ports import one_port, star

PAPER = [
    (torus(2, 2), 2),
    (torus(4, 4), 5),
    (torus(6, 6), 10),
    (torus(8, 8), 17),
    (mesh(4, 4), 10),
    (mesh(8, 8), 33),
    (one_port(torus(4, 4)), 15),
    (one_port(torus(6, 6)), 35),
    (one_port(torus(8, 8)), 63),
    (bigraph(32, 4), 31),
    (bigraph(64, 4), 63),
    (leaf_spine(16, 4), 15),
    (leaf_spine(64, 8), 63),
    (fat_tree(4), 15),
]
"""Steps of the all-gather by the authors' rule for the end of a step."""

FULL_ROUND = [
    (torus(4, 4), 5),
    (torus(6, 6), 10),
    (torus(8, 8), 17),
    (torus(10, 10), 26),
    (torus(12, 12), 37),
    (mesh(4, 4), 8),
    (mesh(6, 6), 18),
    (mesh(8, 8), 32),
    (one_port(torus(8, 8)), 63),
    (bigraph(64, 4), 63),
    (leaf_spine(64, 8), 63),
]
"""Steps of the all-gather where a step ends after a round in which no tree grew."""


def named(value: object) -> str | None:
    return value.name if isinstance(value, Topology) else None


def test_the_worked_example_is_what_the_planner_gives() -> None:
    assert doctest.testmod(module) == (0, 3)


@pytest.mark.parametrize(("topology", "steps"), PAPER, ids=named)
def test_the_papers_rule_gives_the_papers_steps(topology: Topology, steps: int) -> None:
    assert len(allgather(topology, full_round=False).steps) == steps


@pytest.mark.parametrize(("topology", "steps"), FULL_ROUND, ids=named)
def test_a_full_round_takes_as_many_steps_or_fewer(topology: Topology, steps: int) -> None:
    assert len(allgather(topology).steps) == steps


@pytest.mark.parametrize("full_round", [True, False])
@pytest.mark.parametrize("topology", [torus(4, 4), mesh(3, 5), one_port(torus(3, 3)), leaf_spine(12, 4)], ids=named)
def test_the_halves_and_the_whole_do_their_part_over_the_links_there_are(topology: Topology, full_round: bool) -> None:
    halves = [verify(half(topology, full_round), topology) for half in (reduce_scatter, allgather)]
    whole = verify(multitree(topology, full_round), topology)
    assert whole.steps == halves[0].steps + halves[1].steps
    assert len(halves[0].steps) == len(halves[1].steps)


@pytest.mark.parametrize("topology", [bigraph(32, 4), leaf_spine(64, 8), torus(8, 8)], ids=named)
def test_the_networks_of_the_paper_carry_the_schedule(topology: Topology) -> None:
    verify(multitree(topology), topology)


def as_the_paper_says(topology: Topology) -> list[list[tuple[int, int, int]]]:
    """(tree, parent, child) of each step, among ranks without switches, with nothing remembered between turns."""
    members = [[root] for root in range(topology.size)]
    steps: list[list[tuple[int, int, int]]] = []
    while any(len(tree) < topology.size for tree in members):
        free, frozen, step, grew = list(topology.links), [list(tree) for tree in members], [], True
        while grew:
            grew = False
            for root, tree in enumerate(members):
                edges = [(src, dst) for parent in frozen[root] for src, dst in free if src == parent]
                edge = next(((src, dst) for src, dst in edges if dst not in tree), None)
                if edge:
                    free.remove(edge)
                    tree.append(edge[1])
                    step.append((root, *edge))
                    grew = True
        steps.append(sorted(step))
    return steps


@st.composite
def connected(draw: st.DrawFn) -> Topology:
    """A ring in one direction and some links more, in any order."""
    size = draw(st.integers(2, 7))
    pairs = st.sampled_from([(src, dst) for src in range(size) for dst in range(size) if src != dst])
    ring = [(rank, (rank + 1) % size) for rank in range(size)]
    return Topology("drawn", size, dict.fromkeys(draw(st.permutations(ring + draw(st.lists(pairs)))), Link()))


@given(connected())
def test_the_trees_are_those_of_the_papers_text(topology: Topology) -> None:
    steps = [sorted((send.chunk, send.src, send.dst) for send in step.sends) for step in allgather(topology).steps]
    assert steps == as_the_paper_says(topology)


@given(connected())
def test_links_need_not_lead_both_ways(topology: Topology) -> None:
    verify(multitree(topology), topology)


@pytest.mark.parametrize("size", range(1, 9))
def test_a_number_of_ranks_is_fully_connected_and_needs_two_steps(size: int) -> None:
    assert multitree(size).steps == direct(size).steps


def test_a_way_leads_over_switches_but_not_past_one_that_has_ranks() -> None:
    line = one_port(mesh(3))
    assert str(allgather(line)) == (
        "multitree_allgather(one_port(mesh(3))): allgather, 3 ranks, 3 chunks, 4 steps\n"
        "0: =0 0->3->4->1, =1 1->4->3->0\n"
        "1: =0 1->4->5->2, =2 2->5->4->1\n"
        "2: =1 1->4->5->2\n"
        "3: =2 1->4->3->0"
    )


def test_a_wide_link_carries_a_chunk_on_each_channel() -> None:
    wide = star(5, channels=2)
    assert [len(allgather(topology).steps) for topology in (star(4), star(5), wide)] == [3, 7, 3]
    verify(multitree(wide), wide)


def test_who_cannot_be_reached_is_named() -> None:
    with pytest.raises(UsageError, match=r"^oneway: there is no way from rank 1 to rank 0$"):
        multitree(Topology("oneway", 2, {(0, 1): Link()}))
