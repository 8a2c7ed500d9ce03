"""What the ranks agree on: a `Request` is one tensor, a `Group` is announced atomically, a `Bucket` shares a buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import Any

import numpy as np

from fusionctl.errors import UsageError

DTYPES: tuple[str, ...] = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int32",
    "int64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "bool",
)
"""Names of the element types; the index of a name is the code that the compiled modules use."""

ITEMSIZE: dict[str, int] = dict(zip(DTYPES, (2, 2, 4, 8, 4, 8, 1, 1, 2, 2, 1), strict=True))


class ReduceOp(IntEnum):
    """How an all-reduce combines the ranks' tensors; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


OPS: tuple[ReduceOp, ...] = tuple(ReduceOp)
"""The ops that an all-reduce accepts."""

SCATTER_OPS: tuple[ReduceOp, ...] = tuple(op for op in OPS if op is not ReduceOp.ADASUM)
"""The ops that a reduce-scatter accepts."""


class Collective(IntEnum):
    """What is done with a tensor; the numbers are the codes that the engine uses."""

    ALLREDUCE = 0
    BROADCAST = 1
    BARRIER = 2
    ALLGATHER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6
    ADD_SET = 7
    REMOVE_SET = 8


ANY_ROWS = -2
"""A first dimension that may differ between ranks and calls, as all-gather and all-to-all allow."""

RESERVED = "fusionctl."
"""How names begin that users can not give."""

REDUCING: tuple[Collective, ...] = (Collective.ALLREDUCE, Collective.REDUCESCATTER)
"""Collectives that combine elements by an op."""


@dataclass(frozen=True, slots=True)
class Request:
    """One tensor that is ready, or will be, on this rank; all fields must be equal on all ranks.

    `root` is the rank that a broadcast sends from, -1 otherwise.  `prescale` and `postscale` multiply each element
    before and after the reduction.
    """

    name: str
    collective: Collective
    dtype: str
    shape: tuple[int, ...]
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1

    def __post_init__(self) -> None:
        """Take factors of any real type; UsageError for what is no number."""
        for field in ("prescale", "postscale"):
            object.__setattr__(self, field, _number(self.name, field, getattr(self, field)))

    @property
    def count(self) -> int:
        """Number of elements; of one row, where their number may differ."""
        return math.prod(length for length in self.shape if length != ANY_ROWS)

    @property
    def nbytes(self) -> int:
        """Size of these elements in bytes."""
        return self.count * ITEMSIZE[self.dtype]

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests of equal kind may share a bucket; what only moves may be of any dtype."""
        if self.collective not in REDUCING:
            return (self.collective, self.root)
        return (self.collective, self.dtype, self.op, self.prescale, self.postscale)


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that are announced, agreed and invalidated together, in the order in which they become ready.

    A group that `fuses_whole` is an explicit one: each kind in it is one bucket, whatever the fusion threshold says.
    """

    name: str
    requests: tuple[Request, ...]
    fuses_whole: bool = False


@dataclass(frozen=True, slots=True)
class Bucket:
    """Requests of one kind and one group that share a fusion buffer; `members` are indices into the group."""

    group: str
    members: tuple[int, ...]
    nbytes: int


def member_names(name: str, count: int) -> list[str]:
    """Names of the tensors of a group of this name."""
    return [name] if count == 1 else [f"{name}.{index}" for index in range(count)]


def checked_op(name: str, op: object, collective: Collective = Collective.ALLREDUCE) -> ReduceOp:
    """The op of a tensor's reduction; UsageError for what is none, or not there yet."""
    accepts = SCATTER_OPS if collective is Collective.REDUCESCATTER else OPS
    if op not in accepts:
        accepted = ", ".join(each.name.capitalize() for each in accepts)
        raise UsageError(f"tensor '{name}' has op {op!r}; {collective.name.lower()} accepts {accepted} of fusionctl")
    return OPS[OPS.index(op)]


def checked_dtype(name: str, dtype: str, op: ReduceOp | None = None) -> str:
    """The element type of a tensor, to be reduced by `op` or only moved; UsageError for what can not be."""
    if dtype not in ITEMSIZE:
        raise UsageError(f"tensor '{name}' has dtype {dtype}; accepted are {', '.join(DTYPES)}: cast it")
    if dtype == "bool" and op in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            f"tensor '{name}' has dtype bool and op {op.name.capitalize()}; use Max (or), Min (and), cast it"
        )
    if op is ReduceOp.ADASUM and dtype not in DTYPES[:4]:
        raise UsageError(f"tensor '{name}' has dtype {dtype}; Adasum is for {', '.join(DTYPES[:4])}: cast it")
    return dtype


def _number(name: str, field: str, factor: Any) -> float:
    try:
        return float(factor)
    except (TypeError, ValueError):
        raise UsageError(f"tensor '{name}' has {field}_factor {factor!r}; give a number") from None


def checked_root(root: object, ranks: Sequence[int]) -> int:
    """The root of a broadcast among these ranks; UsageError for what is none of them."""
    if not isinstance(root, Integral) or isinstance(root, bool) or int(root) not in ranks:
        whole = list(ranks) == list(range(len(ranks)))
        told = f"0 to {len(ranks) - 1}" if whole else ", ".join(map(str, ranks))
        raise UsageError(f"root_rank is {root!r}, but the ranks are {told}")
    return int(root)


def checked_splits(splits: object) -> tuple[int, ...] | None:
    """The rows that an all-to-all sends to each rank, if they are given; UsageError for what are no whole numbers."""
    if splits is None:
        return None
    array = np.asarray(splits)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise UsageError(f"splits is {splits!r}; give one whole number of rows for each rank")
    return tuple(map(int, array))


def checked_name(name: object) -> str:
    """A tensor's name; UsageError unless it is text that every rank can read."""
    if not isinstance(name, str) or (not name.isascii() and name.encode(errors="replace").decode() != name):
        raise UsageError(f"name is {name!r}; give a str without lone surrogates")
    if name.startswith(RESERVED):
        raise UsageError(f"name is {name!r}; names do not begin with {RESERVED!r}")
    return name
