"""The law of data-parallel training as a check: N ranks with batches of b train as one with batches of N * b."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusionctl.keras as fusion

STEPS = 4
BATCH = 5
LOSS = keras.losses.MeanSquaredError(dtype="float64")
FLOAT64_TOLERANCE = (1e-10, 1e-12)
FLOAT32_TOLERANCE = (1e-5, 1e-6)
"""Relative and absolute: what the order of the sums may change in a few steps.  The README promises float32's."""


def model_of(optimizer: keras.optimizers.Optimizer, dtype: str = "float64", **options: Any) -> keras.Model:
    """The same weights on every rank; in float64 only the order of a sum tells models apart."""
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(4, activation="tanh", dtype=dtype), keras.layers.Dense(2, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,), dtype=dtype), *layers])
    model.compile(optimizer, loss=LOSS, **{"jit_compile": False, **options})
    return model


def data_of_all(step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(step)
    count = BATCH * fusion.size()
    x, y = random.normal(size=(count, 3)), random.normal(size=(count, 2))
    return x.astype("float32"), y.astype("float32")  # as Keras would cast them


def data_here(step: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = data_of_all(step)
    return x[fusion.rank() :: fusion.size()], y[fusion.rank() :: fusion.size()]


def weights(model: keras.Model) -> np.ndarray:
    return np.concatenate([np.ravel(variable.numpy()) for variable in model.variables + model.optimizer.variables])


def of_root(values: np.ndarray) -> np.ndarray:
    return fusion.broadcast(tf.constant(values), root_rank=0, name="weights of rank 0").numpy()  # type: ignore[no-any-return]


def check_trains_alike(
    model: keras.Model, reference: keras.Model, tolerance: tuple[float, float] = FLOAT64_TOLERANCE
) -> None:
    """Both take the same steps, the reference with the data of all ranks."""
    for step in range(STEPS):
        model.train_on_batch(*data_here(step))
        reference.train_on_batch(*data_of_all(step))
        mine = weights(model)
        np.testing.assert_allclose(mine, weights(reference), *tolerance)
        np.testing.assert_array_equal(mine, of_root(mine))
