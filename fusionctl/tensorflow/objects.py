"""`fusionctl.objects` with Horovod's argument `session`, which has no effect: objects need no graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusionctl import objects
from fusionctl.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root rank's object on every rank; see `fusionctl.broadcast_object`."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` with all but the object fixed."""
    return objects.broadcast_object_fn(root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object on every rank, in rank order; see `fusionctl.allgather_object`."""
    return objects.allgather_object(obj, name, process_set)
