"""The NumPy API: the engine without TensorFlow.

Every function is collective: all ranks call it with the same name, dtype, shape and op, in any order.  A call without
a name is matched by the order of such calls.  Names let the engine reuse what was negotiated, so name what is called
in a loop.

`process_set` limits a call to some of the ranks, which alone make it; `root_rank` still counts among all.

The `_async` forms return at once a concurrent.futures.Future of what the plain ones return; leave an array alone until
its future is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fusionctl import runtime
from fusionctl.calls import Array, Call
from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import Collective, ReduceOp, checked_root, checked_splits

_unnamed = itertools.count()


def allreduce(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: Array | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Combine the ranks' arrays element by element; returns an array of the same shape and dtype on every rank.

    The result is a new array, or `out`, which may be `array` itself.  Any dtype of `request.DTYPES`: float16 and
    bfloat16 accumulate in float32, an average of integers is the exact mean, truncated toward zero, bool takes Min
    (and), Max (or) and Product.  Raises MismatchError on every rank when shape, dtype or op differ.
    """
    outs = None if out is None else [out]
    factors = (prescale_factor, postscale_factor)
    return Call(Collective.ALLREDUCE, [array], name or "allreduce", op, *factors, outs, process_set=process_set).wait()[
        0
    ]


def grouped_allreduce(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """All-reduce several arrays that are announced and fused together; dtypes may differ."""
    factors = (prescale_factor, postscale_factor)
    return Call(Collective.ALLREDUCE, arrays, name or "grouped_allreduce", op, *factors, process_set=process_set).wait()


def allreduce_async(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Future[Array]:
    """Like `allreduce`, but returns at once."""
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.ALLREDUCE, [array], name or _unique("allreduce"), op, *factors, process_set=process_set
    ).later(_only)


def grouped_allreduce_async(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Future[list[Array]]:
    """Like `grouped_allreduce`, but returns at once."""
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.ALLREDUCE, arrays, name or _unique("grouped_allreduce"), op, *factors, process_set=process_set
    ).later(list)


def allgather(array: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The ranks' arrays one after the other along the first dimension, on every rank.

    The numbers of rows may differ, and be 0; the other dimensions and the dtype must be equal.  A scalar is an error.
    """
    return Call(Collective.ALLGATHER, [array], name or "allgather", process_set=process_set).wait()[0]


def grouped_allgather(
    arrays: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """All-gather several arrays that are announced and sent together; dtypes may differ."""
    return Call(Collective.ALLGATHER, arrays, name or "grouped_allgather", process_set=process_set).wait()


def allgather_async(
    array: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Future[Array]:
    """Like `allgather`, but returns at once."""
    return Call(Collective.ALLGATHER, [array], name or _unique("allgather"), process_set=process_set).later(_only)


def grouped_allgather_async(
    arrays: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Future[list[Array]]:
    """Like `grouped_allgather`, but returns at once."""
    return Call(Collective.ALLGATHER, arrays, name or _unique("grouped_allgather"), process_set=process_set).later(list)


def alltoall(
    array: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send to each rank its rows of the array, and receive this rank's rows of every rank's, in rank order.

    `splits` are the numbers of rows for each rank, which sum to all rows; then the numbers received, int32, are
    returned too.  Without them each rank gets the same number.  The other dimensions and the dtype must be equal.
    """
    call = Call(
        Collective.ALLTOALL, [array], name or "alltoall", splits=checked_splits(splits), process_set=process_set
    )
    return _with_splits(call, call.wait(), splits)


def alltoall_async(
    array: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Future[Any]:
    """Like `alltoall`, but returns at once."""
    call = Call(
        Collective.ALLTOALL,
        [array],
        name or _unique("alltoall"),
        splits=checked_splits(splits),
        process_set=process_set,
    )
    return call.later(lambda results: _with_splits(call, results, splits))


def reducescatter(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Combine the ranks' arrays and leave each rank its share of the rows.

    Of n rows each of N ranks gets n // N, the first n % N ranks one more, in rank order.  Shapes must be equal; ops and
    dtypes are those of `allreduce`.  A scalar is an error.
    """
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.REDUCESCATTER, [array], name or "reducescatter", op, *factors, process_set=process_set
    ).wait()[0]


def grouped_reducescatter(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce-scatter several arrays that are announced and sent together; dtypes may differ."""
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.REDUCESCATTER, arrays, name or "grouped_reducescatter", op, *factors, process_set=process_set
    ).wait()


def reducescatter_async(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Future[Array]:
    """Like `reducescatter`, but returns at once."""
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.REDUCESCATTER, [array], name or _unique("reducescatter"), op, *factors, process_set=process_set
    ).later(_only)


def grouped_reducescatter_async(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Future[list[Array]]:
    """Like `grouped_reducescatter`, but returns at once."""
    factors = (prescale_factor, postscale_factor)
    return Call(
        Collective.REDUCESCATTER,
        arrays,
        name or _unique("grouped_reducescatter"),
        op,
        *factors,
        process_set=process_set,
    ).later(list)


def broadcast(
    array: ArrayLike, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The root rank's array on every rank; shape and dtype must be equal everywhere, any dtype of `request.DTYPES`."""
    root = checked_root(root_rank, process_set.ranks)
    return Call(Collective.BROADCAST, [array], name or "broadcast", root=root, process_set=process_set).wait()[0]


def broadcast_async(
    array: ArrayLike, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Future[Array]:
    """Like `broadcast`, but returns at once."""
    root = checked_root(root_rank, process_set.ranks)
    return Call(Collective.BROADCAST, [array], name or _unique("broadcast"), root=root, process_set=process_set).later(
        _only
    )


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Return once every rank has called it."""
    Call(Collective.BARRIER, [np.zeros(0, np.uint8)], name or "barrier", process_set=process_set).wait()


def join() -> int:
    """Say that this rank has no more data, and take part without any in what the others do, until all have joined.

    Returns the rank that joined last, whose state is the newest.  An average divides by the ranks that still have data;
    Sum, Min, Max, Product and Adasum go on as if this rank were not there, gathers get no rows from it.  A broadcast
    from it fails.  UsageError while a call of this rank is in flight.
    """
    return runtime.current().join()


def poll(handle: Future[Any]) -> bool:
    """Whether the result of an `_async` call is here, or its error."""
    return _checked_handle(handle).done()


def synchronize(handle: Future[Any]) -> Any:
    """The result of an `_async` call, awaited; raises its error."""
    return _checked_handle(handle).result()


def _checked_handle(handle: object) -> Future[Any]:
    if not isinstance(handle, Future):
        raise UsageError(f"the handle is {handle!r}; give what an _async call returned")
    return handle


def _unique(collective: str) -> str:
    return f"{collective}_async.{next(_unnamed)}"


def _only(results: list[Array]) -> Array:
    return results[0]


def _with_splits(call: Call, results: list[Array], splits: ArrayLike | None) -> Any:
    return results[0] if splits is None else (results[0], np.array(call.rows[0], np.int32))
