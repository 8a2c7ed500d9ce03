"""The broadcast of model.fit: all ranks start from the root's state, and are about to do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.keras as fusion
from fusionctl import FusionctlError, UsageError
from fusionctl.keras.agreement import check_same_length
from fusionctl.keras.callbacks import BroadcastGlobalVariablesCallback

SIZES = (1, 2, 3)


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the state before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Any] | None = None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.first is None:
            self.first = state(self.model)


def state(model: keras.Model) -> list[Any]:
    return [variable.numpy().tolist() for variable in [*model.weights, *model.optimizer.variables]]


def seeds(model: keras.Model) -> list[list[int]]:
    return [variable.numpy().tolist() for variable in model.variables if "seed" in variable.path]


def model_of(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(fusion.rank())
    layers = [
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((2,)), *layers])
    model.compile(optimizer, loss="mse", metrics=["mae"], jit_compile=False)
    return model


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(fusion.rank())
    return random.normal(size=(8, 2)).astype("float32"), random.normal(size=(8, 1)).astype("float32")


def test_all_ranks_make_the_first_step_from_the_state_of_the_root() -> None:
    root = fusion.size() - 1
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.Adam(0.1 * (1 + fusion.rank()))))
    model.optimizer.build(model.trainable_variables)
    for variable in model.optimizer.variables:
        variable.assign(variable + fusion.rank())
    flat = np.concatenate([np.ravel(np.asarray(values, "float64")) for values in state(model)])
    of_root = fusionctl.broadcast(flat, root_rank=root, name="state of the root")
    watch = Watch()
    model.fit(*data(), batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(root), watch])
    assert watch.first is not None
    got = np.concatenate([np.ravel(np.asarray(values, "float64")) for values in watch.first])
    np.testing.assert_array_equal(got, of_root)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("data_as", ["arrays", "dataset"])
def test_a_model_without_variables_is_built_before_the_first_step(eager: bool, data_as: str) -> None:
    keras.utils.set_random_seed(fusion.rank())
    model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(fusion.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse", run_eagerly=eager)
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(4)
    given = {"x": batches} if data_as == "dataset" else dict(zip("xy", data(), strict=True), batch_size=4)
    model.fit(**given, shuffle=False, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert int(model.optimizer.iterations) == 2
    mine = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    assert len(mine) == 13
    np.testing.assert_array_equal(mine, fusionctl.broadcast(mine, root_rank=0, name="weights of the root"))


def test_each_rank_keeps_its_seeds() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    before = seeds(model)
    callback = BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.set_params({"steps": 2, "epochs": 1})
    callback.on_train_begin()
    assert seeds(model) == before != []


def test_the_loss_scale_is_broadcast() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0 ** (4 + fusion.rank()))
    model = model_of(fusion.DistributedOptimizer(optimizer))
    model.fit(*data(), verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert float(optimizer.dynamic_scale) == 16.0


LENGTHS: dict[str, tuple[Callable[[int], tuple[int | None, int]], str]] = {
    "equal": (lambda rank: (22, 3), ""),
    "unknown": (lambda rank: (22 if rank else None, 3), ""),
    "steps": (
        lambda rank: (22 + rank, 3),
        r"^the ranks' steps per epoch are 22 \(rank 0\), 23 \(rank 1\).*, or fit\(steps_per_epoch=22\)$",
    ),
    "epochs": (
        lambda rank: (22, 3 + rank),
        r"^the ranks' epochs are 3 \(rank 0\), 4 \(rank 1\).*: give fit the same number on all ranks$",
    ),
}


@pytest.mark.parametrize(("length", "message"), LENGTHS.values(), ids=LENGTHS)
def test_ranks_must_take_as_many_steps(length: Callable[[int], tuple[int | None, int]], message: str) -> None:
    mine = length(fusion.rank())
    if not message or fusion.size() == 1:
        check_same_length(*mine)
        return
    with pytest.raises(UsageError, match=message):
        check_same_length(*mine)


def test_an_optimizer_that_was_not_wrapped_raises() -> None:
    model = model_of(keras.optimizers.SGD(0.1, name="sgd"))
    callbacks = [BroadcastGlobalVariablesCallback(0)]
    if fusion.size() == 1:
        assert len(model.fit(*data(), verbose=0, callbacks=callbacks).history["loss"]) == 1
        return
    with pytest.raises(FusionctlError) as caught:
        model.fit(*data(), batch_size=4, verbose=0, callbacks=callbacks)
    assert str(caught.value) == (
        "the first step reduced nothing: optimizer 'sgd' is not wrapped; compile the model with "
        "fusionctl.keras.DistributedOptimizer(optimizer)"
    )


class Oracle:
    """An iterator that does not say what is in it."""


def test_a_model_that_cannot_be_built_is_a_usage_error() -> None:
    model = keras.Sequential([keras.layers.Dense(1)], name="unbuilt")
    model.compile(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    callback = BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.set_params({"steps": None, "epochs": 1})
    callback.on_train_begin()
    with pytest.raises(UsageError) as caught:
        model.train_function(Oracle())
    assert str(caught.value) == (
        "model 'unbuilt' has no variables to broadcast before the first step, and could not be built for batches of "
        "None: give it an Input or call model.build(input_shape) before fit"
    )
