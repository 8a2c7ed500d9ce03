"""Negotiation, cache and table together: what a rank announces, and what it does with the outcome of the slow path.

Laws: nothing here communicates or sleeps.  Given the same payloads, every rank binds the same bits to the same buckets.
A group is bound from the verdict that all ranks announced the same, until somebody announces it anew or the cache needs
its bits.  A rank where tensors of an ended agreement are pending announces the group again; elsewhere that waits for
the next submission.  So every submission leads to an announcement or a bit.

The runtime and the tests of the protocol run this same code; they differ in what the hooks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fusionctl._table import Table
from fusionctl.control.cache import ResponseCache
from fusionctl.control.difference import by_key
from fusionctl.control.negotiation import Negotiation
from fusionctl.request import Bucket, Group


class Hooks(Protocol):
    """What the slow path changes outside the control plane; called during `settle`."""

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        """Let a bit stand for a bucket of these slots: binds it in the table."""

    def unbind(self, bit: int) -> None:
        """Forget what a bit stands for: unbinds it in the table."""

    def adopt(self, group: Group) -> Sequence[int]:
        """Slots for an agreed group that this rank has not announced, since it has joined."""

    def joined(self, ranks: Sequence[int], last: int) -> None:
        """Go on without data from these ranks of the set, and no others; `last` joined last, -1 while some are left."""

    def fail(self, group: Group, slots: Sequence[int], message: str) -> None:
        """Fail what this rank has submitted of a group it announced, or submits next, and retract it in the table."""


class Control:
    """One rank's control plane.

    `register` may come from any thread, all else from the engine's; the caller lets one in at a time.  A rank tells the
    engine, before anything is submitted to the slots of a group that it registers anew with other requests, to disown
    these slots in the table: what is bound to them until the next slow path is the old version.  `members` are the
    ranks as users know them, if the set is not that of all ranks.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        capacity: int,
        fuse: Callable[[Group], Sequence[Bucket]],
        table: Table,
        hooks: Hooks,
        members: Sequence[int] | None = None,
    ) -> None:
        table.one_shot = capacity == 0
        self._negotiation = Negotiation(rank, size, members)
        self._cache = ResponseCache(capacity, table.last_used, table.executions)
        self._fuse = fuse
        self._table = table
        self._hooks = hooks
        self._known: dict[str, tuple[Group, Sequence[int]]] = {}
        self._said: dict[str, tuple[Group, Sequence[int]]] = {}
        self._evicted: set[str] = set()
        self._warning: str | None = None
        self._warned = False

    def register(self, group: Group, slots: Sequence[int]) -> None:
        """Announce a group whose members have these slots, or a new version of it."""
        self._known[group.name] = (group, slots)
        self._negotiation.announce(group)

    def needs(self, group: Group, slots: Sequence[int]) -> None:
        """A tensor of this group was submitted and has no bucket: announce the group unless that is done."""
        if self._negotiation.is_disputed(group.name):
            if not self._negotiation.insists(group.name):
                self._known[group.name] = (group, slots)
                self._negotiation.insist(group)
        elif not self._negotiation.is_announced(group.name) and not all(map(self._table.is_bound, slots)):
            self.register(group, slots)

    def has_news(self) -> bool:
        """Whether something waits to be announced."""
        return bool(self._negotiation.queued())

    def payload(self) -> bytes:
        """What this rank announces in this slow path."""
        self._said.update((name, self._known[name]) for name in self._negotiation.queued())
        return self._negotiation.payload()

    def settle(self, payloads: Sequence[bytes]) -> None:
        """Carry out what the payloads of all ranks, in rank order, lead to; there may be news afterwards."""
        settlement = self._negotiation.settle(payloads)
        ended = [*settlement.erased]
        for name in settlement.erased:
            self._unbind(name)
        if settlement.joined is not None:
            self._hooks.joined(settlement.joined, settlement.last_joined)
        for name, message in settlement.failed if not self._table.generous else ():  # one that has joined is not in it
            self._hooks.fail(*self._said[name], message)
        for group in settlement.agreed:
            ended += self._bind(group)
        for name in [*ended, *self._negotiation.disputed()]:
            self._announce_if_pending(name)

    def waiting(self) -> dict[str, list[int]]:
        """Groups without a verdict, and the ranks that have not announced them."""
        return self._negotiation.waiting()

    def groups(self) -> list[Group]:
        """The groups that this rank has announced, in their last version."""
        return [group for group, _ in self._known.values()]

    def take_warning(self) -> str | None:
        """What the user should be told once, or None; the same on all ranks."""
        warning, self._warning = self._warning, None
        return warning

    def _bind(self, group: Group) -> list[str]:
        """Give an agreed group its bits; returns the groups that had to go for it."""
        buckets = self._fuse(group)
        evicted = self._cache.make_room(len(buckets))
        for name in evicted:
            self._negotiation.forget(name)
            self._unbind(name)
        slots = self._slots_of(group)
        for bit, bucket in zip(self._cache.insert(group.name, len(buckets)), buckets, strict=True):
            self._hooks.bind(bit, group, bucket, [slots[i] for i in bucket.members])
        self._note(group.name, evicted)
        return evicted

    def _slots_of(self, group: Group) -> list[int]:
        """This rank's slots for what it announced, in the order in which the agreed group has the members."""
        if group.name not in self._said or self._table.generous:
            self._said[group.name] = self._known[group.name] = (group, self._hooks.adopt(group))
        said, slots = self._said[group.name]
        mine = by_key(said)
        return [slots[mine[key]] for key in by_key(group)]

    def _unbind(self, name: str) -> None:
        for bit in self._cache.erase(name):
            self._hooks.unbind(bit)

    def _announce_if_pending(self, name: str) -> None:
        group, slots = self._known.get(name, (None, ()))
        if group is not None and any(map(self._table.is_ready, slots)):
            self.needs(group, slots)

    def _note(self, name: str, evicted: Sequence[str]) -> None:
        """Warn when a group comes back that was evicted: the working set does not fit the cache."""
        if self._warned or self._cache.capacity == 0:
            return
        self._evicted.update(evicted)
        if name in self._evicted:
            self._warned = True
            self._evicted.clear()
            self._warning = (
                f"group '{name}' is negotiated again because it was evicted from the response cache, which holds "
                f"{self._cache.capacity} buckets; a larger cache capacity avoids this"
            )
