"""Local variables: those of this rank alone, as an embedding that is split over the ranks; they are not reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.tensorflow.gradients import reduce_gradients
from fusionctl.tensorflow.sparse import each_value

Pairs = list[tuple[Any, Any]]


class LocalSources:
    """The variables, or other sources of gradients, that this rank keeps to itself.

    `scale` divides their gradients by the number of ranks in the process set, as an average does with a gradient that
    one rank has: so the learning rate means the same for local and for global variables.
    """

    def __init__(self, scale: bool, process_set: ProcessSet = global_process_set) -> None:
        self._scale = scale
        self._process_set = process_set
        self._sources: dict[int, Any] = {}
        self._layers: list[Any] = []

    def register(self, source: Any) -> None:
        """Keep a variable to this rank from now on."""
        self._sources[id(source)] = source

    def register_layers(self, layers: Any) -> None:
        """Keep the trainable weights of a layer, or of several, to this rank, also those that are yet to be built."""
        layers = [layers] if hasattr(layers, "trainable_weights") else list(layers or ())
        for layer in layers:
            if not hasattr(layer, "trainable_weights"):
                raise UsageError(
                    f"local_layers has {layer!r}, which is no layer; pass a Keras layer, or a list of them"
                )
        self._layers += layers

    def split(self, grads: Sequence[Any], variables: Sequence[Any]) -> tuple[Pairs, Pairs]:
        """Pairs of gradient and variable: the local ones, scaled, and the global ones, not reduced yet."""
        local = self._sources.keys() | {id(weight) for layer in self._layers for weight in layer.trainable_weights}
        pairs = list(zip(grads, variables, strict=True))
        here = [(self._scaled(grad), variable) for grad, variable in pairs if id(variable) in local]
        return here, [pair for pair in pairs if id(pair[1]) not in local]

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any], **options: Any) -> list[Any]:
        """The local gradients as they are here, but for the scale, and the others reduced over the process set."""
        here, everywhere = self.split(grads, variables)
        reduced = reduce_gradients(
            [grad for grad, _ in everywhere],
            [each for _, each in everywhere],
            process_set=self._process_set,
            **options,
        )
        remaining = {False: iter(reduced), True: iter([grad for grad, _ in here])}
        local = {id(variable) for _, variable in here}
        return [next(remaining[id(variable) in local]) for variable in variables]

    def _scaled(self, grad: Any) -> Any:
        size = self._process_set.size()
        if grad is None or not self._scale or size == 1:
            return grad
        return each_value(grad, lambda values: values / tf.cast(size, values.dtype))
