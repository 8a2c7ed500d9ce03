"""The law: what only some ranks have built or wrapped before does not keep the ranks from training together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import fusionctl.keras as fusion

SIZES = (2, 3)


@pytest.fixture(autouse=True)
def names_begin_anew() -> Iterator[None]:
    """The ranks' counts of Keras's automatic names differ here; later tests' models have equal paths again."""
    yield
    keras.utils.clear_session()


def model_of(units: int) -> keras.Model:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dense(1)])


def fit(model: keras.Model, optimizer: Any, *callbacks: Any) -> None:
    model.compile(optimizer, "mse")
    x = np.full((4, 3), fusion.rank() + 1.0, np.float32)
    model.fit(x, np.zeros((4, 1)), batch_size=2, verbose=0, callbacks=list(callbacks))


def check_equal(model: keras.Model, name: str) -> None:
    for index, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(weight, fusion.broadcast(weight, 0, name=f"{name} {index}").numpy())


def test_an_optimizer_that_one_rank_wraps_and_never_uses() -> None:
    if fusion.rank() == 0:
        fusion.DistributedOptimizer(keras.optimizers.SGD())
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(1, name="one", bias_initializer="ones")], name="own"
    )
    fit(model, fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    check_equal(model, "unused optimizer")


def test_an_optimizer_of_a_process_set_before_one_of_all() -> None:
    some = fusion.add_process_set(range(fusion.size() - 1))
    weight = keras.Variable([1.0], name="of_the_set")
    if some.included():
        fusion.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=some).apply([np.ones(1, "f")], [weight])
    fusion.DistributedOptimizer(keras.optimizers.SGD(1.0)).apply([np.full(1, fusion.rank() + 1.0, "f")], [weight])
    np.testing.assert_allclose(weight.numpy(), [1.0 - some.included() - (fusion.size() + 1) / 2])
    fusion.barrier(name="set is done with")
    fusion.remove_process_set(some)


def test_a_model_that_one_rank_has_built_before() -> None:
    if fusion.rank() == 0:
        model_of(2)
    model = model_of(4)
    fit(
        model,
        fusion.DistributedOptimizer(keras.optimizers.Adam(0.1)),
        fusion.callbacks.BroadcastGlobalVariablesCallback(0),
    )
    check_equal(model, "other paths")


def test_two_unnamed_optimizers_of_the_same_variables() -> None:
    weight = keras.Variable([1.0], name="twice")
    for rate in (1.0, 2.0):
        optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(rate))
        optimizer.apply([np.full(1, fusion.rank() + 1.0, "f")], [weight])
    np.testing.assert_allclose(weight.numpy(), [1.0 - 3 * (fusion.size() + 1) / 2])
