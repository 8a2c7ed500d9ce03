"""All-gather, all-to-all and reduce-scatter on tensors, in eager mode and in graphs, with Horovod's arguments.

All are differentiable (`backward.py`) and collective.  Of a result's first dimension a graph knows nothing before it
runs.  The devices are Horovod's and have no effect, nor has `ignore_name_scope`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import ReduceOp, checked_name
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.groups import allgather_group, alltoall_group, alltoall_splits, reducescatter_group
from fusionctl.tensorflow.library import collect, outside_autograph
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
    return grouped_allgather([tensor], name or default_name("allgather", process_set), ignore_name_scope, process_set)[
        0
    ]


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
    name = checked_name(name or default_name("grouped_allgather", process_set))
    return collect(listed, [allgather_group(name, listed)], None, process_set)[0]


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
    name = checked_name(name or default_name("alltoall", process_set))
    group = alltoall_group(name, tensor)
    results, rows = collect([tensor], [group], [alltoall_splits(name, splits)], process_set)
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
        name or default_name("reducescatter", process_set),
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
    compress = checked_compression(compression).compress
    sent = [compress(tensor) for tensor in listed]
    name = checked_name(name or default_name("grouped_reducescatter", process_set))
    group = reducescatter_group(name, sent, op, prescale_factor, postscale_factor)
    received, _ = collect(sent, [group], None, process_set)
    return [compression.decompress(got, tensor.dtype) for got, tensor in zip(received, listed, strict=True)]
