"""Collectives on tensors, in eager mode and in graphs, with Horovod's names and arguments.

All are differentiable (`backward.py`) and collective: every rank calls them with equal names, dtypes, shapes and ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import (
    Collective,
    Group,
    ReduceOp,
    Request,
    checked_dtype,
    checked_name,
    checked_op,
    checked_root,
)
from fusionctl.tensorflow.backward import exchange_nonlinear, is_adjoint
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.groups import allreduce_requests
from fusionctl.tensorflow.library import exchange, outside_autograph, static_shape
from fusionctl.tensorflow.names import default_name
from fusionctl.tensorflow.sparse import (
    check_sparse_op,
    checked_rows,
    count_request,
    count_rows,
    densify,
    each_value,
    is_sparse,
    merged,
    reduce_rows,
)

NONLINEAR = (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)


@outside_autograph
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine the ranks' tensors element by element; the result has the tensor's shape and dtype on every rank.

    `op` is Average unless given; `average` is its older spelling.  Any dtype of `request.DTYPES`: float16 and bfloat16
    accumulate in float32, an average of integers is the exact mean, truncated toward zero, bool takes Min (and), Max
    (or) and Product.  Unnamed calls in graphs are matched by the order of the trace, so name what the ranks may trace
    in different orders.  The devices are Horovod's and have no effect, nor has `ignore_name_scope`: names never contain
    the scope.

    IndexedSlices, for Average and Sum, come back as IndexedSlices with each row once, all ranks' rows; they travel as
    rows or as a dense tensor, whichever is less.  They must be such on all ranks.
    """
    return grouped_allreduce(
        [tensor],
        average,
        device_dense,
        device_sparse,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        name or default_name("allreduce", process_set),
        process_set,
    )[0]


@outside_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """All-reduce several tensors as one fused group; dtypes may differ, and some be sparse.  Arguments: `allreduce`."""
    if isinstance(tensors, dict) or not hasattr(tensors, "__len__"):
        raise UsageError(f"grouped_allreduce takes a list of tensors, not {type(tensors).__name__}")
    if not len(tensors):
        return []
    name = checked_name(name or default_name("grouped_allreduce", process_set))
    chosen = choose_op(name, average, op)
    listed = [_prepared(name, tensor, chosen) for tensor in tensors]
    compress = checked_compression(compression).compress
    sent = [each_value(tensor, compress) for tensor in listed]
    dense = allreduce_requests(name, sent, chosen, prescale_factor, postscale_factor)
    requests = [count_request(each) if is_sparse(x) else each for each, x in zip(dense, sent, strict=True)]
    group = Group(name, tuple(requests), fuses_whole=len(requests) > 1)
    first = [count_rows(tensor) if is_sparse(tensor) else tensor for tensor in sent]
    adjoint = chosen in NONLINEAR and is_adjoint() and all(tensor.dtype.is_floating for tensor in first)
    received = exchange_nonlinear(first, group, process_set) if adjoint else exchange(first, [group], process_set)
    whole = [
        reduce_rows(each.name, tensor, got, each, process_set) if is_sparse(tensor) else got
        for each, tensor, got in zip(dense, sent, received, strict=True)
    ]
    return [
        each_value(got, partial(compression.decompress, dtype=tensor.dtype))
        for got, tensor in zip(whole, listed, strict=True)
    ]


def _prepared(name: str, tensor: Any, op: ReduceOp) -> Any:
    """The tensor, or slices with each row once, or dense for Adasum."""
    if not is_sparse(tensor):
        return tf.convert_to_tensor(tensor)
    if op is ReduceOp.ADASUM:
        return densify(tensor)
    check_sparse_op(name, op)
    return merged(checked_rows(name, tensor))


@outside_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The root rank's tensor on every rank; shape and dtype must be equal everywhere, any dtype of `request.DTYPES`."""
    tensor = tf.convert_to_tensor(tensor)
    name = checked_name(name or default_name("broadcast", process_set))
    request = broadcast_request(name, tensor, root_rank, process_set)
    return exchange([tensor], [Group(name, (request,))], process_set)[0]


def broadcast_request(
    name: str, tensor: tf.Tensor, root_rank: int, process_set: ProcessSet = global_process_set
) -> Request:
    """The request of a broadcast, checked."""
    root = checked_root(root_rank, process_set.ranks)
    checked_dtype(name, tensor.dtype.name)
    return Request(name, Collective.BROADCAST, tensor.dtype.name, static_shape(tensor), root=root)


def choose_op(name: str, average: bool | None, op: ReduceOp | None) -> ReduceOp:
    """The op of a tensor's all-reduce that two spellings of it mean."""
    if average is not None and op is not None:
        raise UsageError(f"tensor '{name}' has both average={average} and op={op!r}; pass op only")
    if average is not None:
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    return ReduceOp.AVERAGE if op is None else checked_op(name, op)
