"""Which ranks have a gradient, and of which form: a None on some ranks only is zeros, so that all ranks send the same.

In eager mode the ranks tell each other before they send.  In a graph nothing is agreed beforehand, as an agreement
would wait for ranks that trace another function, or none: a rank sends zeros for each None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fusionctl.process_sets import ProcessSet
from fusionctl.request import Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.library import exchange
from fusionctl.tensorflow.sparse import densify, is_sparse, no_rows


def completed(
    grads: Sequence[Any], variables: Sequence[Any], name: str, process_set: ProcessSet
) -> tuple[dict[int, Any], dict[int, int]]:
    """By index what this rank sends, dense or merged slices, and of the sparse ones all ranks' rows, where known.

    One rank sends no zeros, and no rank any for what has no gradients: integers, truth values and text.
    """
    if process_set.size() > 1 and tf.executing_eagerly():
        return _agreed(grads, variables, name, process_set)
    sent = {}
    for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        if grad is not None:
            sent[index] = grad
        elif process_set.size() > 1 and tf.as_dtype(variable.dtype).is_floating:
            sent[index] = zeros(variable)
    return sent, {}


def zeros(variable: Any) -> tf.Tensor:
    """A gradient of zeros for a variable, of Keras or TensorFlow, or another source."""
    shape = tf.TensorShape(variable.shape)
    if shape.is_fully_defined():
        return tf.zeros(shape, tf.as_dtype(variable.dtype).base_dtype)
    return tf.zeros_like(tf.convert_to_tensor(variable))


def _agreed(
    grads: Sequence[Any], variables: Sequence[Any], name: str, process_set: ProcessSet
) -> tuple[dict[int, Any], dict[int, int]]:
    own = np.zeros((3, len(grads)), np.int64)  # dense here, sparse here, rows
    for index, grad in enumerate(grads):
        if is_sparse(grad):
            own[1:, index] = 1, grad.indices.shape[0]
        elif grad is not None:
            own[0, index] = 1
    request = Request(f"{name}: present", Collective.ALLREDUCE, "int64", own.shape, ReduceOp.SUM)
    (reduced,) = exchange([tf.constant(own)], [Group(request.name, (request,))], process_set)
    sent: dict[int, Any] = {}
    totals: dict[int, int] = {}
    for index, (dense, sparse, rows) in enumerate(reduced.numpy().T.tolist()):
        grad, variable = grads[index], variables[index]
        if dense:
            sent[index] = zeros(variable) if grad is None else densify(grad, variable)
        elif sparse:
            sent[index], totals[index] = no_rows(variable) if grad is None else grad, rows
    return sent, totals
