"""The stall report: which tensors wait, on which ranks, and what the ranks that lack them do instead."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fusionctl.control.difference import ranks
from fusionctl.request import Group

SHOWN = 6
"""How many tensors, and how many ranks, one stall names."""


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank waits for, (tensor, age in seconds), and where its programme is."""

    pending: tuple[tuple[str, float], ...]
    where: str

    def encode(self) -> bytes:
        """As bytes, to be gathered."""
        return json.dumps([self.pending, self.where]).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> RankState:
        """Back from the bytes."""
        pending, where = json.loads(data)
        return cls(tuple((name, age) for name, age in pending), where)


def stalled(states: Mapping[int, RankState], limit: float) -> dict[str, list[int]]:
    """Tensors that some rank has waited for longer than `limit` seconds, and the ranks that have submitted them."""
    late = dict.fromkeys(name for state in states.values() for name, age in state.pending if age > limit)
    submitted = {rank: {name for name, _ in state.pending} for rank, state in states.items()}
    return {name: [rank for rank, names in submitted.items() if name in names] for name in late}


def report(
    states: Sequence[RankState],
    limit: float,
    groups: Iterable[Group] = (),
    waiting: Mapping[str, Sequence[int]] | None = None,
    members: Sequence[int] | None = None,
) -> list[str]:
    """Lines about the tensors that some rank has waited for longer than `limit` seconds.

    `states` are those of all ranks in rank order, `groups` what this rank has announced, `waiting` the groups without a
    verdict and the ranks that have not announced them; `members` the ranks of the process set, if not all.
    """
    by_rank = dict(zip(range(len(states)) if members is None else members, states, strict=True))
    together: dict[tuple[int, ...], list[str]] = {}
    for name, submitted in stalled(by_rank, limit).items():
        together.setdefault(tuple(submitted), []).append(name)
    lines: list[str] = []
    for ready, names in together.items():
        if len(ready) == len(states):
            lines += _held_back(states, names, groups)
        else:
            lines += _missed(by_rank, names, ready, _unannounced(names, groups, waiting or {}))
    return lines


def _missed(
    states: Mapping[int, RankState], names: Sequence[str], ready: Sequence[int], unannounced: Mapping[int, str]
) -> Iterable[str]:
    missing = [rank for rank in states if rank not in ready]
    age = _age([*states.values()], names)
    yield f"{age}: {_tensors(names)} submitted on {ranks(ready)}, but not on {ranks(missing)}"
    for rank in missing[:SHOWN]:
        never = f" and has never announced group '{unannounced[rank]}'" if rank in unannounced else ""
        yield f"  rank {rank} is at {states[rank].where}, waits for {_instead(states[rank])}{never}"
    if len(missing) > SHOWN:
        yield f"  and {len(missing) - SHOWN} more ranks"


def _held_back(states: Sequence[RankState], names: Sequence[str], groups: Iterable[Group]) -> Iterable[str]:
    """About tensors that all ranks have submitted: others of their group may be missing; else they are on their way."""
    present = {name for state in states for name, _ in state.pending}
    lacking = [
        request.name
        for group in groups
        if any(request.name in names for request in group.requests)
        for request in group.requests
        if request.name not in present
    ]
    if lacking:
        yield (
            f"{_age(states, names)}: {_tensors(names)} submitted on all ranks, but not all tensors of the same group: "
            f"no rank has submitted {_listed(lacking)}"
        )


def _unannounced(names: Sequence[str], groups: Iterable[Group], waiting: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """The ranks that have not announced the group of one of these tensors, and that group."""
    return {
        rank: group.name
        for group in groups
        if group.name in waiting and any(request.name in names for request in group.requests)
        for rank in waiting[group.name]
    }


def _age(states: Sequence[RankState], names: Sequence[str]) -> str:
    wanted = set(names)
    seconds = max(age for state in states for name, age in state.pending if name in wanted)
    return f"stalled for {seconds:.0f} s"


def _instead(state: RankState) -> str:
    return _listed([name for name, _ in state.pending]) if state.pending else "no tensor"


def _tensors(names: Sequence[str]) -> str:
    return f"{_listed(names)} {'was' if len(names) == 1 else 'were'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ("tensor " if len(names) == 1 else "tensors ") + ", ".join(f"'{name}'" for name in names[:SHOWN]) + more
