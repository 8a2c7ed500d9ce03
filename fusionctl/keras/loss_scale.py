"""Loss scaling over ranks: the gradients are reduced before `LossScaleOptimizer` looks for values that are not finite.

`LossScaleOptimizer.apply` tests this rank's gradients and calls the inner optimizer only if all are finite.  An inner
optimizer that reduces would then be called by some ranks and not by others: they would wait for each other forever.
`compile` puts the LossScaleOptimizer around the wrapped optimizer by itself under mixed_float16, so the order is not
the user's to choose; hence its `apply` is replaced, once, by one that reduces first.  An overflow on one rank then is
an overflow on all: they skip the step together and their scales stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras


def install(reduction_of: Callable[[object], Any]) -> None:
    """Replace `keras.optimizers.LossScaleOptimizer.apply`; nothing changes around a plain optimizer.  Idempotent."""
    plain = keras.optimizers.LossScaleOptimizer.apply
    if getattr(plain, "reduces_first", False):
        return

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        reduction = reduction_of(self.inner_optimizer)
        if reduction is None:
            return plain(self, grads, trainable_variables)
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        reduced = reduction.reduce(list(grads), list(variables))
        with reduction.reduced():
            return plain(self, reduced, trainable_variables)

    apply.reduces_first = True  # type: ignore[attr-defined]
    keras.optimizers.LossScaleOptimizer.apply = apply
