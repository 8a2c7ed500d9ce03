"""Broadcast of variables, so that all ranks start from the same weights."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import DTYPES, Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.library import exchange, outside_autograph
from fusionctl.tensorflow.names import variable_name, variable_names
from fusionctl.tensorflow.ops import broadcast_request

KEPT = (tf.string, tf.resource, tf.variant)
"""Types of the variables that have no numbers; each rank keeps its own."""


@outside_autograph
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Assign the root rank's values to the variables, tf.Variables or Keras's, on every rank of the process set.

    All ranks pass the same variables in the same order; in eager mode their names may differ, as those of a loaded and
    a new model do, and then they are known by their places.  In a tf.function the assignments are part of the step; in
    a graph of TensorFlow 1 the result is the op that assigns, to be run after the initialisers.  Every number and truth
    value is broadcast, whatever its dtype.  Variables of text, and lookup tables, have no numbers: they stay as they
    are on each rank, and one warning names them.  UsageError for what is neither.  `inplace` is Horovod's and changes
    nothing.
    """
    assigned = broadcast_(variables, root_rank, "broadcast_variables", process_set)
    if tf.executing_eagerly() or _in_function():
        return None
    return tf.group(*assigned)


@outside_autograph
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Like `broadcast_variables`, under a name of the caller's; the variables, or in a graph their assigned values."""
    listed = broadcastable(list(variables))
    if not listed:
        return []
    values = [tf.convert_to_tensor(variable) for variable in listed]
    sent = [_as_sent(value) for value in values]
    names = agreed_names(variable_names(listed), process_set)
    requests = tuple(
        broadcast_request(f"broadcast/{each}", value, root_rank, process_set)
        for each, value in zip(names, sent, strict=True)
    )
    received = exchange(sent, [Group(name or "broadcast_", requests)], process_set)
    assigned = [
        variable.assign(_as_kept(got, value)) for variable, value, got in zip(listed, values, received, strict=True)
    ]
    return listed if tf.executing_eagerly() else assigned


def agreed_names(names: list[str], process_set: ProcessSet) -> list[str]:
    """The names, or places where the ranks of a process set have as many other ones; a graph takes them as they are."""
    if process_set.size() == 1 or not tf.executing_eagerly():
        return names
    word = zlib.crc32("\n".join(names).encode())
    request = Request("broadcast: names", Collective.ALLREDUCE, "int64", (4,), ReduceOp.MAX)
    own = tf.constant([word, -word, len(names), -len(names)], tf.int64)
    (greatest,) = exchange([own], [Group(request.name, (request,))], process_set)
    most, least, longest, shortest = greatest.numpy().tolist()
    return names if most == -least or longest > -shortest else [f"variable {index}" for index in range(len(names))]


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """An op that assigns the root rank's values to the global variables of this graph of TensorFlow 1.

    UsageError in eager mode, where there are no global variables.
    """
    if tf.executing_eagerly() or _in_function():
        raise UsageError(
            "broadcast_global_variables is for graphs of TensorFlow 1, as eager mode has no global variables; use "
            "broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank) or tf.no_op()


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts the global variables once a session of TensorFlow 1 has initialised or restored them.

    `device` is Horovod's and has no effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root = root_rank
        self._op: tf.Operation | None = None

    def begin(self) -> None:
        """Add the op to the graph, unless this graph has it."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcast."""
        session.run(self._op)


def broadcastable(variables: list[Any]) -> list[Any]:
    """The variables that have numbers; one warning names the others, UsageError what is no variable."""
    kept, left = [], []
    for index, variable in enumerate(variables):
        if hasattr(variable, "lookup"):
            left.append(f"{getattr(variable, 'name', None) or f'number {index}'} (lookup table)")
        elif not hasattr(variable, "assign") or not hasattr(variable, "dtype"):
            raise UsageError(f"number {index} of the variables to broadcast is {variable!r}, which is no variable")
        elif tf.as_dtype(variable.dtype).base_dtype in KEPT:
            left.append(f"{variable_name(variable, index)} ({tf.as_dtype(variable.dtype).base_dtype.name})")
        else:
            kept.append(variable)
    if left:
        logging.getLogger("fusionctl").warning(
            "not broadcast, so that each rank keeps its own: %s; have all ranks fill them from the same data",
            ", ".join(left),
        )
    return kept


def _as_sent(value: tf.Tensor) -> tf.Tensor:
    """The value, or its bytes if its dtype cannot travel: uint32, uint64, complex."""
    return value if value.dtype.name in DTYPES else tf.bitcast(value, tf.uint8)


def _as_kept(received: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return received if received.dtype == like.dtype else tf.bitcast(received, like.dtype)


def _in_function() -> bool:
    return bool(tf.compat.v1.get_default_graph().building_function)
