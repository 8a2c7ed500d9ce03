"""What model.fit and train_on_batch do around a wrapped optimizer: reduce in every step, without XLA, or raise."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from fusionctl import FusionctlError

SIZES = (1, 2)


class Idle(keras.Sequential):  # type: ignore[misc]
    """A model whose step of its own never calls the optimizer."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        return {"loss": self.compute_loss(x, y, self(x))}


class Own(keras.Sequential):  # type: ignore[misc]
    """A model whose step of its own does."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def model_of(optimizer: Any, kind: type = keras.Sequential, **options: Any) -> keras.Model:
    """The same weights on every rank."""
    keras.utils.set_random_seed(7)
    model = kind([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)], name="net")
    model.compile(optimizer, loss="mse", **{"jit_compile": False, **options})
    return model


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Other data on every rank."""
    random = np.random.default_rng(100 * seed + fusion.rank())
    return random.normal(size=(8, 3)).astype("float32"), random.normal(size=(8, 2)).astype("float32")


def check_ranks_are_equal(model: keras.Model, before: list[np.ndarray]) -> None:
    mine = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    assert np.any(mine != np.concatenate([np.ravel(weight) for weight in before]))
    np.testing.assert_array_equal(mine, fusion.broadcast(mine, root_rank=0, name="weights of the root").numpy())


def test_a_model_that_trained_before_its_optimizer_was_wrapped_is_traced_again() -> None:
    model = model_of(keras.optimizers.SGD(0.1))
    before = model.get_weights()
    x, y = data()
    model.fit(x, y, epochs=2, verbose=0)
    model.set_weights(before)
    fusion.DistributedOptimizer(model.optimizer)
    model.fit(x, y, epochs=2, verbose=0)
    check_ranks_are_equal(model, before)


def test_a_step_is_traced_once_for_several_fits() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.fit(*data(), verbose=0)
    first = model.train_function
    model.fit(*data(1), verbose=0)
    assert model.train_function is first


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_step_of_the_models_own_that_applies_is_fine(eager: bool) -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)), Own, run_eagerly=eager)
    before = model.get_weights()
    model.fit(*data(), epochs=2, verbose=0)
    check_ranks_are_equal(model, before)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scale"])
def test_a_step_that_never_reaches_the_wrapped_optimizer_raises(eager: bool, scaled: bool) -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, name="sgd"), name="idle")
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="sgd")
    model = model_of(optimizer, Idle, run_eagerly=eager)
    with pytest.raises(FusionctlError) as caught:
        model.fit(*data(), batch_size=4, verbose=0)
    assert str(caught.value) == (
        "the first step of model 'net' did not call apply() of optimizer 'sgd' (idle), so no gradient was reduced: let "
        "train_step() call self.optimizer.apply(gradients, self.trainable_variables)"
    )


def test_a_model_with_nothing_to_train_is_fine() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.trainable = False
    model.compile(model.optimizer, loss="mse", jit_compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.train_on_batch(*data())
    assert "The model does not have any trainable weights." in [str(warning.message) for warning in caught]


def test_jit_is_turned_off_with_one_warning() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)), jit_compile=True)
    before = model.get_weights()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.train_on_batch(*data())
        model.fit(*data(1), verbose=0)
    said = [str(warning.message) for warning in caught if "jit_compile" in str(warning.message)]
    expected = (
        "jit_compile is turned off for model 'net': XLA cannot compile the all-reduce of its DistributedOptimizer; "
        "compile the model with jit_compile=False"
    )
    assert said == ([expected] if fusion.rank() == 0 else [])
    assert not model.jit_compile
    check_ranks_are_equal(model, before)


def test_a_plain_model_keeps_jit() -> None:
    fusion.DistributedOptimizer(keras.optimizers.SGD(0.1))  # make_train_function is patched
    model = model_of(keras.optimizers.SGD(0.1), jit_compile=True)
    model.make_train_function()
    assert model.jit_compile


class Half(keras.Sequential):  # type: ignore[misc]
    """A model of whose first layer one variable has no gradient, and one a gradient that no data take part in."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        first, second = self.layers
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, second(tf.stop_gradient(first(x)))) + tf.reduce_sum(first.bias)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")  # on one rank, which sends no zeros
@pytest.mark.parametrize("passes", [1, 2])
def test_the_end_of_data_of_unknown_length_is_no_step(passes: int) -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=passes), Half)
    before = model.get_weights()
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(2).filter(lambda x, y: True)
    model.fit(batches, epochs=3, verbose=0, shuffle=False)
    assert int(model.optimizer.iterations) == 3 * 4 // passes
    check_ranks_are_equal(model, before)
