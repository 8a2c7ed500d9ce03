"""Loading a saved model with its optimizer wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from fusionctl.errors import UsageError
from fusionctl.keras.optimizer import DistributedOptimizer
from fusionctl.tensorflow.compression import Compression, Compressor


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Compressor = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """The saved model, with its optimizer's state, ready to go on training on all ranks.

    Loads what `keras.saving.load_model` does, on every rank from a file that it can read, and wraps the optimizer by
    DistributedOptimizer with `compression`; for other options load by Keras and wrap `model.optimizer` yourself.
    `custom_optimizers` are classes, found by their names; `legacy_opts` is Horovod's and changes nothing.  A model
    saved without an optimizer comes back without one: `compile` it.  Save as `.keras`: from HDF5 Keras 3 restores no
    optimizer.  Raises UsageError for what is no optimizer class.
    """
    named = {kind.__name__: kind for kind in _checked(custom_optimizers or ())}
    model = keras.saving.load_model(filepath, custom_objects={**named, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


def _checked(kinds: Iterable[Any]) -> Iterable[Any]:
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)):
            raise UsageError(f"custom_optimizers holds {kind!r}, which is not a class of Keras 3 optimizers")
        yield kind
