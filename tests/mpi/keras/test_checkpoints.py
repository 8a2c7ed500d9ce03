"""BestModelCheckpoint: rank 0 alone writes, and only what is better than all before."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import pytest

import fusionctl.keras as fusion
from alike import data_here, model_of
from fusionctl import UsageError
from fusionctl.keras.callbacks import BestModelCheckpoint

SIZES = (1, 2)


def written(losses: list[float], folder: str, **options: Any) -> list[str]:
    """Names of the files after epochs of these validation losses."""
    callback = BestModelCheckpoint(**options)
    if callback.filepath is None:
        callback.filepath = str(Path(folder, "{epoch}.keras"))
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.train_on_batch(*data_here(0))
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, loss in enumerate(losses):
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_end(0, {"val_loss": loss})
        callback.on_epoch_end(epoch, {"val_loss": loss})
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # between Keras and NumPy
@pytest.mark.parametrize("weights_only", [False, True])
def test_rank_0_writes_what_is_best(weights_only: bool) -> None:
    ending = "weights.h5" if weights_only else "keras"
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, f"{{epoch}}.{ending}"))
        got = written([3.0, 4.0, 2.0], folder, filepath=path, save_weights_only=weights_only)
    assert got == ([f"1.{ending}", f"3.{ending}"] if fusion.rank() == 0 else [])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # between Keras and NumPy
def test_the_path_may_be_set_later() -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = written([3.0, 4.0, 5.0], folder, mode="max")
    assert got == (["1.keras", "2.keras", "3.keras"] if fusion.rank() == 0 else [])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # between Keras and NumPy
def test_best_is_by_the_average_of_all_ranks_with_metric_average() -> None:
    callback = BestModelCheckpoint(monitor="loss")
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    with tempfile.TemporaryDirectory() as folder:
        callback.filepath = str(Path(folder, "best.keras"))
        callbacks = [callback, fusion.callbacks.MetricAverageCallback()]
        history = model.fit(*data_here(0), epochs=2, verbose=0, callbacks=callbacks).history
        if fusion.rank() == 0:
            assert callback.best == min(history["loss"])
            assert keras.saving.load_model(callback.filepath).optimizer is not None


def test_no_path_is_a_usage_error() -> None:
    callback = BestModelCheckpoint()
    with pytest.raises(UsageError, match="BestModelCheckpoint has no filepath"):
        callback.on_train_begin()
