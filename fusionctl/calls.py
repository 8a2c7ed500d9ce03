"""One collective on host memory, from the caller's arrays to the engine and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fusionctl import _board, runtime
from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set, set_id
from fusionctl.registry import DUPLICATE
from fusionctl.request import (
    ANY_ROWS,
    DTYPES,
    REDUCING,
    Collective,
    Group,
    ReduceOp,
    Request,
    checked_dtype,
    checked_name,
    checked_op,
    member_names,
)

Array = NDArray[Any]
Result = TypeVar("Result")

BY_ROWS = (Collective.ALLGATHER, Collective.ALLTOALL, Collective.REDUCESCATTER)
"""Collectives whose results the engine allocates."""

_abandoned: list[Call] = []
_known: dict[tuple[int, str], tuple[tuple[Any, ...], list[int]]] = {}
_CODES = {name: code for code, name in enumerate(DTYPES)}


class Call:
    """Submits arrays when it is made; keeps them alive while the engine has their addresses.

    `rows` are, once it is done, the numbers of rows that each result has from each rank.
    """

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
        splits: Sequence[int] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._runtime = runtime.current()
        self._collective = collective
        self._set = set_id(process_set)
        checked_name(name)
        op = checked_op(name, op, collective)
        self._arrays = [_contiguous(array) for array in arrays]
        self._results: list[Array] = []
        self.rows: list[tuple[int, ...]] = []
        if outs is not None:
            self._results = [_checked_out(name, array, out) for array, out in zip(self._arrays, outs, strict=True)]
        elif collective not in BY_ROWS:
            self._results = [np.empty_like(array) for array in self._arrays]
        shapes = [_agreed_shape(name, collective, array) for array in self._arrays]
        signature = (collective, op, prescale, postscale, root, [array.dtype for array in self._arrays], shapes)
        known = _known.get((self._set, name))
        if known is None or known[0] != signature:
            group = self._group(name, shapes, op, prescale, postscale, root)
            known = _known[self._set, name] = (signature, self._runtime.register(group, self._set))
        self._slots = known[1]
        self._submit(name, () if splits is None else tuple(splits))

    def _group(
        self, name: str, shapes: Sequence[tuple[int, ...]], op: ReduceOp, prescale: float, postscale: float, root: int
    ) -> Group:
        requests = []
        for tensor, array, shape in zip(member_names(name, len(shapes)), self._arrays, shapes, strict=True):
            dtype = checked_dtype(tensor, array.dtype.name, op if self._collective in REDUCING else None)
            requests.append(Request(tensor, self._collective, dtype, shape, op, prescale, postscale, root))
        return Group(name, tuple(requests))

    def wait(self) -> list[Array]:
        """Sleep until the results are here."""
        try:
            memories = self._runtime.wait(self._slots)
        except BaseException:
            if any(_board.busy(slot) for slot in self._slots):
                _abandoned.append(self)  # an interrupt: the engine still has the addresses
            raise
        return self._finish(memories)

    def later(self, result: Callable[[list[Array]], Result]) -> Future[Result]:
        """A future that becomes `result` of the results once they are here."""
        return self._runtime.wait_later(self._slots, lambda memories: result(self._finish(memories)))

    def _finish(self, memories: Sequence[_board.Memory]) -> list[Array]:
        if self._collective in BY_ROWS:
            self.rows = [memory.rows for memory in memories]
            self._results = [
                np.frombuffer(memory, array.dtype).reshape(memory.shape)  # type: ignore[call-overload]
                for memory, array in zip(memories, self._arrays, strict=True)
            ]
        return self._results

    def _submit(self, name: str, splits: tuple[int, ...]) -> None:
        if any(_board.busy(slot) for slot in self._slots):  # before any is submitted: all or nothing
            raise UsageError(DUPLICATE.format(name))
        results: list[Array | None] = [*self._results] or [None] * len(self._arrays)
        for slot, array, result in zip(self._slots, self._arrays, results, strict=True):
            into = 0 if result is None else _address(result)
            status = _board.submit(slot, _CODES[array.dtype.name], array.shape, _address(array), into, splits)
            runtime.check_status(*status)


def _agreed_shape(name: str, collective: Collective, array: Array) -> tuple[int, ...]:
    if collective not in BY_ROWS:
        return array.shape
    if array.ndim == 0:
        raise UsageError(f"tensor '{name}' is a scalar; {collective.name.lower()} needs at least one dimension")
    return array.shape if collective is Collective.REDUCESCATTER else (ANY_ROWS, *array.shape[1:])


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
