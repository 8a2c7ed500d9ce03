"""Flow-level timing: max-min fairness, ranks that drift apart, bounds, and the two ways that must agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.plan import PLANNERS, Link, Schedule, Send, Topology
from fusionctl.plan.ring import ring
from fusionctl.plan.topologies import hosts, leaf_spine, torus
from fusionctl.plan.topology import fully_connected
from fusionctl.plan.topology import ring as ring_topology
from fusionctl.sim import Use
from fusionctl.sim.flow import _shared, _unshared, flow
from fusionctl.sim.sharing import fair_rates
from fusionctl.sim.steps import steps
from schedules import LazyRing, made


def log(schedule: Schedule, topology: Topology, nbytes: int) -> list[str]:
    return str(flow(schedule, topology, nbytes)).splitlines()[1:]


def plus(src: int, dst: int, chunk: int = 0) -> Send:
    return Send(chunk, src, dst, True)


def test_two_flows_into_one_link_halve_it_and_the_one_that_is_left_has_it_all() -> None:
    schedule = made([plus(0, 3), plus(1, 3)], [plus(0, 2)], size=4)
    assert log(schedule, hosts(1, 4, 1e9, 1e-6), 8000) == [
        "0.000 18.000 +0 0->4->3",
        "0.000 18.000 +0 1->4->3",
        "18.000 28.000 +0 0->4->2",
    ]
    links = {**hosts(1, 4, 1e9, 1e-6).links, (1, 4): Link(1e9, 9e-6)}
    late = Topology("late", 4, links, switches=1)
    result = flow(schedule, late, 8000)
    assert str(result).splitlines()[1:3] == ["0.000 10.000 +0 0->4->3", "0.000 18.000 +0 1->4->3"]
    assert result.tracks[4, 3, 0] == Use(pytest.approx(18e-6), 16000)  # type: ignore[arg-type]


def test_a_flow_that_is_held_up_elsewhere_leaves_its_share_to_others() -> None:
    links = {**hosts(1, 5, 1e9, 0.0).links, (0, 5): Link(0.25e9, 0.0)}
    schedule = made([plus(0, 4), plus(1, 4)], size=5)
    assert log(schedule, Topology("slow", 5, links, switches=1), 6000) == [
        "0.000 24.000 +0 0->5->4",
        "0.000 8.000 +0 1->5->4",
    ]


def test_a_rank_starts_a_step_when_its_own_part_of_the_one_before_is_complete() -> None:
    links = dict.fromkeys([(0, 1), (1, 2), (2, 3), (3, 0)], Link(1e9, 0.0)) | {(2, 3): Link(1e8, 0.0)}
    schedule = made([plus(0, 1), plus(2, 3)], [plus(1, 2), plus(3, 0)], [plus(0, 1)], size=4)
    assert log(schedule, Topology("odd", 4, links), 1000) == [
        "0.000 1.000 +0 0->1",
        "0.000 10.000 +0 2->3",
        "1.000 2.000 +0 1->2",
        "10.000 11.000 +0 3->0",
        "11.000 12.000 +0 0->1",
    ]


def test_the_steps_of_a_result_may_overlap() -> None:
    links = {(0, 1): Link(1e9, 0.0), (2, 3): Link(1e8, 0.0), (1, 0): Link(1e9, 0.0)}
    schedule = made([plus(0, 1), plus(2, 3)], [plus(1, 0)], [], size=4)
    result = flow(schedule, Topology("two", 4, links), 1000)
    assert result.steps == pytest.approx(np.array([[0, 10e-6], [1e-6, 2e-6], [10e-6, 10e-6]]))
    assert result.seconds == pytest.approx(10e-6)


@pytest.mark.parametrize("topology", [ring_topology(1), hosts(1, 3)], ids=lambda t: t.name)
def test_nothing_takes_no_time(topology: Topology) -> None:
    for simulate in (flow, steps):
        assert simulate(made(size=topology.size), topology, 10).seconds == 0
        assert simulate(made([], size=topology.size), topology, 10).seconds == 0


def test_no_bytes_take_the_latencies() -> None:
    assert log(made([plus(0, 2), plus(1, 2)], size=3), hosts(1, 3, 1e9, 1e-6), 0) == [
        "0.000 2.000 +0 0->3->2",
        "0.000 2.000 +0 1->3->2",
    ]


SYMMETRIC = [
    (PLANNERS["ring"](8), ring_topology(8)),
    (PLANNERS["ring"](8), hosts(1, 8)),
    (PLANNERS["recursive"](8), fully_connected(8)),
    (PLANNERS["recursive"](8), hosts(1, 8)),
    (PLANNERS["direct"](8), fully_connected(8)),
    (PLANNERS["recursive"](4), torus(2, 2)),
    (PLANNERS["rabenseifner"](8), fully_connected(8)),
    (PLANNERS["biring"](2), ring_topology(2)),
    (PLANNERS["ring2d"](16), torus(4, 4)),
    (PLANNERS["hierarchical"](8), fully_connected(8)),
]


@pytest.mark.parametrize(("schedule", "topology"), SYMMETRIC, ids=lambda value: value.name)
def test_a_symmetric_schedule_stays_in_step(schedule: Schedule, topology: Topology) -> None:
    one, other = (simulate(schedule, topology, 32 * 12345) for simulate in (flow, steps))
    assert one.events["start"] == pytest.approx(other.events["start"], rel=1e-9)
    assert one.events["end"] == pytest.approx(other.events["end"], rel=1e-9)
    assert {track: use.nbytes for track, use in one.tracks.items()} == {
        track: use.nbytes for track, use in other.tracks.items()
    }
    busy = [[use.seconds for use in result.tracks.values()] for result in (one, other)]
    assert busy[0] == pytest.approx(busy[1], rel=1e-9)


@pytest.mark.parametrize("nbytes", [0, 1, 8 * 1000, 8 * 1000 + 3])
@pytest.mark.parametrize(("schedule", "topology"), SYMMETRIC, ids=lambda value: value.name)
def test_both_ways_agree_where_nothing_is_shared(schedule: Schedule, topology: Topology, nbytes: int) -> None:
    fast, slow = _unshared(schedule, topology, nbytes, True), _shared(schedule, topology, nbytes, True)
    if topology.switches and schedule.n_chunks == 1:
        assert fast is None, "the switch's links carry what several ranks send"
        return
    assert fast is not None
    for name in ("start", "end"):
        assert fast.events[name] == pytest.approx(slow.events[name], rel=1e-9)
    assert fast.steps == pytest.approx(slow.steps, rel=1e-9)
    assert fast.tracks.keys() == slow.tracks.keys()
    for track, use in fast.tracks.items():
        assert use.nbytes == slow.tracks[track].nbytes
        assert use.seconds == pytest.approx(slow.tracks[track].seconds, rel=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_schedule_may_be_made_as_it_is_read(size: int) -> None:
    for topology in (ring_topology(size), hosts(1, size)):
        assert str(flow(LazyRing(size), topology, 999)) == str(flow(ring(size), topology, 999))


def uneven(shape: Topology, draw: Callable[[st.SearchStrategy[Link]], Link]) -> Topology:
    """The same links, which differ."""
    speeds = st.builds(Link, st.sampled_from([1e8, 3e8, 1e9]), st.sampled_from([0.0, 1e-6, 7e-6]))
    return Topology(shape.name, shape.size, {pair: draw(speeds) for pair in shape.links}, shape.switches)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schedule, Topology]:
    """Random sends over the routes of a small network whose links differ."""
    shape = draw(st.sampled_from([torus(2, 3), leaf_spine(6, 3), hosts(1, 6), ring_topology(6)]))
    topology = uneven(shape, draw)
    pairs = st.sampled_from([(src, dst) for src in range(6) for dst in range(6) if src != dst])
    sends = st.builds(lambda pair, chunk: plus(pair[0], pair[1], chunk), pairs, st.integers(0, 3))
    return made(*draw(st.lists(st.lists(sends, max_size=8), max_size=5)), size=6, n_chunks=4), topology


NBYTES = st.integers(0, 10**6)


@given(cases(), NBYTES)
def test_no_flow_is_faster_than_its_way_and_no_track_than_its_bandwidth(
    case: tuple[Schedule, Topology], nbytes: int
) -> None:
    schedule, topology = case
    result = flow(schedule, topology, nbytes)
    took, moved = (result.events["end"] - result.events["start"]).tolist(), 0
    for message, seconds in zip(result.messages(), took, strict=True):
        links = [topology.links[hop] for hop in message[0].hops]
        size = sum(end - start for start, end in (schedule.bounds(send.chunk, nbytes) for send in message))
        least = sum(link.latency for link in links) + size / min(link.bandwidth for link in links)
        assert seconds >= least * (1 - 1e-9)
        moved += size * len(links)
    for (src, dst, _), use in result.tracks.items():
        assert use.seconds * (1 + 1e-9) >= use.nbytes / topology.links[src, dst].bandwidth
        assert use.seconds <= result.seconds * (1 + 1e-9)
    assert sum(use.nbytes for use in result.tracks.values()) == moved


@given(cases(), NBYTES)
def test_a_part_starts_exactly_when_the_one_before_ends(case: tuple[Schedule, Topology], nbytes: int) -> None:
    ready = dict.fromkeys(range(6), 0.0)
    result = flow(*case, nbytes)
    for i in range(len(case[0].steps)):
        part = result.events["step"] == i
        rows = [
            (message[0].src, message[0].dst, start, end)
            for message, start, end, here in zip(
                result.messages(), result.events["start"].tolist(), result.events["end"].tolist(), part, strict=True
            )
            if here
        ]
        assert [start for *_, start, _ in rows] == pytest.approx([ready[src] for src, *_ in rows], rel=1e-9)
        for src, dst, _, end in rows:
            ready[src], ready[dst] = max(ready[src], end), max(ready[dst], end)
    assert result.seconds == pytest.approx(max(ready.values()), rel=1e-9)


@given(st.sampled_from(sorted(PLANNERS.keys() - {"wrht"})), st.data(), NBYTES, NBYTES)  # which needs wavelengths
def test_more_bytes_take_no_less_time_where_nothing_is_shared(
    planner: str, data: st.DataObject, nbytes: int, more: int
) -> None:
    topology = uneven(fully_connected(8), data.draw)
    less, greater = (flow(PLANNERS[planner](8), topology, n).seconds for n in (nbytes, nbytes + more))
    assert greater >= less * (1 - 1e-9)


@given(cases(), NBYTES, NBYTES)
def test_in_lock_step_more_bytes_take_no_less_time(case: tuple[Schedule, Topology], nbytes: int, more: int) -> None:
    less, greater = (steps(*case, n).seconds for n in (nbytes, nbytes + more))
    assert greater >= less * (1 - 1e-9)


FLOWS = st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), max_size=12)


@given(FLOWS, st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_rates_are_fair_if_each_flow_has_a_full_track_on_which_none_is_faster(
    ways: list[set[int]], capacity: list[int]
) -> None:
    entries = [(number, track) for number, way in enumerate(ways) for track in sorted(way)]
    move, track = np.array(entries, np.int64).reshape(-1, 2).T
    rates = fair_rates(move, track, np.array(capacity, np.float64), len(ways))
    on = [[float(rates[number]) for number, way in enumerate(ways) if place in way] for place in range(6)]
    assert all(sum(on[place]) <= capacity[place] * (1 + 1e-9) for place in range(6))
    for number, way in enumerate(ways):
        full = [place for place in way if sum(on[place]) >= capacity[place] * (1 - 1e-9)]
        assert any(max(on[place]) <= rates[number] * (1 + 1e-9) for place in full)
