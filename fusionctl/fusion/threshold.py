"""The constant threshold: consecutive requests share a buffer while they fit it together.

Four tensors of 3, 3, 3 and 8 bytes with a threshold of 6 become the buckets (0, 1), (2,) and (3,).

One buffer for all gradients would start to travel when the last of them is ready, and so not overlap the backward pass.
Hence a large set is cut into `PARTS` even where the threshold would hold all of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fusionctl.request import Bucket, Group

PARTS = 4
"""Buffers that a large set has at least: three of them travel while the backward pass still runs."""

FLOOR = 1 << 20
"""Bytes below which a buffer is not cut for the sake of overlap, as its latency would cost more than it hides."""


def runs(nbytes: Sequence[int], threshold: int) -> tuple[range, ...]:
    """Cut requests of these sizes into consecutive runs of at most `threshold` bytes.

    A request that is larger stands alone; a threshold of 0 fuses nothing.
    """
    cut: list[range] = []
    start = filled = 0
    for i, size in enumerate(nbytes):
        if i > start and (threshold == 0 or filled + size > threshold):
            cut.append(range(start, i))
            start, filled = i, 0
        filled += size
    return (*cut, range(start, len(nbytes))) if nbytes else ()


def limit(total: int, threshold: int) -> int:
    """Bytes of the largest buffer for a set of `total` bytes."""
    return min(threshold, max(FLOOR, -(-total // PARTS)))


def fuse(group: Group, threshold: int) -> tuple[Bucket, ...]:
    """Cut a group into buckets, each of one kind, ordered by the member of each that is ready last.

    A function of the group alone, and so equal on all ranks and in every run.  A group that `fuses_whole` gives one
    bucket per kind.
    """
    kinds: dict[object, list[int]] = defaultdict(list)
    for index, request in enumerate(group.requests):
        kinds[request.kind].append(index)
    buckets = []
    for members in kinds.values():
        sizes = [group.requests[i].nbytes for i in members]
        for run in (range(len(sizes)),) if group.fuses_whole else runs(sizes, limit(sum(sizes), threshold)):
            chosen = tuple(members[k] for k in run)
            buckets.append(Bucket(group.name, chosen, sum(sizes[k] for k in run)))
    return tuple(sorted(buckets, key=lambda bucket: bucket.members[-1]))
