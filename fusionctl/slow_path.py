"""One process set's slow path: what its ranks tell each other when something is new, stalls or ends."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from fusionctl import _board
from fusionctl._lane import Lane
from fusionctl._table import Table
from fusionctl.control.difference import ranks as ranks_as_text
from fusionctl.control.negotiation import digest
from fusionctl.control.protocol import Control
from fusionctl.control.stall import RankState, report
from fusionctl.job import abort, where_is_main_thread
from fusionctl.registry import is_dynamic
from fusionctl.request import DTYPES, Bucket, Collective, Group

if TYPE_CHECKING:
    from fusionctl.runtime import Runtime

Talk = Generator[tuple[bytes, Sequence[int] | None], list[bytes], None]
"""Yields a payload, and the sizes of all ranks' payloads unless they are equal; is sent the payloads in rank order."""

MISMATCH = 2

MERGEABLE = (Collective.ALLREDUCE, Collective.BROADCAST)
"""Collectives of single tensors that may share a buffer when ready together, as their sizes are equal everywhere."""

EVENTS = (Collective.JOIN, Collective.ADD_SET, Collective.REMOVE_SET)
"""What the ranks agree on as if it were a tensor; once agreed, it is executed as a barrier."""


class SlowPath:
    """The hooks of a lane: on the engine's thread, with the GIL held, and under the Runtime's lock.

    `ranks` are the members of the process set, by their ranks among all; `rank` and `size` are this one's place there.
    """

    def __init__(self, runtime: Runtime, set_id: int, ranks: Sequence[int], table: Table) -> None:
        self.runtime = runtime
        self.set_id = set_id
        self.ranks = tuple(ranks)
        self.rank, self.size = self.ranks.index(runtime.rank), len(ranks)
        capacity = runtime.config.cache_capacity
        self.control = Control(self.rank, self.size, capacity, runtime.fuse, table, self, self.ranks)
        self.lane: Lane = runtime.make_lane(self, table)
        self.last_joined = -1

    # -- what the ranks tell each other -----------------------------------------------------------------------------

    def negotiate(self, queried: bool) -> Talk:
        """Tell what is new here, hear what is new elsewhere, bind what all ranks agree on."""
        with self.runtime.lock:
            self._announce_what_was_submitted()
            payload = self.control.payload()
        heads = yield len(payload).to_bytes(8, "little") + digest(payload) + bytes([queried]), None
        sizes = [int.from_bytes(head[:8], "little") for head in heads]
        same = len({head[8:24] for head in heads}) == 1
        payloads = [payload] * self.size if same else (yield payload, sizes)
        with self.runtime.lock:
            self.control.settle(payloads)
            warning = self.control.take_warning()
            if self.control.has_news():
                self.lane.announce()
        if warning is not None and self.rank == 0:
            self.runtime.log.warning(warning)
        if any(head[24] for head in heads):
            yield from self._report_stall()

    def _report_stall(self) -> Talk:
        """Gather what every rank waits for; the first rank logs it."""
        tensor_name = self.runtime.registry.tensor_name
        pending = tuple((tensor_name(slot), age) for slot, age in self.lane.pending())
        mine = RankState(pending, where_is_main_thread()).encode()
        sizes = [int.from_bytes(size, "little") for size in (yield len(mine).to_bytes(8, "little"), None)]
        states = [RankState.decode(state) for state in (yield mine, sizes)]
        self.lane.silence()
        if self.rank == 0:
            groups = [group for group in self.control.groups() if len(group.requests) > 1]
            limit = self.runtime.config.stall_check_time
            for line in report(states, limit, groups, self.control.waiting(), self.ranks):
                self.runtime.log.warning(line)

    def leave(self) -> Generator[tuple[bytes, Sequence[int] | None], list[bytes], str]:
        """The ranks part: the message for what is still pending here."""
        flags = yield bytes([self.runtime.stopping]), None
        stopped = [rank for rank, flag in zip(self.ranks, flags, strict=True) if flag[0]]
        if self.lane.retiring and not stopped:
            self.runtime.forget_set(self)
            return f"process set {self.set_id} ({ranks_as_text(self.ranks)}) was removed"
        who = ranks_as_text(stopped) if stopped else "a rank of another process set"
        return (
            f"the job ended before every rank submitted this tensor: {who} left (by shutdown(), or at the end of the "
            "programme)"
        )

    def fatal(self, error: BaseException) -> None:
        """End the job everywhere: the engine can not go on, and the other ranks would wait for it."""
        traceback.print_exception(error)
        abort()

    def _announce_what_was_submitted(self) -> None:
        registry = self.runtime.registry
        self.lane.disown_stale()
        for number in self.lane.take_changed():
            registered = registry.restate_from_engine(number, self.lane)
            self.control.register(registered.group, registered.slots)
        for slot in self.lane.take_unbound():
            registered, _ = registry.by_slot[slot]
            self.control.needs(registered.group, registered.slots)

    # -- hooks of the control plane ---------------------------------------------------------------------------------

    def register(self, group: Group, slots: Sequence[int]) -> None:
        """Announce a group that is new here, unless its shapes are to come with its tensors."""
        if not is_dynamic(group):
            self.control.register(group, slots)
            self.lane.announce()

    def adopt(self, group: Group) -> list[int]:
        """Slots for a group that the others agreed on while this rank has joined."""
        registered, slots, changed = self.runtime.registry.add(group, self.set_id, self.size)
        if changed:  # what this rank will submit may be what it was
            _board.hold(registered.number)
        return slots

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        """A bit stands for these slots from now on; an event has happened."""
        members = [group.requests[index] for index in bucket.members]
        first = members[0]
        collective = Collective.BARRIER if first.collective in EVENTS else first.collective
        self.lane.bind(
            bit,
            slots,
            [request.nbytes if collective is Collective.BROADCAST else request.count for request in members],
            collective,
            DTYPES.index(first.dtype),
            first.op,
            first.prescale,
            first.postscale,
            self.ranks.index(first.root) if first.root >= 0 else -1,
            len(group.requests) == 1 and collective in MERGEABLE,
        )
        if first.collective is Collective.ADD_SET:
            self.runtime.create_set(first.shape)
        elif first.collective is Collective.REMOVE_SET:
            self.runtime.retire_set(first.shape[0])

    def unbind(self, bit: int) -> None:
        """A bit stands for nothing from now on."""
        self.lane.unbind(bit)

    def fail(self, group: Group, slots: Sequence[int], message: str) -> None:
        """The ranks disagree about a group."""
        registered, _ = self.runtime.registry.by_slot[slots[0]]
        self.runtime.registry.refuse(self.set_id, group.name)
        self.lane.fail(registered.number, MISMATCH, message)

    def joined(self, ranks: Sequence[int], last: int) -> None:
        """These ranks of the set, and no others, have no more data; `last` joined last, -1 while some are left."""
        self.lane.set_joined(ranks)
        if last >= 0:  # else others join anew before `join` has told this one
            self.last_joined = self.ranks[last]
