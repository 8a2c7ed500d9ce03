"""Sparse gradients (tf.IndexedSlices): repeated rows are merged, then rows or a dense tensor travel, whichever is less.

How many rows the ranks have together decides, so it is agreed first.  The result is sparse either way and the same: the
rows that some rank has, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet
from fusionctl.request import ANY_ROWS, Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.library import collect, exchange, run_branch_unordered, static_shape

INDEX_BYTES = 8
"""Indices travel as int64, whatever the ranks have."""


def is_sparse(tensor: Any) -> bool:
    """Whether this is rows with their indices."""
    return isinstance(tensor, tf.IndexedSlices)


def densify(tensor: Any, shape_of: Any = None) -> tf.Tensor:
    """The tensor itself, or the dense form of IndexedSlices.

    `shape_of` is the variable whose shape completes slices that do not know their dense shape.
    """
    if not is_sparse(tensor):
        return tf.convert_to_tensor(tensor)
    shape = tensor.dense_shape if shape_of is None else tf.shape(shape_of, out_type=tensor.indices.dtype)
    dense = tf.math.unsorted_segment_sum(tensor.values, tensor.indices, shape[0])
    return dense if shape_of is None else tf.ensure_shape(dense, shape_of.shape)


def each_value(grad: Any, function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """The gradient, dense or sparse, with a function applied to its values."""
    if is_sparse(grad):
        return tf.IndexedSlices(function(grad.values), grad.indices, grad.dense_shape)
    return function(tf.convert_to_tensor(grad))


def merged(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same with each row once, in the order of their first places; indices int64; 16 bits sum in float32."""
    rows, places = tf.unique(tf.cast(slices.indices, tf.int64))
    summed = tf.cast(tf.math.unsorted_segment_sum(widened(slices.values), places, tf.size(rows)), slices.dtype)
    return tf.IndexedSlices(tf.ensure_shape(summed, [None, *slices.values.shape[1:]]), rows, slices.dense_shape)


def no_rows(like: Any) -> tf.IndexedSlices:
    """A sparse gradient of zeros for a variable."""
    dtype = tf.as_dtype(like.dtype).base_dtype
    shape = tf.shape(like, out_type=tf.int64)
    return tf.IndexedSlices(tf.zeros([0, *like.shape[1:]], dtype), tf.zeros([0], tf.int64), shape)


def dense_shape(slices: tf.IndexedSlices) -> tuple[int, ...]:
    """The shape of the dense form as far as the graph knows it, -1 for what is known at run time only."""
    known = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return (-1, *static_shape(slices.values)[1:]) if known is None else tuple(int(length) for length in known)


def count_rows(slices: tf.IndexedSlices) -> tf.Tensor:
    """Number of rows of merged slices, an int64 scalar."""
    return tf.size(slices.indices, tf.int64)


def count_request(dense: Request) -> Request:
    """What agrees on how many rows the ranks have together of a sparse tensor, and on the shape of its dense form."""
    shape = "" if -1 in dense.shape else f" {'x'.join(map(str, dense.shape))}"
    return Request(f"{dense.name} (sparse{shape})", Collective.ALLREDUCE, "int64", (), ReduceOp.SUM)


def checked_rows(name: str, slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Slices whose indices are rows of the dense form; InvalidArgumentError on this rank otherwise."""
    indices = tf.convert_to_tensor(slices.indices)
    message = f"tensor '{name}' is sparse (IndexedSlices) and has an index that is no row of it"
    checks = [tf.debugging.assert_non_negative(indices, message=message)]
    if slices.dense_shape is not None:
        rows = tf.cast(slices.dense_shape[0], indices.dtype)
        checks.append(tf.debugging.assert_less(indices, rows, message=message))
    with tf.control_dependencies([] if tf.executing_eagerly() else checks):
        return tf.IndexedSlices(slices.values, tf.identity(indices), slices.dense_shape)


def check_sparse_op(name: str, op: ReduceOp) -> None:
    """UsageError unless rows that a rank lacks count as zeros."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"tensor '{name}' is sparse (IndexedSlices) and has op {op.name.capitalize()}; sparse ones take Average or "
            "Sum: convert it with tf.convert_to_tensor"
        )


def reduce_rows(
    name: str, slices: tf.IndexedSlices, total: Any, dense: Request, process_set: ProcessSet
) -> tf.IndexedSlices:
    """The sum or mean over the ranks of merged slices that have `total` rows together; `name` is the group's.

    `dense` is the all-reduce of the dense form, which is chosen where the all-gather of the rows would send more bytes.
    The result has each row once; rows that are zeros may be left out.
    """
    sent, indices = slices.values, slices.indices

    def by_gather() -> list[tf.Tensor]:
        rows = Request(f"{dense.name} (values)", Collective.ALLGATHER, dense.dtype, (ANY_ROWS, *static_shape(sent)[1:]))
        places = Request(f"{dense.name} (indices)", Collective.ALLGATHER, "int64", (ANY_ROWS,))
        group = Group(f"{name} (rows)", (rows, places), fuses_whole=True)
        (values, gathered), _ = collect([sent, indices], [group], None, process_set)
        n = process_set.size() if dense.op is ReduceOp.AVERAGE else 1
        summed = merged(tf.IndexedSlices(widened(values), gathered))
        scaled = summed.values * tf.constant(dense.prescale * dense.postscale / n, summed.dtype)
        return [tf.cast(scaled, sent.dtype), summed.indices]

    def by_allreduce() -> list[tf.Tensor]:
        whole = tf.math.unsorted_segment_sum(sent, indices, slices.dense_shape[0])
        whole.set_shape([None if length == -1 else length for length in dense.shape])
        reduced = exchange([whole], [Group(f"{name} (dense)", (dense,))], process_set)[0]
        touched = tf.reduce_any(tf.not_equal(reduced, 0), axis=list(range(1, len(dense.shape))))
        present = tf.where(touched)[:, 0]
        return [tf.gather(reduced, present), present]

    if slices.dense_shape is None:
        values, rows = by_gather()
    else:
        row = tf.cast(tf.reduce_prod(tf.shape(sent)[1:]) * sent.dtype.size, tf.int64)
        gathered_bytes = tf.cast(total, tf.int64) * (row + INDEX_BYTES)
        dense_bytes = 2 * tf.cast(slices.dense_shape[0], tf.int64) * row
        values, rows = tf.cond(gathered_bytes < dense_bytes, by_gather, by_allreduce)
        run_branch_unordered(values)
    return tf.IndexedSlices(tf.ensure_shape(values, [None, *sent.shape[1:]]), rows, slices.dense_shape)


def widened(values: tf.Tensor) -> tf.Tensor:
    """The values in a type that they can be summed in: 16 bits in float32."""
    return tf.cast(values, tf.float32) if values.dtype.size < 4 else values
