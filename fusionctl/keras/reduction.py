"""How one wrapped optimizer reduces its gradients, and the guard that it updates by no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fusionctl.errors import FusionctlError
from fusionctl.keras.aggregation import Aggregation, build
from fusionctl.tensorflow.gradients import reduce_gradients


class Reduction:
    """The name and the options of a wrapped optimizer's reductions, shared by the optimizers that it delegates to.

    `aggregation` sums the gradients of several calls before each reduction; other options are `reduce_gradients`'s.
    `count` grows with each `apply` that is traced, or run eagerly.
    """

    def __init__(self, name: str, aggregation: Aggregation, **options: Any) -> None:
        self.name = name
        self.count = 0
        self.applying = False
        self._aggregation = aggregation
        self._options = options

    def apply(
        self, optimizer: Any, grads: Sequence[Any], variables: Sequence[Any], update: Callable[[list[Any]], Any]
    ) -> None:
        """Reduce the gradients of one `apply` of this optimizer, and update by them, once a window is full."""
        self.count += 1

        def reduce_and_update(ready: Sequence[Any]) -> None:
            reduced = self._reduce(ready, variables)
            with self.reduced():
                update(reduced)

        if self._aggregation.passes == 1:
            reduce_and_update(grads)
        else:
            build(optimizer, variables)
            self._aggregation.add(grads, variables, reduce_and_update)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks combined, as one set; None stays None."""
        return reduce_gradients(grads, variables, name=self.name, **self._options)

    @contextmanager
    def reduced(self) -> Iterator[None]:
        """Updates inside are of gradients that have been reduced."""
        self.applying = True
        try:
            yield
        finally:
            self.applying = False

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
