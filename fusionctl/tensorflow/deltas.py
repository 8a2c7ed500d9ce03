"""What an optimizer has changed, combined over the ranks in place of the gradients: how Adasum meets an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def update_by_deltas(
    update: Callable[[], Any],
    variables: Sequence[Any],
    reduce: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
) -> Any:
    """Run `update`, then set each variable to what it was, plus the reduced difference that this rank's update made."""
    before = [tf.identity(variable) for variable in variables]
    with tf.control_dependencies(before):  # a graph of TensorFlow 1 keeps no order of its own
        updated = update()
    with tf.control_dependencies([] if updated is None or tf.executing_eagerly() else [updated]):
        deltas = [variable.read_value() - start for variable, start in zip(variables, before, strict=True)]
    reduced = reduce(deltas, variables)
    assigned = [
        variable.assign(start + delta, read_value=False)
        for variable, start, delta in zip(variables, before, reduced, strict=True)
    ]
    return None if tf.executing_eagerly() else tf.group(*assigned)
