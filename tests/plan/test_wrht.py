"""WRHT: as many steps as its closed form, over wavelengths that no link carries twice."""

from __future__ import annotations

import doctest
import re

import pytest

import fusionctl.plan.wrht as module
from fusionctl.errors import UsageError
from fusionctl.plan.lightpaths import Policy, all_to_all_wavelengths, best_fit, first_fit
from fusionctl.plan.optics import InsertionLoss
from fusionctl.plan.topologies import mesh, wdm_ring
from fusionctl.plan.topology import ring
from fusionctl.plan.verify import verify
from fusionctl.plan.wrht import wrht, wrht_steps

SIZES = (16, 64, 128, 256, 512, 1024, 2048, 4096)
STEPS = {
    4: (3, 4, 5, 5, 6, 7, 7, 8),
    8: (2, 3, 3, 4, 5, 5, 5, 6),
    16: (2, 3, 3, 3, 4, 4, 5, 5),
    32: (2, 2, 3, 3, 3, 3, 4, 4),
    64: (2, 2, 2, 3, 3, 3, 3, 4),
}
"""By wavelengths, at the sizes above."""

TABLE = [(wavelengths, *row) for wavelengths, steps in STEPS.items() for row in zip(SIZES, steps, strict=True)]


def test_the_worked_example_is_what_the_planner_gives() -> None:
    assert doctest.testmod(module) == (0, 1)


@pytest.mark.parametrize(("wavelengths", "size", "steps"), TABLE)
def test_the_steps_are_those_of_the_closed_form(wavelengths: int, size: int, steps: int) -> None:
    assert wrht_steps(size, wavelengths) == steps
    assert len(wrht(size, wavelengths=wavelengths).steps) == steps


@pytest.mark.parametrize(("wavelengths", "size"), [row[:2] for row in TABLE if row[1] <= 256])
def test_the_wavelengths_of_a_ring_carry_it(wavelengths: int, size: int) -> None:
    ring_of_fibres = wdm_ring(size, wavelengths)
    verify(wrht(ring_of_fibres), ring_of_fibres)


@pytest.mark.parametrize("policy", [first_fit, best_fit])
@pytest.mark.parametrize("size", [*range(1, 18), 33])
def test_any_number_of_ranks_and_any_group(size: int, policy: Policy) -> None:
    for wavelengths in (1, 2, 3, 7):
        for group in (2, wavelengths + 1, 2 * wavelengths + 1):
            for first in (False, True):
                schedule = wrht(size, group, wavelengths, policy, first)
                verify(schedule, wdm_ring(size, wavelengths))
                assert len(schedule.steps) == wrht_steps(size, wavelengths, group, first)


def test_few_ranks_may_do_without_groups() -> None:
    assert all_to_all_wavelengths(16) == 32
    steps = [wrht_steps(16, wavelengths, all_to_all_first=True) for wavelengths in (31, 32)]
    assert steps == [2, 1]
    assert len(wrht(16, wavelengths=32, all_to_all_first=True).steps) == 1


def test_two_ranks_and_one() -> None:
    assert str(wrht(2)) == "wrht(2,m=129,w=64): allreduce, 2 ranks, 1 chunks, 2 steps\n0: +0 0->1\n1: =0 1->0"
    assert str(wrht(1)) == "wrht(1,m=129,w=64): allreduce, 1 ranks, 1 chunks, 0 steps"


def test_a_group_is_nested_around_its_middle() -> None:
    first = wrht(5, group=5, wavelengths=2, policy=first_fit).steps[0]
    assert str(first) == "+0 0->1->2, +0 1->2 @1, +0 3->2, +0 4->3->2 @1"
    assert str(wrht(5, group=5, wavelengths=2, policy=best_fit).steps[0]) == str(first)


def test_as_many_wavelengths_as_the_links_have_channels_or_fewer() -> None:
    assert wrht(wdm_ring(20, 3)).name == "wrht(20,m=7,w=3)"
    assert wrht(wdm_ring(20, 3), wavelengths=2).name == "wrht(20,m=5,w=2)"
    assert wrht(ring(20)).name == "wrht(20,m=3,w=1)"
    with pytest.raises(UsageError, match=r"^there cannot be 4 wavelengths: .* no more than the 3 there are$"):
        wrht(wdm_ring(20, 3), wavelengths=4)
    with pytest.raises(UsageError, match=r"^there cannot be 0 wavelengths: "):
        wrht(20, wavelengths=0)


def test_the_light_budget_limits_the_groups() -> None:
    loss = InsertionLoss(per_ring=1.0, coupling=1.0, drop=1.0, laser=2.0, sensitivity=-5.0)
    assert loss.hops() == 5
    assert wrht(100, loss=loss).name == "wrht(100,m=11,w=64)"
    assert wrht(100, wavelengths=2, loss=loss).name == "wrht(100,m=5,w=2)"


@pytest.mark.parametrize("group", [1, 6])
def test_a_group_needs_two_ranks_and_enough_wavelengths(group: int) -> None:
    message = f"WRHT cannot have groups of {group} ranks: 2 to 5 with 2 wavelengths"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        wrht(9, group, wavelengths=2)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        wrht_steps(9, 2, group)


def test_the_ranks_must_be_on_a_ring() -> None:
    with pytest.raises(UsageError, match=r"^mesh\(3, 3\) is no ring of all ranks: there is no link from 2 to 3$"):
        wrht(mesh(3, 3))
