"""The law: an all-reduce equals NumPy's reduction over the ranks' arrays, on every rank and for every dtype and op."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import fusionctl

SIZES = (1, 2, 3, 4, 8, 16)
FLOATS = ("float16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16")
SHAPES = ((), (1,), (3,), (17, 5), (1000, 7), (0,), (4, 0, 2))


def values(rank: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """Small whole numbers, so that sums and products are exact in every dtype; they differ by rank and place."""
    lowest = 0 if dtype.startswith("uint") else -2
    return np.asarray((np.arange(math.prod(shape)) + 3 * rank) % 5 + lowest, dtype).reshape(shape)


def reduced(op: fusionctl.ReduceOp, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """What every rank must get."""
    everyone = np.stack([values(rank, shape, dtype).astype("float64") for rank in range(fusionctl.size())])
    if op is fusionctl.Average:
        return np.asarray(everyone.mean(0), dtype)
    ufunc = {
        fusionctl.Sum: np.add,
        fusionctl.Min: np.minimum,
        fusionctl.Max: np.maximum,
        fusionctl.Product: np.multiply,
    }
    return np.asarray(ufunc[op].reduce(everyone, axis=0), dtype)


@pytest.mark.parametrize("op", [fusionctl.Sum, fusionctl.Average, fusionctl.Min, fusionctl.Max, fusionctl.Product])
@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_equals_numpy(dtype: str, op: fusionctl.ReduceOp) -> None:
    for shape in SHAPES:
        result = fusionctl.allreduce(values(fusionctl.rank(), shape, dtype), f"{dtype}.{op}.{shape}", op)
        assert (result.dtype, result.shape) == (np.dtype(dtype), shape)
        if dtype == "float64":
            np.testing.assert_allclose(result, reduced(op, shape, dtype), rtol=1e-15)
        elif dtype == "float32":
            np.testing.assert_allclose(result, reduced(op, shape, dtype), rtol=1e-7)
        else:
            np.testing.assert_array_equal(result, reduced(op, shape, dtype))


def test_bfloat16_accumulates_in_float32() -> None:
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    array = np.array([1 + fusionctl.rank() / 128, 256.0, 1.0], bfloat16)
    exact = np.sum([[1 + rank / 128, 256.0, 1.0] for rank in range(fusionctl.size())], axis=0, dtype="float32")
    np.testing.assert_array_equal(fusionctl.allreduce(array, "bf16", fusionctl.Sum), exact.astype(bfloat16))


def test_average_of_16_bits_does_not_overflow_in_its_sum() -> None:
    array = np.full(5, 65504, "float16")
    np.testing.assert_array_equal(fusionctl.allreduce(array, "f16.max"), array)


def test_scale_factors() -> None:
    array = np.arange(6, dtype="float32") + fusionctl.rank()
    size = fusionctl.size()
    expected = (np.arange(6) * size + size * (size - 1) / 2) * 0.5 * 4
    np.testing.assert_allclose(
        fusionctl.allreduce(array, "scaled", fusionctl.Sum, prescale_factor=0.5, postscale_factor=4), expected
    )


@pytest.mark.parametrize("dtype", INTS)
def test_mean_of_integers_is_exact_where_the_sum_overflows(dtype: str) -> None:
    limits = np.iinfo(dtype)
    ranks = range(fusionctl.size())
    columns = [[limits.max, limits.min, limits.max - rank, limits.min + rank, 7 + rank] for rank in ranks]
    array = np.array(columns[fusionctl.rank()], dtype)
    means = [abs(total) // len(ranks) * (1 if total > 0 else -1) for total in map(sum, zip(*columns, strict=True))]
    assert fusionctl.allreduce(array, f"{dtype}.mean").tolist() == means


def test_into_the_same_array() -> None:
    array = np.full(9, fusionctl.rank() + 1.0)
    result = fusionctl.allreduce(array, "in-place", fusionctl.Sum, out=array)
    assert result is array
    np.testing.assert_array_equal(array, np.full(9, fusionctl.size() * (fusionctl.size() + 1) / 2))


def test_strided_arrays() -> None:
    array = np.arange(20.0).reshape(4, 5).T[::2]
    np.testing.assert_array_equal(fusionctl.allreduce(array, "strided"), array)


def test_group_of_mixed_dtypes() -> None:
    arrays = [np.full(3, 1, "float32"), np.full((2, 2), 2, "float64"), np.full(5, 3, "int64"), np.full(3, 4, "float32")]
    results = fusionctl.grouped_allreduce(arrays, "mixed", fusionctl.Sum)
    for result, array in zip(results, arrays, strict=True):
        np.testing.assert_array_equal(result, array * fusionctl.size())
        assert result.dtype == array.dtype


def test_empty_group() -> None:
    assert fusionctl.grouped_allreduce([], "nothing") == []


def test_any_number_in_flight_and_any_order() -> None:
    names = list(range(100))
    np.random.default_rng(fusionctl.rank()).shuffle(names)
    futures = {k: fusionctl.allreduce_async(np.full(k + 1, float(k)), f"any.{k}", fusionctl.Sum) for k in names}
    for k in range(100):
        np.testing.assert_array_equal(futures[k].result(60), np.full(k + 1, float(k) * fusionctl.size()))


def test_unnamed_calls_match_by_order() -> None:
    for shape in ((3,), (2, 2), (3,)):
        np.testing.assert_array_equal(
            fusionctl.allreduce(np.ones(shape), op=fusionctl.Sum), np.full(shape, fusionctl.size())
        )
    futures = [fusionctl.allreduce_async(np.full(2, float(k))) for k in range(5)]
    assert [future.result(60).tolist() for future in futures] == [[float(k)] * 2 for k in range(5)]


def test_broadcast_of_every_dtype() -> None:
    root = fusionctl.size() - 1
    for dtype in ("float16", "float32", "float64", "int32", "int64", "int8", "uint8", "int16", "uint16", "bool"):
        array = np.array([fusionctl.rank(), 1, 0, fusionctl.rank() + 1]).astype(dtype)
        expected = np.array([root, 1, 0, root + 1]).astype(dtype)
        np.testing.assert_array_equal(fusionctl.broadcast(array, root, f"broadcast.{dtype}"), expected)


def test_barrier_waits_for_the_last() -> None:
    counter = np.zeros(1)
    window = MPI.Win.Create(counter if fusionctl.rank() == 0 else None, comm=MPI.COMM_WORLD)
    window.Lock(0)
    window.Accumulate(np.ones(1), 0)
    window.Unlock(0)
    fusionctl.barrier()
    seen = np.zeros(1)
    window.Lock(0)
    window.Get(seen, 0)
    window.Unlock(0)
    fusionctl.barrier()
    window.Free()
    assert seen[0] == fusionctl.size()
