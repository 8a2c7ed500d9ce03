"""No single change of any planner's schedule escapes the check: it is refused, or what is left is right all the same.

Every send of every schedule for 2 to 5 ranks, on the links that it uses and on networks, is dropped, repeated in
each step, and changed in each of its fields to each other value.  What is right is judged by arithmetic, not by masks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fusionctl.plan import PLANNERS, Schedule, ScheduleError, Send, Step, Topology
from fusionctl.plan.spec import from_spec
from fusionctl.plan.topology import Link
from fusionctl.plan.verify import verify

CASES = [
    (name, network.format(size))
    for name in PLANNERS
    for size, networks in ((2, 4), (3, 4), (4, 4), (5, 1))
    for network in ("own:{}", "ring:{}", "hosts:1x{}", "wdm-ring:{},w=2")[:networks]
    if name != "swing" or size in (2, 4)
]


def planned(name: str, network: str) -> tuple[Schedule, Topology]:
    """The schedule, and the network: for `own` no links but those that the schedule uses."""
    kind, _, size = network.partition(":")
    if kind != "own":
        topology = from_spec(network)
        return PLANNERS[name](topology), topology
    schedule = PLANNERS[name](int(size))
    return schedule, Topology("own", schedule.size, {hop: Link() for send in sends_of(schedule) for hop in send.hops})


def sends_of(schedule: Schedule) -> list[Send]:
    return [send for step in schedule.steps for send in step.sends]


def changed(schedule: Schedule, step: int, sends: list[Send]) -> Schedule:
    return replace(schedule, steps=(*schedule.steps[:step], Step(sends), *schedule.steps[step + 1 :]))


def mutants(schedule: Schedule, topology: Topology) -> Iterator[tuple[str, Schedule]]:
    """What was done, and the schedule after it."""
    for i, step in enumerate(schedule.steps):
        for at, send in enumerate(step.sends):
            others = [*step.sends[:at], *step.sends[at + 1 :]]
            yield "drop", changed(schedule, i, others)
            for j, place in enumerate(schedule.steps):
                yield "repeat", changed(schedule, j, [*place.sends, send])
            yield "repeat", changed(schedule, i, [*step.sends, send._replace(channel=send.channel + 1)])
            for field, value in values(schedule, topology, send):
                if value != getattr(send, field):
                    yield field, changed(schedule, i, [*others, Send(**(send._asdict() | {field: value}))])


def values(schedule: Schedule, topology: Topology, send: Send) -> Iterator[tuple[str, object]]:
    """Each field with each value that it may have, and with one more."""
    for node in range(schedule.size + 1):
        yield from (("src", node), ("dst", node))
    yield from (("chunk", chunk) for chunk in range(schedule.n_chunks + 1))
    yield from (("channel", channel) for channel in range(3))
    yield "reduce", not send.reduce
    yield from (("via", via) for via in [(), send.via[:-1], *((*send.via, node) for node in range(topology.nodes))])
    replaced = (
        (*send.via[:i], node, *send.via[i + 1 :]) for i in range(len(send.via)) for node in range(topology.nodes)
    )
    yield from (("via", via) for via in replaced)


def right(schedule: Schedule, topology: Topology) -> bool:
    """Whether every rank ends with the sum of all, over links that there are, no channel of which is used twice."""
    total = sum((schedule.size + 1) ** rank for rank in range(schedule.size))
    return (
        all(fits(step, topology) for step in schedule.steps)
        and replayed(schedule) == [[total] * schedule.n_chunks] * schedule.size
    )


def fits(step: Step, topology: Topology) -> bool:
    ways = defaultdict(set)
    for send in step.sends:
        for hop in send.hops:
            ways[hop, send.channel].add(send.nodes)
    links = topology.links
    return all(hop in links and channel < links[hop].channels and len(way) == 1 for (hop, channel), way in ways.items())


def replayed(schedule: Schedule) -> list[list[int]]:
    """What each rank holds of each chunk if rank r contributes (size + 1) ** r, so that each count can be read."""
    held = [[(schedule.size + 1) ** rank] * schedule.n_chunks for rank in range(schedule.size)]
    for step in schedule.steps:
        before = [list(chunks) for chunks in held]
        for send in step.sends:
            own = held[send.dst][send.chunk] if send.reduce else 0
            held[send.dst][send.chunk] = own + before[send.src][send.chunk]
    return held


def accepted(schedule: Schedule, topology: Topology) -> bool:
    try:
        verify(schedule, topology)
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize(("name", "network"), CASES)
def test_no_single_change_escapes(name: str, network: str) -> None:
    schedule, topology = planned(name, network)
    assert accepted(schedule, topology)
    assert right(schedule, topology)
    escaped = [(what, mutant) for what, mutant in mutants(schedule, topology) if accepted(mutant, topology)]
    assert all(right(mutant, topology) for _, mutant in escaped)
    print(
        name,
        network,
        len(list(mutants(schedule, topology))),
        {w: sum(x[0] == w for x in escaped) for w in dict(escaped)},
    )
    assert {what for what, _ in escaped} <= {"src", "dst", "via", "channel"}
