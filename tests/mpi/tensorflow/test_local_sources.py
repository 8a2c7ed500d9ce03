"""The law: the gradient of a local source is this rank's, divided by the number of ranks if that is asked for."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])


def factor() -> float:
    return fusionctl.rank() + 1.0


def mean() -> float:
    return (fusionctl.size() + 1) / 2


@WRAPS
@pytest.mark.parametrize("scale", [True, False])
def test_a_local_source_is_not_reduced(wrap: Any, scale: bool) -> None:
    shared = tf.Variable([1.0, 2.0], name="shared")
    own = tf.Variable(np.ones(3 + fusionctl.rank(), np.float32), name=f"own.{fusionctl.rank()}")

    def call() -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=scale) as tape:
            tape.register_local_source(own)
            loss = factor() * (tf.reduce_sum(shared * shared) + tf.reduce_sum(own * own))
        return tape.gradient(loss, {"own": own, "shared": [shared]})

    for _ in range(2):
        grads = wrap(call)()
        np.testing.assert_allclose(grads["shared"][0], 2 * shared * mean(), rtol=1e-6)
        np.testing.assert_allclose(grads["own"], 2 * own * factor() / (fusionctl.size() if scale else 1), rtol=1e-6)


@WRAPS
@pytest.mark.parametrize("listed", [True, False])
def test_local_layers(wrap: Any, listed: bool) -> None:
    shared = keras.layers.Dense(2, kernel_initializer="ones", name=f"shared.{listed}")
    own = keras.layers.Dense(1 + fusionctl.rank(), kernel_initializer="ones", name=f"own.{fusionctl.rank()}.{listed}")
    x = np.ones((1, 3), np.float32)

    def call() -> Any:
        tape = fusion.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[own] if listed else own)
        with tape:
            loss = factor() * tf.reduce_sum(own(shared(x)))
        return tape.gradient(loss, [*own.trainable_weights, *shared.trainable_weights])

    own(shared(x))
    own_kernel, own_bias, kernel, bias = wrap(call)()
    ranks = range(fusionctl.size())
    everyone = np.mean([(rank + 1) ** 2 for rank in ranks])  # as many units as the factor
    np.testing.assert_allclose(own_kernel, np.full((2, 1 + fusionctl.rank()), 3 * factor() / fusionctl.size()), 1e-6)
    np.testing.assert_allclose(own_bias, np.full(1 + fusionctl.rank(), factor() / fusionctl.size()), 1e-6)
    np.testing.assert_allclose(kernel, np.full((3, 2), everyone), 1e-6)
    np.testing.assert_allclose(bias, np.full(2, everyone), 1e-6)


def test_sparse_and_missing_gradients_of_local_sources() -> None:
    table, unused = tf.Variable(tf.ones([4, 2]), name="local table"), tf.Variable(1.0, name="local unused")
    with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = factor() * tf.reduce_sum(tf.gather(table, [1, 1]))
    tape.register_local_source(table)
    tape.register_local_source(unused)
    grad, missing = tape.gradient(loss, [table, unused])
    assert isinstance(grad, tf.IndexedSlices)
    np.testing.assert_allclose(grad.values, np.full((2, 2), factor() / fusionctl.size()), 1e-6)
    assert missing is None


def test_pairs_of_local_and_global_gradients() -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    tape = fusion.DistributedGradientTape(tf.GradientTape(), scale_local_gradients=False)
    tape.register_local_source(b)
    assert tape.get_local_and_global_gradients([1.0, 2.0], [a, b]) == ([(2.0, b)], [(1.0, a)])


def test_generic_names() -> None:
    mine = tf.Variable([1.0], name=f"of rank {fusionctl.rank()}")
    with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = factor() * tf.reduce_sum(mine * mine)
    np.testing.assert_allclose(tape.gradient(loss, [mine], use_generic_names=True), [[2 * mean()]], 1e-6)


def test_what_is_no_layer() -> None:
    with pytest.raises(fusionctl.UsageError, match="local_layers has 'dense', which is no layer"):
        fusion.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["dense"])
