"""The slow path as a pure object: what every rank has announced, and the verdict once all have.

Laws: nothing here communicates or sleeps.  Every rank feeds the same payloads in the same order to `settle` and so holds
the same state.  A verdict on a group falls when the last rank has announced it, on all ranks in the same exchange.  An
announcement of an agreed group erases the agreement everywhere; each rank that needs the group announces its own version.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusionctl.request import Collective, Group, ReduceOp, Request

SHOWN = 3
"""How many differences an error message tells."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came out of one slow path: agreed groups, refused ones with the reason, and agreements that are void."""

    agreed: tuple[Group, ...]
    failed: tuple[tuple[str, str], ...]
    erased: tuple[str, ...]


class Negotiation:
    """One rank's view of what all ranks have announced."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._queue: dict[str, Group] = {}
        self._announced: dict[str, dict[int, Group]] = {}
        self._agreed: set[str] = set()

    def announce(self, group: Group) -> None:
        """Queue a group for the next payload; replaces an earlier version that waits there."""
        self._queue[group.name] = group

    def is_announced(self, name: str) -> bool:
        """Whether this rank has announced a group on which no verdict has fallen."""
        return name in self._queue or self.rank in self._announced.get(name, ())

    def has_news(self) -> bool:
        """Whether something waits to be announced."""
        return bool(self._queue)

    def payload(self) -> bytes:
        """What this rank tells the others now; equal announcements give equal bytes."""
        text = json.dumps([_encode(group) for group in self._queue.values()], separators=(",", ":"))
        self._queue = {}
        return text.encode()

    def settle(self, payloads: Sequence[bytes]) -> Settlement:
        """Enter the payloads of all ranks, in rank order, and judge what is complete."""
        erased: dict[str, None] = {}
        for rank, payload in enumerate(payloads):
            for item in json.loads(payload):
                group = _decode(item)
                if group.name in self._agreed:
                    self._agreed.remove(group.name)
                    erased[group.name] = None
                self._announced.setdefault(group.name, {})[rank] = group
        complete = [name for name, versions in self._announced.items() if len(versions) == self.size]
        agreed, failed = [], []
        for name in complete:
            versions = self._announced.pop(name)
            difference = describe_difference([versions[rank] for rank in range(self.size)])
            if difference is None:
                self._agreed.add(name)
                agreed.append(versions[0])
            else:
                failed.append((name, difference))
        return Settlement(tuple(agreed), tuple(failed), tuple(erased))

    def forget(self, name: str) -> None:
        """An agreed group was evicted."""
        self._agreed.discard(name)

    def waiting(self) -> dict[str, list[int]]:
        """Groups without a verdict, and the ranks that have not announced them."""
        return {
            name: [rank for rank in range(self.size) if rank not in versions]
            for name, versions in self._announced.items()
        }


def digest(payload: bytes) -> bytes:
    """16 bytes that stand for a payload."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def describe_difference(versions: Sequence[Group]) -> str | None:
    """What differs between the ranks' versions of a group, with the ranks and the values; None if nothing does."""
    if all(version == versions[0] for version in versions):
        return None
    found = list(_differences(versions))
    more = f"; and {len(found) - SHOWN} more differences" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more + "; submit the same on every rank"


def _differences(versions: Sequence[Group]) -> Iterable[str]:
    by_name = [{request.name: request for request in version.requests} for version in versions]
    name = versions[0].name
    for tensor in dict.fromkeys(tensor for requests in by_name for tensor in requests):
        holders = [rank for rank, requests in enumerate(by_name) if tensor in requests]
        if len(holders) < len(versions):
            missing = [rank for rank in range(len(versions)) if rank not in holders]
            yield f"group '{name}' has tensor '{tensor}' on {ranks(holders)} but not on {ranks(missing)}"
            continue
        for field in ("collective", "dtype", "shape", "op", "prescale", "postscale", "root"):
            yield from _field(f"tensor '{tensor}'", field, [getattr(requests[tensor], field) for requests in by_name])
    yield from _field(f"group '{name}'", "fuses_whole", [version.fuses_whole for version in versions])
    if all(requests.keys() == by_name[0].keys() for requests in by_name):
        yield from _field(f"group '{name}'", "order", [tuple(requests) for requests in by_name])


def _field(subject: str, field: str, values: Sequence[Any]) -> Iterable[str]:
    holders: dict[Any, list[int]] = defaultdict(list)
    for rank, value in enumerate(values):
        holders[value].append(rank)
    if len(holders) > 1:
        told = [f"{_text(value)} on {ranks(who)}" for value, who in holders.items()]
        yield f"{subject}: {field} is {', '.join(told[:-1])} and {told[-1]}"


def _text(value: Any) -> str:
    return value.name.lower() if isinstance(value, (ReduceOp, Collective)) else str(value)


def ranks(members: Sequence[int]) -> str:
    """Ranks as text: `rank 3`, `ranks 0-5, 7`."""
    spans: list[list[int]] = []
    for rank in members:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' if len(members) > 1 else ''} {text}"


def _encode(group: Group) -> list[Any]:
    requests = [
        [r.name, int(r.collective), r.dtype, r.shape, int(r.op), r.prescale.hex(), r.postscale.hex(), r.root]
        for r in group.requests
    ]
    return [group.name, group.fuses_whole, requests]


def _decode(item: list[Any]) -> Group:
    name, fuses_whole, requests = item
    return Group(
        name,
        tuple(
            Request(
                tensor,
                Collective(collective),
                dtype,
                tuple(shape),
                ReduceOp(op),
                float.fromhex(prescale),
                float.fromhex(postscale),
                root,
            )
            for tensor, collective, dtype, shape, op, prescale, postscale, root in requests
        ),
        fuses_whole,
    )
