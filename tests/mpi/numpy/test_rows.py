"""All-gather, all-to-all and reduce-scatter of arrays, held against NumPy on what all ranks have."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import fusionctl
from fusionctl.request import DTYPES

RANK = fusionctl.rank
SIZE = fusionctl.size
TAILS: tuple[tuple[int, ...], ...] = ((), (3,), (2, 1, 2), (0,))
NO_OP: Any = 7
NUMBERS = tuple(name for name in DTYPES if name != "bool")

Array = NDArray[Any]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def rows_of(rank: int, count: int, tail: tuple[int, ...], name: str) -> Array:
    """Small whole numbers that differ by rank and place."""
    values = (np.arange(count * int(np.prod(tail))) + 2 * rank) % 5
    return values.astype(dtype_of(name)).reshape(count, *tail)


def everyones(count: Any, tail: tuple[int, ...], name: str) -> list[Array]:
    return [rows_of(rank, count(rank), tail, name) for rank in range(SIZE())]


def shares(rows: int) -> list[int]:
    """How many rows each rank gets of a reduce-scatter."""
    return [rows // SIZE() + (rank < rows % SIZE()) for rank in range(SIZE())]


@pytest.mark.parametrize("name", DTYPES)
def test_allgather_of_unequal_numbers_of_rows(name: str) -> None:
    for tail in TAILS:
        for count in (lambda rank: rank, lambda rank: 3, lambda rank: 0, lambda rank: 7 * (rank == 0)):
            arrays = everyones(count, tail, name)
            gathered = fusionctl.allgather(arrays[RANK()], f"{name}.{tail}")
            assert gathered.dtype == dtype_of(name)
            np.testing.assert_array_equal(gathered, np.concatenate(arrays))


def test_numbers_of_rows_that_change_need_no_new_agreement() -> None:
    fusionctl.allgather(np.zeros((1, 2)), "growing")
    before = fusionctl.counters()["slow_paths"]
    for step in range(5):
        gathered = fusionctl.allgather(np.full((step + RANK(), 2), RANK()), "growing")
        assert gathered.shape == (sum(step + rank for rank in range(SIZE())), 2)
    assert fusionctl.counters()["slow_paths"] - before <= 1  # the dtype changed once


def test_grouped_allgather_of_several_dtypes() -> None:
    gathered = fusionctl.grouped_allgather(
        [np.full((RANK(), 2), 1.5), np.arange(3, dtype="int8"), np.ones((1, 0))], "g"
    )
    np.testing.assert_array_equal(gathered[0], np.full((sum(range(SIZE())), 2), 1.5))
    np.testing.assert_array_equal(gathered[1], np.tile(np.arange(3), SIZE()))
    assert gathered[2].shape == (SIZE(), 0)


@pytest.mark.parametrize("name", DTYPES)
def test_alltoall_with_splits(name: str) -> None:
    for tail in TAILS:
        sent = [[(sender + receiver) % 3 for receiver in range(SIZE())] for sender in range(SIZE())]
        arrays = [rows_of(rank, sum(splits), tail, name) for rank, splits in enumerate(sent)]
        parts = [np.split(array, np.cumsum(splits)[:-1]) for array, splits in zip(arrays, sent, strict=True)]
        received, counts = fusionctl.alltoall(arrays[RANK()], sent[RANK()], f"{name}.{tail}")
        np.testing.assert_array_equal(received, np.concatenate([part[RANK()] for part in parts]))
        assert counts.dtype == np.int32
        assert counts.tolist() == [splits[RANK()] for splits in sent]


def test_alltoall_in_equal_shares() -> None:
    received = fusionctl.alltoall(np.arange(2 * SIZE()) + 100 * RANK(), name="shares")
    expected = [100 * rank + 2 * RANK() + i for rank in range(SIZE()) for i in range(2)]
    assert received.tolist() == expected


@pytest.mark.parametrize("op", [fusionctl.Average, fusionctl.Sum, fusionctl.Min, fusionctl.Max, fusionctl.Product])
@pytest.mark.parametrize("name", NUMBERS)
def test_reducescatter_leaves_each_rank_its_share_of_the_allreduce(name: str, op: fusionctl.ReduceOp) -> None:
    for tail in TAILS:
        for rows in (0, 1, SIZE(), 2 * SIZE() + 1, 11):
            array = rows_of(RANK(), rows, tail, name)
            whole = fusionctl.allreduce(array, f"whole.{name}.{op}.{tail}", op)
            start = sum(shares(rows)[: RANK()])
            mine = fusionctl.reducescatter(array, f"{name}.{op}.{tail}", op)
            assert mine.dtype == array.dtype
            np.testing.assert_allclose(
                mine.astype(float), whole[start : start + shares(rows)[RANK()]].astype(float), 1e-6
            )


def test_grouped_reducescatter_with_factors() -> None:
    arrays = [np.arange(6.0).reshape(3, 2), np.arange(5, dtype="int32")]
    mine = fusionctl.grouped_reducescatter(arrays, "factors", fusionctl.Sum, 2.0, 0.5)
    for array, part in zip(arrays, mine, strict=True):
        start = sum(shares(len(array))[: RANK()])
        np.testing.assert_array_equal(part, array[start : start + len(part)] * SIZE())


def test_async_forms_return_futures() -> None:
    handles: list[Future[Any]] = [
        fusionctl.allgather_async(np.full(RANK(), 1)),
        fusionctl.reducescatter_async(np.arange(SIZE()), op=fusionctl.Sum),
        fusionctl.alltoall_async(np.arange(SIZE())),
        fusionctl.broadcast_async(np.array([RANK()]), SIZE() - 1),
        fusionctl.grouped_allgather_async([np.zeros(1), np.ones(1)]),
        fusionctl.grouped_reducescatter_async([np.arange(SIZE()), np.ones((2 * SIZE(), 1))], op=fusionctl.Sum),
    ]
    gathered, mine, exchanged, sent, both, shared = map(fusionctl.synchronize, handles)
    assert all(fusionctl.poll(handle) for handle in handles)
    assert len(gathered) == sum(range(SIZE()))
    assert mine.tolist() == [RANK() * SIZE()]
    assert exchanged.tolist() == [RANK()] * SIZE()
    assert sent.tolist() == [SIZE() - 1]
    assert [part.tolist() for part in both] == [[0.0] * SIZE(), [1.0] * SIZE()]
    assert [part.tolist() for part in shared] == [[RANK() * SIZE()], [[SIZE()]] * 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fusionctl.allgather(np.float64(1), "s"), "tensor 's' is a scalar; allgather needs at least one"),
        (lambda: fusionctl.reducescatter(3, "s"), "tensor 's' is a scalar"),
        (
            lambda: fusionctl.alltoall(np.zeros(2), [3] + [0] * (SIZE() - 1), "s"),
            "'s' has 2 rows, but its splits sum to 3",
        ),
        (lambda: fusionctl.alltoall(np.zeros(2), [2] + [0] * SIZE(), "s"), "splits for"),
        (lambda: fusionctl.alltoall(np.zeros(0), [-1, 1], "s"), "'s' has the negative split -1"),
        (lambda: fusionctl.alltoall(np.zeros(2), [0.5], "s"), "give one whole number of rows for each rank"),
        (lambda: fusionctl.reducescatter(np.zeros(2, bool), "s"), "has dtype bool and op Average"),
        (lambda: fusionctl.reducescatter(np.zeros(2), "s", NO_OP), "reducescatter accepts Average, Sum"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(call: Any, message: str) -> None:
    with pytest.raises(fusionctl.UsageError, match=message):
        call()


def test_unequal_rows_cannot_be_shared_equally() -> None:
    if SIZE() > 1:
        with pytest.raises(fusionctl.UsageError, match=f"has {SIZE() + 1} rows, which {SIZE()} ranks can not share"):
            fusionctl.alltoall(np.zeros(SIZE() + 1), name="unequal")


def test_differing_row_shapes_are_a_mismatch() -> None:
    if SIZE() > 1:
        with pytest.raises(
            fusionctl.MismatchError, match=r"'tail': shape is \(any, 2\) on rank 0 and \(any, 3\) on rank"
        ):
            fusionctl.allgather(np.zeros((1, 2 + (RANK() > 0))), "tail")
