"""What differs between the ranks' versions of a group, as an error message that names ranks and values.

`tensor 'dense/kernel' of group 'grads': shape is (2, 3) on ranks 0, 2-3 and (3, 2) on rank 1; submit the same shape on
every rank`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

from fusionctl.request import ANY_ROWS, Group, Request

SHOWN = 3
"""How many differences a message tells, and how many values of one difference."""

FIELDS = {
    "collective": "collective",
    "dtype": "dtype",
    "shape": "shape",
    "op": "op",
    "prescale": "prescale_factor",
    "postscale": "postscale_factor",
    "root": "root_rank",
}
"""Fields of a Request, and what users call them."""

Version = tuple[Group, Sequence[int]]
"""A version of a group and the ranks that announced it."""


def describe_difference(versions: Sequence[Version]) -> str | None:
    """Why these versions can not be one group; None when they differ in nothing but the order of their members."""
    found = list(_differences(versions)) if len(versions) > 1 else []
    if not found:
        return None
    told = [text for text, _ in found[:SHOWN]]
    if len(found) > SHOWN:
        told.append(f"{len(found) - SHOWN} more differences")
    what = dict.fromkeys(what for _, what in found[:SHOWN])
    return f"{'; '.join(told)}; submit the same {_listed(list(what))} on every rank"


def ranks(members: Iterable[int]) -> str:
    """Ranks as text: `rank 3`, `ranks 0-5, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(members):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"


def by_key(group: Group) -> dict[tuple[str, int], int]:
    """Index of each member by its name, and by its number among the members of that name."""
    seen: dict[str, int] = {}
    keys = {}
    for index, request in enumerate(group.requests):
        number = seen[request.name] = seen.get(request.name, -1) + 1
        keys[request.name, number] = index
    return keys


def _differences(versions: Sequence[Version]) -> Iterable[tuple[str, str]]:
    """Each difference, and what the ranks must submit the same of."""
    name = versions[0][0].name
    members = [({key: group.requests[i] for key, i in by_key(group).items()}, who) for group, who in versions]
    for key in dict.fromkeys(key for requests, _ in members for key in requests):
        subject = f"tensor '{key[0]}'" if key[0] == name else f"tensor '{key[0]}' of group '{name}'"
        holders = [rank for requests, who in members if key in requests for rank in who]
        others = [rank for requests, who in members if key not in requests for rank in who]
        if others:
            yield f"{subject} is announced on {ranks(holders)}, but not on {ranks(others)}", "tensors"
        else:
            yield from _in_tensor(subject, [(requests[key], who) for requests, who in members])
    if len({group.fuses_whole for group, _ in versions}) > 1:
        wholes = [(str(group.fuses_whole), who) for group, who in versions]
        yield f"group '{name}': fuses_whole is {_by_value(wholes)}", "groups"


def _in_tensor(subject: str, versions: Sequence[tuple[Request, Sequence[int]]]) -> Iterable[tuple[str, str]]:
    for field, called in FIELDS.items():
        values = [(_text(getattr(request, field)), who) for request, who in versions]
        if len({value for value, _ in values}) > 1:
            yield f"{subject}: {called} is {_by_value(values)}", called
            if field == "collective":  # the rest differs because of it
                return


def _by_value(values: Sequence[tuple[str, Sequence[int]]]) -> str:
    holders: dict[str, list[int]] = {}
    for value, who in values:
        holders.setdefault(value, []).extend(who)
    told = [f"{value} on {ranks(who)}" for value, who in sorted(holders.items(), key=lambda item: min(item[1]))]
    if len(told) > SHOWN:
        told[SHOWN:] = [f"{len(told) - SHOWN} other values elsewhere"]
    return _listed(told)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return str(tuple(value)).replace(str(ANY_ROWS), "any")
    return value.name.lower() if isinstance(value, IntEnum) else str(value)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
