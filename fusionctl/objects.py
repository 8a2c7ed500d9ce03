"""Python objects from one rank to all: pickled bytes over the NumPy API."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from fusionctl import arrays, runtime
from fusionctl.errors import PeerError, UsageError
from fusionctl.request import checked_name, checked_root


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:
    """The root rank's object on every rank, of any size; the other ranks' `obj` is not looked at.

    The root gets its own object back, the others a copy.  Objects travel by cloudpickle where it is installed, which
    takes functions and classes of the main programme too, else by pickle.  An object that cannot be pickled is a
    UsageError on the root and a PeerError elsewhere.
    """
    name = checked_name("broadcast_object" if name is None else name)
    root = checked_root(root_rank, range(runtime.current().size))
    here = runtime.current().rank == root
    payload, problem = _pickled(obj) if here else (b"", "")
    head = np.array([-1 if problem else len(payload)], np.int64)
    size = int(arrays.broadcast(head, root, f"{name}.size")[0])
    if problem:
        raise UsageError(f"object '{name}' cannot be pickled for its broadcast: {problem}")
    if size < 0:
        raise PeerError(f"object '{name}' was not broadcast: its root, rank {root}, cannot pickle it and says why")
    data = np.frombuffer(payload, np.uint8) if here else np.empty(size, np.uint8)
    received = arrays.broadcast(data, root, f"{name}.data")
    return obj if here else pickle.loads(received.data)


def broadcast_object_fn(root_rank: int = 0, name: str | None = None) -> Callable[[Any], Any]:
    """`broadcast_object` with its root and name fixed."""
    return lambda obj: broadcast_object(obj, root_rank, name)


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
