"""Collectives that return at once, in eager mode: a concurrent.futures.Future of what the plain form returns.

Arguments and checks are those of the plain forms.  `poll` and `synchronize`, or the future's own methods, tell whether
the result is here and wait for it, in any thread and as often as wanted; what fails on the way, fails there, with the
errors of `fusionctl.errors`.  The engine holds the tensors until it is done with them, whatever becomes of the future;
until then their name is taken.  Calls without a name are matched by their order and each negotiated anew, so name what
is called in a loop.

In a graph these are UsageErrors, as the plain forms are asynchronous there.  They have no gradient (None).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from fusionctl import _board, runtime
from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import Group, ReduceOp, checked_name
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.groups import (
    allgather_group,
    allreduce_group,
    alltoall_group,
    alltoall_splits,
    reducescatter_group,
)
from fusionctl.tensorflow.library import outside_autograph, submit, submit_rows
from fusionctl.tensorflow.names import unique_name
from fusionctl.tensorflow.ops import broadcast_request, choose_op

Result = TypeVar("Result")
Finish = Callable[[list[tf.Tensor]], Result]


@outside_autograph
def allreduce_async(
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
) -> Future[tf.Tensor]:
    """Like `allreduce`, but returns at once.  IndexedSlices come back dense."""
    name, factors = _name("allreduce", name), (prescale_factor, postscale_factor)
    return _combined(
        allreduce_group,
        _exchanged,
        name,
        [tensor],
        choose_op(name, average, op),
        factors,
        compression,
        process_set,
        _only,
    )


@outside_autograph
def grouped_allreduce_async(
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
) -> Future[list[tf.Tensor]]:
    """Like `grouped_allreduce`, but returns at once."""
    name, factors = _name("grouped_allreduce", name), (prescale_factor, postscale_factor)
    return _combined(
        allreduce_group,
        _exchanged,
        name,
        tensors,
        choose_op(name, average, op),
        factors,
        compression,
        process_set,
        list,
    )


@outside_autograph
def allgather_async(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Future[tf.Tensor]:
    """Like `allgather`, but returns at once."""
    listed = _detached([tensor])
    return _collected(listed, allgather_group(_name("allgather", name), listed), process_set, _only)


@outside_autograph
def grouped_allgather_async(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Future[list[tf.Tensor]]:
    """Like `grouped_allgather`, but returns at once."""
    listed = _detached(tensors)
    return _collected(listed, allgather_group(_name("grouped_allgather", name), listed), process_set, list)


@outside_autograph
def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Future[tf.Tensor]:
    """Like `broadcast`, but returns at once."""
    name, listed = _name("broadcast", name), _detached([tensor])
    group = Group(name, (broadcast_request(name, listed[0], root_rank, process_set),))
    return _exchanged(listed, group, process_set, _only)


@outside_autograph
def alltoall_async(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Future[Any]:
    """Like `alltoall`, but returns at once."""
    name, listed = _name("alltoall", name), _detached([tensor])
    slots, _ = submit_rows(listed, [alltoall_group(name, listed[0])], [alltoall_splits(name, splits)], process_set)

    def result(memories: list[_board.Memory]) -> Any:
        received = _tensor(memories[0], listed[0].dtype)
        return received if splits is None else (received, tf.constant(memories[0].rows, tf.int32))

    return runtime.current().wait_later(slots, result)


@outside_autograph
def reducescatter_async(
    tensor: Any,
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Future[tf.Tensor]:
    """Like `reducescatter`, but returns at once."""
    name, factors = _name("reducescatter", name), (prescale_factor, postscale_factor)
    return _combined(reducescatter_group, _collected, name, [tensor], op, factors, compression, process_set, _only)


@outside_autograph
def grouped_reducescatter_async(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Compressor = Compression.none,
    op: ReduceOp = ReduceOp.AVERAGE,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Future[list[tf.Tensor]]:
    """Like `grouped_reducescatter`, but returns at once."""
    name, factors = _name("grouped_reducescatter", name), (prescale_factor, postscale_factor)
    return _combined(reducescatter_group, _collected, name, tensors, op, factors, compression, process_set, list)


def _name(plain: str, name: str | None) -> str:
    """The call's name; UsageError in a graph."""
    if not tf.executing_eagerly():
        raise UsageError(f"{plain}_async is for eager mode; in a graph use {plain}, which is asynchronous there")
    return checked_name(name or unique_name(plain))


def _detached(tensors: Sequence[Any]) -> list[tf.Tensor]:
    """The tensors without a way for gradients, which would pass by the other ranks."""
    return [tf.stop_gradient(tf.convert_to_tensor(tensor)) for tensor in tensors]


def _combined(
    group_of: Callable[..., Group],
    send: Callable[[list[tf.Tensor], Group, ProcessSet, Finish[Result]], Future[Result]],
    name: str,
    tensors: Sequence[Any],
    op: ReduceOp,
    factors: tuple[float, float],
    compression: Compressor,
    process_set: ProcessSet,
    finish: Finish[Result],
) -> Future[Result]:
    """Tensors compressed, combined by an op in a group that `group_of` makes of them, and restored."""
    listed = _detached(tensors)
    compress = checked_compression(compression).compress
    sent = [compress(tensor) for tensor in listed]
    return send(sent, group_of(name, sent, op, *factors), process_set, _restoring(compression, listed, finish))


def _exchanged(
    tensors: list[tf.Tensor], group: Group, process_set: ProcessSet, finish: Finish[Result]
) -> Future[Result]:
    if not tensors:
        return _done(finish([]))
    slots, results = submit(tensors, [group], process_set)
    return runtime.current().wait_later(slots, lambda _: finish(results))


def _collected(
    tensors: list[tf.Tensor], group: Group, process_set: ProcessSet, finish: Finish[Result]
) -> Future[Result]:
    if not tensors:
        return _done(finish([]))
    slots, _ = submit_rows(tensors, [group], None, process_set)
    dtypes = [tensor.dtype for tensor in tensors]
    return runtime.current().wait_later(slots, lambda memories: finish([*map(_tensor, memories, dtypes)]))


def _done(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def _restoring(compression: Compressor, given: Sequence[tf.Tensor], finish: Finish[Result]) -> Finish[Result]:
    """First give what was received the dtypes of what was given."""
    dtypes = [tensor.dtype for tensor in given]
    return lambda received: finish([*map(compression.decompress, received, dtypes)])


def _tensor(memory: _board.Memory, dtype: tf.DType) -> tf.Tensor:
    """A copy of what the engine allocated."""
    values = np.frombuffer(memory, dtype.as_numpy_dtype)  # type: ignore[call-overload]
    return tf.constant(values.reshape(memory.shape))


def _only(results: list[tf.Tensor]) -> tf.Tensor:
    return results[0]
