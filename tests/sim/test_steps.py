"""Step-synchronous timing: the closed forms of the literature, and what sends wait for."""

from __future__ import annotations

import numpy as np
import pytest

from fusionctl.errors import UsageError
from fusionctl.plan import PLANNERS, Link, ScheduleError, Send, Topology
from fusionctl.plan.ring import ring
from fusionctl.plan.topology import fully_connected
from fusionctl.plan.topology import ring as ring_topology
from fusionctl.sim import Result, Use
from fusionctl.sim.steps import steps
from networks import LazyRing, fat_tree, made, star, torus

A, B = 3e-6, 5e9
LINK = Link(B, A)


def exactly(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9, abs=0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 64, 256])
def test_the_closed_forms(size: int) -> None:
    d = size * 1_000_000
    full, logarithm = fully_connected(size, B, A), (size - 1).bit_length()
    assert steps(ring(size), ring_topology(size, B, A), d).seconds == exactly(2 * (size - 1) * (A + d / (size * B)))
    assert steps(PLANNERS["direct"](size), full, d).seconds == exactly(2 * (size > 1) * (A + d / (size * B)))
    if size.bit_count() == 1:
        assert steps(PLANNERS["recursive"](size), full, d).seconds == exactly(logarithm * (A + d / B))


def test_a_whole_log() -> None:
    result = steps(ring(3), ring_topology(3, 1e9, 1e-6), 6000)
    assert str(result) == (
        "steps: ring(3) on ring(3), 6000 bytes: 12.000 us\n"
        "0.000 3.000 +2 0->1\n0.000 3.000 +0 1->2\n0.000 3.000 +1 2->0\n"
        "3.000 6.000 +1 0->1\n3.000 6.000 +2 1->2\n3.000 6.000 +0 2->0\n"
        "6.000 9.000 =0 0->1\n6.000 9.000 =1 1->2\n6.000 9.000 =2 2->0\n"
        "9.000 12.000 =2 0->1\n9.000 12.000 =0 1->2\n9.000 12.000 =1 2->0"
    )
    assert result.events["step"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert result.steps == pytest.approx(np.array([[0, 3], [3, 6], [6, 9], [9, 12]]) * 1e-6, rel=1e-9)
    assert dict(result.tracks) == {(0, 1, 0): (exactly(12e-6), 8000)} | {
        (1, 2, 0): (exactly(12e-6), 8000),
        (2, 0, 0): (exactly(12e-6), 8000),
    }


def test_a_way_has_the_latency_of_all_its_links_and_the_bandwidth_of_the_smallest() -> None:
    links = {(0, 2): Link(4e9, 1e-6), (2, 3): Link(1e9, 2e-6), (3, 1): Link(2e9, 4e-6)}
    topology = Topology("chain", 2, links, switches=2)
    for send in (Send(0, 0, 1, True, via=(2, 3)), Send(0, 0, 1, True)):
        result = steps(made([send], size=2), topology, 1000)
        assert str(result) == "steps: made on chain, 1000 bytes: 8.000 us\n0.000 8.000 +0 0->2->3->1"
        assert set(result.tracks) == {(0, 2, 0), (2, 3, 0), (3, 1, 0)}


def test_a_step_waits_for_its_slowest_send() -> None:
    links = {(0, 1): Link(1e9, 0.0), (2, 3): Link(1e8, 0.0)}
    topology = Topology("two", 4, links)
    sends = [Send(0, 0, 1, True), Send(0, 2, 3, True)]
    assert str(steps(made(sends, [], sends[:1], size=4), topology, 1000)) == (
        "steps: made on two, 1000 bytes: 11.000 us\n0.000 1.000 +0 0->1\n0.000 10.000 +0 2->3\n10.000 11.000 +0 0->1"
    )


def test_sends_that_share_a_track_go_one_after_another() -> None:
    sends = [Send(0, 0, 3, True), Send(0, 1, 3, True), Send(0, 2, 0, True)]
    result = steps(made(sends, size=4), star(4, Link(1e9, 1e-6)), 1000)
    assert str(result).splitlines()[1:] == [
        "0.000 3.000 +0 0->4->3",
        "3.000 6.000 +0 1->4->3",
        "0.000 3.000 +0 2->4->0",
    ]
    assert result.tracks[4, 3, 0] == Use(exactly(6e-6), 2000)  # type: ignore[arg-type]


def test_channels_of_a_link_share_nothing() -> None:
    sends = [Send(0, 0, 1, True), Send(1, 0, 1, True, 1)]
    result = steps(made(sends, size=2, n_chunks=2), Topology("one", 2, {(0, 1): Link(1e9, 0.0, 2)}), 2000)
    assert result.seconds == exactly(1e-6)
    assert result.tracks == {(0, 1, 0): Use(1e-6, 1000), (0, 1, 1): Use(1e-6, 1000)}


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_schedule_may_be_made_as_it_is_read(size: int) -> None:
    lazy, whole = (steps(ring_, ring_topology(size), 999) for ring_ in (LazyRing(size), ring(size)))
    assert str(lazy) == str(whole)
    assert lazy.tracks == whole.tracks


def test_without_events_all_else_is_the_same() -> None:
    bare, whole = (steps(ring(5), ring_topology(5), 999, events=events) for events in (False, True))
    assert bare.events.size == 0
    assert (bare.seconds, bare.tracks, bare.steps.tolist()) == (whole.seconds, whole.tracks, whole.steps.tolist())


def test_what_cannot_be_timed_is_named() -> None:
    far = Send(0, 0, 1, True)
    cases: list[tuple[type[Exception], str, Send, int, int]] = [
        (ScheduleError, "made: topology two has no way from 1 to 0", Send(0, 1, 0, True), 2, 1),
        (ScheduleError, "made: 0->2->1: topology two has no link from 0 to 2", far._replace(via=(2,)), 2, 1),
        (
            ScheduleError,
            "made: 0->1: the link from 0 to 1 of topology two has 1 channels, of which 1 is none",
            far._replace(channel=1),
            2,
            1,
        ),
        (ScheduleError, "made is for 3 ranks, but topology two has 2", far, 3, 1),
        (UsageError, "made: a buffer cannot have -1 bytes: give 0 or more", far, 2, -1),
    ]
    for error, message, send, size, nbytes in cases:
        with pytest.raises(error) as caught:
            steps(made([send], size=size), Topology("two", 2, {(0, 1): Link()}, switches=1), nbytes)
        assert str(caught.value) == message


def times(result: Result) -> list[str]:
    return str(result).splitlines()[1:]


def test_routes_have_the_fewest_links_and_the_lowest_numbers() -> None:
    torus_ways = times(steps(made([Send(0, 0, 5, True)], [Send(0, 5, 0, True)], size=9), torus(3, 3), 0))
    assert [line.split()[-1] for line in torus_ways] == ["0->2->5", "5->2->0"]
    tree_ways = times(steps(made([Send(0, 0, 3, True)], [Send(0, 0, 1, True)], size=4), fat_tree(2, 2), 0))
    assert [line.split()[-1] for line in tree_ways] == ["0->4->6->5->3", "0->4->1"]
