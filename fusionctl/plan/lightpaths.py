"""Lightpaths on a ring of fibres: which wavelength each takes, their table for export, and what sets them up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fusionctl.errors import UsageError
from fusionctl.plan.schedule import Schedule


class Arc(NamedTuple):
    """A way along a ring of ranks: clockwise is towards higher ranks, and from the last to rank 0."""

    src: int
    dst: int
    clockwise: bool

    def via(self, size: int) -> tuple[int, ...]:
        """The ranks that are passed by on a ring of `size`, in order."""
        step = 1 if self.clockwise else -1
        return tuple((self.src + step * hop) % size for hop in range(1, self.length(size)))

    def length(self, size: int) -> int:
        """Number of links."""
        return ((self.dst - self.src) if self.clockwise else (self.src - self.dst)) % size

    def start(self) -> int:
        """The rank from which its links lead clockwise: link r joins ranks r and r + 1 in either direction."""
        return self.src if self.clockwise else self.dst


class Lightpath(NamedTuple):
    """A wavelength from one rank to another, past the ranks `via`: what a circuit controller is asked for."""

    src: int
    dst: int
    clockwise: bool
    wavelength: int
    via: tuple[int, ...] = ()


Policy = Callable[[Sequence[int], int, int, int], "int | None"]
"""Chooses a wavelength: from the busy links of each as bits, start and length of the arc, and the size of the ring."""


def first_fit(busy: Sequence[int], start: int, length: int, size: int) -> int | None:
    """The lowest wavelength that is free on all links of the arc."""
    return next((number for number, mask in enumerate(busy) if _gap(mask, start, length, size)), None)


def best_fit(busy: Sequence[int], start: int, length: int, size: int) -> int | None:
    """The wavelength on which the free stretch around the arc is the shortest, the lowest of equal ones."""
    gaps = [(_gap(mask, start, length, size), number) for number, mask in enumerate(busy)]
    return min(((gap, number) for gap, number in gaps if gap), default=(0, None))[1]


def _gap(mask: int, start: int, length: int, size: int) -> int:
    """How many links in a row are free where the arc lies; 0 if one of its own is busy."""
    turned = (mask >> start | mask << (size - start)) & ((1 << size) - 1)
    if turned & ((1 << length) - 1):
        return 0
    behind = turned >> length
    return size - turned.bit_length() + (behind & -behind).bit_length() - 1 + length if turned else size


def assign(arcs: Iterable[Arc], size: int, wavelengths: int, policy: Policy = first_fit) -> list[int]:
    """A wavelength for each arc, in their order, so that none is used twice on a link and direction of the ring.

    UsageError if the policy finds none of the `wavelengths` free.
    """
    busy = {clockwise: [0] * wavelengths for clockwise in (True, False)}
    numbers = []
    for arc in arcs:
        start, length = arc.start(), arc.length(size)
        number = policy(busy[arc.clockwise], start, length, size)
        if number is None:
            raise UsageError(f"none of {wavelengths} wavelengths is free all the way from rank {arc.src} to {arc.dst}")
        links = ((1 << length) - 1) << start
        busy[arc.clockwise][number] |= (links | links >> size) & ((1 << size) - 1)
        numbers.append(number)
    return numbers


def all_to_all_wavelengths(n: int) -> int:
    """How many wavelengths n nodes of a ring need to reach each other at once: ceil(floor(n^2 / 4) / 2)."""
    return -(-(n * n // 4) // 2)


def all_to_all(ranks: Sequence[int]) -> list[tuple[Arc, int]]:
    """An arc with its wavelength from each of the ranks, given in ring order, to each other, in as few as can be.

    The first rank u and the one halfway round, v, cut the others into two halves.  For x of the one and y of the other,
    u -> x -> v -> y -> u goes once round clockwise, and u -> y -> v -> x -> u once round the other way: a wavelength of
    each direction.  What is left of u and v goes round with the odd rank, or alone in the direction that has been used
    less.  Then the same without u and v.
    """
    found: list[tuple[Arc, int]] = []
    used = {True: 0, False: 0}

    def circle(clockwise: bool, *stations: int) -> None:
        pairs = zip(stations, (*stations[1:], stations[0]), strict=True)
        found.extend((Arc(src, dst, clockwise), used[clockwise]) for src, dst in pairs)
        used[clockwise] += 1

    left = list(ranks)
    while len(left) > 1:
        half = len(left) // 2
        u, v, near, far = left[0], left[half], left[1:half], left[half + 1 :]
        for x, y in zip(near, far, strict=False):
            circle(True, u, x, v, y)
            circle(False, u, y, v, x)
        if len(far) > len(near):
            circle(True, u, v, far[-1])
            circle(False, u, far[-1], v)
        else:
            circle(used[True] <= used[False], u, v)
        left = near + far
    return found


def lightpaths(schedule: Schedule) -> list[list[Lightpath]]:
    """The lightpaths of each step of a schedule for a ring, by source and destination; channels are wavelengths."""
    size = schedule.size
    return [
        [
            Lightpath(send.src, send.dst, send.nodes[1] == (send.src + 1) % size, send.channel, send.via)
            for send in step.sends
        ]
        for step in schedule.steps
    ]


def to_json(schedule: Schedule) -> str:
    """The table of lightpaths: for each step src, dst, direction, wavelength and the ranks passed by."""
    steps = [
        [
            {
                "src": path.src,
                "dst": path.dst,
                "direction": "clockwise" if path.clockwise else "counterclockwise",
                "wavelength": path.wavelength,
                "via": list(path.via),
            }
            for path in step
        ]
        for step in lightpaths(schedule)
    ]
    return json.dumps({"schedule": schedule.name, "ranks": schedule.size, "steps": steps})


class CircuitController(Protocol):
    """What sets up lightpaths before each step of a schedule."""

    def configure(self, lightpaths: Sequence[Lightpath]) -> None:
        """Return when light can pass on all of these; others may be torn down."""


class ModelledCircuits:
    """A controller without hardware: it counts `changes`, and the `seconds` that they would have taken.

    Lightpaths that are up already cost nothing: several steps over the same ones are one change.
    """

    def __init__(self, reconfiguration: float) -> None:
        self.reconfiguration = reconfiguration
        self.changes = 0
        self.up: frozenset[Lightpath] = frozenset()

    @property
    def seconds(self) -> float:
        """What all changes took together."""
        return self.changes * self.reconfiguration

    def configure(self, lightpaths: Sequence[Lightpath]) -> None:
        """Change the circuits if one of these is not up."""
        if not self.up.issuperset(lightpaths):
            self.up = frozenset(lightpaths)
            self.changes += 1
