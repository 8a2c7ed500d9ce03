"""DistributedOptimizer for the optimizers of TensorFlow 1, in graphs with a Session and in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, checked_set, global_process_set
from fusionctl.request import ReduceOp
from fusionctl.tensorflow.aggregation import Aggregation
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.deltas import update_by_deltas
from fusionctl.tensorflow.gradients import Groups
from fusionctl.tensorflow.library import outside_autograph
from fusionctl.tensorflow.local import LocalSources
from fusionctl.tensorflow.tape import checked_passes, choose_groups, gradient_op, predivide


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer that reduces its gradients over the ranks in `compute_gradients`, and so in `minimize`.

    `optimizer` is a `tf.compat.v1.train.Optimizer`; a Keras one is handed to `fusionctl.keras.DistributedOptimizer`
    with all arguments that it has.  With `backward_passes_per_step` k the gradients of k calls are summed on each rank,
    or averaged with `average_aggregated_gradients`, and the k-th call reduces and applies them; the calls between
    change no variable but `global_step`.  With op Adasum each rank applies its own gradients, and what that changed of
    the variables is combined.  The other arguments are those of `DistributedGradientTape`.  UsageError for what is no
    optimizer, and for other ops than Average, Sum and Adasum.
    """
    options: dict[str, Any] = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "average_aggregated_gradients": average_aggregated_gradients,
        "num_groups": num_groups,
        "groups": groups,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _for_keras(optimizer, name, options)
    passes = checked_passes(backward_passes_per_step)
    reduction = {
        "name": name or f"Distributed{optimizer.get_name()}",
        "op": gradient_op(op),
        "compression": checked_compression(compression),
        "sparse_as_dense": sparse_as_dense,
        "groups": choose_groups(num_groups, groups),
        **predivide(gradient_predivide_factor, gradient_op(op)),
    }
    aggregation = Aggregation(passes, average_aggregated_gradients) if passes > 1 else None
    return _Distributed(
        optimizer, use_locking, LocalSources(scale_local_gradients, checked_set(process_set)), reduction, aggregation
    )


def _for_keras(optimizer: Any, name: str | None, options: dict[str, Any]) -> Any:
    if not hasattr(optimizer, "apply"):
        raise UsageError(
            f"DistributedOptimizer wraps an optimizer of tf.compat.v1.train or of Keras, not {optimizer!r}"
        )
    from fusionctl import keras  # upwards, and only to hand over

    return keras.DistributedOptimizer(optimizer, name=name, **options)


class _Distributed(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """What DistributedOptimizer returns: the given optimizer, but for the gradients."""

    def __init__(
        self,
        optimizer: Any,
        use_locking: bool,
        local: LocalSources,
        reduction: dict[str, Any],
        aggregation: Aggregation | None,
    ) -> None:
        super().__init__(name=reduction["name"], use_locking=use_locking)
        self._optimizer = optimizer
        self._local, self._reduction, self._aggregation = local, reduction, aggregation

    def register_local_var(self, variable: Any) -> None:
        """Keep a variable to this rank: its gradient is not reduced."""
        self._local.register(variable)

    @outside_autograph
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of reduced gradient and variable; arguments are those of the given optimizer."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        reduce = self._keep if self._reduction["op"] is ReduceOp.ADASUM else self._reduce
        if self._aggregation is None:
            reduced = reduce(grads, variables)
        else:
            reduced = self._aggregation.add(grads, variables, reduce)
        return list(zip(reduced, variables, strict=True))

    @outside_autograph
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Update the variables as the given optimizer does; with `backward_passes_per_step` k, every k-th time."""
        pairs = list(grads_and_vars)

        def update() -> Any:
            if self._reduction["op"] is not ReduceOp.ADASUM:
                return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            _, shared = self._local.split(*zip(*pairs, strict=True))
            return update_by_deltas(
                lambda: self._optimizer.apply_gradients(pairs, global_step=global_step, name=name),
                [variable for _, variable in shared],
                self._reduce,
            )

        if self._aggregation is None:
            return update()
        return self._aggregation.apply(update, global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The given optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The given optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The given optimizer's."""
        return self._optimizer.variables(*args, **kwargs)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self._local.reduce(grads, variables, **self._reduction)

    def _keep(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return list(grads)
