"""The law: sparse gradients are reduced as their dense forms are, whichever form travels, and come back sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion
from fusionctl.tensorflow.gradients import reduce_gradients

SIZES = (1, 2, 3, 4)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
WIDE = 1000
"""Rows of a table whose gradient travels as rows; one of FEW rows travels dense."""
FEW = 4


def rows_of(rank: int, count: int) -> list[int]:
    """The rows that a rank looks up: some twice, some that other ranks have too, and as many again as its rank."""
    return [1, 1, 2 + rank % 2, *range(rank % count, min(rank % count + rank, count))]


def table_of(name: str, count: int, dtype: str = "float32") -> tf.Variable:
    return tf.Variable(tf.ones([count, 2], dtype), name=name)


def gradient_of(table: tf.Variable, rows: list[int], **options: Any) -> Any:
    """Of the sum of looked up rows, each times one more than this rank."""
    with fusion.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = tf.reduce_sum(tf.gather(table, tf.constant(rows, tf.int32)) * tf.cast(fusion.rank() + 1, table.dtype))
    return tape.gradient(loss, table)


def wanted(count: int, rows: Callable[[int, int], list[int]] = rows_of) -> np.ndarray:
    total = np.zeros([count, 2])
    for rank in range(fusion.size()):
        np.add.at(total, rows(rank, count), rank + 1)
    return total


def check(slices: Any, dense: np.ndarray, rtol: float = 1e-6) -> None:
    assert isinstance(slices, tf.IndexedSlices)
    indices = slices.indices.numpy().tolist()
    assert len(set(indices)) == len(indices)
    np.testing.assert_allclose(tf.convert_to_tensor(slices).numpy().astype(float), dense, rtol=rtol)


def moved(call: Callable[[], Any]) -> tuple[Any, int]:
    before = fusionctl.counters()["bytes_sent"]
    return call(), fusionctl.counters()["bytes_sent"] - before


@WRAPS
@pytest.mark.parametrize("count", [FEW, WIDE])
@pytest.mark.parametrize(
    ("options", "factor", "rtol"),
    [
        ({"op": fusion.Sum}, 1.0, 1e-6),
        ({}, None, 1e-6),
        ({"gradient_predivide_factor": 4.0}, None, 1e-6),
        ({"compression": fusion.Compression.fp16}, None, 1e-3),
        ({"groups": 2, "op": fusion.Sum}, 1.0, 1e-6),
    ],
)
def test_tape(wrap: Any, count: int, options: dict[str, Any], factor: float | None, rtol: float) -> None:
    table = table_of(f"table {count}", count)
    call = wrap(lambda: gradient_of(table, rows_of(fusion.rank(), count), **options))
    for _ in range(2):
        check(call(), wanted(count) * (factor or 1 / fusion.size()), rtol)


@WRAPS
def test_sparse_as_dense(wrap: Any) -> None:
    table = table_of("as dense", WIDE)
    result = wrap(lambda: gradient_of(table, rows_of(fusion.rank(), WIDE), sparse_as_dense=True, op=fusion.Sum))()
    assert isinstance(result, tf.Tensor)
    np.testing.assert_allclose(result, wanted(WIDE))


@WRAPS
def test_repeated_rows_travel_once_and_a_few_rows_do_not_cost_the_table(wrap: Any) -> None:
    table = table_of("bytes", WIDE)
    repeated = wrap(lambda: gradient_of(table, [3] * 500))
    repeated()
    result, sent = moved(repeated)
    check(result, np.eye(1, WIDE, 3).T * np.ones(2) * 500 * np.mean(range(1, fusion.size() + 1)))
    assert sent < 300 * fusion.size()  # the table has 8000 bytes


@WRAPS
def test_many_rows_travel_dense(wrap: Any) -> None:
    table = tf.Variable(tf.ones([WIDE, 2]), name="all rows")
    call = wrap(lambda: gradient_of(table, list(range(WIDE)), op=fusion.Sum))
    call()
    result, sent = moved(call)
    check(result, wanted(WIDE, lambda rank, count: list(range(count))))
    assert sent < 16 * WIDE * (fusion.size() - 1) / fusion.size() + 300 * fusion.size()  # rows: 16 * WIDE to each rank


@WRAPS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("count", [FEW, WIDE])
def test_sums_of_16_bits_are_rounded_once(wrap: Any, dtype: str, count: int) -> None:
    table = table_of(f"{dtype} {count}", count, dtype)
    ones = [1] * 300  # a sum in bfloat16 would stay at 256
    check(wrap(lambda: gradient_of(table, ones))(), wanted(count, lambda rank, _: ones) / fusion.size(), 1e-2)


@WRAPS
@pytest.mark.parametrize("count", [FEW, WIDE])
def test_ranks_without_rows(wrap: Any, count: int) -> None:
    def some(rank: int, count: int) -> list[int]:
        return [] if rank == 0 else rows_of(rank, count)

    table = table_of("no rows", count)
    check(wrap(lambda: gradient_of(table, some(fusion.rank(), count), op=fusion.Sum))(), wanted(count, some))


@WRAPS
def test_several_tables_and_dense_variables(wrap: Any) -> None:
    tables = [table_of(f"several {count}", count) for count in (FEW, WIDE, 2 * WIDE)]
    weight = tf.Variable([1.0, 2.0], name="weight beside tables")

    def step() -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum) as tape:
            found = [tf.gather(table, rows_of(fusion.rank(), int(table.shape[0]))) for table in tables]
            loss = tf.add_n([tf.reduce_sum(each * weight) for each in found]) * (fusion.rank() + 1.0)
        return tape.gradient(loss, {"tables": tables, "weight": weight})

    call = wrap(step)
    for _ in range(2):
        grads = call()
        for table, grad in zip(tables, grads["tables"], strict=True):
            check(grad, wanted(int(table.shape[0])) * [1.0, 2.0])
        np.testing.assert_allclose(grads["weight"], sum(wanted(int(table.shape[0])).sum(0) for table in tables))


@WRAPS
def test_dynamic_batches(wrap: Any) -> None:
    table = table_of("dynamic", WIDE)

    def step(rows: tf.Tensor) -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum) as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        return tape.gradient(loss, table)

    call = wrap(step, input_signature=[tf.TensorSpec([None], tf.int64)]) if wrap is tf.function else step
    for count in (3, 1, 5):
        ones = list(range(count + fusion.rank()))
        dense = sum(np.eye(WIDE)[: count + rank].sum(0) for rank in range(fusion.size()))[:, None] * np.ones(2)
        check(call(tf.constant(ones, tf.int64)), dense)


def test_a_rank_without_a_gradient_in_eager_mode() -> None:
    table, other = table_of("missing", WIDE), tf.Variable(1.0, name="used")
    last = fusion.size() - 1
    with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum) as tape:
        loss = other * 1.0
        if fusion.rank() != last or last == 0:
            loss += tf.reduce_sum(tf.gather(table, [1, 1]))
    grad, _ = tape.gradient(loss, [table, other])
    check(grad, np.eye(1, WIDE, 1).T * np.ones(2) * 2 * max(last, 1))


def test_a_rank_with_a_dense_gradient_in_eager_mode() -> None:
    table = table_of("dense somewhere", FEW)
    with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum) as tape:
        first = fusion.rank() == 0
        loss = tf.reduce_sum(table * 3.0 if first else tf.gather(table, [1, 1]))
    dense = np.full([FEW, 2], 3.0)
    dense[1] += 2 * (fusion.size() - 1)
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(loss, table)), dense)


def test_a_rank_without_a_gradient_in_a_graph_is_told() -> None:
    if fusion.size() == 1:
        return
    table, other = table_of("missing in a graph", WIDE), tf.Variable(1.0, name="used in a graph")

    @graph
    def step(sparse_as_dense: bool) -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum, sparse_as_dense=sparse_as_dense) as tape:
            loss = other * 1.0
            if fusion.rank() != 0:
                loss += tf.reduce_sum(tf.gather(table, [1, 1]))
        return tape.gradient(loss, [table, other])

    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"'missing in a graph \(sparse 1000x2\)'.* but not on rank 0"
    ):
        step(False)
    np.testing.assert_allclose(step(True)[0][1], [2.0 * (fusion.size() - 1)] * 2)


@graph
def reduce(*slices: tf.IndexedSlices, **options: Any) -> Any:
    return fusion.grouped_allreduce(list(slices), name="slices", **options)


def slices_of(rows: list[int], values: float, shape: list[int] | None) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.fill([len(rows), 2], values), tf.constant(rows), None if shape is None else tf.constant(shape)
    )


@pytest.mark.parametrize("shape", [[FEW, 2], [WIDE, 2]])
def test_allreduce(shape: list[int]) -> None:
    mine = slices_of(rows_of(fusion.rank(), shape[0]), fusion.rank() + 1.0, shape)
    check(fusion.allreduce(mine, name=f"slices {shape}"), wanted(shape[0]) / fusion.size())
    check(fusion.allreduce(mine, op=fusion.Sum, prescale_factor=2.0), wanted(shape[0]) * 2)


def test_allreduce_without_a_dense_shape() -> None:
    got = fusion.allreduce(slices_of([1, fusion.rank()], 1.0, None), op=fusion.Sum, name="shapeless")
    assert got.dense_shape is None
    totals = dict(zip(got.indices.numpy().tolist(), got.values.numpy()[:, 0].tolist(), strict=True))
    assert totals == {r: (fusion.size() if r == 1 else 0) + (r < fusion.size()) for r in {1, *range(fusion.size())}}


def test_grouped_allreduce_of_sparse_and_dense_tensors() -> None:
    mine = slices_of(rows_of(fusion.rank(), WIDE), fusion.rank() + 1.0, [WIDE, 2])
    tensors = [tf.ones([3], tf.float64), mine, tf.constant(5, tf.int32), mine]
    dense, first, whole, second = fusion.grouped_allreduce(tensors, name="mixed", op=fusion.Sum)
    np.testing.assert_allclose(dense, np.full(3, fusion.size()))
    assert int(whole) == 5 * fusion.size()
    check(first, wanted(WIDE))
    check(second, wanted(WIDE))


@WRAPS
def test_dense_shapes_that_differ(wrap: Any) -> None:
    if fusion.size() > 1:
        mine = slices_of([0], 1.0, [FEW if fusion.rank() == 0 else WIDE, 2])
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'differing \(sparse 4x2\)' .* not on rank"):
            wrap(lambda: fusion.allreduce(mine, name="differing"))()


@WRAPS
@pytest.mark.parametrize("index", [-1, FEW])
def test_an_index_that_is_no_row(wrap: Any, index: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"no row.* is sparse .* an index that is no row"):
        wrap(lambda: fusion.allreduce(slices_of([index], 1.0, [FEW, 2]), name="no row"))()


def test_ops_that_zeros_would_poison_are_refused() -> None:
    for op in (fusion.Min, fusion.Max, fusion.Product):
        with pytest.raises(fusionctl.UsageError, match=r"tensor 'x' is sparse \(IndexedSlices\) and has op"):
            fusion.allreduce(slices_of([0], 1.0, [FEW, 2]), op=op, name="x")


def test_a_process_set() -> None:
    pair = fusion.add_process_set([0, fusion.size() - 1]) if fusion.size() > 2 else fusion.global_process_set
    table = table_of("of a set", WIDE)
    if pair.included():
        dense = np.eye(1, WIDE, 1).T * np.ones(2) * (2.0 + fusion.size() - 1) / pair.size() * 2
        if fusion.size() == 1:
            dense = dense / 2
        check(gradient_of(table, [1, 1], process_set=pair), dense)
    if pair is not fusion.global_process_set:
        fusion.remove_process_set(pair)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("make", [lambda: keras.optimizers.Adam(0.1), lambda: keras.optimizers.SGD(0.1, 0.9)])
def test_training_is_that_of_one_process(make: Callable[[], Any], passes: int) -> None:
    def trained(optimizer: Any, rows: list[list[int]], as_dense: bool) -> np.ndarray:
        table = tf.Variable(tf.reshape(tf.range(2.0 * WIDE) / WIDE, [WIDE, 2]), name="trained_table")

        @graph
        def step(rows: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.gather(table, rows)))
            grad = tape.gradient(loss, table)  # Keras squares repeated rows one by one unless it is dense
            optimizer.apply([tf.convert_to_tensor(grad) if as_dense else grad], [table])

        for each in rows:
            step(tf.constant(each))
        return np.asarray(table.numpy())

    steps = [[[(7 * s + r) % 50, (s * r) % 50, 3] for r in range(fusion.size())] for s in range(4 * passes)]
    wrapped = fusion.DistributedOptimizer(
        make(), backward_passes_per_step=passes, average_aggregated_gradients=True, name=f"sparse {passes}"
    )
    mine = trained(wrapped, [step[fusion.rank()] for step in steps], False)
    alone = np.reshape(steps, [4, -1]).tolist()
    np.testing.assert_allclose(mine, trained(make(), alone, True), rtol=1e-5, atol=1e-6)


def test_sets_of_no_gradients() -> None:
    assert reduce_gradients([None], [tf.Variable(1.0, name="nothing")], name="none at all") == [None]
