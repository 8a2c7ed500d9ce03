"""Collectives on single values, such as a test accuracy: Horovod's names and order of arguments for Keras."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import ReduceOp
from fusionctl.tensorflow import ops, rows
from fusionctl.tensorflow.compression import Compression, Compressor


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The ranks' values, tensors or arrays or numbers, combined; Average unless `op` says otherwise."""
    return ops.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """The ranks' values one after the other along the first dimension, whose length may differ; no scalars."""
    return rows.allgather(value, name=name, process_set=process_set)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: ReduceOp = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """This rank's rows of the ranks' values combined; of equal shapes, the first ranks get one row more; no scalars."""
    return rows.reducescatter(value, name=name, op=op, process_set=process_set)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """The root rank's value on every rank; dtype and shape must be equal everywhere."""
    return ops.broadcast(value, root_rank, name=name, process_set=process_set)


def broadcast_global_variables(root_rank: int) -> None:
    """Raise UsageError: TensorFlow 2 has no collection of global variables; pass them to `broadcast_variables`."""
    raise UsageError(
        f"broadcast_global_variables({root_rank}): TensorFlow 2 knows no global variables; call broadcast_variables("
        f"[*model.weights, *model.optimizer.variables], root_rank={root_rank}), or give fit the callback "
        f"BroadcastGlobalVariablesCallback({root_rank})"
    )
