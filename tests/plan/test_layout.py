"""Laying on a network keeps what a schedule does and the chunks that it sends, and takes no channel twice."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest

import fusionctl.plan.layout as module
from fusionctl.plan import PLANNERS, Schedule, ScheduleError, Send, Step, Topology
from fusionctl.plan.direct import direct
from fusionctl.plan.layout import lay
from fusionctl.plan.ring import ring
from fusionctl.plan.spec import from_spec
from fusionctl.plan.topologies import one_way_ring, wdm_ring
from fusionctl.plan.topology import Link, fully_connected
from fusionctl.plan.topology import ring as ring_topology
from fusionctl.plan.verify import verify

NETWORKS = ["ring:16", "mesh:2x8", "torus:4x4", "fat-tree:16", "bigraph:16", "hosts:4x4", "dgx:16", "wdm-ring:16,w=3"]


def test_the_worked_example_is_what_laying_gives() -> None:
    assert doctest.testmod(module) == (0, 3)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("planner", ["direct", "recursive", "ring"])
def test_a_schedule_is_right_on_any_network_and_sends_the_same(planner: str, network: str) -> None:
    topology = from_spec(network)
    laid = verify(PLANNERS[planner](topology), topology)
    assert sent(laid) == sent(PLANNERS[planner](topology.size))


def sent(schedule: Schedule) -> Counter[Send]:
    return Counter(send._replace(via=(), channel=0) for step in schedule.steps for send in step.sends)


def test_what_has_its_links_stays_as_it_is() -> None:
    assert lay(ring(8), ring_topology(8)) == ring(8)
    assert lay(direct(8), fully_connected(8)) == direct(8)
    assert lay(ring(8), 8) == ring(8)


def test_channels_of_a_link_are_taken_before_further_steps() -> None:
    step = Step(Send(rank, rank, (rank + 2) % 4, reduce=True) for rank in range(4))
    opposite = Schedule("opposite", "allreduce", 4, 4, (step,))
    assert [str(step) for step in lay(opposite, wdm_ring(4, 2)).steps] == [
        "+0 0->1->2, +1 1->2->3 @1, +2 2->3->0, +3 3->0->1 @1"
    ]
    assert [str(step) for step in lay(opposite, ring_topology(4)).steps] == [
        "+0 0->1->2, +2 2->3->0",
        "+1 1->2->3, +3 3->0->1",
    ]


def test_chunks_that_go_together_stay_together() -> None:
    two = Schedule("two", "allreduce", 3, 2, (Step([Send(0, 0, 2, True), Send(1, 0, 2, True), Send(0, 1, 2, True)]),))
    assert [str(step) for step in lay(two, one_way_ring(3)).steps] == ["+0 0->1->2, +1 0->1->2", "+0 1->2"]


def test_an_exchange_that_the_links_cannot_carry_at_once_is_refused() -> None:
    line = Topology("line", 3, dict.fromkeys([(0, 1), (1, 0), (1, 2), (2, 1)], Link()))
    exchange = Schedule(
        "exchange", "allreduce", 3, 1, (Step(Send(0, *pair, True) for pair in [(0, 2), (1, 2), (2, 1)]),)
    )
    with pytest.raises(ScheduleError) as raised:
        lay(exchange, line)
    assert str(raised.value) == "exchange, step 0: topology line cannot carry +0 0->2, +0 2->1, +0 1->2 at once"
