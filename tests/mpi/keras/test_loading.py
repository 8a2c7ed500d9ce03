"""load_model: what was saved goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from alike import FLOAT32_TOLERANCE, data_here, of_root, weights
from fusionctl import UsageError
from fusionctl.keras.reduction import reduction_of

SIZES = (1, 2, 3)
STEPS = 3

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras and NumPy


class Halving(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer of the user's own, not registered with Keras."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate / 2)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 8.0, 2),
    "custom": lambda: Halving(0.1, momentum=0.9),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def model_of(optimizer: Any) -> keras.Model:
    """Of float32 throughout: Keras saves no dtype of a loss."""
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, loss=keras.losses.MeanSquaredError(), jit_compile=False)
    return model


def train(model: keras.Model, steps: range) -> keras.Model:
    for step in steps:
        model.train_on_batch(*data_here(step))
    return model


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_resumed_run_is_equal_to_one_without_a_break(make: Callable[[], Any], folder: Path) -> None:
    whole = train(model_of(fusion.DistributedOptimizer(make())), range(2 * STEPS))
    broken = train(model_of(fusion.DistributedOptimizer(make())), range(STEPS))
    broken.save(folder / "model.keras")
    resumed = fusion.load_model(folder / "model.keras", custom_optimizers=[Halving])
    assert reduction_of(resumed.optimizer) is not None
    train(resumed, range(STEPS, 2 * STEPS))
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    np.testing.assert_array_equal(weights(resumed), of_root(weights(resumed)))


def test_compression_and_custom_objects_are_used(folder: Path) -> None:
    model = train(model_of(fusion.DistributedOptimizer(Halving(1.0))), range(1))
    model.save(folder / "model.keras")
    loaded = fusion.load_model(
        folder / "model.keras", custom_objects={"Halving": Halving}, compression=fusion.Compression.fp16
    )
    variable = keras.Variable(0.0)
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.apply([tf.constant(1.0 + 2**-20)], [variable])
    assert float(variable) == -1.0 - 2**-20
    before = loaded.trainable_variables[-1].numpy()
    grads = [tf.fill(each.shape, tf.constant(1.0 + 2**-20, "float64")) for each in loaded.trainable_variables]
    loaded.optimizer.apply(grads)
    np.testing.assert_array_equal(loaded.trainable_variables[-1].numpy(), before - 0.5)  # 1 + 2**-20 is 1 in float16


def test_fit_goes_on_with_equal_ranks_where_files_differ(folder: Path) -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    train(model, range(2))
    for variable in [*model.weights, *model.optimizer.variables]:
        variable.assign(variable + fusion.rank())  # as if this rank had another file
    model.save(folder / "model.keras")
    resumed = fusion.load_model(folder / "model.keras")
    x, y = data_here(7)
    resumed.fit(x, y, verbose=0, callbacks=[fusion.callbacks.BroadcastGlobalVariablesCallback(0)])
    np.testing.assert_array_equal(weights(resumed), of_root(weights(resumed)))


def test_a_model_without_an_optimizer_stays_without(folder: Path) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.save(folder / "model.keras")
    assert getattr(fusion.load_model(folder / "model.keras"), "optimizer", None) is None


def test_custom_optimizers_are_classes(folder: Path) -> None:
    with pytest.raises(UsageError, match="custom_optimizers holds 'Halving', which is not a class"):
        fusion.load_model(folder / "model.keras", custom_optimizers=["Halving"])  # type: ignore[list-item]


LOAD = """
import json, sys
sys.modules["fusionctl"] = None
import keras, numpy, tensorflow
optimizer = keras.models.load_model(sys.argv[1] + ".keras").optimizer
exported = tensorflow.saved_model.load(sys.argv[1])
print(json.dumps(exported.serve(numpy.ones((2, 3), "f")).numpy().tolist()))
print(json.dumps([type(optimizer).__name__, [variable.numpy().tolist() for variable in optimizer.variables]]))
"""


@pytest.mark.parametrize("wrap", ["aggregating", "partial"])
def test_plain_keras_loads_and_exports_what_any_wrapper_saved(wrap: str, folder: Path) -> None:
    plain = keras.optimizers.Adam(0.01)
    if wrap == "aggregating":
        optimizer = fusion.DistributedOptimizer(plain, backward_passes_per_step=2)
    else:
        optimizer = fusion.PartialDistributedOptimizer(plain, local_layers=[])
    model = train(model_of(optimizer), range(3))
    if fusion.rank() > 0:
        return
    path = str(folder / "model")
    model.save(f"{path}.keras")
    model.export(path, verbose=False)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "OMPI_"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, path], check=True, capture_output=True, text=True, env=environment
    )
    served, optimizer = map(json.loads, done.stdout.splitlines())
    np.testing.assert_allclose(served, model(np.ones((2, 3), "f")), *FLOAT32_TOLERANCE)
    assert optimizer == ["Adam", [variable.numpy().tolist() for variable in model.optimizer.variables]]
