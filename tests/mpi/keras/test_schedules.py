"""Learning rate callbacks: the rate of each batch, what the velocity makes of it, and what has no rate to set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from alike import BATCH, FLOAT64_TOLERANCE, LOSS, data_here, model_of, weights
from fusionctl import UsageError
from fusionctl.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

SIZES = (1, 2, 3)
STEPS = 4


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The rate of each batch, once the callbacks before it have set it, and the logs of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.logged: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.logged.append(logs["lr"])


def data() -> dict[str, Any]:
    x, y = (np.concatenate(arrays) for arrays in zip(*map(data_here, range(STEPS)), strict=True))
    return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False, "verbose": 0}


def rates_of(callback: Any, optimizer: Any = None, epochs: int = 4) -> tuple[list[float], list[float], list[float]]:
    model = model_of(fusion.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.5)))
    watch = Rates()
    history = model.fit(**data(), epochs=epochs, callbacks=[callback, watch]).history
    return watch.rates, watch.logged, history["lr"]


def test_a_number_is_a_power_of_epochs_since_the_start_at_the_first_batch_of_each() -> None:
    rates, logged, history = rates_of(LearningRateScheduleCallback(1.0, 0.5, start_epoch=1, end_epoch=3))
    assert rates == [0.5] * STEPS + [1.0] * STEPS + [0.5] * STEPS * 2
    assert logged == history == [0.5, 1.0, 0.5, 0.5]


def test_a_function_gets_whole_epochs_on_a_staircase_and_fractions_otherwise() -> None:
    def multiplier(epoch: float) -> float:
        return 1 + epoch

    assert rates_of(LearningRateScheduleCallback(1.0, multiplier), epochs=2)[0] == [1.0] * STEPS + [2.0] * STEPS
    for given in (None, 8):
        callback = LearningRateScheduleCallback(1.0, multiplier, staircase=False, steps_per_epoch=given)
        per_step = 1 / (given or STEPS)
        expected = [epoch + 1 + step * per_step for epoch in range(2) for step in range(STEPS)]
        assert rates_of(callback, epochs=2)[0] == pytest.approx(expected)


def test_warmup_ends_at_the_initial_rate_and_then_leaves_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    size = fusion.size()
    callback = LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    rates, logged, _ = rates_of(callback, epochs=3)
    warm = [0.8 / size * (step / STEPS * (size - 1) / 2 + 1) for step in range(1, 2 * STEPS + 1)]
    assert rates == pytest.approx([*warm, *[0.8] * STEPS])
    assert logged == pytest.approx([warm[STEPS - 1], 0.8, 0.8])
    said = capsys.readouterr().out
    assert said == ("\nEpoch 2: finished gradual learning rate warmup to 0.8.\n" if fusion.rank() == 0 else "")


def test_the_rate_of_a_loss_scale_is_that_of_the_optimizer_inside() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), 8.0)
    assert rates_of(LearningRateScheduleCallback(1.0, 0.5), optimizer, epochs=2)[2] == [1.0, 0.5]


def test_a_restored_epoch_continues_the_schedule() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    callback = LearningRateScheduleCallback(1.0, 0.5)
    history = model.fit(**data(), initial_epoch=3, epochs=5, callbacks=[callback]).history
    assert history["lr"] == [0.125, 0.0625]


def by_hand(rates: list[float], momentum: float, corrected: bool) -> np.ndarray:
    """Weights after steps of v = m * v * (rate / last rate, if corrected) - rate * mean gradient; w += v."""
    model = model_of("sgd")
    variables = [variable.value for variable in model.trainable_variables]
    velocities = [np.zeros(variable.shape) for variable in variables]
    last = rates[0]
    for step, rate in enumerate(rates):
        x, y = data_here(step % STEPS)
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x))
        for index, grad in enumerate(tape.gradient(loss, variables)):
            mean = fusion.allreduce(grad, name=f"by hand {index}").numpy()
            factor = momentum * (rate / last if corrected else 1.0)
            velocities[index] = velocities[index] * factor - rate * mean
            variables[index].assign_add(velocities[index])
        last = rate
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.parametrize("corrected", [True, False], ids=["corrected", "as it is"])
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_momentum_correction_keeps_what_the_velocity_means(corrected: bool, eager: bool) -> None:
    callback = LearningRateScheduleCallback(
        0.25, lambda epoch: 2.0 ** -int(4 * epoch), staircase=False, momentum_correction=corrected
    )
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.25, momentum=0.5)), run_eagerly=eager)
    model.fit(**data(), epochs=2, callbacks=[callback])
    expected = by_hand([0.25 * 2.0**-step for step in range(2 * STEPS)], 0.5, corrected)
    got = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    np.testing.assert_allclose(got, expected, *FLOAT64_TOLERANCE)


def test_momentum_of_rmsprop_is_corrected_and_moments_of_adam_are_not() -> None:
    slots = {}
    for optimizer in (keras.optimizers.RMSprop(0.5, momentum=0.9), keras.optimizers.Adam(0.5)):
        model = model_of(optimizer)
        optimizer.build(model.trainable_variables)
        for slot in optimizer.variables[2:]:
            slot.assign(slot + 1)
        callback = LearningRateScheduleCallback(0.25, 1.0)
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        callback.on_train_batch_begin(0)
        slots[optimizer.name] = sorted({float(np.max(slot)) for slot in optimizer.variables[2:]})
    assert list(slots.values()) == [[0.5, 1.0], [1.0]]


def of_schedule() -> Any:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), name="mine")


def of_function() -> Any:
    return keras.optimizers.SGD(lambda: 0.1, name="mine")


def of_several() -> Any:
    return keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.SGD(), name="mine")


@pytest.mark.parametrize(
    ("make", "holds"),
    [
        (of_schedule, "a ExponentialDecay of its own"),
        (of_function, "a function of its own"),
        (of_several, "several optimizers"),
    ],
)
@pytest.mark.parametrize("kind", [LearningRateWarmupCallback, LearningRateScheduleCallback])
def test_an_optimizer_without_a_rate_to_set_is_a_usage_error(make: Callable[[], Any], holds: str, kind: type) -> None:
    callback = kind(0.1, 2)
    callback.set_model(model_of(make()))
    callback.set_params({"steps": 2})
    with pytest.raises(UsageError) as caught:
        callback.on_train_begin()
    assert str(caught.value) == (
        f"optimizer 'mine' has {holds}, so {kind.__name__} cannot set its learning rate; give the optimizer a number "
        "as learning_rate, or leave the callback away"
    )


def test_unknown_lengths_and_rates_are_usage_errors() -> None:
    callback = LearningRateWarmupCallback(0.1)
    callback.set_model(model_of(keras.optimizers.SGD(0.1)))
    callback.set_params({"steps": None})
    with pytest.raises(UsageError, match="LearningRateWarmupCallback changes the rate within epochs"):
        callback.on_train_begin()
    with pytest.raises(UsageError, match="LearningRateScheduleCallback needs initial_lr"):
        LearningRateScheduleCallback(None, 0.5)  # type: ignore[arg-type]


def test_ranks_stay_equal_under_warmup_with_momentum() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)))
    callbacks = [fusion.callbacks.BroadcastGlobalVariablesCallback(0), LearningRateWarmupCallback(0.1, 2)]
    model.fit(**data(), epochs=3, callbacks=callbacks)
    mine = weights(model)
    np.testing.assert_array_equal(mine, fusion.broadcast(mine, 0, name="weights of the root").numpy())
