"""Ranks and sizes as tensors, for graphs; int32 scalars without a gradient."""

from __future__ import annotations

import tensorflow as tf

from fusionctl import runtime


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, as it is when the op is made."""
    return tf.constant(runtime.rank(), tf.int32, name=name or "rank")


def size_op(name: str | None = None) -> tf.Tensor:
    """Number of ranks, as it is when the op is made."""
    return tf.constant(runtime.size(), tf.int32, name=name or "size")


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank among those of its node, as it is when the op is made."""
    return tf.constant(runtime.local_rank(), tf.int32, name=name or "local_rank")


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Number of ranks on this node, as it is when the op is made."""
    return tf.constant(runtime.local_size(), tf.int32, name=name or "local_size")
