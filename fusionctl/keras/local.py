"""Variables that belong to one rank: their gradients are not reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.keras.aggregation import identity
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.tensorflow.sparse import each_value


class LocalVariables:
    """Which variables are this rank's own: those that were added, and what is trainable in the layers by then.

    With `scale` their gradients are divided by the number of ranks in the process set, whichever op reduces the others:
    under the average of all ranks' losses that is what a variable that one rank has contributes.
    """

    def __init__(self, scale: bool = True, process_set: ProcessSet = global_process_set) -> None:
        self._process_set = process_set
        self._scale = scale
        self._layers: list[Any] = []
        self._added: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._layers or self._added)

    def add(self, variable: Any) -> None:
        """One more variable, of Keras or TensorFlow."""
        if not isinstance(variable, (keras.Variable, tf.Variable)):
            raise UsageError(f"{variable!r} is not a variable, of Keras or TensorFlow; register one at a time")
        self._added.append(variable)

    def add_layers(self, layers: Iterable[Any]) -> None:
        """Whatever is trainable in these layers, even if they are built later."""
        self._layers += layers

    def all(self) -> list[Any]:
        """The local variables that exist by now."""
        return [*self._added, *(variable for layer in self._layers for variable in layer.trainable_variables)]

    def among(self, variables: Sequence[Any]) -> list[int]:
        """Indices of the local ones."""
        local = {identity(variable) for variable in self.all()}
        return [index for index, variable in enumerate(variables) if identity(variable) in local]

    def scaled(self, grad: Any) -> Any:
        """What a local variable is updated by."""
        return each_value(grad, lambda values: values / self._process_set.size()) if self._scale else grad

    def check(self, optimizer: Any) -> None:
        """UsageError if the update of shared variables would depend on local gradients, and so drift apart."""
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        for part in (optimizer, *getattr(optimizer, "optimizers", ())):
            if self and part.global_clipnorm:
                raise UsageError(
                    f"optimizer '{part.name}' has local variables and global_clipnorm={part.global_clipnorm}, which "
                    "would clip the shared gradients by another norm on each rank; use clipnorm, one for each variable"
                )


def overflow(grads: Iterable[Any]) -> tf.Tensor:
    """A float32 scalar, NaN if some value is not finite and otherwise 0; so is its sum, or mean, over the ranks."""
    values = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
    return tf.add_n([tf.constant(0.0), *(tf.cast(tf.reduce_sum(value * 0), tf.float32) for value in values)])


def plus(grad: Any, scalar: tf.Tensor) -> Any:
    """The gradient, dense or sparse, with a scalar added to each value."""
    return each_value(grad, lambda values: values + tf.cast(scalar, values.dtype))


def without(variables: Iterable[Any], slots: Iterable[Any], local: Iterable[Any]) -> list[Any]:
    """The variables and optimizer slots but for the local ones and their slots, which Keras names by the variable."""
    listed, excluded = list(variables), {identity(variable) for variable in local}
    prefixes = {_slot_prefix(variable): identity(variable) in excluded for variable in listed}
    kept = [variable for variable in listed if identity(variable) not in excluded]
    for slot in slots:
        owner = max((p for p in prefixes if slot.name.startswith(p)), key=len, default=None)
        if owner is None or not prefixes[owner]:
            kept.append(slot)
    return kept


def _slot_prefix(variable: Any) -> str:
    return f"{variable.path.replace('/', '_')}_"


def checked_layers(layers: Any) -> list[Any]:
    """The layers of an argument, one or several or None; UsageError for what is no layer."""
    listed = [layers] if isinstance(layers, keras.layers.Layer) else list(layers or ())
    for layer in listed:
        if not isinstance(layer, keras.layers.Layer):
            raise UsageError(f"local_layers holds {layer!r}, which is not a Keras layer; give layers, or models")
    return listed
