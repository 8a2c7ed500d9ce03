"""backward_passes_per_step=k: k calls of apply make one update, that of one process with the data of all k."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.keras as fusion
from alike import FLOAT64_TOLERANCE, LOSS, data_here, data_of_all, model_of, of_root, weights

SIZES = (1, 2, 3)
PASSES = 3

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


def aggregating(optimizer: Any, passes: int = PASSES, **options: Any) -> Any:
    return fusion.DistributedOptimizer(
        optimizer, backward_passes_per_step=passes, average_aggregated_gradients=True, **options
    )


def together(data: Callable[[int], tuple[np.ndarray, np.ndarray]], steps: range) -> list[np.ndarray]:
    return [np.concatenate(arrays) for arrays in zip(*(data(step) for step in steps), strict=True)]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_k_calls_train_as_one_process_with_the_data_of_all(make: Callable[[], Any], eager: bool) -> None:
    model, reference = model_of(aggregating(make()), run_eagerly=eager), model_of(make())
    for window in range(4):
        steps = range(window * PASSES, (window + 1) * PASSES)
        before = [weight.copy() for weight in model.get_weights()]
        for step in steps:
            assert all(np.array_equal(now, then) for now, then in zip(model.get_weights(), before, strict=True))
            model.train_on_batch(*data_here(step))
        reference.train_on_batch(*together(data_of_all, steps))
        mine = weights(model)
        np.testing.assert_allclose(mine, weights(reference), *FLOAT64_TOLERANCE)
        np.testing.assert_array_equal(mine, of_root(mine))


@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 3}, {"run_eagerly": True}], ids=str)
def test_a_window_that_an_epoch_leaves_open_goes_on_in_the_next(options: dict[str, Any]) -> None:
    model, reference = model_of(aggregating(keras.optimizers.Adam(0.01), passes=2), **options), model_of("adam")
    reference.optimizer.learning_rate = 0.01
    x, y = together(data_here, range(3))
    batch = len(x) // 3
    for fits in range(2):  # 2 fits of 1 epoch of 3 batches are 3 windows of 2
        assert int(model.optimizer.iterations) == fits
        model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
    for pair in ((0, 1), (2, 0), (1, 2)):
        reference.train_on_batch(*(np.concatenate(arrays) for arrays in zip(*map(data_of_all, pair), strict=True)))
    assert int(model.optimizer.iterations) == 3
    np.testing.assert_allclose(weights(model), weights(reference), *FLOAT64_TOLERANCE)


def test_sums_are_divided_by_k_only_on_request() -> None:
    got = []
    for average in (False, True):
        variable = keras.Variable(0.0)
        optimizer = fusion.DistributedOptimizer(
            keras.optimizers.SGD(1.0), backward_passes_per_step=2, average_aggregated_gradients=average
        )
        for grad in (1.0, 3.0):
            optimizer.apply([tf.constant(grad * (1 + fusion.rank()))], [variable])
        got.append(float(variable) / -((1 + fusion.size()) / 2))
    assert got == [4.0, 2.0]


def test_iterations_and_schedules_count_updates() -> None:
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 10.0, 100.0])
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(rates), backward_passes_per_step=2)
    variable = keras.Variable(0.0)
    step = tf.function(lambda: optimizer.apply([tf.constant(0.5)], [variable]))
    log = []
    for _ in range(6):
        step()
        log.append((int(optimizer.iterations), float(variable)))
    assert log == [(0, 0.0), (1, -1.0), (1, -1.0), (2, -11.0), (2, -11.0), (3, -111.0)]


def test_only_the_last_call_of_a_window_communicates() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=3)
    variable = keras.Variable(0.0)
    step = tf.function(lambda: optimizer.apply([tf.constant(0.5)], [variable]))
    reductions = []
    for _ in range(6):
        before = fusionctl.counters()["buckets"]
        step()
        reductions.append(fusionctl.counters()["buckets"] - before)
    assert reductions == [0, 0, 1, 0, 0, 1] or fusion.size() == 1


def embedding_of(optimizer: Any, eager: bool) -> keras.Model:
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Embedding(6, 2, dtype="float64"), keras.layers.Flatten(dtype="float64")]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers])
    model.compile(optimizer, loss=LOSS, jit_compile=False, run_eagerly=eager)
    return model


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_sparse_gradients_are_added_as_dense_ones(eager: bool) -> None:
    model = embedding_of(aggregating(keras.optimizers.SGD(0.5, momentum=0.5)), eager)
    reference = embedding_of(keras.optimizers.SGD(0.5, momentum=0.5), eager)
    random = np.random.default_rng(0)
    size, rank = fusion.size(), fusion.rank()
    for _ in range(2):
        x, y = random.integers(0, 6, (PASSES * size * 2, 3)), random.normal(size=(PASSES * size * 2, 6))
        x[:, 1] = x[:, 0]  # an index twice in a sample
        for part in range(PASSES):
            mine = slice(2 * (part * size + rank), 2 * (part * size + rank) + 2)
            model.train_on_batch(x[mine], y[mine])
        reference.train_on_batch(x, y)
    np.testing.assert_allclose(weights(model), weights(reference), rtol=1e-6)


NESTINGS: dict[str, Callable[[Any], Any]] = {
    "around the wrapped": lambda sgd: keras.optimizers.LossScaleOptimizer(aggregating(sgd, 2), 8.0),
    "wrapped": lambda sgd: aggregating(keras.optimizers.LossScaleOptimizer(sgd, 8.0), 2),
}


@pytest.mark.parametrize("make", NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("call", [0, 1], ids=["first call", "last call"])
def test_an_overflow_in_one_call_of_one_rank_skips_the_window_on_all(
    make: Callable[[Any], Any], eager: bool, call: int
) -> None:
    optimizer = make(keras.optimizers.SGD(1.0))
    variable = keras.Variable(np.zeros(2), dtype="float32")

    def apply(grad: tf.Tensor) -> None:
        optimizer.apply([grad], [variable])

    step = apply if eager else tf.function(apply)
    overflow = np.inf if fusion.rank() == fusion.size() - 1 else 1.0
    log = []
    for window in ([1.0, 3.0], [overflow if call == each else 1.0 for each in range(2)], [2.0, 4.0]):
        scale = float(optimizer.dynamic_scale) if optimizer.built else 8.0
        for grad in window:
            step(tf.constant([grad, 1.0]) * scale)
        log.append((float(optimizer.dynamic_scale), int(optimizer.iterations), variable.numpy().tolist()))
    assert log == [(8.0, 1, [-2.0, -1.0]), (4.0, 1, [-2.0, -1.0]), (4.0, 2, [-5.0, -2.0])]


def test_two_sets_of_variables_have_windows_of_their_own() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    variables = [keras.Variable(0.0, name=name) for name in ("a", "b", "c")]
    optimizer.build(variables)
    log = []
    for chosen in ([0, 1], [0, 2], [0, 1], [0, 2]):
        optimizer.apply([tf.constant(1.0)] * 2, [variables[index] for index in chosen])
        log.append([float(variable) for variable in variables])
    assert log == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-2.0, -2.0, 0.0], [-4.0, -2.0, -2.0]]


def test_a_gradient_that_is_missing_in_one_call_counts_as_zero() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    variables = [keras.Variable(0.0), keras.Variable(0.0)]
    optimizer.apply([tf.constant(1.0), tf.constant(1.0)], variables)
    optimizer.apply([tf.constant(1.0), None], variables)
    assert [float(variable) for variable in variables] == [-2.0, -1.0]


def test_state_that_is_overwritten_is_the_largest_of_the_window() -> None:
    optimizer = aggregating(keras.optimizers.SGD(1.0), 2)
    weight, state = keras.Variable(0.0), keras.Variable(0.0)
    state.overwrite_with_gradient = True
    for value in (5.0, 3.0):
        optimizer.apply([tf.constant(value), tf.constant(value)], [weight, state])
    assert (float(weight), float(state)) == (-4.0, 5.0)


def test_config_and_variables_are_those_of_the_plain_optimizer() -> None:
    variable = keras.Variable(0.0, name="w")
    plain, wrapped = keras.optimizers.Adam(name="adam"), aggregating(keras.optimizers.Adam(name="adam"))
    for each in (plain, wrapped):
        each.apply([tf.constant(1.0)], [variable])
    assert [each.path for each in wrapped.variables] == [each.path for each in plain.variables]
    assert json.dumps(keras.saving.serialize_keras_object(wrapped)) == json.dumps(
        keras.saving.serialize_keras_object(plain)
    )
