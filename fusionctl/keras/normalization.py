"""Batch normalisation by the moments of all ranks' batches together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import ReduceOp
from fusionctl.runtime import rank
from fusionctl.tensorflow import ops


@keras.saving.register_keras_serializable(package="fusionctl")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras's BatchNormalization, which in training normalises by the batches of all ranks of a process set as of one.

    Every sample counts the same, however many a rank has, and masked ones do not; outputs, moving statistics and
    gradients are those of one process with all ranks' samples.  One all-reduce a call, and one more for its gradient,
    of three float64 numbers a channel: the number of values, their sum, and that of their squares.  These are
    accumulated about this rank's mean, and lose nothing that float32 inputs have where the variance is more than 1e-8
    of the squared mean.  A rank may have no samples.

    `fused` is Horovod's and changes nothing; the other arguments are keras.layers.BatchNormalization's.  A saved layer
    names the ranks of its process set, if not all, and that has to be added where it is to train.  To load one of all
    ranks without fusionctl give `custom_objects={"fusionctl>SyncBatchNormalization": kind}`, where `kind` is a class of
    the same name that is derived from Keras's.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet | Iterable[int] = global_process_set, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.process_set = process_set if isinstance(process_set, ProcessSet) else ProcessSet(list(process_set))

    def get_config(self) -> dict[str, Any]:
        """That of Keras's layer, and the ranks unless they are all."""
        config: dict[str, Any] = super().get_config()
        return config if self.process_set is global_process_set else {**config, "process_set": self.process_set.ranks}

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel over the ranks; what Keras's `call` normalises by when it trains."""
        if self.process_set.ranks == [rank()]:
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        totals = ops.allreduce(
            _sums(inputs, mask, self._reduction_axes),
            op=ReduceOp.SUM,
            name=f"moments/{self.moving_mean.path}",
            process_set=self.process_set,
        )
        count, total, squares = tf.unstack(totals)
        divisor = count if mask is None else count + keras.backend.epsilon()  # as Keras does
        mean = total / divisor
        variance = tf.maximum((squares - mean * (2 * total - count * mean)) / divisor, 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _sums(inputs: tf.Tensor, mask: tf.Tensor | None, axes: list[int]) -> tf.Tensor:
    """For each channel the number of values, their sum and that of their squares, float64 of shape (3, channels)."""
    taken = None if mask is None else tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

    def only_taken(values: tf.Tensor) -> tf.Tensor:
        return values if taken is None else tf.where(taken, values, tf.zeros_like(values))

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values, axes, keepdims=True)

    if taken is None:
        count = tf.reduce_prod(tf.gather(tf.shape(inputs, tf.int64), axes))
    else:
        count = tf.math.count_nonzero(taken, axes, keepdims=True)
    here = total(only_taken(inputs)) / tf.cast(tf.maximum(count, 1), inputs.dtype)
    about = tf.stop_gradient(here)  # so that squares of small numbers are added, whatever the mean
    rest = only_taken(inputs - about)
    s, q, c = (tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (total(rest), total(tf.square(rest)), about))
    n = tf.cast(tf.reshape(count, [-1]), tf.float64) * tf.ones_like(c)
    return tf.stack([n, n * c + s, q + c * (2 * s + n * c)])
