"""Lightpaths on a ring: no wavelength twice on a link, as few as can be where all talk to all, and their table."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.errors import UsageError
from fusionctl.plan.lightpaths import (
    Arc,
    Lightpath,
    ModelledCircuits,
    Policy,
    all_to_all,
    all_to_all_wavelengths,
    assign,
    best_fit,
    first_fit,
    lightpaths,
    to_json,
)
from fusionctl.plan.schedule import Schedule
from fusionctl.plan.wrht import wrht


def links(arc: Arc, size: int) -> list[tuple[int, int]]:
    """The directed links of an arc, walked one by one."""
    node, found, step = arc.src, [], 1 if arc.clockwise else -1
    while node != arc.dst:
        found.append((node, (node + step) % size))
        node = (node + step) % size
    return found


def used_twice(arcs: list[Arc], numbers: list[int], size: int) -> list[tuple[int, int, int]]:
    taken = [(*link, number) for arc, number in zip(arcs, numbers, strict=True) for link in links(arc, size)]
    return [key for key, count in Counter(taken).items() if count > 1]


@st.composite
def arcs_on_rings(draw: st.DrawFn) -> tuple[int, list[Arc]]:
    size = draw(st.integers(3, 12))
    rank = st.integers(0, size - 1)
    arcs = st.builds(Arc, rank, rank, st.booleans()).filter(lambda arc: arc.src != arc.dst)
    return size, draw(st.lists(arcs, max_size=12))


@given(arcs_on_rings())
def test_an_arc_passes_the_ranks_between_its_links(drawn: tuple[int, list[Arc]]) -> None:
    size, arcs = drawn
    for arc in arcs:
        assert arc.via(size) == tuple(dst for _, dst in links(arc, size)[:-1])
        assert arc.length(size) == len(links(arc, size))


@pytest.mark.parametrize("policy", [first_fit, best_fit])
@given(arcs_on_rings())
def test_no_link_carries_a_wavelength_twice(policy: Policy, drawn: tuple[int, list[Arc]]) -> None:
    size, arcs = drawn
    numbers = assign(arcs, size, len(arcs), policy)
    assert used_twice(arcs, numbers, size) == []


@given(arcs_on_rings())
def test_first_fit_takes_the_lowest_wavelength_that_is_free(drawn: tuple[int, list[Arc]]) -> None:
    size, arcs = drawn
    numbers = assign(arcs, size, len(arcs), first_fit)
    for i, number in enumerate(numbers):
        for lower in range(number):
            assert used_twice(arcs[: i + 1], [*numbers[:i], lower], size) != []


def test_best_fit_takes_the_tightest_gap() -> None:
    wide, tight, middle = Arc(6, 2, True), Arc(4, 1, True), Arc(2, 3, True)
    inside = Arc(1, 4, True)
    assert assign([wide, tight, middle], 8, 2, first_fit) == [0, 1, 0]
    assert assign([wide, tight, middle], 8, 2, best_fit) == [0, 1, 1]
    assert assign([wide, tight, middle, inside], 8, 3, first_fit) == [0, 1, 0, 1]
    assert assign([wide, tight, middle, inside], 8, 3, best_fit) == [0, 1, 1, 2]


@pytest.mark.parametrize("policy", [first_fit, best_fit])
def test_too_few_wavelengths_are_an_error(policy: Policy) -> None:
    assert assign([Arc(0, 2, True), Arc(2, 0, False)], 4, 1, policy) == [0, 0]
    with pytest.raises(UsageError, match=r"^none of 1 wavelengths is free all the way from rank 1 to 3$"):
        assign([Arc(0, 2, True), Arc(1, 3, True)], 4, 1, policy)


@pytest.mark.parametrize("n", range(1, 34))
def test_all_reach_all_with_the_fewest_wavelengths(n: int) -> None:
    ranks = [3 * rank + 1 for rank in range(n)]
    arcs = [arc for arc, _ in all_to_all(ranks)]
    numbers = [number for _, number in all_to_all(ranks)]
    assert sorted((arc.src, arc.dst) for arc in arcs) == [(src, dst) for src in ranks for dst in ranks if src != dst]
    assert used_twice(arcs, numbers, 3 * n) == []
    assert max(numbers, default=-1) + 1 == all_to_all_wavelengths(n)


@pytest.mark.parametrize("n", range(2, 34))
def test_no_fewer_wavelengths_could_do(n: int) -> None:
    """Each arc by the shorter way takes so many links in all, out of 2n per wavelength."""
    total = sum(min((dst - src) % n, (src - dst) % n) for src in range(n) for dst in range(n))
    assert all_to_all_wavelengths(n) == -(-total // (2 * n))


def test_the_table_lists_the_lightpaths_of_each_step() -> None:
    schedule = wrht(4, wavelengths=1)
    assert lightpaths(schedule)[1] == [Lightpath(1, 3, True, 0, (2,)), Lightpath(3, 1, True, 0, (0,))]
    assert json.loads(to_json(schedule)) == {
        "schedule": "wrht(4,m=3,w=1)",
        "ranks": 4,
        "steps": [
            [
                {"src": 0, "dst": 1, "direction": "clockwise", "wavelength": 0, "via": []},
                {"src": 2, "dst": 1, "direction": "counterclockwise", "wavelength": 0, "via": []},
            ],
            [
                {"src": 1, "dst": 3, "direction": "clockwise", "wavelength": 0, "via": [2]},
                {"src": 3, "dst": 1, "direction": "clockwise", "wavelength": 0, "via": [0]},
            ],
            [
                {"src": 1, "dst": 0, "direction": "counterclockwise", "wavelength": 0, "via": []},
                {"src": 1, "dst": 2, "direction": "clockwise", "wavelength": 0, "via": []},
            ],
        ],
    }


@pytest.mark.parametrize("schedule", [wrht(256), wrht(64, wavelengths=4), wrht(1)], ids=lambda schedule: schedule.name)
def test_each_step_of_wrht_changes_the_circuits(schedule: Schedule) -> None:
    circuits = ModelledCircuits(25e-6)
    for step in lightpaths(schedule):
        circuits.configure(step)
    assert circuits.changes == len(schedule.steps)
    assert circuits.seconds == circuits.changes * 25e-6


def test_circuits_that_are_up_cost_nothing() -> None:
    circuits = ModelledCircuits(1.0)
    one, other = Lightpath(0, 1, True, 0), Lightpath(1, 2, True, 0)
    for paths in ([one, other], [one], [other, one], [one._replace(wavelength=1)], [one]):
        circuits.configure(paths)
    assert circuits.seconds == 3.0
