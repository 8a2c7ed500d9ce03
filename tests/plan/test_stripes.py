"""WRHT in stripes: the fastest tree there is, never slower than WRHT, and as fast as its schedule replayed."""

from __future__ import annotations

import doctest
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fusionctl.plan.stripes as module
from fusionctl.errors import UsageError
from fusionctl.plan.lightpaths import ModelledCircuits, all_to_all_wavelengths, lightpaths
from fusionctl.plan.optics import InsertionLoss, OpticalMachine, wrht_seconds
from fusionctl.plan.schedule import Schedule
from fusionctl.plan.stripes import best_tree, striped_wrht
from fusionctl.plan.topologies import wdm_ring
from fusionctl.plan.verify import verify
from fusionctl.plan.wrht import wrht_steps

SIZES = st.integers(1, 40)
BYTES = st.integers(0, 10_000_000)
WAVELENGTHS = st.integers(1, 8)


def test_the_worked_example_is_what_the_planner_gives() -> None:
    assert doctest.testmod(module) == (0, 1)


def machine_of(wavelengths: int) -> OpticalMachine:
    return OpticalMachine(wavelengths=wavelengths, oeo=1e-9)


def best(size: int, n_bytes: int, machine: OpticalMachine, first: bool = False) -> float:
    wavelengths = machine.wavelengths
    return best_tree(size, n_bytes, machine, wavelengths, 2 * wavelengths + 1, first)[0].seconds


def replayed(schedule: Schedule, n_bytes: int, machine: OpticalMachine) -> float:
    """Seconds of a schedule: each step carries a chunk, and the circuits change where they must."""
    circuits = ModelledCircuits(machine.reconfiguration)
    for step in lightpaths(schedule):
        circuits.configure(step)
    return circuits.seconds + len(schedule.steps) * machine.transfer(n_bytes / schedule.n_chunks)


@given(SIZES, BYTES, WAVELENGTHS, st.booleans())
def test_the_schedule_does_what_it_says_on_its_wavelengths_in_its_time(
    size: int, n_bytes: int, wavelengths: int, first: bool
) -> None:
    machine = machine_of(wavelengths)
    schedule = striped_wrht(wdm_ring(size, wavelengths), n_bytes, machine, all_to_all_first=first)
    verify(schedule, wdm_ring(size, wavelengths))
    assert replayed(schedule, n_bytes, machine) == pytest.approx(best(size, n_bytes, machine, first), rel=1e-9)


@given(SIZES, BYTES, WAVELENGTHS, st.booleans())
def test_it_is_never_slower_than_wrht(size: int, n_bytes: int, wavelengths: int, first: bool) -> None:
    machine = machine_of(wavelengths)
    plain = wrht_seconds(wrht_steps(size, wavelengths, all_to_all_first=first), n_bytes, machine)
    assert best(size, n_bytes, machine, first) <= plain * (1 + 1e-12)


def trees(left: int, largest: int) -> Iterator[tuple[list[int], int]]:
    """All choices of groups down to some number of ranks: lightpaths of each level, and the ranks left."""
    yield [], left
    for group in range(2, min(left, largest) + 1):
        for below, rest in trees(-(-left // group), largest):
            yield [group // 2, *below], rest


@given(st.integers(2, 14), BYTES, st.integers(1, 4))
def test_no_other_tree_is_faster(size: int, n_bytes: int, wavelengths: int) -> None:
    machine = machine_of(wavelengths)

    def seconds(lightpaths: int, n_chunks: int) -> float:
        steps = -(-n_chunks // min(wavelengths // lightpaths, n_chunks))
        return steps * machine.transfer(n_bytes / n_chunks) + machine.reconfiguration

    found = []
    for levels, left in trees(size, 2 * wavelengths + 1):
        needed = all_to_all_wavelengths(left)
        if left == 1 or (levels and needed <= wavelengths):
            for n_chunks in range(1, wavelengths + 1):
                last = seconds(needed, n_chunks) if left > 1 else 0.0
                found.append(sum(2 * seconds(level, n_chunks) for level in levels) + last)
    assert best(size, n_bytes, machine) == pytest.approx(min(found), rel=1e-12)


@pytest.mark.parametrize(("size", "times"), [(64, 17.7), (1024, 14.4)])
def test_how_much_faster_than_wrht_it_is_for_alexnet(size: int, times: float) -> None:
    n_bytes, machine = int(4 * 62.3e6), OpticalMachine()
    plain = wrht_seconds(wrht_steps(size, 64), n_bytes, machine)
    assert round(plain / best(size, n_bytes, machine), 1) == times


def test_few_bytes_are_not_striped() -> None:
    assert striped_wrht(64, 0).name == "striped_wrht(64,m=64,w=64)"
    assert striped_wrht(1, 100).name == "striped_wrht(1,m=,w=64)"


def test_the_light_budget_limits_the_groups() -> None:
    loss = InsertionLoss(per_ring=1.0, coupling=1.0, drop=1.0, laser=2.0, sensitivity=-1.5)
    assert loss.largest_group() == 3
    assert striped_wrht(100, 0, loss=loss).name == "striped_wrht(100,m=2x3xall,w=64)"


def test_there_are_no_less_than_no_bytes() -> None:
    with pytest.raises(UsageError, match=r"^there cannot be -1 bytes to reduce: give 0 or more$"):
        striped_wrht(4, -1)
