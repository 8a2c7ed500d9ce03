"""Loss scaling over ranks: the gradients are reduced before `LossScaleOptimizer` looks for values that are not finite.

`LossScaleOptimizer.apply` tests this rank's gradients and calls the inner optimizer only if all are finite.  An inner
optimizer that reduces would then be called by some ranks and not by others: they would wait for each other forever.
`compile` puts the LossScaleOptimizer around the wrapped optimizer by itself under mixed_float16, so the order is not
the user's to choose; hence its `apply` is replaced, once, by one that reduces first.  An overflow on one rank then is
an overflow on all: they skip the step together and their scales stay equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from fusionctl.keras.reduction import reduction_of


def install() -> None:
    """Replace `keras.optimizers.LossScaleOptimizer.apply`; nothing changes around a plain optimizer.  Idempotent."""
    plain = keras.optimizers.LossScaleOptimizer.apply
    if getattr(plain, "reduces_first", False):
        return

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        inner = self.inner_optimizer
        reduction = reduction_of(inner)
        if reduction is None:
            return plain(self, grads, trainable_variables)
        # Keras 3.10 leaves the list of the LossScaleOptimizer itself empty, and unscales none if it is given none.
        variables = list(inner._trainable_variables if trainable_variables is None else trainable_variables)
        inner.check_counts(grads, variables)
        return reduction.apply(
            self, grads, variables, lambda reduced: plain(self, reduced, variables), skips_overflows=True
        )

    apply.reduces_first = True  # type: ignore[attr-defined]
    keras.optimizers.LossScaleOptimizer.apply = apply
    keras.optimizers.LossScaleOptimizer.register_local_var = _register_local_var


def _register_local_var(self: Any, variable: Any) -> None:
    """The same as that of the wrapped optimizer inside."""
    self.inner_optimizer.register_local_var(variable)
