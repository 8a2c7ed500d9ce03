"""What each planner promises: a right schedule at every number of ranks and on any network, its cost in closed form."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from fractions import Fraction
from math import ceil, log2

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan import PLANNERS, Schedule
from fusionctl.plan.spec import from_spec
from fusionctl.plan.topologies import factors
from fusionctl.plan.topology import fully_connected
from fusionctl.plan.verify import verify


def power(n: int) -> int:
    """The greatest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def optimal(n: int) -> list[Fraction]:
    """The fewest vectors that each rank can send: what a ring sends."""
    return [Fraction(2 * (n - 1), n)] * n


def folded(n: int, inner: Fraction) -> list[Fraction]:
    """What ranks send where those beyond a power of two hand theirs to one within it, and get the result from it."""
    extra = n - power(n)
    return [inner + 1] * extra + [inner] * (power(n) - extra) + [Fraction(1)] * extra


def in_a_tree(n: int) -> list[Fraction]:
    """One vector up, unless at the root, and one down for each child, as many as the rank has low zero bits."""
    return [Fraction(bool(r) + sum(r % (2 * d) == 0 and r + d < n for d in map(two_to, range(n)))) for r in range(n)]


def two_to(n: int) -> int:
    return 1 << n


def in_two_trees(n: int) -> list[Fraction]:
    """Of each half: one up, unless at the root, and one down for each child."""
    first = [Fraction(not root) + children for root, children in balanced(n)]
    second = first[::-1] if n % 2 == 0 else first[-1:] + first[:-1]
    return [(a + b) / 2 for a, b in zip(first, second, strict=True)]


def balanced(n: int, root: bool = True) -> list[tuple[bool, int]]:
    """Whether it is the root, and the number of children, of each node of the tree, in order."""
    if n == 0:
        return []
    middle = power(n)
    left, right = balanced(middle - 1, False), balanced(n - middle, False)
    return [*left, (root, (middle > 1) + (n > middle)), *right]


def longer(n: int) -> int:
    return factors(n)[1]


COSTS: dict[str, tuple[Callable[[int], float], Callable[[int], list[Fraction]]]] = {
    "biring": (lambda n: 2 * (n - 1), optimal),
    "direct": (lambda n: 2 * (n > 1), optimal),
    "double_tree": (lambda n: 2 * (n.bit_length() - 1), in_two_trees),
    "hierarchical": (lambda n: 2 * sum(f - 1 for f in factors(n)), optimal),
    "rabenseifner": (
        lambda n: 2 * log2(power(n)) + 2 * (n != power(n)),
        lambda n: folded(n, Fraction(2 * (power(n) - 1), power(n))),
    ),
    "recursive": (
        lambda n: log2(power(n)) + 2 * (n != power(n)),
        lambda n: folded(n, Fraction(power(n).bit_length() - 1)),
    ),
    "ring": (lambda n: 2 * (n - 1), optimal),
    "ring2d": (lambda n: (2 if factors(n)[0] == 1 else 4) * (longer(n) - 1), optimal),
    "swing": (lambda n: 2 * log2(n), optimal),
    "tree": (lambda n: 2 * ceil(log2(n)), in_a_tree),
}
"""Steps, and vectors that each rank sends, by the number of ranks."""

CASES = [(name, n) for name in COSTS for n in range(1, 65) if name != "swing" or n == power(n)]


def vectors_sent(schedule: Schedule) -> list[Fraction]:
    sent = [0] * schedule.size
    for step in schedule.steps:
        for send in step.sends:
            sent[send.src] += 1
    return [Fraction(chunks, schedule.n_chunks) for chunks in sent]


@pytest.mark.parametrize(("name", "n"), CASES)
def test_a_planner_is_right_and_costs_what_it_says(name: str, n: int) -> None:
    schedule = PLANNERS[name](n)
    assert verify(schedule, fully_connected(n)) is schedule
    steps, vectors = COSTS[name]
    assert (schedule.size, len(schedule.steps)) == (n, steps(n))
    assert vectors_sent(schedule) == vectors(n)


NETWORKS = [
    *("hosts:2x2", "mesh:4", "ring:4", "torus:2x3", "bigraph:6", "hosts:1x7", "wdm-ring:7,w=2", "one-way-ring:8"),
    *("mesh:2x2x2", "torus:4x4", "mesh:2x8", "fat-tree:16", "k-fat-tree:4", "dgx:16", "hosts:4x4"),
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", COSTS)
def test_on_a_network_a_planner_is_right_and_sends_as_much(name: str, network: str) -> None:
    topology = from_spec(network)
    if name != "swing" or topology.size == power(topology.size):
        schedule = verify(PLANNERS[name](topology), topology)
        assert vectors_sent(schedule) == COSTS[name][1](topology.size)


@pytest.mark.parametrize("name", PLANNERS)
def test_no_ranks_cannot_be_planned_for(name: str) -> None:
    with pytest.raises(UsageError, match=r"^there cannot be 0 ranks: give 1 or more$"):
        PLANNERS[name](0)


@pytest.mark.parametrize("name", PLANNERS)
def test_the_worked_example_is_what_the_planner_gives(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"fusionctl.plan.{name}")).failed == 0
