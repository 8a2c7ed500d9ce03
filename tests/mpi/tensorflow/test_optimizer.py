"""The law: an optimizer of TensorFlow 1 trains N ranks as it trains one process with the gradients' mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion

v1 = tf.compat.v1
MAKE = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.125),
    "momentum": lambda: v1.train.MomentumOptimizer(0.125, 0.5),
    "adam": lambda: v1.train.AdamOptimizer(0.1),
}


def factor() -> float:
    return fusionctl.rank() + 1.0


def mean() -> float:
    return (fusionctl.size() + 1) / 2


@contextmanager
def session_of_v1(control_flow_v2: bool = True) -> Iterator[Any]:
    if not control_flow_v2:
        v1.disable_control_flow_v2()
    with tf.Graph().as_default(), v1.Session() as session:
        yield session
    v1.enable_control_flow_v2()


def trained_in_a_graph(optimizer: Any, scale: float, steps: int, control_flow_v2: bool = True) -> np.ndarray:
    """A weight after some steps of minimize on scale * w . w."""
    with session_of_v1(control_flow_v2) as session:
        weight = v1.get_variable("weight", initializer=tf.constant([1.0, 2.0]), use_resource=True)
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(scale * tf.reduce_sum(weight * weight), global_step=step)
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        assert session.run(step) == steps
        return np.asarray(session.run(weight))


def trained_eagerly(optimizer: Any, scale: float, steps: int, wrap: bool = False) -> np.ndarray:
    weight = tf.Variable([1.0, 2.0], name="eager weight")

    def minimize() -> None:
        optimizer.minimize(lambda: scale * tf.reduce_sum(weight * weight), var_list=[weight])

    call = tf.function(minimize) if wrap else minimize
    for _ in range(steps):
        call()
    return np.asarray(weight.numpy())


@pytest.mark.parametrize("name", MAKE)
def test_trains_as_one_process(name: str) -> None:
    wanted = trained_in_a_graph(MAKE[name](), mean(), 3)
    distributed = trained_in_a_graph(fusion.DistributedOptimizer(MAKE[name]()), factor(), 3)
    np.testing.assert_allclose(distributed, wanted, rtol=1e-5)
    np.testing.assert_allclose(trained_eagerly(fusion.DistributedOptimizer(MAKE[name]()), factor(), 3), wanted, 1e-5)


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("how", ["graph", "control flow of v1", "eager", "function"])
def test_several_backward_passes(how: str, average: bool) -> None:
    optimizer = fusion.DistributedOptimizer(
        MAKE["sgd"](), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    if how in ("eager", "function"):
        got = trained_eagerly(optimizer, factor(), 5, wrap=how == "function")
    else:
        got = trained_in_a_graph(optimizer, factor(), 5, control_flow_v2=how == "graph")
    rate = 0.125 * 2 * mean() * (1 if average else 2)
    np.testing.assert_allclose(got, np.array([1.0, 2.0]) * (1 - rate) ** 2, rtol=1e-5)


def test_local_variables_slots_and_options() -> None:
    optimizer = fusion.DistributedOptimizer(MAKE["momentum"](), op=fusion.Sum, groups=2, scale_local_gradients=False)
    shared, own = tf.Variable(1.0, name="shared"), tf.Variable(1.0, name="own")
    optimizer.register_local_var(own)
    pairs = optimizer.compute_gradients(lambda: factor() * (shared + own), var_list=[shared, own])
    np.testing.assert_allclose([grad for grad, _ in pairs], [mean() * fusionctl.size(), factor()])
    optimizer.apply_gradients(pairs)
    assert optimizer.get_slot_names() == ["momentum"]
    np.testing.assert_allclose(optimizer.get_slot(own, "momentum"), factor())
    assert len(optimizer.variables()) == 2


def test_sparse_gradients_of_several_passes() -> None:
    optimizer = fusion.DistributedOptimizer(MAKE["sgd"](), backward_passes_per_step=2)
    table = tf.Variable(tf.zeros([3, 1]), name="several sparse")
    for row in (0, 1):
        optimizer.minimize(lambda row=row: factor() * tf.reduce_sum(tf.gather(table, [row])), var_list=[table])
    np.testing.assert_allclose(table, -0.125 * mean() * np.array([[1.0], [1.0], [0.0]]))


def test_a_keras_optimizer_is_handed_over() -> None:
    plain = keras.optimizers.SGD(1.0)
    optimizer = fusion.DistributedOptimizer(plain, op=fusion.Sum)
    weight = keras.Variable(0.0, name="handed over")

    @graph
    def call() -> None:
        optimizer.apply([tf.constant(factor())], [weight])

    call()
    assert optimizer is plain
    assert float(weight) == -mean() * fusionctl.size()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fusion.DistributedOptimizer("sgd"), "wraps an optimizer of tf.compat.v1.train or of Keras, not 'sgd'"),
        (lambda: fusion.DistributedOptimizer(MAKE["sgd"](), op=fusion.Max), "gradients can be combined by"),
        (lambda: fusion.DistributedOptimizer(MAKE["sgd"](), backward_passes_per_step=0), "_per_step is 0; give"),
    ],
)
def test_arguments_that_are_wrong(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(fusionctl.UsageError, match=message):
        call()


@pytest.mark.parametrize("how", ["graph", "control flow of v1", "eager", "function"])
@pytest.mark.parametrize("passes", [1, 2])
def test_adasum_combines_what_the_updates_changed(how: str, passes: int) -> None:
    optimizer = fusion.DistributedOptimizer(MAKE["sgd"](), op=fusion.Adasum, backward_passes_per_step=passes)
    if how in ("eager", "function"):
        got = trained_eagerly(optimizer, factor(), passes, wrap=how == "function")
    else:
        got = trained_in_a_graph(optimizer, factor(), passes, control_flow_v2=how == "graph")
    start = np.array([1.0, 2.0], np.float32)
    own = (-0.125 * 2 * passes * factor() * start).astype(np.float32)
    np.testing.assert_allclose(got, start + fusionctl.allreduce(own, name="delta", op=fusion.Adasum), rtol=1e-5)


def test_adasum_leaves_local_variables_to_the_rank() -> None:
    optimizer = fusion.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=fusion.Adasum)
    shared, own = tf.Variable(0.0, name="adasum shared"), tf.Variable(0.0, name="adasum own")
    optimizer.register_local_var(own)
    optimizer.minimize(lambda: shared + factor() * own, var_list=[shared, own])
    assert (float(shared), float(own)) == (-1.0, -factor())
