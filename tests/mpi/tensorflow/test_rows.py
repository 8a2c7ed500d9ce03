"""All-gather, all-to-all and reduce-scatter of tensors, eager and in graphs, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion
from fusionctl import runtime

RANK = fusionctl.rank
SIZE = fusionctl.size
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16)


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [function, tf.function(function, autograph=False)]


def rows_of(rank: int, count: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    return tf.cast(tf.reshape(tf.range(2 * count) + rank, [count, 2]) % 7, dtype)


def shares(rows: int) -> list[int]:
    return [rows // SIZE() + (rank < rows % SIZE()) for rank in range(SIZE())]


@pytest.mark.parametrize("dtype", (*DTYPES, tf.bool))
def test_allgather_of_every_dtype_and_unequal_rows(dtype: tf.DType) -> None:
    expected = tf.concat([rows_of(rank, rank, dtype) for rank in range(SIZE())], 0)
    for call in both(lambda x: fusion.allgather(x, name=f"allgather.{dtype.name}")):
        result = call(rows_of(RANK(), RANK(), dtype))
        assert result.dtype == dtype
        np.testing.assert_array_equal(tf.cast(result, tf.int64), tf.cast(expected, tf.int64))


def test_graphs_know_all_but_the_first_dimension() -> None:
    @graph
    def call(x: tf.Tensor) -> tf.Tensor:
        results = [fusion.allgather(x), fusion.alltoall(x), fusion.reducescatter(x)]
        assert [result.shape.as_list() for result in results] == [[None, 3]] * 3
        return results[0]

    np.testing.assert_array_equal(call(tf.ones([SIZE(), 3])), np.ones((SIZE() ** 2, 3)))


def test_rows_known_at_run_time_only() -> None:
    spec = tf.TensorSpec([None, None])
    call = tf.function(lambda x: fusion.allgather(x, name="dynamic"), input_signature=[spec])

    for step in range(3):
        assert call(tf.ones([RANK() + step, 2 + step])).shape == (sum(range(SIZE())) + step * SIZE(), 2 + step)


def test_grouped_forms_mix_dtypes() -> None:
    for call in both(lambda a, b: fusion.grouped_allgather([a, b], name="ga")):
        a, b = call(tf.fill([RANK(), 2], 1.5), tf.constant([RANK()]))
        np.testing.assert_array_equal(a, np.full((sum(range(SIZE())), 2), 1.5))
        np.testing.assert_array_equal(b, range(SIZE()))
    for call in both(lambda a, b: fusion.grouped_reducescatter([a, b], op=fusion.Sum, name="gr")):
        a, b = call(tf.ones([SIZE()]), tf.range(SIZE()))
        np.testing.assert_array_equal(a, [SIZE()])
        np.testing.assert_array_equal(b, [SIZE() * RANK()])
    assert fusion.grouped_allgather([]) == fusion.grouped_reducescatter([]) == []


def test_alltoall_tells_how_many_rows_came_from_each_rank() -> None:
    sent = [[(sender + receiver) % 3 for receiver in range(SIZE())] for sender in range(SIZE())]
    for call in both(lambda x, splits: fusion.alltoall(x, splits, name="alltoall")):
        received, counts = call(rows_of(RANK(), sum(sent[RANK()])), tf.constant(sent[RANK()]))
        parts = [tf.split(rows_of(rank, sum(splits)), splits)[RANK()] for rank, splits in enumerate(sent)]
        np.testing.assert_array_equal(received, tf.concat(parts, 0))
        assert counts.dtype == tf.int32
        np.testing.assert_array_equal(counts, [splits[RANK()] for splits in sent])


def test_wrong_splits_are_an_error_where_they_are_known() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="has 2 rows, but its splits sum to 3"):
        fusion.alltoall(tf.ones([2]), [3] + [0] * (SIZE() - 1), name="wrong")
    with pytest.raises(fusionctl.UsageError, match="one whole number of rows for each rank"):
        fusion.alltoall(tf.ones([2]), [0.5], name="wrong")
    with pytest.raises(fusionctl.UsageError, match="is a scalar"):
        fusion.allgather(tf.constant(1.0), name="scalar")


@pytest.mark.parametrize("dtype", DTYPES)
def test_reducescatter_is_a_share_of_the_allreduce(dtype: tf.DType) -> None:
    for op in (fusion.Average, fusion.Sum, fusion.Max):
        for call in both(
            lambda x, op=op: (fusion.allreduce(x, op=op, name="w"), fusion.reducescatter(x, op=op, name="s"))
        ):
            whole, mine = call(rows_of(RANK(), 5, dtype))
            start = sum(shares(5)[: RANK()])
            np.testing.assert_array_equal(mine, whole[start : start + shares(5)[RANK()]])


def test_compression_of_a_reducescatter() -> None:
    mine = fusion.reducescatter(tf.ones([SIZE(), 2]), compression=fusion.Compression.fp16, op=fusion.Sum, name="fp16")
    assert mine.dtype == tf.float32
    np.testing.assert_array_equal(mine, [[SIZE(), SIZE()]])


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["horovod", "adjoint"])
def convention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(runtime.current(), "config", replace(runtime.current().config, gradients=request.param))
    yield request.param


def gradient(forward: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, weight: float) -> Any:
    """Of this rank's loss: the sum of the squared results times a weight that differs by rank."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = weight * tf.reduce_sum(forward(x) ** 2)
    return tape.gradient(loss, x)


