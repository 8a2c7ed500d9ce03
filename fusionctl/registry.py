"""The process-wide table of groups and their slots; it outlives the Runtime, as traced functions hold slot numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from fusionctl import _board
from fusionctl._lane import Lane
from fusionctl.control.difference import by_key
from fusionctl.errors import UsageError
from fusionctl.request import DTYPES, Collective, Group, Request

DUPLICATE = (
    "tensor '{}' is still in flight on this rank: wait for it before submitting it again, or give the second tensor a "
    "name of its own"
)


@dataclass(slots=True)
class Registered:
    """A group of `size` ranks as this rank last stated it, the engine's number for it, and its members' slots."""

    group: Group
    number: int
    size: int
    slots: list[int]


class Registry:
    """Groups by process set and name, and by slot; every method is called under the Runtime's lock."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[int, str], Registered] = {}
        self.by_number: dict[int, Registered] = {}
        self.by_slot: list[tuple[Registered, int]] = []
        self._refused: set[tuple[int, str]] = set()

    def add(self, group: Group, process_set: int, size: int) -> tuple[Registered, list[int], bool]:
        """Enter a group of a process set of `size` ranks; its members' slots, in its order, and whether it is news.

        News is a name that is new, or was another group's.  Members that are known keep their slots and their order.
        """
        known = self.by_name.get((process_set, group.name))
        if known is None:
            return self._create(group, process_set, size)
        if known.group == group and known.size == size:
            return known, known.slots, False
        places = _places(known.group, group)
        ordered = replace(group, requests=_in_order(group.requests, places))
        if known.size != size or _collectives(known.group) != _collectives(ordered):  # what a slot is made for
            _refuse_busy(known)
            return self._create(group, process_set, size)
        # Shapes of -1 come with the submissions, which say themselves what has changed.
        changed = known.group != ordered and not is_dynamic(group)
        if changed:
            self._restate(known, ordered)
        return known, [known.slots[place] for place in places], changed

    def restate_from_engine(self, number: int, lane: Lane) -> Registered:
        """Take over the dtypes and shapes that the members of a group were really submitted with."""
        known = self.by_number[number]
        known.group = replace(
            known.group,
            requests=tuple(
                _restated(request, *lane.signature(slot))
                for request, slot in zip(known.group.requests, known.slots, strict=True)
            ),
        )
        return known

    def refuse(self, process_set: int, name: str) -> None:
        """Note that the ranks disagreed about a group of this name."""
        self._refused.add((process_set, name))

    def take_refused(self, process_set: int, name: str) -> bool:
        """Whether they have disagreed about it since this was last asked."""
        refused = (process_set, name) in self._refused
        self._refused.discard((process_set, name))
        return refused

    def tensor_name(self, slot: int) -> str:
        """Name of the tensor behind a slot."""
        registered, index = self.by_slot[slot]
        return registered.group.requests[index].name

    def _create(self, group: Group, process_set: int, size: int) -> tuple[Registered, list[int], bool]:
        number = _board.add_group(process_set, is_dynamic(group))
        registered = Registered(group, number, size, [])
        for index, request in enumerate(group.requests):
            peers = size if request.collective is Collective.ALLTOALL else 0
            slot = _board.add_slot(number, request.name, DTYPES.index(request.dtype), request.shape, peers)
            registered.slots.append(slot)
            self.by_slot.append((registered, index))
        self.by_name[process_set, group.name] = self.by_number[number] = registered
        return registered, registered.slots, True

    def _restate(self, known: Registered, group: Group) -> None:
        _refuse_busy(known)
        for slot, request in zip(known.slots, group.requests, strict=True):
            _board.restate(slot, DTYPES.index(request.dtype), request.shape)
        known.group = group


def _refuse_busy(known: Registered) -> None:
    for slot, request in zip(known.slots, known.group.requests, strict=True):
        if _board.busy(slot):
            raise UsageError(DUPLICATE.format(request.name))


def _places(known: Group, group: Group) -> list[int]:
    """Where a known group has the members of another one: by their names if these are the same, else as they stand."""
    mine, theirs = by_key(known), by_key(group)
    return [mine[key] for key in theirs] if mine.keys() == theirs.keys() else [*range(len(theirs))]


def _in_order(requests: Sequence[Request], places: Sequence[int]) -> tuple[Request, ...]:
    return tuple(request for _, request in sorted(zip(places, requests, strict=True), key=itemgetter(0)))


def _collectives(group: Group) -> list[Collective]:
    return [request.collective for request in group.requests]


def is_dynamic(group: Group) -> bool:
    """Whether a shape of the group is known only when its tensor is submitted (a dimension of -1)."""
    return any(-1 in request.shape for request in group.requests)


def _restated(request: Request, dtype: int, shape: tuple[int, ...]) -> Request:
    return replace(request, dtype=DTYPES[dtype], shape=shape)
