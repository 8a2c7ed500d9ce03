"""The model of the optical ring: steps and seconds of closed forms, and how far light goes."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.optics import (
    InsertionLoss,
    OpticalMachine,
    h_ring_seconds,
    h_ring_steps,
    ring_seconds,
    ring_steps,
    tree_seconds,
    tree_steps,
    wrht_seconds,
)
from fusionctl.plan.wrht import wrht_steps

MODELS = (62.3e6, 138e6, 25e6, 6.7977e6)
"""Parameters of AlexNet, VGG16, ResNet50 and GoogLeNet, of 4 bytes each."""


def test_the_papers_steps_at_1024_ranks() -> None:
    assert (ring_steps(1024), h_ring_steps(1024, 5), tree_steps(1024), wrht_steps(1024, 64)) == (2046, 417, 20, 3)


def test_the_smallest_rings_and_trees() -> None:
    assert [ring_steps(size) for size in (1, 2, 3)] == [0, 2, 4]
    assert [tree_steps(size) for size in (1, 2, 3, 4, 5)] == [0, 2, 4, 4, 6]
    assert [h_ring_steps(size, 4) for size in (8, 16)] == [9, 13]


def test_seconds_are_steps_of_bytes_changes_and_conversions() -> None:
    machine = OpticalMachine(bandwidth=1e9, reconfiguration=1e-3, packet=100, oeo=1e-6)
    assert machine.step(1050.0) == pytest.approx(1.05e-6 + 11e-6 + 1e-3, rel=1e-12)
    assert ring_seconds(4, 4000.0, machine) == pytest.approx(6 * (1e-6 + 10e-6 + 1e-3), rel=1e-12)
    assert tree_seconds(4, 4000.0, machine) == pytest.approx(4 * (4e-6 + 40e-6 + 1e-3), rel=1e-12)
    assert wrht_seconds(3, 4000.0, machine) == pytest.approx(3 * (4e-6 + 40e-6 + 1e-3), rel=1e-12)
    inside, across, last = 2 * (2e-6 + 20e-6 + 1e-3), 6 * (1e-6 + 10e-6 + 1e-3), 4e-6 + 40e-6 + 1e-3
    assert h_ring_seconds(8, 2, 4000.0, machine) == pytest.approx(inside + across + last, rel=1e-12)


def test_the_mean_savings_at_1024_ranks_are_those_of_the_closed_forms() -> None:
    """At 40 Gbit/s: 21.6 % against the ring, 42.1 % against rings in groups, 85.0 % against the tree."""
    machine = OpticalMachine()
    saved = []
    for n_bytes in (4 * parameters for parameters in MODELS):
        others = ring_seconds(1024, n_bytes, machine), h_ring_seconds(1024, 5, n_bytes, machine)
        seconds = wrht_seconds(3, n_bytes, machine)
        saved.append([100 - 100 * seconds / other for other in (*others, tree_seconds(1024, n_bytes, machine))])
    assert [round(sum(column) / len(MODELS), 1) for column in zip(*saved, strict=True)] == [21.6, 42.1, 85.0]


def test_a_ring_is_faster_beyond_255_megabytes() -> None:
    machine = OpticalMachine()
    faster = [wrht_seconds(3, n_bytes, machine) < ring_seconds(1024, n_bytes, machine) for n_bytes in (254e6, 256e6)]
    assert faster == [True, False]


def test_light_goes_as_far_as_its_budget() -> None:
    loss = InsertionLoss(per_ring=0.5, coupling=2.0, drop=1.0, laser=10.0, sensitivity=-10.0)
    assert (loss.hops(), loss.largest_group()) == (34, 69)


@pytest.mark.parametrize(("per_ring", "laser"), [(0.5, -7.0), (0.0, 10.0), (20.0, 0.0)])
def test_light_that_does_not_arrive_is_an_error(per_ring: float, laser: float) -> None:
    with pytest.raises(UsageError, match=rf"^no light arrives: {laser} dBm less 3.0 dB and {per_ring} dB a hop "):
        InsertionLoss(per_ring, coupling=2.0, drop=1.0, laser=laser, sensitivity=-10.0).hops()
