"""Whether the ranks are about to do the same; what would hang, or mix up numbers, is an error on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

import fusionctl
from fusionctl.errors import UsageError


def check_same_length(steps: int | None, epochs: int, joins: bool = False) -> None:
    """UsageError unless all ranks run as many epochs, of as many steps unless they join at the end of each.

    Steps that are None, as for a generator, are not compared.
    """
    rows = of_all([-1 if steps is None else steps, epochs, joins], "length of fit")
    all_steps, all_epochs, all_join = zip(*rows, strict=True)
    if len(set(all_join)) > 1:
        lacks = ", ".join(f"rank {rank}" for rank, listed in enumerate(all_join) if not listed)
        raise UsageError(f"JoinCallback is not listed on {lacks}: list it on all ranks")
    if len(set(all_epochs)) > 1:
        raise UsageError(f"the ranks' epochs are {_listed(all_epochs)}: give fit the same number on all ranks")
    known = [count for count in all_steps if count >= 0]
    if len(set(known)) > 1 and not joins:
        raise UsageError(
            f"the ranks' steps per epoch are {_listed(all_steps)}, and each step waits for all ranks: list "
            f"callbacks.JoinCallback(), give all the same number of batches, or fit(steps_per_epoch={min(known)})"
        )


def most_steps(steps: int | None) -> int | None:
    """The number of steps on the rank that has most; None unless all ranks know theirs."""
    counts = [count for (count,) in of_all([steps or 0], "steps of an epoch")]
    return max(counts) if all(counts) else None


def all_names(names: Sequence[str], what: str) -> list[str]:
    """The names that any rank has, sorted; one exchange where all have the same."""
    text = "\n".join(names).encode()
    rows = of_all([zlib.crc32(text), len(text)], f"{what}: checksum of names")
    if all(row == rows[0] for row in rows):
        return sorted(names)
    length = max(row[1] for row in rows)
    texts = of_all(list(text.ljust(length, b"\0")), f"{what}: names")
    return sorted({name for row in texts for name in bytes(row).rstrip(b"\0").decode().split("\n") if name})


def of_all(row: Sequence[int], name: str) -> list[list[int]]:
    """The row of each rank; the length must be the same everywhere."""
    rows = np.zeros((fusionctl.size(), len(row)), np.int64)
    rows[fusionctl.rank()] = row
    gathered: list[list[int]] = fusionctl.allreduce(rows, name=name, op=fusionctl.Sum).tolist()
    return gathered


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{'unknown' if count < 0 else count} (rank {rank})" for rank, count in enumerate(counts))
