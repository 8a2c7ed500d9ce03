"""Laying a schedule on a network: the ways of its messages, and which of them can be under way at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise

from fusionctl.plan.schedule import Schedule, ScheduleError, Send, Step
from fusionctl.plan.topology import Topology, route

Message = list[Send]
"""The sends of a step between the same two ranks on one channel: they go together."""

Taken = set[tuple[int, int, int]]
"""Channels of links that are in use: (source, destination, channel)."""


def lay(schedule: Schedule, topology: Topology | int) -> Schedule:
    """The same schedule on the links of a topology; as it is, if only the number of ranks is given.

    Each message goes the way that `route` gives.  In the order in which a step prints them, messages take the first
    channel that is free on all their links, or else one in a further step: a step for which there are too few links
    becomes several.  A rank that sends a chunk and receives the same one in a step does so in one step still;
    ScheduleError if the links are too few for that.

    Recursive doubling on a ring, whose links are too few for the second exchange:

    >>> from fusionctl.plan.recursive import recursive
    >>> from fusionctl.plan.topology import ring
    >>> print(recursive(ring(4)))
    recursive(4): allreduce, 4 ranks, 1 chunks, 3 steps
    0: +0 0->1, +0 1->0, +0 2->3, +0 3->2
    1: +0 0->1->2, +0 2->3->0
    2: +0 1->2->3, +0 3->0->1
    """
    if not isinstance(topology, Topology):
        return schedule
    steps: list[Step] = []
    for i, step in enumerate(schedule.steps):
        steps += _laid(f"{schedule.name}, step {i}", step, topology)
    return replace(schedule, steps=tuple(steps))


def _laid(where: str, step: Step, topology: Topology) -> list[Step]:
    parts: list[list[Send]] = []
    taken: list[Taken] = []
    for messages in _together(step):
        for part in count():
            if part == len(parts):
                parts.append([])
                taken.append(set())
            sends = _fit(messages, topology, taken[part])
            if sends:
                parts[part] += sends
                break
            if not taken[part]:
                texts = ", ".join(str(send) for message in messages for send in message)
                raise ScheduleError(f"{where}: topology {topology.name} cannot carry {texts} at once")
    return [Step(sends) for sends in parts]


def _fit(messages: list[Message], topology: Topology, taken: Taken) -> list[Send]:
    """The messages on their ways and on channels that are free, which they take; nothing if one finds none."""
    sends: list[Send] = []
    more: Taken = set()
    for message in messages:
        src, dst = message[0].src, message[0].dst
        via = route(topology, src, dst)
        hops = list(pairwise((src, *via, dst)))
        channels = range(min(topology.links[hop].channels for hop in hops))
        ways = ({(*hop, channel) for hop in hops} for channel in channels)
        free = next(((c, way) for c, way in enumerate(ways) if not way & taken and not way & more), None)
        if free is None:
            return []
        more |= free[1]
        sends += [send._replace(channel=free[0], via=via) for send in message]
    taken |= more
    return sends


def _together(step: Step) -> Iterator[list[Message]]:
    """The messages of a step in groups that no rank links by sending the chunk of one and receiving that of another."""
    messages: dict[tuple[int, int, int], Message] = defaultdict(list)
    for send in step.sends:
        messages[send.src, send.dst, send.channel].append(send)
    sent = defaultdict(list)
    for key, message in messages.items():
        for send in message:
            sent[send.src, send.chunk].append(key)
    linked = {
        key: {other for send in message for other in sent[send.dst, send.chunk]} for key, message in messages.items()
    }
    for key, others in list(linked.items()):
        for other in others:
            linked[other].add(key)
    while linked:
        group = [next(iter(linked))]
        for key in group:
            group += sorted(linked.pop(key) & linked.keys() - set(group))
        yield [messages[key] for key in group]
