"""Whether the ranks are about to do the same; what would hang, or mix up numbers, is an error on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

import fusionctl
from fusionctl.errors import MismatchError, UsageError

TEXT = 2000
"""Bytes of each rank's names that an error can quote."""


def check_same_length(steps: int | None, epochs: int) -> None:
    """UsageError unless all ranks run as many epochs of as many steps; None, as for a generator, is not compared."""
    all_steps, all_epochs = zip(*of_all([-1 if steps is None else steps, epochs], "length of fit"), strict=True)
    if len(set(all_epochs)) > 1:
        raise UsageError(f"the ranks' epochs are {_listed(all_epochs)}: give fit the same number on all ranks")
    known = [count for count in all_steps if count >= 0]
    if len(set(known)) > 1:
        raise UsageError(
            f"the ranks' steps per epoch are {_listed(all_steps)}, and each step waits for all ranks: give all the "
            f"same number of batches, or fit(steps_per_epoch={min(known)})"
        )


def check_same_names(names: Sequence[str], what: str) -> None:
    """MismatchError, with the names on each rank that differs from the first, unless all ranks have the same names."""
    text = ", ".join(names)
    checksums = [row[0] for row in of_all([zlib.crc32(text.encode())], f"{what}: checksum of names")]
    if len(set(checksums)) == 1:
        return
    texts = [_decoded(row) for row in of_all(_encoded(text), f"{what}: names")]
    other = next(rank for rank, checksum in enumerate(checksums) if checksum != checksums[0])
    raise MismatchError(
        f"the ranks have different {what}: rank 0 has {texts[0]}; rank {other} has {texts[other]}: compile the model, "
        "and give it validation data, alike on all ranks"
    )


def of_all(row: Sequence[int], name: str) -> list[list[int]]:
    """The row of each rank; the length must be the same everywhere."""
    rows = np.zeros((fusionctl.size(), len(row)), np.int64)
    rows[fusionctl.rank()] = row
    gathered: list[list[int]] = fusionctl.allreduce(rows, name=name, op=fusionctl.Sum).tolist()
    return gathered


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{'unknown' if count < 0 else count} (rank {rank})" for rank, count in enumerate(counts))


def _encoded(text: str) -> list[int]:
    return list(text.encode()[:TEXT].ljust(TEXT, b"\0"))


def _decoded(row: list[int]) -> str:
    return bytes(row).rstrip(b"\0").decode(errors="replace")
