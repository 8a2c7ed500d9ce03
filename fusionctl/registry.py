"""The process-wide table of groups and their slots; it outlives the Runtime, as traced functions hold slot numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusionctl import _board, _engine
from fusionctl.errors import UsageError
from fusionctl.request import DTYPES, Collective, Group, Request

DUPLICATE = (
    "tensor '{}' is still in flight on this rank: wait for it before submitting it again, or give the second tensor a "
    "name of its own"
)


@dataclass(slots=True)
class Registered:
    """A group as this rank last stated it, the engine's number for it, and the slots of its members in order."""

    group: Group
    number: int
    slots: list[int]


class Registry:
    """Groups by name and by slot; every method is called under the Runtime's lock."""

    def __init__(self) -> None:
        self.by_name: dict[str, Registered] = {}
        self.by_number: dict[int, Registered] = {}
        self.by_slot: list[tuple[Registered, int]] = []

    def add(self, group: Group, size: int) -> tuple[Registered, bool]:
        """Enter a group of `size` ranks; also tells whether it is new or differs from what was known under its name."""
        known = self.by_name.get(group.name)
        if known is None:
            return self._create(group, size), True
        if _collectives(known.group) != _collectives(group):  # a slot is made for one collective
            _refuse_busy(known)
            return self._create(group, size), True
        if known.group == group:
            return known, False
        if any(request.shape and -1 in request.shape for request in group.requests):
            return known, False  # shapes come with the submissions, which say themselves what has changed
        self._restate(known, group)
        return known, True

    def restate_from_engine(self, number: int, engine: _engine.Engine) -> Registered:
        """Take over the dtypes and shapes that the members of a group were really submitted with."""
        known = self.by_number[number]
        known.group = replace(
            known.group,
            requests=tuple(
                _restated(request, *engine.signature(slot))
                for request, slot in zip(known.group.requests, known.slots, strict=True)
            ),
        )
        return known

    def tensor_name(self, slot: int) -> str:
        """Name of the tensor behind a slot."""
        registered, index = self.by_slot[slot]
        return registered.group.requests[index].name

    def _create(self, group: Group, size: int) -> Registered:
        number = _board.add_group(is_dynamic(group))
        registered = Registered(group, number, [])
        for index, request in enumerate(group.requests):
            peers = size if request.collective is Collective.ALLTOALL else 0
            slot = _board.add_slot(number, request.name, DTYPES.index(request.dtype), request.shape, peers)
            registered.slots.append(slot)
            self.by_slot.append((registered, index))
        self.by_name[group.name] = self.by_number[number] = registered
        return registered

    def _restate(self, known: Registered, group: Group) -> None:
        _refuse_busy(known)
        for slot, request in zip(known.slots, group.requests, strict=True):
            _board.restate(slot, DTYPES.index(request.dtype), request.shape)
        known.group = group


def _refuse_busy(known: Registered) -> None:
    for slot, request in zip(known.slots, known.group.requests, strict=True):
        if _board.busy(slot):
            raise UsageError(DUPLICATE.format(request.name))


def _collectives(group: Group) -> list[Collective]:
    return [request.collective for request in group.requests]


def is_dynamic(group: Group) -> bool:
    """Whether a shape of the group is known only when its tensor is submitted (a dimension of -1)."""
    return any(-1 in request.shape for request in group.requests)


def _restated(request: Request, dtype: int, shape: tuple[int, ...]) -> Request:
    return replace(request, dtype=DTYPES[dtype], shape=shape)
