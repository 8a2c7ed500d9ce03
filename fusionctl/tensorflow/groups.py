"""What tensors are announced as: groups of checked requests, as far as their shapes are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.request import (
    ANY_ROWS,
    Collective,
    Group,
    ReduceOp,
    Request,
    checked_dtype,
    checked_op,
    member_names,
)
from fusionctl.tensorflow.library import static_shape
from fusionctl.tensorflow.sparse import dense_shape, is_sparse


def allreduce_group(
    name: str, tensors: Sequence[tf.Tensor], op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> Group:
    """Tensors of equal shapes on all ranks, combined by an op."""
    requests = allreduce_requests(name, tensors, op, prescale_factor, postscale_factor)
    return Group(name, requests, fuses_whole=len(requests) > 1)


def allreduce_requests(
    name: str, tensors: Sequence[Any], op: ReduceOp, prescale_factor: float, postscale_factor: float
) -> tuple[Request, ...]:
    """The members of such a group; those of sparse tensors (IndexedSlices) in their dense form."""
    return tuple(
        Request(
            member,
            Collective.ALLREDUCE,
            checked_dtype(member, tensor.dtype.name, op),
            dense_shape(tensor) if is_sparse(tensor) else static_shape(tensor),
            op,
            prescale_factor,
            postscale_factor,
        )
        for member, tensor in zip(member_names(name, len(tensors)), tensors, strict=True)
    )


def allgather_group(name: str, tensors: Sequence[tf.Tensor]) -> Group:
    """Tensors whose ranks may differ in the number of rows."""
    requests = tuple(
        Request(member, Collective.ALLGATHER, checked_dtype(member, tensor.dtype.name), any_rows(member, tensor))
        for member, tensor in zip(member_names(name, len(tensors)), tensors, strict=True)
    )
    return Group(name, requests, fuses_whole=len(requests) > 1)


def alltoall_group(name: str, tensor: tf.Tensor) -> Group:
    """The same for one tensor, each of whose rows goes to one rank."""
    dtype = checked_dtype(name, tensor.dtype.name)
    return Group(name, (Request(name, Collective.ALLTOALL, dtype, any_rows(name, tensor)),))


def alltoall_splits(name: str, splits: Any) -> tf.Tensor | None:
    """The rows that an all-to-all sends to each rank, if they are given; UsageError for what are no whole numbers."""
    counts = None if splits is None else tf.convert_to_tensor(splits)
    if counts is not None and not (counts.dtype.is_integer and counts.shape.rank in (1, None)):
        raise UsageError(f"tensor '{name}' has splits {splits!r}; give one whole number of rows for each rank")
    return counts


def reducescatter_group(
    name: str, tensors: Sequence[tf.Tensor], op: object, prescale_factor: float, postscale_factor: float
) -> Group:
    """Tensors of equal shapes on all ranks, combined by an op, of which each rank gets some rows."""
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
        for member, tensor in zip(member_names(name, len(tensors)), tensors, strict=True)
    )
    return Group(name, requests, fuses_whole=len(requests) > 1)


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
