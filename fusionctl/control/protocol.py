"""Negotiation, cache and table together: what a rank does with each outcome of the slow path.

Laws: nothing here communicates or sleeps; given the same payloads, every rank binds the same bits to the same buckets.
The runtime and the tests of the protocol run this same code; they differ in what the hooks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fusionctl._table import Table
from fusionctl.control.cache import ResponseCache
from fusionctl.control.negotiation import Negotiation
from fusionctl.request import Bucket, Group


class Hooks(Protocol):
    """What the slow path changes outside the control plane."""

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        """Let a bit stand for a bucket of these slots: binds it in the table."""

    def unbind(self, bit: int) -> None:
        """Forget what a bit stands for: unbinds it in the table."""

    def fail(self, name: str, message: str) -> None:
        """Fail this rank's submissions of a group that the ranks disagree about."""


class Control:
    """One rank's control plane; `register` and `needs` queue announcements, `settle` carries out the verdicts."""

    def __init__(
        self,
        rank: int,
        size: int,
        capacity: int,
        fuse: Callable[[Group], Sequence[Bucket]],
        table: Table,
        hooks: Hooks,
    ) -> None:
        self._negotiation = Negotiation(rank, size)
        self._cache = ResponseCache(capacity, table.last_used, table.executions)
        self._fuse = fuse
        self._table = table
        self._hooks = hooks
        self._known: dict[str, tuple[Group, Sequence[int]]] = {}

    def register(self, group: Group, slots: Sequence[int]) -> None:
        """Announce a group, or a new version of it."""
        self._known[group.name] = (group, slots)
        self._negotiation.announce(group)

    def needs(self, group: Group, slots: Sequence[int]) -> None:
        """A tensor of this group was submitted: announce the group unless it is agreed or announced."""
        if group.name not in self._cache and not self._negotiation.is_announced(group.name):
            self.register(group, slots)

    def has_news(self) -> bool:
        """Whether something waits to be announced."""
        return self._negotiation.has_news()

    def payload(self) -> bytes:
        """What this rank announces in this slow path."""
        return self._negotiation.payload()

    def settle(self, payloads: Sequence[bytes]) -> None:
        """Carry out what the payloads of all ranks, in rank order, lead to."""
        settlement = self._negotiation.settle(payloads)
        for name in settlement.erased:
            self._unbind(name)
        for name, message in settlement.failed:
            self._hooks.fail(name, message)
        for group in settlement.agreed:
            self._bind(group)

    def waiting(self) -> dict[str, list[int]]:
        """Groups without a verdict, and the ranks that have not announced them."""
        return self._negotiation.waiting()

    def _bind(self, group: Group) -> None:
        buckets = self._fuse(group)
        for name in self._cache.make_room(len(buckets)):
            self._negotiation.forget(name)
            self._unbind(name)
        _, slots = self._known[group.name]
        for bit, bucket in zip(self._cache.insert(group.name, len(buckets)), buckets, strict=True):
            self._hooks.bind(bit, group, bucket, [slots[i] for i in bucket.members])

    def _unbind(self, name: str) -> None:
        for bit in self._cache.erase(name):
            self._hooks.unbind(bit)
        group, slots = self._known[name]
        if any(self._table.is_ready(slot) for slot in slots):
            self.needs(group, slots)
