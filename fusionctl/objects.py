"""Python objects from one rank to all, or from each to all: pickled bytes over the NumPy API."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from fusionctl import arrays, runtime
from fusionctl.control.difference import ranks
from fusionctl.errors import PeerError, UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import checked_name, checked_root


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root rank's object on every rank, of any size; the other ranks' `obj` is not looked at.

    The root gets its own object back, the others a copy.  Objects travel by cloudpickle where it is installed, which
    takes functions and classes of the main programme too, else by pickle.  An object that cannot be pickled is a
    UsageError on the root and a PeerError elsewhere.
    """
    name = checked_name("broadcast_object" if name is None else name)
    root = checked_root(root_rank, process_set.ranks)
    here = runtime.current().rank == root
    payload, problem = _pickled(obj) if here else (b"", "")
    head = np.array([-1 if problem else len(payload)], np.int64)
    size = int(arrays.broadcast(head, root, f"{name}.size", process_set)[0])
    if problem:
        raise UsageError(f"object '{name}' cannot be pickled for its broadcast: {problem}")
    if size < 0:
        raise PeerError(f"object '{name}' was not broadcast: its root, rank {root}, cannot pickle it and says why")
    data = np.frombuffer(payload, np.uint8) if here else np.empty(size, np.uint8)
    received = arrays.broadcast(data, root, f"{name}.data", process_set)
    return obj if here else pickle.loads(received.data)


def broadcast_object_fn(
    root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` with all but the object fixed."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object on every rank, in rank order, of any size each; ranks that have joined have none.

    A rank gets its own object back, and copies of the others.  They travel as those of `broadcast_object` do.  An
    object that cannot be pickled is a UsageError on its rank and a PeerError elsewhere.
    """
    name = checked_name("allgather_object" if name is None else name)
    me = runtime.current().rank
    payload, problem = _pickled(obj)
    heads = arrays.allgather(np.array([[me, -1 if problem else len(payload)]], np.int64), f"{name}.size", process_set)
    if problem:
        raise UsageError(f"object '{name}' cannot be pickled to be gathered: {problem}")
    failed = [rank for rank, size in heads.tolist() if size < 0]
    if failed:
        raise PeerError(
            f"object '{name}' was not gathered: {ranks(failed)} can not pickle it, and the error there says why"
        )
    received = arrays.allgather(np.frombuffer(payload, np.uint8), f"{name}.data", process_set)
    parts = np.split(received, np.cumsum(heads[:-1, 1]))
    return [obj if rank == me else pickle.loads(part.data) for rank, part in zip(heads[:, 0], parts, strict=True)]


def _pickled(obj: Any) -> tuple[bytes, str]:
    """The bytes, or why there are none."""
    try:
        return _dumps(obj), ""
    except Exception as error:  # whatever an object's own methods raise: the other ranks wait
        return b"", f"{type(error).__name__}: {error}"


def _dumps(obj: Any) -> bytes:
    if importlib.util.find_spec("cloudpickle") is None:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    import cloudpickle

    payload: bytes = cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    return payload
