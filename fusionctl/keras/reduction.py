"""How one wrapped optimizer reduces its gradients, and the guard that it updates by no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from fusionctl.errors import FusionctlError, UsageError
from fusionctl.keras.aggregation import Aggregation, build
from fusionctl.keras.local import LocalVariables, overflow, plus
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.tensorflow.gradients import reduce_gradients
from fusionctl.tensorflow.library import arguments


class Reduction:
    """The name and the options of a wrapped optimizer's reductions, shared by the optimizers that it delegates to.

    `aggregation` sums the gradients of several calls before each reduction, `local` says which variables' are not
    reduced at all; other options are `reduce_gradients`'s.  `count` grows with each `apply` that is traced, or run
    eagerly.
    """

    def __init__(
        self,
        name: str | None,
        aggregation: Aggregation,
        local: LocalVariables,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        self.name = name or "optimizer"  # no number: the ranks may have wrapped others before
        self.process_set = process_set
        self.local = local
        self.count = 0
        self.applying = False
        self._aggregation = aggregation
        self._options = {"process_set": process_set, **options}

    def apply(
        self,
        optimizer: Any,
        grads: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[list[Any]], Any],
        skips_overflows: bool = False,
    ) -> None:
        """Reduce the gradients of one `apply` of this optimizer, and update by them, once a window is full.

        `skips_overflows` says that `update` does something else where values are not finite.
        """
        self.count += 1
        self.local.check(optimizer)

        def reduce_and_update(ready: Sequence[Any]) -> None:
            reduced = self._reduce(ready, variables, skips_overflows)
            with self.reduced():
                update(reduced)

        with tf.control_dependencies(arguments()):
            if self._aggregation.passes == 1:
                reduce_and_update(grads)
            else:
                build(optimizer, variables)
                self._aggregation.add(grads, variables, reduce_and_update)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any], skips_overflows: bool) -> list[Any]:
        """The gradients of all ranks combined, as one set; None stays None, and local variables' stay this rank's."""
        local = self.local.among(variables)
        own = {index: self.local.scaled(grads[index]) for index in local if grads[index] is not None}
        shared = [None if index in own else grad for index, grad in enumerate(grads)]
        if local and skips_overflows:  # an overflow here must be one on all ranks, or only some would skip the step
            flag = overflow(own.values())
            *reduced, flag = reduce_gradients([*shared, flag], [*variables, flag], name=self.name, **self._options)
            own = {index: plus(grad, flag) for index, grad in own.items()}
        else:
            reduced = reduce_gradients(shared, variables, name=self.name, **self._options)
        return [own.get(index, grad) for index, grad in enumerate(reduced)]

    def know_by_places(self) -> None:
        """Name gradients by their places among the variables; all ranks call it before the first step is traced."""
        self._options["use_generic_names"] = True

    @contextmanager
    def reduced(self) -> Iterator[None]:
        """Updates inside are of gradients that have been reduced."""
        self.applying = True
        try:
            yield
        finally:
            self.applying = False

    def register_local_var(self, optimizer: str, variable: Any) -> None:
        """Reduce no gradient of this variable; UsageError once a step was traced."""
        if self.count:
            raise UsageError(
                f"register_local_var() of optimizer '{optimizer}' ({self.name}) after its first step, which is "
                "traced already; register local variables before"
            )
        self.local.add(variable)

    def guard(self, optimizer: str, method: str) -> None:
        """FusionctlError unless called for reduced gradients."""
        if not self.applying:
            raise FusionctlError(
                f"optimizer '{optimizer}' ({self.name}) was about to update its variables with gradients of this rank "
                f"alone: {method}() was called around apply(); call apply() or apply_gradients() of the object that "
                "DistributedOptimizer returned"
            )


def reduction_of(optimizer: object) -> Reduction | None:
    """The Reduction of a wrapped optimizer, or of the wrapped one inside a LossScaleOptimizer; None for a plain one."""
    reduction = getattr(optimizer, "_reduction", None)
    if isinstance(reduction, Reduction):
        return reduction
    inner = getattr(optimizer, "inner_optimizer", None)
    return None if inner is None else reduction_of(inner)


def local_of(optimizer: object) -> LocalVariables:
    """The local variables of a wrapped optimizer; none for a plain one."""
    reduction = reduction_of(optimizer)
    return LocalVariables() if reduction is None else reduction.local
