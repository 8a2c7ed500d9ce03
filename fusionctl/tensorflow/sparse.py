"""Sparse gradients (tf.IndexedSlices) as dense ones, until the engine gathers them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def densify(tensor: Any, shape_of: Any = None, sparse_as_dense: bool = False) -> tf.Tensor:
    """The tensor itself, or the dense form of IndexedSlices; one warning unless that was asked for.

    `shape_of` is the variable whose shape completes slices that do not know their dense shape.
    """
    if not isinstance(tensor, tf.IndexedSlices):
        return tf.convert_to_tensor(tensor)
    if not sparse_as_dense:
        _warn_once()
    shape = tensor.dense_shape if shape_of is None else tf.shape(shape_of, out_type=tensor.indices.dtype)
    dense = tf.math.unsorted_segment_sum(tensor.values, tensor.indices, shape[0])
    return dense if shape_of is None else tf.ensure_shape(dense, shape_of.shape)


def each_value(grad: Any, function: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """The gradient, dense or sparse, with a function applied to its values."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(function(grad.values), grad.indices, grad.dense_shape)
    return function(tf.convert_to_tensor(grad))


@functools.cache
def _warn_once() -> None:
    logging.getLogger("fusionctl").warning(
        "a sparse gradient (IndexedSlices, as from an embedding) is reduced as a dense tensor of the variable's whole "
        "shape; pass sparse_as_dense=True to say that this is meant"
    )
