"""All-gather, all-to-all and reduce-scatter on tensors, in eager mode and in graphs, with Horovod's arguments.

All are differentiable (`backward.py`) and collective.  Of a result's first dimension a graph knows nothing before it
runs.  The devices are Horovod's and have no effect, nor has `ignore_name_scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import (
    ANY_ROWS,
    Collective,
    Group,
    ReduceOp,
    Request,
    checked_dtype,
    checked_name,
    checked_op,
    member_names,
)
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.library import collect, outside_autograph, static_shape
from fusionctl.tensorflow.names import default_name


@outside_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The ranks' tensors one after the other along the first dimension, on every rank.

    The numbers of rows may differ, and be 0; the other dimensions and the dtype, any of `request.DTYPES`, must be
    equal.  A scalar is an error.
    """
    return grouped_allgather([tensor], name or default_name("allgather"), ignore_name_scope, process_set)[0]


@outside_autograph
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """All-gather several tensors that are announced and sent together; dtypes may differ."""
    if not tensors:
        return []
    listed = [tf.convert_to_tensor(tensor) for tensor in tensors]
    name = checked_name(name or default_name("grouped_allgather"))
    requests = tuple(
        Request(member, Collective.ALLGATHER, checked_dtype(member, tensor.dtype.name), any_rows(member, tensor))
        for member, tensor in zip(member_names(name, len(listed)), listed, strict=True)
    )
    return collect(listed, [Group(name, requests, fuses_whole=len(requests) > 1)], None, process_set)[0]


@outside_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Send to each rank its rows of the tensor, and receive this rank's rows of every rank's, in rank order.

    `splits` are the numbers of rows for each rank, which sum to all rows; then the numbers received, int32, are
    returned too.  Without them each rank gets the same number.  The other dimensions and the dtype must be equal.
    """
    tensor = tf.convert_to_tensor(tensor)
    name = checked_name(name or default_name("alltoall"))
    dtype = checked_dtype(name, tensor.dtype.name)
    request = Request(name, Collective.ALLTOALL, dtype, any_rows(name, tensor))
    counts = None if splits is None else tf.convert_to_tensor(splits)
    if counts is not None and not (counts.dtype.is_integer and counts.shape.rank in (1, None)):
        raise UsageError(f"tensor '{name}' has splits {splits!r}; give one whole number of rows for each rank")
    results, rows = collect([tensor], [Group(name, (request,))], [counts], process_set)
    return results[0] if splits is None else (results[0], tf.cast(rows[0], tf.int32))


@outside_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combine the ranks' tensors and leave each rank its share of the rows.

    Of n rows each of N ranks gets n // N, the first n % N ranks one more, in rank order.  Shapes must be equal; ops and
    dtypes are those of `allreduce`.  A scalar is an error.
    """
    return grouped_reducescatter(
        [tensor],
        device_dense,
        compression,
        op,
        name or default_name("reducescatter"),
        process_set,
        ignore_name_scope,
        prescale_factor,
        postscale_factor,
    )[0]


@outside_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce-scatter several tensors that are announced and sent together; dtypes may differ."""
    if not tensors:
        return []
    listed = [tf.convert_to_tensor(tensor) for tensor in tensors]
    sent = [compression.compress(tensor) for tensor in listed]
    name = checked_name(name or default_name("grouped_reducescatter"))
    chosen = checked_op(name, op, Collective.REDUCESCATTER)
    requests = tuple(
        Request(
            member,
            Collective.REDUCESCATTER,
            checked_dtype(member, tensor.dtype.name, chosen),
            with_rows(member, tensor),
            chosen,
            prescale_factor,
            postscale_factor,
        )
        for member, tensor in zip(member_names(name, len(sent)), sent, strict=True)
    )
    received, _ = collect(sent, [Group(name, requests, fuses_whole=len(requests) > 1)], None, process_set)
    return [compression.decompress(got, tensor.dtype) for got, tensor in zip(received, listed, strict=True)]


def with_rows(name: str, tensor: tf.Tensor) -> tuple[int, ...]:
    """The tensor's shape as far as the graph knows it; UsageError for a scalar, which has no rows."""
    shape = static_shape(tensor)
    if shape == ():
        raise UsageError(f"tensor '{name}' is a scalar; give it at least one dimension")
    return shape


def any_rows(name: str, tensor: tf.Tensor) -> tuple[int, ...]:
    """The same where the ranks may differ in the number of rows."""
    shape = with_rows(name, tensor)
    if tensor.shape.rank is None:
        raise UsageError(f"tensor '{name}' has a rank that the graph does not know; give it one with tf.ensure_shape")
    return (ANY_ROWS, *shape[1:])
