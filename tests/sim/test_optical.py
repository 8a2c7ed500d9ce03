"""The optical ring: published closed forms, wavelengths, reconfigurations, packets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan import Link, ScheduleError, Send, Topology
from fusionctl.plan.ring import ring
from fusionctl.plan.topology import GIGABIT
from fusionctl.plan.verify import verify
from fusionctl.sim import Optics
from fusionctl.sim.optical import optical
from networks import made, two_levels

A, B = 25e-6, 40 * GIGABIT
RING = Optics().topology


def exactly(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9, abs=0)


def test_the_defaults_are_the_published_ones() -> None:
    assert Optics() == Optics(64, 5e9, 0.0, 25e-6, False, 0.0, 128, 32, False)
    topology = Optics(wavelengths=2, bandwidth=1e9, propagation=1e-8).topology(3)
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert topology == Topology("wdm_ring(3,2)", 3, dict.fromkeys(pairs, Link(1e9, 1e-8, 2)))


@pytest.mark.parametrize(("groups", "width"), [(3, 3), (4, 5), (5, 9), (8, 129)])
def test_two_levels_take_theta_times_the_whole_vector(groups: int, width: int) -> None:
    d, size = 4_000_000, groups * width
    schedule = verify(two_levels(groups, width), RING(size))
    assert optical(schedule, RING(size), d).seconds == exactly(3 * (d / B + A))


@pytest.mark.parametrize("size", [1, 2, 3, 16, 128])
def test_a_ring_takes_its_closed_form(size: int) -> None:
    d = 10_000 * size
    assert optical(ring(size), RING(size), d).seconds == exactly(2 * (size - 1) * (d / (size * B) + A))


def test_circuits_that_stay_are_not_set_up_again() -> None:
    d, size, keep = 160_000, 16, Optics(keep=True)
    result = optical(ring(size), RING(size), d, keep)
    assert result.seconds == exactly(2 * (size - 1) * d / (size * B) + A)
    assert result.reconfigurations == ((0.0, A),)
    assert optical(two_levels(3, 3), RING(9), d, keep).seconds == exactly(3 * (d / B + A))


def test_a_whole_log() -> None:
    topology = Optics(wavelengths=2, bandwidth=1e9, propagation=1e-6).topology(4)
    sends = [Send(0, 0, 2, True, 1, (1,)), Send(0, 1, 2, True)]
    result = optical(made(sends, [], [Send(0, 2, 1, False)], size=4), topology, 1000)
    assert str(result) == (
        "optical: made on wdm_ring(4,2), 1000 bytes: 55.000 us\n"
        "25.000 28.000 +0 0->1->2 @1\n25.000 27.000 +0 1->2\n53.000 55.000 =0 2->1"
    )
    assert result.reconfigurations == ((0.0, 25e-6), (exactly(28e-6), exactly(53e-6)))
    assert result.tracks[1, 2, 1] == (exactly(3e-6), 1000)
    assert result.tracks[1, 2, 0] == (exactly(2e-6), 1000)


def test_two_lightpaths_of_one_wavelength_conflict() -> None:
    sends = [Send(0, 0, 2, True, 3, (1,)), Send(0, 1, 2, True, 3)]
    with pytest.raises(ScheduleError) as caught:
        optical(made([], sends, size=4), RING(4), 1000)
    assert str(caught.value) == (
        "made, step 1: +0 0->1->2 @3 and +0 1->2 @3 conflict: "
        "wavelength 3 of the link from 1 to 2 carries one lightpath at a time"
    )
    with pytest.raises(ScheduleError, match="has 64 channels, of which 64 is none"):
        optical(made([sends[0]._replace(channel=64)], size=4), RING(4), 1000)


@pytest.mark.parametrize(
    ("nbytes", "packets", "flits"), [(0, 0, 0), (1, 1, 1), (128, 1, 4), (129, 2, 5), (1000, 8, 32)]
)
def test_each_packet_is_converted_and_whole_flits_travel_if_asked(nbytes: int, packets: int, flits: int) -> None:
    schedule, optics = made([Send(0, 0, 1, True)], size=2), Optics(oeo=1e-6)
    assert optical(schedule, RING(2), nbytes, optics).seconds == exactly(A + nbytes / B + packets * 1e-6)
    padded = replace(optics, padded=True)
    assert optical(schedule, RING(2), nbytes, padded).seconds == exactly(A + flits * 32 / B + packets * 1e-6)


@pytest.mark.parametrize("change", [{"reconfiguration": -1.0}, {"oeo": float("nan")}, {"flit": 0}, {"packet": 16}])
def test_what_no_machine_has_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"^an optical ring cannot have .*a packet no less than a flit$"):
        Optics(**change)  # type: ignore[arg-type]
