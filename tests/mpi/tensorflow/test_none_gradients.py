"""The law: a gradient that some ranks lack counts as zeros there, and every rank gets the same reduced one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion

SIZES = (2, 3)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])


def variables_of(name: str) -> list[tf.Variable]:
    return [tf.Variable(np.arange(3) + 1.0, dtype=tf.float32, name=f"{name}.{k}") for k in range(3)]


def used_here(k: int) -> bool:
    """Rank 0 uses variables 0 and 1, all others variables 1 and 2."""
    return k in ((0, 1) if fusionctl.rank() == 0 else (1, 2))


def step(variables: list[tf.Variable], use: Callable[[int], bool] = used_here, **options: Any) -> Any:
    with fusion.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = tf.add_n([tf.constant(0.0), *(tf.reduce_sum(v * v) for k, v in enumerate(variables) if use(k))])
    return tape.gradient(loss, variables)


@WRAPS
@pytest.mark.parametrize(
    "options",
    [{}, {"groups": 3}, {"op": fusion.Sum}, {"compression": fusion.Compression.fp16}, {"gradient_predivide_factor": 4}],
    ids=str,
)
def test_a_branch_that_depends_on_the_rank(wrap: Any, options: dict[str, Any]) -> None:
    variables = variables_of("branch")
    call = wrap(lambda: step(variables, **options))
    size = fusionctl.size()
    users = [1, size, size - 1]
    for _ in range(2):
        for grad, variable, count in zip(call(), variables, users, strict=True):
            scale = count if "op" in options else count / size
            np.testing.assert_allclose(grad, 2 * variable * scale, rtol=1e-3 if "compression" in options else 1e-6)


@WRAPS
def test_a_rank_without_any_gradient(wrap: Any) -> None:
    variables = variables_of("idle")
    for grad, variable in zip(wrap(lambda: step(variables, lambda k: fusionctl.rank() == 1))(), variables, strict=True):
        np.testing.assert_allclose(grad, 2 * variable / fusionctl.size(), rtol=1e-6)


def test_none_on_all_ranks_stays_none_in_eager_mode() -> None:
    variables = variables_of("unused")
    first, second, third = step(variables, lambda k: k == 1)
    assert first is None
    assert third is None
    np.testing.assert_allclose(second, 2 * variables[1], rtol=1e-6)
    assert step(variables, lambda k: False) == [None] * 3


def test_none_on_all_ranks_is_zeros_in_a_graph() -> None:
    variables = variables_of("unused in a graph")
    grads = tf.function(lambda: step(variables, lambda k: k == 1))()
    for grad, wanted in zip(grads, [0, 2, 0], strict=True):
        np.testing.assert_allclose(grad, wanted * variables[0], rtol=1e-6)


def test_the_pattern_may_change_from_step_to_step() -> None:
    variables = variables_of("changing")
    for turn in range(2 * fusionctl.size()):
        used = 1 if fusionctl.rank() == turn % fusionctl.size() else 0
        grads = step(variables, range(used).__contains__)
        np.testing.assert_allclose(grads[0], 2 * variables[0] / fusionctl.size(), rtol=1e-6)
        assert grads[1:] == [None, None]


def test_one_rank_may_trace_again() -> None:
    variables = variables_of("retraced")

    @graph
    def call(x: tf.Tensor) -> Any:
        used = 2 if len(x) == 5 else 1
        return step(variables, lambda k: k < used)

    for length in (4, 5, 4):
        grads = call(tf.ones(length if fusionctl.rank() == 1 else 4))
        np.testing.assert_allclose(grads[0], 2 * variables[0], rtol=1e-6)
        np.testing.assert_allclose(grads[1], 2 * variables[1] * (length == 5) / fusionctl.size(), rtol=1e-6)


def test_what_has_no_gradient_is_left_alone() -> None:
    a, count, text = tf.Variable(1.0, name="a"), tf.Variable(1, name="count"), tf.Variable("text", name="text")
    reduced = fusion.reduce_gradients([tf.constant(2.0), None, None], [a, count, text], name="no gradients")
    np.testing.assert_array_equal(reduced[0], 2.0)
    assert reduced[1:] == [None, None]


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize("make", [lambda: keras.optimizers.Adam(0.1), lambda: keras.optimizers.SGD(0.1, 0.9)])
def test_the_weights_stay_equal(make: Callable[[], Any], eager: bool) -> None:
    variables = [keras.Variable(np.ones(3, np.float32), name=f"weight.{k}") for k in range(3)]
    optimizer = make()
    optimizer.build(variables)

    def train() -> None:
        with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.add_n([tf.reduce_sum(v**2) for k, v in enumerate(variables) if used_here(k)])
        optimizer.apply(tape.gradient(loss, variables), variables)

    call = train if eager else tf.function(train)
    for _ in range(4):
        call()
    for k, variable in enumerate(variables):
        value = variable.numpy()
        assert (value < 1).all()
        np.testing.assert_array_equal(fusionctl.broadcast(value, 0, f"weight.{k}"), value)
