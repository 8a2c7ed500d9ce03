"""The callbacks of model.fit: all ranks start from the root's state, and all see the averages of the metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import fusionctl
import fusionctl.keras as fusion
from fusionctl import FusionctlError, MismatchError, UsageError
from fusionctl.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

SIZES = (1, 2, 3)


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the state before the first step, and the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[Any] | None = None
        self.epochs: list[dict[str, float]] = []
        self.end: dict[str, float] = {}

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.first is None:
            self.first = state(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(dict(logs))

    def on_train_end(self, logs: Any = None) -> None:
        self.end = dict(logs)


class Idle(keras.Sequential):  # type: ignore[misc]
    """A model whose step of its own never calls the optimizer."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        return {"loss": self.compute_loss(x, y, self(x))}


def state(model: keras.Model) -> list[Any]:
    return [variable.numpy().tolist() for variable in [*model.variables, *model.optimizer.variables]]


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


def test_the_loss_scale_is_broadcast() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0 ** (4 + fusion.rank()))
    model = model_of(fusion.DistributedOptimizer(optimizer))
    model.fit(*data(), verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert float(optimizer.dynamic_scale) == 16.0


def test_metrics_are_averaged_for_later_callbacks_and_the_history() -> None:
    here, everywhere = Watch(), Watch()
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    callbacks = [BroadcastGlobalVariablesCallback(0), here, MetricAverageCallback(), everywhere]
    history = model.fit(*data(), validation_data=data(), epochs=2, batch_size=4, verbose=0, callbacks=callbacks).history
    keys = ["loss", "mae", "val_loss", "val_mae"]
    assert [sorted(logs) for logs in here.epochs] == [keys, keys]
    mine = np.array([[logs[key] for key in keys] for logs in here.epochs])
    averages = fusionctl.allreduce(mine, name="the metrics here").tolist()
    assert [[logs[key] for key in keys] for logs in everywhere.epochs] == averages
    assert [[history[key][epoch] for key in keys] for epoch in range(2)] == averages
    assert [everywhere.end[key] for key in keys] == averages[-1]


def test_different_metrics_are_a_mismatch() -> None:
    if fusion.size() == 1:
        logs = {"loss": 1.5, "name": "text"}
        MetricAverageCallback().on_epoch_end(0, logs)
        assert logs == {"loss": 1.5, "name": "text"}
        return
    mine = {0: {"loss": 1.0, "mae": 2.0}}.get(fusion.rank(), {"loss": 1.0, "mse": 2.0})
    with pytest.raises(MismatchError, match=f"different metrics; rank {fusion.rank()} has {', '.join(mine)}: compile"):
        MetricAverageCallback().on_epoch_end(0, mine)


@pytest.mark.parametrize("samples", [8, 4], ids=["two steps", "one step"])
def test_a_step_that_never_reaches_the_wrapped_optimizer_raises(samples: int) -> None:
    model = Idle([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, name="sgd"), name="idle")
    model.compile(optimizer, loss="mse", jit_compile=False)
    x, y = data()
    with pytest.raises(FusionctlError) as caught:
        model.fit(x[:samples], y[:samples], batch_size=4, verbose=0, callbacks=[BroadcastGlobalVariablesCallback(0)])
    assert str(caught.value) == (
        "the first step did not call apply() of optimizer 'sgd' (idle), so no gradient was averaged: let train_step() "
        "call optimizer.apply(gradients, model.trainable_variables)"
    )


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


def test_a_model_without_variables_is_a_usage_error() -> None:
    callback = BroadcastGlobalVariablesCallback(0)
    callback.set_model(keras.Sequential([keras.layers.Dense(1)], name="unbuilt"))
    with pytest.raises(UsageError) as caught:
        callback.on_train_begin()
    assert str(caught.value) == (
        "model 'unbuilt' has no variables to broadcast yet; give it an Input or call "
        "model.build(input_shape) before fit"
    )
