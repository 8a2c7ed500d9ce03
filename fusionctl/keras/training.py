"""What `fit` and `train_on_batch` need around a wrapped optimizer: no XLA, no stale step, no step without reduction.

`make_train_function` is the one place through which both pass before the first step, so it is replaced, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras

from fusionctl.errors import FusionctlError
from fusionctl.keras.reduction import Reduction, reduction_of
from fusionctl.runtime import is_initialized, rank


def install() -> None:
    """Replace `keras.Model.make_train_function`; nothing changes for a model with a plain optimizer.  Idempotent."""
    plain = keras.Model.make_train_function
    if getattr(plain, "watches_reduction", False):
        return

    def make_train_function(self: Any, force: bool = False) -> Any:
        reduction = reduction_of(getattr(self, "optimizer", None))
        if reduction is None:
            return plain(self, force)
        turned_off = _turn_jit_off(self)
        # A function made before the optimizer was wrapped holds a step that does not reduce.
        if force or turned_off or getattr(self.train_function, "reduction", None) is not reduction:
            plain(self, force=True)
            self.train_function = _watched(self, self.train_function, reduction)
        return self.train_function

    make_train_function.watches_reduction = True  # type: ignore[attr-defined]
    keras.Model.make_train_function = make_train_function


def _watched(model: Any, plain: Callable[[Any], Any], reduction: Reduction) -> Callable[[Any], Any]:
    """The train function; FusionctlError after its first call if that has reduced no gradient."""
    before = reduction.count

    def train_function(iterator: Any) -> Any:
        logs = plain(iterator)
        if reduction.count == before and model.trainable_variables:
            raise FusionctlError(
                f"the first step of model '{model.name}' did not call apply() of optimizer '{model.optimizer.name}' "
                f"({reduction.name}), so no gradient was reduced: let train_step() call "
                "self.optimizer.apply(gradients, self.trainable_variables)"
            )
        return logs

    train_function.reduction = reduction  # type: ignore[attr-defined]
    return train_function


def _turn_jit_off(model: Any) -> bool:
    """Whether XLA was on, which cannot compile the all-reduce; rank 0 says so."""
    if not model.jit_compile:
        return False
    model.jit_compile = False
    if not is_initialized() or rank() == 0:
        warnings.warn(
            f"jit_compile is turned off for model '{model.name}': XLA cannot compile the all-reduce of its "
            "DistributedOptimizer; compile the model with jit_compile=False",
            stacklevel=3,
        )
    return True
