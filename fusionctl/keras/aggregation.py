"""Local sums of gradients over several calls of `apply`, of which only the last one reduces and updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from fusionctl.tensorflow.library import outside_autograph

Update = Callable[[list[Any]], None]


class Aggregation:
    """Windows of `passes` calls: each adds its gradients to buffers of this rank, the last one hands over the sums.

    With `average` the sums are divided by `passes`.  Each set of variables has a window of its own, which all traced
    functions and eager calls share and which lives as long as the optimizer: one that a `fit` leaves open goes on in
    the next.  As only calls are counted, ranks that call alike reduce alike.  Sparse gradients are added to dense
    buffers.  None counts as zero in a window where the variable has had a gradient.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self.passes = passes
        self._divisor = passes if average else 1
        self._windows: dict[tuple[int, ...], _Window] = {}

    @outside_autograph
    def add(self, grads: Sequence[Any], variables: Sequence[Any], update: Update) -> None:
        """Add the gradients, in eager mode or in a graph; `update` gets the sums at the end of a window."""
        window = self._window(variables)
        full = tf.equal(window.add(grads) % self.passes, 0)
        tf.cond(full, lambda: update(window.take(self._divisor)), lambda: None)

    def _window(self, variables: Sequence[Any]) -> _Window:
        key = tuple(identity(variable) for variable in variables)
        if key not in self._windows:
            self._windows[key] = _Window(variables)
        return self._windows[key]


class _Window:
    """The buffers of one set of variables, None before the first gradient, and the number of calls so far.

    A buffer is a sum, or the maximum for state that Keras passes as a gradient and overwrites, as it accumulates it.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = list(variables)  # held, so that their identities stay theirs
        self._buffers: list[tf.Variable | None] = [None] * len(variables)
        with tf.init_scope():
            self._calls = tf.Variable(0, dtype=tf.int64, trainable=False, name="aggregation_calls")

    def add(self, grads: Sequence[Any]) -> tf.Tensor:
        """Number of calls, this one included."""
        for index, grad in enumerate(grads):
            if grad is None:
                continue
            buffer = self._buffer(index, grad)
            if _is_state(self._variables[index]):
                buffer.assign(tf.maximum(buffer, tf.cast(grad, buffer.dtype)))
            elif isinstance(grad, tf.IndexedSlices):
                buffer.scatter_add(tf.cast(grad, buffer.dtype))
            else:
                buffer.assign_add(tf.cast(grad, buffer.dtype))
        return self._calls.assign_add(1)

    def take(self, divisor: int) -> list[Any]:
        """The sums divided by `divisor`; the buffers are zero again."""
        sums = [
            None if buffer is None else buffer.read_value() / (1 if _is_state(variable) else divisor)
            for buffer, variable in zip(self._buffers, self._variables, strict=True)
        ]
        for buffer in self._buffers:
            if buffer is not None:
                buffer.assign(tf.zeros_like(buffer))
        return sums

    def _buffer(self, index: int, grad: Any) -> tf.Variable:
        buffer = self._buffers[index]
        if buffer is None:
            with tf.init_scope():
                zeros = tf.zeros(self._variables[index].shape, grad.dtype)
                buffer = self._buffers[index] = tf.Variable(zeros, trainable=False, name="aggregation")
        return buffer


def _is_state(variable: Any) -> bool:
    return getattr(variable, "overwrite_with_gradient", False)


def identity(variable: Any) -> int:
    """The same number for a Keras variable and the tf.Variable in it."""
    return id(variable.value if isinstance(variable, keras.Variable) else variable)


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the slots as the optimizer's own `apply` would, which may run in a branch where none can be created."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(variables))
        optimizer.built = True
