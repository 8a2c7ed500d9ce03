"""The law: a collective gives every rank NumPy's result over all ranks' tensors, eagerly and in a graph alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

RANK = fusionctl.rank
SIZE = fusionctl.size
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
NUMBERS = (*FLOATS, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16)
UFUNCS = {
    fusion.Sum: np.add,
    fusion.Min: np.minimum,
    fusion.Max: np.maximum,
    fusion.Product: np.multiply,
}


def values(rank: int, dtype: tf.DType) -> tf.Tensor:
    """Small whole numbers that differ by rank and place: exact in every dtype."""
    return tf.cast(tf.constant([[1, rank + 1, 2], [rank, 3, 5 - rank]]), dtype)


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [function, tf.function(function, autograph=False)]


@pytest.mark.parametrize("op", list(UFUNCS))
@pytest.mark.parametrize("dtype", NUMBERS)
def test_allreduce_of_every_dtype_and_op(dtype: tf.DType, op: fusionctl.ReduceOp) -> None:
    expected = UFUNCS[op].reduce([values(rank, tf.int64).numpy() for rank in range(SIZE())])
    for call in both(lambda x: fusion.allreduce(x, op=op, name=f"{dtype.name}.{op}")):
        result = call(values(RANK(), dtype))
        assert result.dtype == dtype
        np.testing.assert_array_equal(tf.cast(result, tf.int64), expected)


@pytest.mark.parametrize(("op", "expected"), [(fusion.Min, "all"), (fusion.Product, "all"), (fusion.Max, "any")])
def test_allreduce_of_truth_values(op: fusionctl.ReduceOp, expected: str) -> None:
    rows = np.array([[True, rank > 0, False, rank == 1] for rank in range(SIZE())])
    for call in both(lambda x: fusion.allreduce(x, op=op, name=f"bool.{op}")):
        np.testing.assert_array_equal(call(tf.constant(rows[RANK()])), getattr(rows, expected)(0))
    with pytest.raises(fusionctl.UsageError, match=r"has dtype bool and op Sum; use Max \(or\), Min \(and\)"):
        fusion.allreduce(tf.constant([True]), op=fusion.Sum, name="bool")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_allreduce_averages_by_default(dtype: tf.DType) -> None:
    total = sum(values(rank, tf.int64).numpy() for rank in range(SIZE()))
    mean = total // SIZE() if dtype.is_integer else tf.cast(total / SIZE(), dtype)
    for call in both(lambda x: fusion.allreduce(x, name=f"average.{dtype.name}")):
        np.testing.assert_allclose(tf.cast(call(values(RANK(), dtype)), tf.float64), tf.cast(mean, tf.float64), 1e-6)


def test_factors_multiply_before_and_after() -> None:
    for call in both(lambda x: fusion.allreduce(x, op=fusion.Sum, prescale_factor=0.5, postscale_factor=4.0, name="f")):
        np.testing.assert_array_equal(call(tf.constant([1.0, 2.0])), np.array([2.0, 4.0]) * SIZE())


def test_average_is_an_older_spelling_of_op() -> None:
    np.testing.assert_array_equal(fusion.allreduce(tf.constant([2.0]), average=False, name="spelling"), [2.0 * SIZE()])
    np.testing.assert_array_equal(fusion.allreduce(tf.constant([2.0]), average=True, name="spelling"), [2.0])
    with pytest.raises(fusionctl.UsageError, match="both average=True and op="):
        fusion.allreduce(tf.constant([2.0]), average=True, op=fusion.Sum)


@pytest.mark.parametrize("compression", [fusion.Compression.fp16, fusion.Compression.bf16])
def test_compression_rounds_once_before_and_once_after_the_sum(compression: Any) -> None:
    x = [np.float32(1 / 3 + rank) for rank in range(SIZE())]
    wire = compression.wire.as_numpy_dtype
    expected = np.float32(wire(sum(np.float32(wire(value)) for value in x)))
    for call in both(lambda x: fusion.allreduce(x, op=fusion.Sum, compression=compression, name=compression.wire.name)):
        result = call(tf.constant(x[RANK()]))
        assert result.dtype == tf.float32
        np.testing.assert_array_equal(result, expected)


def test_compression_leaves_integers_alone() -> None:
    result = fusion.allreduce(tf.constant([100_001]), op=fusion.Max, compression=fusion.Compression.fp16, name="whole")
    np.testing.assert_array_equal(result, [100_001])


def test_grouped_allreduce_of_mixed_dtypes() -> None:
    for call in both(lambda x: fusion.grouped_allreduce([x, tf.cast(x, tf.int32), 2 * x], op=fusion.Sum, name="mixed")):
        a, b, c = call(tf.constant([1.0, 2.0, 3.0]))
        np.testing.assert_array_equal(a, np.array([1.0, 2.0, 3.0]) * SIZE())
        np.testing.assert_array_equal(b, np.array([1, 2, 3]) * SIZE())
        np.testing.assert_array_equal(c, np.array([2.0, 4.0, 6.0]) * SIZE())
    assert fusion.grouped_allreduce([]) == []


@pytest.mark.parametrize("dtype", (*NUMBERS, tf.bool))
def test_broadcast_of_every_dtype_from_every_root(dtype: tf.DType) -> None:
    for root in range(SIZE()):
        for call in both(lambda x, root=root: fusion.broadcast(x, root, name=f"broadcast.{dtype.name}.{root}")):
            result = call(values(RANK(), dtype))
            assert result.dtype == dtype
            np.testing.assert_array_equal(tf.cast(result, tf.int64), tf.cast(values(root, dtype), tf.int64))


def test_shapes_known_at_run_time_only() -> None:
    call = tf.function(
        lambda x: fusion.allreduce(x, op=fusion.Sum, name="unknown"), input_signature=[tf.TensorSpec(None, tf.float32)]
    )
    for shape in ((2,), (3,), (3,), (2, 1), (), (0, 3)):
        np.testing.assert_array_equal(call(tf.ones(shape)), np.full(shape, SIZE(), np.float32))


def test_scalars_and_empty_tensors() -> None:
    np.testing.assert_array_equal(fusion.allreduce(1.5, op=fusion.Sum, name="scalar"), 1.5 * SIZE())
    assert fusion.allreduce(tf.zeros([0, 3]), name="empty").shape == (0, 3)


def test_a_large_tensor_is_reduced_in_place() -> None:
    call = tf.function(lambda x: fusion.allreduce(x + 1, op=fusion.Sum, name="large"))
    for _ in range(3):
        np.testing.assert_array_equal(call(tf.range(1 << 20)), (np.arange(1 << 20) + 1) * SIZE())


def test_unnamed_eager_calls_may_change_dtype_shape_and_op() -> None:
    for _ in range(5):
        np.testing.assert_array_equal(fusion.allreduce(tf.constant([1, 2])), [1, 2])
        np.testing.assert_array_equal(fusion.allreduce(tf.constant([[3.0]]), op=fusion.Sum), [[3.0 * SIZE()]])
        np.testing.assert_array_equal(fusion.allreduce(tf.constant([4.0, RANK()]), op=fusion.Max), [4.0, SIZE() - 1])


def test_a_dtype_that_cannot_be_reduced() -> None:
    with pytest.raises(fusionctl.UsageError) as error:
        fusion.allreduce(tf.constant(["text"]), name="words")
    assert str(error.value) == (
        "tensor 'words' has dtype string; accepted are float16, bfloat16, float32, float64, int32, int64, int8, uint8, "
        "int16, uint16, bool: cast it"
    )


def test_a_root_that_does_not_exist() -> None:
    with pytest.raises(fusionctl.UsageError, match=f"root_rank is {SIZE()}, but the ranks are 0 to {SIZE() - 1}"):
        fusion.broadcast(tf.constant(1), SIZE())
