"""Maximum flow: as much as the smallest cut, and the cut itself."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from fusionctl.plan.flow import FlowNetwork

NODES = st.integers(0, 5)
ARCS = st.lists(st.tuples(NODES, NODES, st.integers(0, 9)), max_size=20)
"""Among six nodes; flow is sent from 0 to 5."""


def network_of(arcs: list[tuple[int, int, int]]) -> FlowNetwork:
    network = FlowNetwork(6)
    for arc in arcs:
        network.add(*arc)
    return network


def leaving(arcs: list[tuple[int, int, int]], inside: set[int]) -> int:
    return sum(capacity for src, dst, capacity in arcs if src in inside and dst not in inside)


def smallest_cut(arcs: list[tuple[int, int, int]]) -> int:
    sides = ({0, *(node for node, on in enumerate(chosen, 1) if on)} for chosen in product([0, 1], repeat=4))
    return min(leaving(arcs, side) for side in sides)


@given(ARCS)
def test_the_flow_is_the_smallest_cut(arcs: list[tuple[int, int, int]]) -> None:
    network = network_of(arcs)
    assert network.flow(0, 5, 1000) == smallest_cut(arcs) == leaving(arcs, set(network.reached(0)))


@given(ARCS, st.integers(0, 20), st.integers(0, 20))
def test_it_stops_at_the_limit_goes_on_from_there_and_starts_anew(
    arcs: list[tuple[int, int, int]], first: int, second: int
) -> None:
    network, most = network_of(arcs), smallest_cut(arcs)
    assert network.flow(0, 5, first) == min(first, most)
    assert network.flow(0, 5, second) == min(second, most - min(first, most))
    network.reset()
    assert network.flow(0, 5, 1000) == most


@given(ARCS)
def test_what_comes_in_goes_out_and_no_arc_carries_more_than_it_can(arcs: list[tuple[int, int, int]]) -> None:
    network = network_of(arcs)
    sent = network.flow(0, 5, 1000)
    balance = [0] * 6
    for number, (src, dst, capacity) in enumerate(arcs):
        carried = network.residual[2 * number + 1]
        assert 0 <= carried <= capacity
        balance[src] -= carried
        balance[dst] += carried
    assert balance == [-sent, 0, 0, 0, 0, sent]
