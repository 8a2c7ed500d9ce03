"""Gradients of several backward passes added up on one rank before they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusionctl.tensorflow.presence import zeros
from fusionctl.tensorflow.sparse import densify

Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class Aggregation:
    """Sums, or averages, of the gradients of `passes` calls; every rank makes as many calls.

    The sums and the count are variables, made at the first call: global ones in a graph of TensorFlow 1, so that its
    initialisers make them.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._counts: dict[int, tf.Variable] = {}
        self._sums: dict[int, tf.Variable] = {}
        self._alive: list[Any] = []
        self._added: list[tuple[tf.Variable, tf.Tensor]] = []
        self._full: Any = False

    def add(self, grads: Sequence[Any], variables: Sequence[Any], reduce: Reduce) -> list[Any]:
        """Add one pass; the reduced sums when it is the last, and otherwise zeros, which `apply` does not use."""
        count = self._count()
        sums = [self._sum(variable) for variable in variables]
        dense = [
            zeros(variable) if grad is None else densify(grad, variable)
            for grad, variable in zip(grads, variables, strict=True)
        ]
        added = [total.assign_add(grad, read_value=False) for total, grad in zip(sums, dense, strict=True)]
        added.append(count.assign_add(1, read_value=False))
        with tf.control_dependencies(_ops(added)):  # in a graph of TensorFlow 1 nothing else keeps the order
            totals = [total.read_value() for total in sums]
            self._full = count.read_value() >= self._passes
        self._added = list(zip(sums, totals, strict=True))
        results: list[Any] = tf.cond(
            self._full,
            lambda: reduce([self._mean(total) for total in totals], variables),
            lambda: [tf.zeros_like(total) for total in totals],
        )
        return list(results) if isinstance(results, list | tuple) else [results]

    def apply(self, update: Callable[[], Any], global_step: Any) -> Any:
        """Run `update` and begin anew if the last pass was added; otherwise only count the step."""
        count, added = self._count(), self._added

        def last() -> tf.Tensor:
            with tf.control_dependencies(_ops([update(), *(total for _, total in added)])):
                resets = [count.assign(0, read_value=False)]
                resets += [each.assign(tf.zeros_like(total), read_value=False) for each, total in added]
            with tf.control_dependencies(_ops(resets)):
                return tf.constant(True)

        def between() -> tf.Tensor:
            steps = [] if global_step is None else [global_step.assign_add(1, read_value=False)]
            with tf.control_dependencies(_ops(steps)):
                return tf.constant(False)

        updated = tf.cond(self._full, last, between)
        return updated if tf.executing_eagerly() else tf.group(updated)

    def _mean(self, total: tf.Tensor) -> tf.Tensor:
        return total / tf.cast(self._passes, total.dtype) if self._average else total

    def _count(self) -> tf.Variable:
        with tf.init_scope():
            key = 0 if tf.executing_eagerly() else id(tf.compat.v1.get_default_graph())
            if key not in self._counts:
                self._alive.append(tf.compat.v1.get_default_graph())  # an id is that of a living object
                self._counts[key] = _variable(lambda: tf.zeros([], tf.int32), "backward_passes")
            return self._counts[key]

    def _sum(self, variable: Any) -> tf.Variable:
        if id(variable) not in self._sums:
            self._alive.append(variable)
            with tf.init_scope():
                name = str(variable.name).split(":")[0] + "/sum_of_passes"
                self._sums[id(variable)] = _variable(lambda: zeros(variable), name)
        return self._sums[id(variable)]


def _variable(initial: Callable[[], tf.Tensor], name: str) -> tf.Variable:
    return tf.compat.v1.Variable(initial, trainable=False, use_resource=True, name=name)


def _ops(values: Sequence[Any]) -> list[Any]:
    """What can be depended on; eager mode runs in order anyway."""
    return [] if tf.executing_eagerly() else [value for value in values if value is not None]
