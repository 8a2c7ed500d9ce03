"""The law: what does not train works in a graph and a Session of TensorFlow 1 as it does in eager mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

v1 = tf.compat.v1
RESOURCE = pytest.mark.parametrize("resource", [True, False], ids=["resource", "reference"])


def variable(name: str, value: Any, resource: bool = True) -> Any:
    return v1.get_variable(name, initializer=tf.constant(value), use_resource=resource)


def test_collectives() -> None:
    rank, size = fusionctl.rank(), fusionctl.size()
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2])
        y = fusion.allreduce(x, op=fusion.Sum, name="v1 sum")
        group = fusion.grouped_allreduce([x, 2 * x], op=fusion.Max, name="v1 group")
        sent = fusion.broadcast(x, size - 1, name="v1 broadcast")
        for k in range(2):
            results = session.run([y, group, sent], {x: [rank, k]})
            np.testing.assert_array_equal(results[0], [sum(range(size)), size * k])
            np.testing.assert_array_equal(results[1], [[size - 1, k], [2 * size - 2, 2 * k]])
            np.testing.assert_array_equal(results[2], [size - 1, k])


def test_reduced_gradients() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weight = variable("weight", [1.0, 2.0])
        (grad,) = tf.gradients(tf.reduce_sum(weight * weight) * (fusionctl.rank() + 1.0), [weight])
        (reduced,) = fusion.reduce_gradients([grad], [weight], name="v1 gradients")
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(reduced), np.array([1.0, 2.0]) * (fusionctl.size() + 1), rtol=1e-6)


@RESOURCE
def test_broadcast_of_all_global_variables(resource: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [variable(f"weight.{k}", [float(fusionctl.rank()), k], resource) for k in range(2)]
        words = variable("words", f"{fusionctl.rank()}", resource)
        broadcast = fusion.broadcast_global_variables(fusionctl.size() - 1)
        session.run(v1.global_variables_initializer())
        session.run(broadcast)
        np.testing.assert_array_equal(session.run(weights), [[fusionctl.size() - 1, 0], [fusionctl.size() - 1, 1]])
        assert session.run(words).decode() == f"{fusionctl.rank()}"


@RESOURCE
def test_broadcast_of_some_variables(resource: bool) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = (variable(name, 1.0 * fusionctl.rank(), resource) for name in "ab")
        some, none = fusion.broadcast_variables([a], 0), fusion.broadcast_variables([], 0)
        values = fusion.broadcast_([b], fusionctl.size() - 1, name="v1 in place")
        session.run(v1.global_variables_initializer())
        session.run([some, none])
        assert session.run([a, b]) == [0.0, fusionctl.rank()]
        assert session.run(values) == [fusionctl.size() - 1.0]
        assert session.run([a, b]) == [0.0, fusionctl.size() - 1.0]


def test_hook_of_a_monitored_session() -> None:
    hook = fusion.BroadcastGlobalVariablesHook(0, device="/cpu:0")
    for _ in range(2):
        with tf.Graph().as_default():
            weight = variable("weight", 5.0 + fusionctl.rank())
            with v1.train.MonitoredSession(hooks=[hook]) as session:
                assert session.run(weight) == 5.0


def test_objects_need_no_graph() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        assert fusion.broadcast_object({"rank": fusionctl.rank()}, 0, session=session) == {"rank": 0}
