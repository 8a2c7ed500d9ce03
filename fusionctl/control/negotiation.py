"""The slow path as a pure object: what every rank has announced, and the verdict once all have.

Laws: nothing here communicates or sleeps.  Every rank feeds the same payloads in the same order to `settle` and so
holds the same state.  A group is agreed when the last rank has announced it equally, on all ranks in the same exchange.
Versions that differ are disputed: each rank may still replace its own, until every rank insists on it because it has
submitted a tensor of the group; then the group fails.  So what fails depends on what is submitted, not on when it is
registered.  An announcement of an agreed group, equal or not, ends the agreement everywhere; each rank that needs the
group announces its own version again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusionctl.control.difference import describe_difference
from fusionctl.request import RESERVED, Collective, Group, ReduceOp, Request

JOIN = f"{RESERVED}join."
"""How the groups are named that ranks announce when they have no more data."""

OPEN, FINAL = "?", "!"
"""How a line begins: with a version that its rank may still replace, or with one that it insists on."""

NAMES = json.JSONDecoder()
"""Reads the name in a line, which is all that must be read of most lines."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came out of one slow path, equal on all ranks: agreed groups, failed ones (name, why), ended agreements.

    The agreed are in canonical order: that of their first announcement, rank 0's before those of rank 1.  An agreed
    group states its members as rank 0 does; the other ranks may have announced them in another order.  `joined` are the
    ranks without more data from now on, or None if nothing has changed; `last_joined` is -1 unless all had joined.
    """

    agreed: tuple[Group, ...]
    failed: tuple[tuple[str, str], ...]
    erased: tuple[str, ...]
    joined: tuple[int, ...] | None = None
    last_joined: int = -1


class Negotiation:
    """One rank's view of what all ranks have announced; `members` are the names of the ranks for messages."""

    def __init__(self, rank: int, size: int, members: Sequence[int] | None = None) -> None:
        self.rank = rank
        self.size = size
        self._names = list(range(size)) if members is None else members
        self._joined: list[int] = []
        self._queue: dict[str, str] = {}
        self._announced: dict[str, dict[int, str]] = {}
        self._agreed: set[str] = set()

    def announce(self, group: Group) -> None:
        """Queue a group for the next payload; replaces an earlier version that waits there."""
        self._queue[group.name] = OPEN + encode(group)

    def insist(self, group: Group) -> None:
        """Announce a group whose version this rank can not replace any more."""
        self._queue[group.name] = FINAL + encode(group)

    def queued(self) -> tuple[str, ...]:
        """Names of the groups that the next payload announces."""
        return tuple(self._queue)

    def is_announced(self, name: str) -> bool:
        """Whether this rank has announced a group on which no verdict has fallen."""
        return name in self._queue or self.rank in self._announced.get(name, ())

    def is_disputed(self, name: str) -> bool:
        """Whether all ranks with data have announced a group, but differently."""
        lines = self._announced.get(name, {})
        return not self._joined_all(lines) and all(rank in lines or rank in self._joined for rank in range(self.size))

    def insists(self, name: str) -> bool:
        """Whether this rank has said that its version is final."""
        return self._queue.get(name, self._announced.get(name, {}).get(self.rank, OPEN)).startswith(FINAL)

    def payload(self) -> bytes:
        """What this rank tells the others now, one line a group; equal announcements give equal bytes."""
        lines = self._queue.values()
        self._queue = {}
        return "\n".join(lines).encode("ascii")

    def settle(self, payloads: Sequence[bytes]) -> Settlement:
        """Enter the payloads of all ranks, in rank order, and judge what is complete."""
        announced = self._enter(payloads)
        erased = tuple(name for name in announced if name in self._agreed)
        self._agreed.difference_update(erased)
        before, last = len(self._joined), self._join(announced)
        agreed, failed = [], []
        for name in self.disputed():
            lines = {rank: line for rank, line in self._announced[name].items() if rank not in self._joined}
            group, difference = self._compare(lines)
            if difference is None:
                self._agreed.add(name)
                agreed.append(group)
            elif all(line.startswith(FINAL) for line in lines.values()):
                failed.append((name, difference))
            else:
                continue
            del self._announced[name]
        joined = None if last < 0 and len(self._joined) == before else tuple(self._joined)
        return Settlement(tuple(agreed), tuple(failed), erased, joined, last)

    def _joined_all(self, ranks: Iterable[int]) -> bool:
        return all(rank in self._joined for rank in ranks)

    def _join(self, announced: Iterable[str]) -> int:
        """Note who has joined; once all have, nobody has any more, and the last of them is returned; else -1."""
        for name in announced:
            if name.startswith(JOIN):
                self._joined += [rank for rank in self._announced[name] if rank not in self._joined]
        if len(self._joined) < self.size:
            return -1
        last = self._joined[-1]
        self._joined = []
        return last

    def disputed(self) -> list[str]:
        """Groups that all ranks have announced, but differently, in canonical order."""
        return [name for name in self._announced if self.is_disputed(name)]

    def forget(self, name: str) -> None:
        """End an agreement, on all ranks at the same point of their history."""
        self._agreed.remove(name)

    def waiting(self) -> dict[str, list[int]]:
        """Groups that some ranks have announced, and the ranks that have not."""
        return {
            name: [self._names[rank] for rank in range(self.size) if rank not in lines and rank not in self._joined]
            for name, lines in self._announced.items()
            if not self.is_disputed(name)
        }

    def _enter(self, payloads: Sequence[bytes]) -> dict[str, None]:
        """Names of the groups that the payloads announce, in canonical order."""
        lines = {payload: payload.decode("ascii").splitlines() for payload in set(payloads)}
        names: dict[str, str] = {line: NAMES.raw_decode(line, 2)[0] for part in lines.values() for line in part}
        announced: dict[str, None] = {}
        for rank, payload in enumerate(payloads):
            for line in lines[payload]:
                announced[names[line]] = None
                self._announced.setdefault(names[line], {})[rank] = line
        return announced

    def _compare(self, lines: dict[int, str]) -> tuple[Group, str | None]:
        """The first rank's version of a group, and what differs from it elsewhere."""
        versions: dict[str, list[int]] = {}
        for rank in sorted(lines):
            versions.setdefault(lines[rank][1:], []).append(self._names[rank])
        told = [(decode(text), ranks) for text, ranks in versions.items()]
        return told[0][0], describe_difference(told)


def digest(payload: bytes) -> bytes:
    """16 bytes that stand for a payload."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode(group: Group) -> str:
    """A group as text without line breaks, in ASCII; floats are exact, and equal groups give equal texts."""
    requests = [
        [r.name, int(r.collective), r.dtype, r.shape, int(r.op), r.prescale.hex(), r.postscale.hex(), r.root]
        for r in group.requests
    ]
    return json.dumps([group.name, group.fuses_whole, requests], separators=(",", ":"))


def decode(text: str) -> Group:
    """The group that a text stands for."""
    name, fuses_whole, requests = json.loads(text)
    return Group(name, tuple(map(_request, requests)), fuses_whole)


def _request(fields: list[Any]) -> Request:
    name, collective, dtype, shape, op, prescale, postscale, root = fields
    scales = (float.fromhex(prescale), float.fromhex(postscale))
    return Request(name, Collective(collective), dtype, tuple(shape), ReduceOp(op), *scales, root)
