"""Loss scaling on several ranks: an overflow on one is an overflow on all, before anything waits for anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion

SIZES = (1, 2, 3)
SCALE = 8.0
LossScale = keras.optimizers.LossScaleOptimizer


def inner() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.5)


NESTINGS: dict[str, Callable[[], Any]] = {
    "around the wrapped": lambda: LossScale(fusion.DistributedOptimizer(inner()), SCALE, dynamic_growth_steps=2),
    "wrapped": lambda: fusion.DistributedOptimizer(LossScale(inner(), SCALE, dynamic_growth_steps=2)),
}


def last(overflows: float, otherwise: float) -> float:
    """One value on the last rank and another on the others."""
    return overflows if fusion.rank() == fusion.size() - 1 else otherwise


@pytest.mark.parametrize("make", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("overflow", [float("inf"), float("-inf"), float("nan")], ids=str)
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_all_ranks_skip_the_step_that_overflows_on_one(make: Callable[[], Any], overflow: float, eager: bool) -> None:
    optimizer = make()
    variable = keras.Variable(np.zeros(2), dtype="float32")
    optimizer.build([variable])

    def apply(scaled: tf.Tensor) -> None:
        optimizer.apply([scaled], [variable])

    step = apply if eager else tf.function(apply)
    mean = (fusion.size() - 1) / 2
    log = []
    for grad in (float(fusion.rank()), last(overflow, 1.0), float(fusion.rank()), float(fusion.rank())):
        step(tf.constant([grad, 1.0]) * float(optimizer.dynamic_scale))
        scale, steps = float(optimizer.dynamic_scale), int(optimizer.iterations)
        log.append((scale, steps, variable.numpy().tolist()))
    assert log == [
        (8.0, 1, [-0.5 * mean, -0.5]),
        (4.0, 1, [-0.5 * mean, -0.5]),
        (4.0, 2, [-1.0 * mean, -1.0]),
        (8.0, 3, [-1.5 * mean, -1.5]),
    ]


def test_compile_puts_the_loss_scale_around_by_itself_and_fit_skips_together() -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="mixed_float16")])
    model.dtype_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model.compile(fusion.DistributedOptimizer(inner()), loss="mse", jit_compile=False)
    assert isinstance(model.optimizer, LossScale)
    before = model.get_weights()
    x = np.full((4, 2), last(np.inf, 1.0), "float32")
    model.fit(x, np.zeros((4, 1)), batch_size=2, verbose=0)
    assert float(model.optimizer.dynamic_scale) == 2.0**13
    assert [weight.tolist() for weight in model.get_weights()] == [weight.tolist() for weight in before]
    model.fit(np.full((4, 2), 0.1), np.full((4, 1), 0.5 * fusion.rank()), batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 1
    bias = model.get_weights()[1]
    assert bias.tolist() == fusion.broadcast(tf.constant(bias), root_rank=0, name="bias").numpy().tolist() != [0.0]


def test_a_plain_optimizer_inside_is_left_alone() -> None:
    optimizer = LossScale(inner(), SCALE)
    variable = keras.Variable(0.0)
    optimizer.apply([tf.constant(SCALE * (1.0 + fusion.rank()))], [variable])
    assert float(variable) == -0.5 * (1 + fusion.rank())
