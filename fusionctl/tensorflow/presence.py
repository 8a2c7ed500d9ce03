"""Which ranks have a gradient: a None on some ranks only is zeros, so that all ranks send the same set every step.

Nothing is agreed beforehand, as an agreement would wait for ranks that trace another function, or none.  Instead a
rank sends zeros for each None, and in eager mode one tensor more, the mask, from which all ranks see whether any of
them has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.process_sets import ProcessSet
from fusionctl.request import ReduceOp, Request

MASK = "gradients present"
"""Name of the mask on the wire, within the group of the gradients."""


def completed(grads: Sequence[Any], variables: Sequence[Any], process_set: ProcessSet) -> dict[int, Any]:
    """By index what this rank sends: its gradients, and zeros where another rank may have one.

    One rank sends no zeros, and no rank any for what has no gradients: integers, truth values and text.
    """
    alone = process_set.size() == 1
    sent = {}
    for index, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
        if grad is not None:
            sent[index] = grad
        elif not alone and tf.as_dtype(variable.dtype).is_floating:
            sent[index] = zeros(variable)
    return sent


def zeros(variable: Any) -> tf.Tensor:
    """A gradient of zeros for a variable, of Keras or TensorFlow, or another source."""
    shape = tf.TensorShape(variable.shape)
    if shape.is_fully_defined():
        return tf.zeros(shape, tf.as_dtype(variable.dtype).base_dtype)
    return tf.zeros_like(tf.convert_to_tensor(variable))


def needs_mask(process_set: ProcessSet) -> bool:
    """Whether the ranks tell each other which gradients they have; in a graph nobody could act on it."""
    return process_set.size() > 1 and tf.executing_eagerly()


def mask(grads: Sequence[Any], dtype: str) -> tf.Tensor:
    """One for each gradient that this rank has, zero for the others; [len(grads)], of a dtype that it fuses with."""
    return tf.constant([0.0 if grad is None else 1.0 for grad in grads], dtype)


def mask_request(count: int, like: Request) -> Request:
    """The request of a mask for `count` gradients, of the kind of one of them."""
    op = ReduceOp.SUM if like.op is ReduceOp.ADASUM else like.op  # a sum of parts of masks may hide a rank
    return Request(MASK, like.collective, like.dtype, (count,), op, like.prescale, like.postscale)


def absent(reduced: tf.Tensor) -> set[int]:
    """Indices of the gradients that no rank has, from the reduced mask."""
    return {index for index, total in enumerate(tf.cast(reduced, tf.float32).numpy().tolist()) if total == 0}
