"""Ranks and sizes as tensors, for graphs; int32 scalars without a gradient."""

from __future__ import annotations

import tensorflow as tf

from fusionctl import runtime
from fusionctl.errors import UsageError

NOT_INITIALISED, UNKNOWN_SET = -1, -2
"""What Horovod's `process_set_included_op` says besides 0 and 1."""


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, as it is when the op is made."""
    return tf.constant(runtime.rank(), tf.int32, name=name or "rank")


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Number of ranks of a process set, by default of all, as it is when the op is made; UsageError without such a set.

    This process need not be one of them.
    """
    members = runtime.current().members(process_set_id)
    if members is None:
        raise UsageError(f"there is no process set {process_set_id}; add it with add_process_set()")
    return tf.constant(len(members), tf.int32, name=name or "size")


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 if this process is in a process set, else 0, as it is when the op is made.

    -1 before `init`, -2 when there is no such set.
    """
    members = runtime.current().members(process_set_id) if runtime.is_initialized() else None
    if members is None:
        included = UNKNOWN_SET if runtime.is_initialized() else NOT_INITIALISED
    else:
        included = int(runtime.rank() in members)
    return tf.constant(included, tf.int32, name=name or "process_set_included")


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank among those of its node, as it is when the op is made."""
    return tf.constant(runtime.local_rank(), tf.int32, name=name or "local_rank")


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Number of ranks on this node, as it is when the op is made."""
    return tf.constant(runtime.local_size(), tf.int32, name=name or "local_size")
