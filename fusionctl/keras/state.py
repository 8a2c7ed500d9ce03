"""What the ranks have in common of a model and its optimizer, and that it is there before the first step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusionctl.errors import UsageError
from fusionctl.keras.local import without
from fusionctl.keras.reduction import local_of


def shared_variables(model: Any, local_variables: Sequence[Any] = ()) -> list[Any]:
    """Weights, optimizer slots, iterations and loss scale, the optimizer being built if it was not.

    Without random seeds, metrics and text, the given local variables, and those that are local to the optimizer.
    """
    slots, optimizer = [], model.optimizer
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        slots = optimizer.variables
    local = [*local_variables, *local_of(optimizer).all()]
    shared = without(model.weights, slots, local) if local else [*model.weights, *slots]
    return [variable for variable in shared if variable.dtype != "string"]


def when_built(model: Any, action: Callable[[], None]) -> None:
    """Call `action` now, or before the first step, for which the model is then built from the shapes of its batch."""
    if _is_built(model):
        action()
        return
    plain = model.train_function

    def train_function(iterator: Any) -> Any:
        model.train_function = plain
        if not _is_built(model):
            _build(model, iterator)
        action()
        return plain(iterator)

    model.train_function = train_function


def _is_built(model: Any) -> bool:
    return model.built and all(layer.built for layer in model._flatten_layers())


def _build(model: Any, iterator: Any) -> None:
    """Create the variables of model and optimizer without taking a step."""
    spec = getattr(iterator, "element_spec", None)
    try:
        model._symbolic_build(data_batch=spec)
    except Exception as error:
        raise UsageError(
            f"model '{model.name}' has no variables to broadcast before the first step, and could not be built for "
            f"batches of {spec}: give it an Input or call model.build(input_shape) before fit"
        ) from error
