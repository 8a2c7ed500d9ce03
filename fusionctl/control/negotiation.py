"""The slow path as a pure object: what every rank has announced, and the verdict once all have.

Laws: nothing here communicates or sleeps.  Every rank feeds the same payloads in the same order to `settle` and so
holds the same state.  A verdict on a group falls when the last rank has announced it, on all ranks in the same
exchange.  An announcement that comes before the verdict replaces the rank's earlier one.  An announcement of an agreed
group, equal or not, ends the agreement everywhere; each rank that needs the group announces its own version again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusionctl.control.difference import describe_difference
from fusionctl.request import Collective, Group, ReduceOp, Request


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came out of one slow path, equal on all ranks: agreed groups, failed ones (name, why), ended agreements.

    The agreed are in canonical order: that of their first announcement, rank 0's before those of rank 1.  An agreed
    group states its members as rank 0 does; the other ranks may have announced them in another order.
    """

    agreed: tuple[Group, ...]
    failed: tuple[tuple[str, str], ...]
    erased: tuple[str, ...]


class Negotiation:
    """One rank's view of what all ranks have announced."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._queue: dict[str, Group] = {}
        self._announced: dict[str, dict[int, str]] = {}
        self._agreed: set[str] = set()

    def announce(self, group: Group) -> None:
        """Queue a group for the next payload; replaces an earlier version that waits there."""
        self._queue[group.name] = group

    def queued(self) -> tuple[str, ...]:
        """Names of the groups that the next payload announces."""
        return tuple(self._queue)

    def is_announced(self, name: str) -> bool:
        """Whether this rank has announced a group on which no verdict has fallen."""
        return name in self._queue or self.rank in self._announced.get(name, ())

    def payload(self) -> bytes:
        """What this rank tells the others now, one line a group; equal announcements give equal bytes."""
        lines = [encode(group) for group in self._queue.values()]
        self._queue = {}
        return "\n".join(lines).encode("ascii")

    def settle(self, payloads: Sequence[bytes]) -> Settlement:
        """Enter the payloads of all ranks, in rank order, and judge what is complete."""
        announced = self._enter(payloads)
        erased = tuple(name for name in announced if name in self._agreed)
        self._agreed.difference_update(erased)
        agreed, failed = [], []
        for name in [name for name, lines in self._announced.items() if len(lines) == self.size]:
            verdict = self._judge(self._announced.pop(name))
            if isinstance(verdict, Group):
                self._agreed.add(name)
                agreed.append(verdict)
            else:
                failed.append((name, verdict))
        return Settlement(tuple(agreed), tuple(failed), erased)

    def forget(self, name: str) -> None:
        """End an agreement, on all ranks at the same point of their history."""
        self._agreed.remove(name)

    def waiting(self) -> dict[str, list[int]]:
        """Groups without a verdict, and the ranks that have not announced them."""
        return {
            name: [rank for rank in range(self.size) if rank not in lines] for name, lines in self._announced.items()
        }

    def _enter(self, payloads: Sequence[bytes]) -> dict[str, None]:
        """Names of the groups that the payloads announce, in canonical order."""
        lines = {payload: payload.decode("ascii").splitlines() for payload in set(payloads)}
        names = {line: decode(line).name for part in lines.values() for line in part}
        announced: dict[str, None] = {}
        for rank, payload in enumerate(payloads):
            for line in lines[payload]:
                announced[names[line]] = None
                self._announced.setdefault(names[line], {})[rank] = line
        return announced

    def _judge(self, lines: dict[int, str]) -> Group | str:
        versions: dict[str, list[int]] = {}
        for rank in range(self.size):
            versions.setdefault(lines[rank], []).append(rank)
        told = [(decode(line), ranks) for line, ranks in versions.items()]
        return describe_difference(told) or told[0][0]


def digest(payload: bytes) -> bytes:
    """16 bytes that stand for a payload."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode(group: Group) -> str:
    """A group as one line of ASCII; floats are exact, and equal groups give equal lines."""
    requests = [
        [r.name, int(r.collective), r.dtype, r.shape, int(r.op), r.prescale.hex(), r.postscale.hex(), r.root]
        for r in group.requests
    ]
    return json.dumps([group.name, group.fuses_whole, requests], separators=(",", ":"))


def decode(line: str) -> Group:
    """The group that a line stands for."""
    name, fuses_whole, requests = json.loads(line)
    return Group(name, tuple(map(_request, requests)), fuses_whole)


def _request(fields: list[Any]) -> Request:
    name, collective, dtype, shape, op, prescale, postscale, root = fields
    scales = (float.fromhex(prescale), float.fromhex(postscale))
    return Request(name, Collective(collective), dtype, tuple(shape), ReduceOp(op), *scales, root)
