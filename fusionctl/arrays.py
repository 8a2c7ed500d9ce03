"""The NumPy API: the engine without TensorFlow.

Every function is collective: all ranks call it with the same name, dtype, shape and op, in any order.  A call without
a name is matched by the order of such calls.  Names let the engine reuse what was negotiated, so name what is called
in a loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusionctl import _board, runtime
from fusionctl.errors import UsageError
from fusionctl.registry import DUPLICATE
from fusionctl.request import (
    DTYPES,
    Collective,
    Group,
    ReduceOp,
    Request,
    checked_dtype,
    checked_name,
    checked_op,
    checked_root,
)

Array = NDArray[Any]

_unnamed = itertools.count()
_abandoned: list[_Call] = []
_known: dict[str, tuple[tuple[Any, ...], list[int]]] = {}
_CODES = {name: code for code, name in enumerate(DTYPES)}


def allreduce(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    out: Array | None = None,
) -> Array:
    """Combine the ranks' arrays element by element; returns an array of the same shape and dtype on every rank.

    The result is a new array, or `out`, which may be `array` itself.  dtypes: float16, bfloat16 (both accumulate in
    float32), float32, float64, int32, int64.  An average of integers is the exact mean, truncated toward zero.
    Raises MismatchError on every rank when shape, dtype or op differ.
    """
    outs = None if out is None else [out]
    return _Call(
        Collective.ALLREDUCE, [array], name or "allreduce", op, prescale_factor, postscale_factor, outs
    ).wait()[0]


def grouped_allreduce(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """All-reduce several arrays that are announced and fused together; dtypes may differ."""
    call = _Call(Collective.ALLREDUCE, arrays, name or "grouped_allreduce", op, prescale_factor, postscale_factor)
    return call.wait()


def allreduce_async(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Future[Array]:
    """Like `allreduce`, but returns at once; the array must not be changed before the future is done."""
    name = name or f"allreduce_async.{next(_unnamed)}"
    call = _Call(Collective.ALLREDUCE, [array], name, op, prescale_factor, postscale_factor)
    return call.later(lambda: call.results[0])


def grouped_allreduce_async(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Future[list[Array]]:
    """Like `grouped_allreduce`, but returns at once."""
    name = name or f"grouped_allreduce_async.{next(_unnamed)}"
    call = _Call(Collective.ALLREDUCE, arrays, name, op, prescale_factor, postscale_factor)
    return call.later(lambda: call.results)


def broadcast(array: ArrayLike, root_rank: int = 0, name: str | None = None) -> Array:
    """The root rank's array on every rank; shape and dtype must be equal everywhere, any dtype of `request.DTYPES`."""
    root = checked_root(root_rank, runtime.current().size)
    return _Call(Collective.BROADCAST, [array], name or "broadcast", root=root).wait()[0]


def barrier(name: str | None = None) -> None:
    """Return once every rank has called it."""
    _Call(Collective.BARRIER, [np.zeros(0, np.uint8)], name or "barrier").wait()


class _Call:
    """One collective on host memory: keeps the arrays alive while the engine has their addresses."""

    def __init__(
        self,
        collective: Collective,
        arrays: Sequence[ArrayLike],
        name: str,
        op: ReduceOp = ReduceOp.SUM,
        prescale: float = 1.0,
        postscale: float = 1.0,
        outs: Sequence[Array] | None = None,
        root: int = -1,
    ) -> None:
        self._runtime = runtime.current()
        checked_name(name)
        op = checked_op(name, op)
        self._arrays = [_contiguous(array) for array in arrays]
        if outs is None:
            self.results = [np.empty_like(array) for array in self._arrays]
        else:
            self.results = [_checked_out(name, array, out) for array, out in zip(self._arrays, outs, strict=True)]
        signature = (collective, op, prescale, postscale, root, [(array.dtype, array.shape) for array in self._arrays])
        known = _known.get(name)
        if known is None or known[0] != signature:
            group = self._group(name, collective, op, prescale, postscale, root)
            known = _known[name] = (signature, self._runtime.register(group))
        self._slots = known[1]
        self._submit(name)

    def _group(
        self, name: str, collective: Collective, op: ReduceOp, prescale: float, postscale: float, root: int
    ) -> Group:
        requests = []
        for index, array in enumerate(self._arrays):
            tensor = name if len(self._arrays) == 1 else f"{name}.{index}"
            dtype = checked_dtype(tensor, array.dtype.name, op if collective is Collective.ALLREDUCE else None)
            requests.append(Request(tensor, collective, dtype, array.shape, op, prescale, postscale, root))
        return Group(name, tuple(requests))

    def wait(self) -> list[Array]:
        try:
            self._runtime.wait(self._slots)
        except BaseException:
            if any(_board.busy(slot) for slot in self._slots):
                _abandoned.append(self)  # an interrupt: the engine still has the addresses
            raise
        return self.results

    def later(self, result: Any) -> Future[Any]:
        return self._runtime.wait_later(self._slots, result)

    def _submit(self, name: str) -> None:
        if any(_board.busy(slot) for slot in self._slots):  # before any is submitted: all or nothing
            raise UsageError(DUPLICATE.format(name))
        for slot, array, result in zip(self._slots, self._arrays, self.results, strict=True):
            status = _board.submit(slot, _CODES[array.dtype.name], array.shape, _address(array), _address(result))
            runtime.check_status(*status)


def _contiguous(array: ArrayLike) -> Array:
    # ascontiguousarray makes one dimension of none
    return np.require(array, requirements="C")


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _checked_out(name: str, array: Array, out: Array) -> Array:
    if out.dtype != array.dtype or out.shape != array.shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError(
            f"tensor '{name}' is {array.dtype.name}{array.shape}, but out is {out.dtype.name}{out.shape}: give a "
            "writable, C-contiguous array of the same dtype and shape"
        )
    return out
