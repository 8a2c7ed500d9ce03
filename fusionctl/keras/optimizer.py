"""DistributedOptimizer: a Keras 3 optimizer whose gradients are all-reduced before they are clipped and applied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from fusionctl.errors import UsageError
from fusionctl.keras import loss_scale, training
from fusionctl.keras.aggregation import Aggregation
from fusionctl.keras.local import LocalVariables, checked_layers
from fusionctl.keras.reduction import Reduction, local_of, reduction_of
from fusionctl.process_sets import ProcessSet, checked_set, global_process_set
from fusionctl.request import ReduceOp
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.gradients import Groups
from fusionctl.tensorflow.tape import checked_passes, choose_groups, gradient_op, predivide


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make this optimizer all-reduce its gradients; returns the same instance, with its state, schedule and arguments.

    The gradients of one `apply` are reduced as one set before they are clipped and applied, so that N ranks train as
    one process does with N times the batch.  Saving writes the plain optimizer's class.  Wrap on every rank in the same
    order, or give a `name`.  A LossScaleOptimizer may be given, or put around the result: the gradients are reduced
    before it looks for overflows.

    With `backward_passes_per_step` k each rank sums its gradients, sparse ones as dense, over k calls of `apply`; the
    k-th call reduces the sums, divided by k if `average_aggregated_gradients`, and updates.  The other calls change
    nothing of the model and the optimizer: `iterations`, and so a learning rate schedule, counts updates, where
    Horovod's counts calls.  A window that an epoch, or a fit, leaves open goes on in the next one; it is neither saved
    nor broadcast.  Keras's own `gradient_accumulation_steps` works too, and then accumulates reduced gradients.

    `register_local_var(variable)` of the result, before the first step, makes a variable this rank's own, as those of
    `PartialDistributedOptimizer` are.

    The ranks are those of `process_set`.  `gradient_predivide_factor` f divides by f before the sum and by size / f
    after it.  `device_dense` and `device_sparse` are accepted for code written for Horovod and change nothing.  Raises
    UsageError for what cannot be done: wrapping twice, other ops than Average, Sum and Adasum, fewer passes than one.
    """
    _check(optimizer, op, backward_passes_per_step)
    reduction = Reduction(
        name,
        Aggregation(backward_passes_per_step, average_aggregated_gradients),
        LocalVariables(scale_local_gradients, checked_set(process_set)),
        op=op,
        compression=checked_compression(compression),
        sparse_as_dense=sparse_as_dense,
        groups=choose_groups(num_groups, groups),
        process_set=process_set,
        **predivide(gradient_predivide_factor, op),
    )
    loss_scale.install()
    training.install()
    _adopt(optimizer, reduction)
    return optimizer


def PartialDistributedOptimizer(
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
    process_set: ProcessSet = global_process_set,
    local_layers: keras.layers.Layer | Iterable[keras.layers.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """A DistributedOptimizer that reduces no gradient of these layers: their trainable variables are each rank's own.

    `scale_local_gradients` divides their gradients by the number of ranks, for under the average of all ranks' losses a
    variable that one rank has contributes so much; with op Sum give False.  Layers, and models, need not be built yet.
    BroadcastGlobalVariablesCallback leaves local variables and their slots alone.  Where a LossScaleOptimizer skips
    overflows, one in a local gradient makes all ranks skip.  The other arguments are those of DistributedOptimizer.
    Raises UsageError also for `global_clipnorm`, which would tear the ranks' shared variables apart.
    """
    layers = checked_layers(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    local_of(wrapped).add_layers(layers)
    return wrapped


class _Distributed:
    """The methods that wrapping puts in front of an optimizer's own; the class is made per instance."""

    _reduction: Reduction
    _trainable_variables: Sequence[Any]
    built: bool
    name: str

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """Reduce the gradients over the ranks, then update the variables as the plain optimizer does.

        With `backward_passes_per_step` that is what the last call of a window does, by the sums of all its calls.
        """
        plain: Any = super()
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if self._reduction.applying:
            return plain.apply(grads, variables)
        self.check_counts(grads, variables)
        if not grads:
            return None
        return self._reduction.apply(self, grads, variables, lambda reduced: plain.apply(reduced, variables))

    def build(self, variables: Sequence[Any]) -> None:
        """Create the slots; what a MultiOptimizer delegates to is known only now."""
        plain: Any = super()
        plain.build(variables)
        _adopt_delegates(self, self._reduction)

    def register_local_var(self, variable: Any) -> None:
        """Reduce no gradient of this variable; UsageError after the first step."""
        self._reduction.register_local_var(self.name, variable)

    def check_counts(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """UsageError unless there are as many gradients as variables."""
        if len(grads) != len(variables):
            raise UsageError(
                f"optimizer '{self.name}' got {len(grads)} gradients for {len(variables)} variables; give one "
                "gradient, or None, for each variable, and the variables unless the optimizer is built"
            )


# What apply() calls inside; every update passes one of them.
_UPDATES = ("_backend_apply_gradients", "_backend_update_step", "update_step")


def _adopt(optimizer: Any, reduction: Reduction) -> None:
    """Make the optimizer, or the one that a LossScaleOptimizer scales for, reduce by `reduction`."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        _adopt(optimizer.inner_optimizer, reduction)
        return
    object.__setattr__(optimizer, "__class__", _subclass(type(optimizer), reduction))
    _adopt_delegates(optimizer, reduction)


def _adopt_delegates(optimizer: Any, reduction: Reduction) -> None:
    """The same for the parts of a MultiOptimizer: used alone, each reduces its own variables' gradients."""
    for part in getattr(optimizer, "optimizers", ()):
        if reduction_of(part) is None:
            _adopt(part, reduction)


def _subclass(base: type, reduction: Reduction) -> type:
    # __class__ still answers with the plain class: it is what Keras serialises, and what a copy is made from.
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    methods = {method: _guarded(base, method) for method in _UPDATES}
    plain = property(lambda self: base)
    return type(base)(
        base.__name__, (_Distributed, base), {**names, **methods, "_reduction": reduction, "__class__": plain}
    )


def _guarded(base: type, method: str) -> Any:
    plain = getattr(base, method)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._reduction.guard(self.name, method)
        return plain(self, *args, **kwargs)

    return guarded


def _check(optimizer: object, op: ReduceOp, backward_passes: int) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(f"DistributedOptimizer wraps an instance of a Keras 3 optimizer, not {optimizer!r}")
    if reduction_of(optimizer) is not None:
        raise UsageError(f"optimizer '{optimizer.name}' is wrapped already; call DistributedOptimizer once")
    gradient_op(op)
    checked_passes(backward_passes)
