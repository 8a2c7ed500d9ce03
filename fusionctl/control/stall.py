"""The stall report: which tensors wait, on which ranks, and what the ranks that lack them do instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusionctl.control.negotiation import ranks

SHOWN = 6
"""Names told per line."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank waits for, (tensor, age in seconds), and where its programme is."""

    pending: tuple[tuple[str, float], ...]
    where: str

    def encode(self) -> bytes:
        """As bytes, to be gathered."""
        return json.dumps([self.pending, self.where]).encode()

    @classmethod
    def decode(cls, data: bytes) -> RankState:
        """Back from the bytes."""
        pending, where = json.loads(data)
        return cls(tuple((name, age) for name, age in pending), where)


def report(states: Sequence[RankState], limit: float) -> list[str]:
    """Lines for the tensors that some rank has waited for longer than `limit` seconds; none if no rank lacks them."""
    ages = [dict(state.pending) for state in states]
    stalled: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for age in ages for name, seconds in age.items() if seconds > limit):
        missing = tuple(rank for rank, age in enumerate(ages) if name not in age)
        if missing:
            stalled.setdefault(missing, []).append(name)
    return [_line(states, ages, missing, names) for missing, names in stalled.items()]


def _line(
    states: Sequence[RankState], ages: Sequence[Mapping[str, float]], missing: tuple[int, ...], names: list[str]
) -> str:
    waiting = [rank for rank in range(len(states)) if rank not in missing]
    seconds = max(ages[rank][name] for rank in waiting for name in names if name in ages[rank])
    instead = "; ".join(f"rank {rank} is at {states[rank].where} and {_waits_for(states[rank])}" for rank in missing)
    return (
        f"stalled for {seconds:.0f} s: {_names(names)} submitted on {ranks(waiting)}, but not on {ranks(missing)}. {instead}"
    )


def _waits_for(state: RankState) -> str:
    if not state.pending:
        return "waits for no tensor"
    return f"waits for {_names([name for name, _ in state.pending])}"


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("tensor " if len(names) == 1 else "tensors ") + ", ".join(f"'{name}'" for name in names[:SHOWN]) + more
