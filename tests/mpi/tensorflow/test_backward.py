"""The law: gradients flow through collectives as if the losses of all ranks were one sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion


def weights() -> list[float]:
    """Each rank's loss has a factor of its own."""
    return [rank + 1.0 for rank in range(fusionctl.size())]


def gradient(forward: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(forward(x)) * weights()[fusionctl.rank()]
    return tape.gradient(loss, x)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_allreduce_reduces_the_gradient_alike(wrap: Any) -> None:
    total = wrap(lambda x: gradient(lambda x: fusion.allreduce(x * x, op=fusion.Sum, name="total"), x))
    mean = wrap(lambda x: gradient(lambda x: fusion.allreduce(x * x, name="mean", postscale_factor=3.0), x))
    x = tf.constant([1.0, -2.0])
    for _ in range(2):
        np.testing.assert_allclose(total(x), 2 * x * sum(weights()), rtol=1e-6)
        np.testing.assert_allclose(mean(x), 3 * 2 * x * np.mean(weights()), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_broadcast_gives_the_root_the_average(wrap: Any) -> None:
    root = fusionctl.size() - 1
    call = wrap(lambda x: gradient(lambda x: fusion.broadcast(x * x, root, name="from root"), x))
    expected = np.array([2.0, -4.0]) * np.mean(weights()) * (fusionctl.rank() == root)
    np.testing.assert_allclose(call(tf.constant([1.0, -2.0])), expected, rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_members_of_a_group_have_gradients_of_their_own(wrap: Any) -> None:
    def forward(x: tf.Tensor) -> tf.Tensor:
        a, b, whole = fusion.grouped_allreduce([x, x * x, tf.constant([7])], op=fusion.Sum, name="group")
        return a + 3 * b + tf.cast(whole, tf.float32)

    x = tf.constant([1.0, -2.0])
    np.testing.assert_allclose(wrap(lambda x: gradient(forward, x))(x), (1 + 6 * x) * sum(weights()), rtol=1e-6)


def test_second_derivative() -> None:
    @graph
    def call(x: tf.Tensor) -> Any:
        return gradient(lambda x: gradient(lambda x: fusion.allreduce(x, op=fusion.Sum, name="cube") ** 3, x), x)

    x = tf.constant([1.0, -2.0])
    np.testing.assert_allclose(call(x), 6 * fusionctl.size() * x * sum(weights()) ** 2, rtol=1e-5)


def test_through_a_function() -> None:
    inner = tf.function(lambda x: fusion.allreduce(x * x, op=fusion.Sum, name="inner"))
    x = tf.constant([1.0, -2.0])
    for call in (lambda x: gradient(inner, x), tf.function(lambda x: gradient(inner, x), autograph=False)):
        np.testing.assert_allclose(call(x), 2 * x * sum(weights()), rtol=1e-6)


def test_through_a_loop() -> None:
    @graph
    def chained(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = fusion.allreduce(2 * x, name="chained")
        return x

    @graph
    def summed(x: tf.Tensor) -> tf.Tensor:
        total = tf.zeros(1)
        for i in tf.range(4):
            if i % 2 == 1:
                total += inner(x) * tf.cast(i, tf.float32)
        return total

    inner = tf.function(lambda x: fusion.allreduce(x * x, name="summed"))
    x = tf.constant([1.0])
    for wrap in (lambda f: f, tf.function):
        np.testing.assert_allclose(wrap(lambda x: gradient(chained, x))(x), [8 * np.mean(weights())], rtol=1e-6)
        np.testing.assert_allclose(wrap(lambda x: gradient(summed, x))(x), [8 * np.mean(weights())], rtol=1e-6)


def test_min_and_max_reduce_the_gradient_by_themselves_as_horovod_does() -> None:
    for op, expected in ((fusion.Min, 1.0), (fusion.Max, float(fusionctl.size()))):
        call: Any = tf.function(lambda x, op=op: gradient(lambda x: fusion.allreduce(x, op=op, name=f"{op}"), x))
        np.testing.assert_array_equal(call(tf.constant([1.0, -2.0])), [expected, expected])
