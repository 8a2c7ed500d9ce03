"""DistributedOptimizer: a Keras 3 optimizer whose gradients are all-reduced before they are clipped and applied."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from fusionctl.errors import FusionctlError, UsageError
from fusionctl.keras import loss_scale
from fusionctl.request import ReduceOp
from fusionctl.runtime import is_initialized, rank
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.gradients import Groups, reduce_gradients
from fusionctl.tensorflow.tape import choose_groups, predivide

_numbers = itertools.count()


class Reduction:
    """How one wrapped optimizer reduces its gradients, and whether it has done so."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name
        self.reached = False
        self._options = options
        self._applying = False

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks combined, as one set; None stays None."""
        self.reached = True
        return reduce_gradients(grads, variables, name=self.name, **self._options)

    @property
    def applying(self) -> bool:
        """Whether an update runs whose gradients have been reduced."""
        return self._applying

    @contextmanager
    def reduced(self) -> Iterator[None]:
        """Updates inside are of gradients that have been reduced."""
        self._applying = True
        try:
            yield
        finally:
            self._applying = False

    def guard(self, optimizer: str, method: str) -> None:
        """FusionctlError unless called for reduced gradients."""
        if not self._applying:
            raise FusionctlError(
                f"optimizer '{optimizer}' ({self.name}) was about to update its variables with gradients of this rank "
                f"alone: {method}() was called around apply(); call apply() or apply_gradients() of the object that "
                "DistributedOptimizer returned"
            )


class _Distributed:
    """The methods that wrapping puts in front of an optimizer's own; the class is made per instance."""

    _reduction: Reduction

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Reduce the gradients over the ranks, then update the variables as the plain optimizer does."""
        plain: Any = super()
        if self._reduction.applying:
            return plain.apply(grads, trainable_variables)
        grads = list(grads)
        known = list(getattr(self, "_trainable_variables", ()) if trainable_variables is None else trainable_variables)
        if len(grads) != len(known):
            raise UsageError(
                f"optimizer '{getattr(self, 'name', '')}' got {len(grads)} gradients for {len(known)} variables; give "
                "one gradient, or None, for each variable, and the variables unless the optimizer is built"
            )
        if not grads:
            return plain.apply(grads, trainable_variables)
        grads = self._reduction.reduce(grads, known)
        with self._reduction.reduced():
            return plain.apply(grads, trainable_variables)


def _guarded(base: type, method: str) -> Any:
    plain = getattr(base, method)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._reduction.guard(self.name, method)
        return plain(self, *args, **kwargs)

    return guarded


# What apply() calls inside, one of which every update passes.
_UPDATES = ("_backend_apply_gradients", "_backend_update_step", "update_step")
_LOSS_SCALE_UPDATES = ("_tf_apply", "_common_apply", "_stateful_handle_finite_grads")


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = ReduceOp.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make this optimizer all-reduce its gradients; returns the same instance, with its state, schedule and arguments.

    The gradients of one `apply` are reduced as one set before they are clipped and applied, so that N ranks train as
    one process does with N times the batch.  Saving writes the plain optimizer's class.  Wrap on every rank in the same
    order, or give a `name`.  With `gradient_accumulation_steps` each micro-batch is reduced.

    `gradient_predivide_factor` f divides by f before the sum and by size / f after it.  `device_dense`,
    `device_sparse`, `average_aggregated_gradients` and `scale_local_gradients` are accepted for code written for
    Horovod and change nothing.  Raises UsageError for what cannot be done: wrapping twice, other ops than Average and
    Sum, `backward_passes_per_step` above 1.
    """
    _check(optimizer, op, backward_passes_per_step)
    reduction = Reduction(
        name or f"optimizer.{next(_numbers)}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=choose_groups(num_groups, groups),
        **predivide(gradient_predivide_factor, op),
    )
    loss_scale.install(reduction_of)
    _turn_jit_off()
    object.__setattr__(optimizer, "__class__", _subclass(type(optimizer), reduction))
    return optimizer


def reduction_of(optimizer: object) -> Reduction | None:
    """The Reduction of a wrapped optimizer, or of the wrapped one inside a LossScaleOptimizer; None for a plain one."""
    if isinstance(optimizer, _Distributed):
        return optimizer._reduction
    inner = getattr(optimizer, "inner_optimizer", None)
    return None if inner is None else reduction_of(inner)


def _subclass(base: type, reduction: Reduction) -> type:
    # __class__ still answers with the plain class: it is what Keras serialises, and what a copy is made from.
    scales_loss = issubclass(base, keras.optimizers.LossScaleOptimizer)
    methods = {method: _guarded(base, method) for method in (_LOSS_SCALE_UPDATES if scales_loss else _UPDATES)}
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    plain = property(lambda self: base)
    return type(base.__name__, (_Distributed, base), {**names, **methods, "_reduction": reduction, "__class__": plain})


def _check(optimizer: object, op: ReduceOp, backward_passes: int) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps an instance of a Keras 3 optimizer, not {optimizer!r}")
    if reduction_of(optimizer) is not None:
        raise UsageError(f"optimizer '{optimizer.name}' is wrapped already; call DistributedOptimizer once")
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"op is {op!r}; gradients can be combined by Average or Sum")
    if backward_passes != 1:
        raise UsageError(
            f"backward_passes_per_step is {backward_passes}; give the Keras optimizer gradient_accumulation_steps="
            f"{backward_passes} instead"
        )


def _turn_jit_off() -> None:
    """Make every model with a wrapped optimizer train without XLA, which cannot compile the all-reduce; idempotent."""
    plain = keras.Model.make_train_function
    if getattr(plain, "turns_jit_off", False):
        return

    def make_train_function(self: Any, force: bool = False) -> Any:
        if self.jit_compile and reduction_of(self.optimizer) is not None:
            if not is_initialized() or rank() == 0:
                _warn_of_jit(self.name)
            self.jit_compile = False
            force = True
        return plain(self, force)

    make_train_function.turns_jit_off = True  # type: ignore[attr-defined]
    keras.Model.make_train_function = make_train_function


def _warn_of_jit(model: str) -> None:
    warnings.warn(
        f"jit_compile is turned off for model '{model}': XLA cannot compile the all-reduce of its "
        "DistributedOptimizer; compile the model with jit_compile=False",
        stacklevel=2,
    )