def check(name: str, forward: Any, whole: Any, factor: float, rows: Callable[[int], int]) -> None:
    """The gradient, times what the convention adds, is that of one programme that computes every rank's loss."""
    xs = [tf.Variable(rows_of(rank, rows(rank), tf.float64) + 1) for rank in range(SIZE())]
    with tf.GradientTape() as tape:
        losses = [(rank + 1.0) * tf.reduce_sum(result**2) for rank, result in enumerate(whole(xs))]
        total = tf.add_n(losses)
    expected = tape.gradient(total, xs[RANK()])
    for call in both(lambda x: gradient(forward, x, RANK() + 1.0)):
        for _ in range(2):
            np.testing.assert_allclose(call(tf.convert_to_tensor(xs[RANK()])), factor * expected, rtol=1e-12)


def split_all(xs: list[tf.Tensor]) -> list[list[tf.Tensor]]:
    return [tf.split(x, shares(int(x.shape[0]))) for x in xs]


def test_allgather_gradient(convention: str) -> None:
    factor = 1.0 if convention == "adjoint" else 1 / SIZE()
    check(
        "ag", lambda x: fusion.allgather(x, name="ag"), lambda xs: [tf.concat(xs, 0)] * SIZE(), factor, lambda r: r + 1
    )


def test_alltoall_gradient(convention: str) -> None:
    def whole(xs: list[tf.Tensor]) -> list[tf.Tensor]:
        parts = [tf.split(x, [rank + 1] * SIZE()) for rank, x in enumerate(xs)]
        return [tf.concat([part[rank] for part in parts], 0) for rank in range(SIZE())]

    splits = [RANK() + 1] * SIZE()
    check("a2a", lambda x: fusion.alltoall(x, splits, name="a2a")[0], whole, 1.0, lambda rank: SIZE() * (rank + 1))


@pytest.mark.parametrize("op", [fusion.Sum, fusion.Average])
def test_reducescatter_gradient(convention: str, op: fusionctl.ReduceOp) -> None:
    def whole(xs: list[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.add_n([part[rank] for part in split_all(xs)]) * (3.0 / n) for rank in range(SIZE())]

    n = SIZE() if op is fusion.Average else 1
    factor = 1.0 if convention == "adjoint" else SIZE()
    forward = lambda x: fusion.reducescatter(x, op=op, name=f"rs.{op}", postscale_factor=3.0)  # noqa: E731
    check("rs", forward, whole, factor, lambda rank: 2 * SIZE() + 1)


@pytest.mark.parametrize("op", [fusion.Min, fusion.Max, fusion.Product])
def test_adjoint_of_nonlinear_ops(convention: str, op: fusionctl.ReduceOp) -> None:
    whole = {fusion.Min: tf.reduce_min, fusion.Max: tf.reduce_max, fusion.Product: tf.reduce_prod}[op]
    if convention == "adjoint":
        forward = lambda x: fusion.allreduce(x, op=op, name=f"nonlinear.{op}")  # noqa: E731
        check("nl", forward, lambda xs: [whole(tf.stack(xs), 0)] * SIZE(), 1.0, lambda rank: 3)


def test_broadcast_gradient(convention: str) -> None:
    root = SIZE() - 1
    factor = 1.0 if convention == "adjoint" else 1 / SIZE()
    forward = lambda x: fusion.broadcast(x, root, name="broadcast")  # noqa: E731

    def whole(xs: list[tf.Tensor]) -> list[tf.Tensor]:
        return [xs[root] + 0 * tf.add_n(xs)] * SIZE()

    check("bc", forward, whole, factor, lambda rank: 3)
