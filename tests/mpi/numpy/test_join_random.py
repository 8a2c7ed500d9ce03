"""Random programmes with join: every tensor is combined over the ranks that have not joined before it, and no others.

In a round each rank takes the first so many of a list of operations, a few in flight at a time and in an order of its
own, and joins.  All ranks draw the same programme from its seed, so each knows what every result must be.  Names are
few, so that what they stand for changes, also while a rank has joined.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fusionctl

SIZES = (2, 3, 4)
RANK = fusionctl.rank
SIZE = fusionctl.size
ROUNDS = 4
MOST_IN_FLIGHT = 6
N_NAMES = 9  # more than are in flight, so that a name is free again when it comes

Array = NDArray[Any]

KINDS = ("allreduce", "grouped_allreduce", "allgather", "alltoall", "reducescatter", "broadcast")
DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64")
COMBINE: dict[fusionctl.ReduceOp, Callable[[Array], Any]] = {
    fusionctl.Sum: lambda every: every.sum(0),
    fusionctl.Min: lambda every: every.min(0),
    fusionctl.Max: lambda every: every.max(0),
    fusionctl.Product: lambda every: every.prod(0),
    fusionctl.Average: lambda every: every.mean(0),
}


@dataclass(frozen=True)
class Operation:
    """One collective of a programme, and the ranks that come to it."""

    number: int
    kind: str
    name: str
    dtype: str
    op: fusionctl.ReduceOp
    rows: int
    root: int
    active: tuple[int, ...]

    def of(self, rank: int, extra: int = 0) -> Array:
        """A rank's tensor: numbers so small that sums and products of them are exact."""
        rows = self.rows + extra if self.kind != "allgather" else (self.rows + rank) % 4
        values = np.random.default_rng([self.number, rank, extra]).integers(1, 4, (rows, 2))
        return values.astype(self.dtype)

    def splits(self, rank: int) -> list[int]:
        """The rows that a rank sends to each rank in an all-to-all."""
        drawn = np.random.default_rng([self.number, rank]).multinomial(self.rows, [1 / SIZE()] * SIZE())
        return [int(count) for count in drawn]

    def submit(self) -> Future[Any]:
        mine = self.of(RANK())
        if self.kind == "allreduce":
            return fusionctl.allreduce_async(mine, self.name, self.op)
        if self.kind == "grouped_allreduce":
            return fusionctl.grouped_allreduce_async([mine, self.of(RANK(), 1)], self.name, self.op)
        if self.kind == "allgather":
            return fusionctl.allgather_async(mine, self.name)
        if self.kind == "alltoall":
            return fusionctl.alltoall_async(mine, self.splits(RANK()), self.name)
        if self.kind == "reducescatter":
            return fusionctl.reducescatter_async(mine, self.name, self.op)
        return fusionctl.broadcast_async(mine, self.root, self.name)

    def combined(self, extra: int = 0) -> Array:
        every = np.stack([self.of(rank, extra) for rank in self.active]).astype("float64")
        result: Array = COMBINE[self.op](every)
        return np.trunc(result) if self.dtype.startswith("int") else result

    def check(self, future: Future[Any]) -> None:
        """The result is what the ranks that are left have."""
        if self.kind == "broadcast" and self.root not in self.active:
            with pytest.raises(fusionctl.UsageError, match="the root of this broadcast has joined"):
                future.result()
            return
        result = future.result()
        if self.kind == "allreduce":
            assert_close(result, self.combined(), self.dtype)
        elif self.kind == "grouped_allreduce":
            assert_close(result[0], self.combined(), self.dtype)
            assert_close(result[1], self.combined(1), self.dtype)
        elif self.kind == "allgather":
            assert_close(result, np.concatenate([self.of(rank) for rank in self.active]), self.dtype)
        elif self.kind == "alltoall":
            ends = [np.cumsum(self.splits(rank)) for rank in self.active]
            parts = [np.split(self.of(rank), end[:-1])[RANK()] for rank, end in zip(self.active, ends, strict=True)]
            assert_close(result[0], np.concatenate(parts), self.dtype)
            counts = [self.splits(rank)[RANK()] if rank in self.active else 0 for rank in range(SIZE())]
            assert result[1].tolist() == counts
        elif self.kind == "reducescatter":
            assert_close(result, np.array_split(self.combined(), SIZE())[RANK()], self.dtype)
        else:
            assert_close(result, self.of(self.root), self.dtype)


def assert_close(result: Array, expected: Array, dtype: str) -> None:
    assert (result.dtype, result.shape) == (np.dtype(dtype), expected.shape)
    np.testing.assert_allclose(
        result.astype("float64"), expected.astype("float64"), 1e-3 if dtype == "float16" else 1e-6
    )


def draw(rng: random.Random, number: int, stays: list[int]) -> Operation:
    """An operation of the programme; a name may mean another collective, dtype, shape and op each time."""
    fresh = rng.random() < 0.2
    return Operation(
        number,
        rng.choice(KINDS),
        f"fresh.{number}" if fresh else f"random.{number % N_NAMES}",
        rng.choice(DTYPES),
        rng.choice(list(COMBINE)),
        rng.randrange(5),
        rng.randrange(SIZE()),
        tuple(rank for rank, stay in enumerate(stays) if stay > number % 1000),
    )


def perform(operations: list[Operation], order: random.Random) -> None:
    """Some at a time and in any order, each awaited; in the end nothing is in flight."""
    while operations:
        count = order.randint(1, MOST_IN_FLIGHT)
        some, operations = operations[:count], operations[count:]
        futures = [(operation, operation.submit()) for operation in order.sample(some, len(some))]
        for operation, future in futures:
            operation.check(future)


@pytest.mark.parametrize("seed", range(8))
def test_results_are_those_of_the_ranks_that_are_left(seed: int) -> None:
    common, own = random.Random(seed), random.Random(f"{seed} {RANK()}")
    for number in range(ROUNDS):
        longest = common.randrange(25)
        stays = [common.choice([longest, common.randint(0, longest)]) for _ in range(SIZE())]
        first = 1000 * (ROUNDS * seed + number)
        operations = [draw(common, first + index, stays) for index in range(longest)]
        perform(operations[: stays[RANK()]], own)
        last = fusionctl.join()
        assert stays[last] == max(stays)
        assert set(fusionctl.allgather(np.array([last]), "last").tolist()) == {last}
        everyone = fusionctl.allreduce(np.array([RANK()]), "everyone", fusionctl.Sum)
        assert everyone.tolist() == [sum(range(SIZE()))]
