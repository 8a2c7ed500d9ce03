"""The law: what a programme says once is submitted once each run, in any graph, without an order between tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion

SUM = fusion.Sum


def reduced(call: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that a call reduced, and its result."""
    before = fusionctl.counters()["bytes_reduced"]
    result = call()
    return fusionctl.counters()["bytes_reduced"] - before, result


@pytest.mark.parametrize("optimised", [True, False])
def test_a_constant_is_submitted_in_every_run(optimised: bool) -> None:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimised})
    call = tf.function(lambda: fusion.allreduce(tf.constant([1.0, 2.0]), op=SUM, name=f"constant.{optimised}"))
    call()
    for _ in range(4):
        nbytes, result = reduced(call)
        assert nbytes == 8
        np.testing.assert_array_equal(result, np.array([1.0, 2.0]) * fusionctl.size())
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_equal_submissions_are_not_merged() -> None:
    @graph
    def call() -> Any:
        x = tf.constant([1.0, 2.0])
        return fusion.allreduce(x, op=SUM, name="same") + fusion.allreduce(x, op=SUM, name="same")

    call()
    nbytes, result = reduced(call)
    assert nbytes == 2 * 8
    np.testing.assert_array_equal(result, np.array([2.0, 4.0]) * fusionctl.size())


def test_a_result_that_nobody_uses_is_reduced_all_the_same() -> None:
    @graph
    def unused(x: tf.Tensor) -> tf.Tensor:
        fusion.allreduce(x, name="unused")
        return x

    @graph
    def nested(x: tf.Tensor) -> tf.Tensor:
        unused(x)
        return x

    for call in (unused, nested):
        call(tf.ones(2))
        assert reduced(partial(call, tf.ones(2)))[0] == 8


def test_one_rank_may_ignore_the_result() -> None:
    @graph
    def call(x: tf.Tensor) -> tf.Tensor:
        total = fusion.allreduce(x, op=SUM, name="rank 0 looks")
        return total if fusionctl.rank() == 0 else x

    for _ in range(2):
        np.testing.assert_array_equal(call(tf.ones(2)), np.full(2, fusionctl.size() if fusionctl.rank() == 0 else 1.0))


def test_ranks_may_trace_in_different_orders() -> None:
    names = [f"order.{k}" for k in range(12)]
    here = names if fusionctl.rank() % 2 else names[::-1]

    @graph
    def call(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: fusion.allreduce(x * names.index(name), op=SUM, name=name) for name in here}

    for _ in range(3):
        result = call(tf.ones(3))
        for k, name in enumerate(names):
            np.testing.assert_array_equal(result[name], np.full(3, k * fusionctl.size()))


def test_functions_may_be_traced_in_different_orders() -> None:
    first = tf.function(lambda x: fusion.allreduce(x, op=SUM, name="first"))
    second = tf.function(lambda x: fusion.allreduce(x, op=SUM, name="second"))
    for function in (first, second) if fusionctl.rank() % 2 else (second, first):
        function.get_concrete_function(tf.TensorSpec([2], tf.float32))
    np.testing.assert_array_equal(first(tf.ones(2)), np.full(2, fusionctl.size()))
    np.testing.assert_array_equal(second(2 * tf.ones(2)), np.full(2, 2 * fusionctl.size()))


@pytest.mark.parametrize("used", [True, False])
def test_while_loop_reduces_once_an_iteration(used: bool) -> None:
    @graph
    def call(x: tf.Tensor) -> tf.Tensor:
        total = tf.zeros(2)
        for i in tf.range(5):
            y = fusion.allreduce(x * tf.cast(i, tf.float32), op=SUM, name=f"while.{used}")
            total += y if used else x
        return total

    call(tf.ones(2))
    nbytes, result = reduced(lambda: call(tf.ones(2)))
    assert nbytes == 5 * 8
    np.testing.assert_array_equal(result, np.full(2, 10 * fusionctl.size() if used else 5))


def test_loop_over_a_dataset() -> None:
    dataset = tf.data.Dataset.range(4)

    @graph
    def call() -> tf.Tensor:
        total = tf.zeros([], tf.int64)
        for k in dataset:
            total += fusion.allreduce(k, op=SUM, name="dataset")
        return total

    for _ in range(2):
        assert call().numpy() == 6 * fusionctl.size()


def test_cond_reduces_in_the_branch_that_is_taken() -> None:
    @graph
    def call(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(x[0] > 0, lambda: fusion.allreduce(x, op=SUM, name="cond"), lambda: x)

    for x in (tf.ones(2), -tf.ones(2), tf.ones(2)):
        call(x)
        nbytes, result = reduced(partial(call, x))
        assert nbytes == (8 if x[0] > 0 else 0)
        np.testing.assert_array_equal(result, x * fusionctl.size() if x[0] > 0 else x)


def test_a_function_that_is_called_twice_keeps_the_calls_apart() -> None:
    scale = tf.Variable(2.0)
    helper = tf.function(lambda x: fusion.allreduce(x * scale, op=SUM, name="helper"))

    @graph
    def call(x: tf.Tensor) -> tf.Tensor:
        return tf.stack([helper(x), helper(10 * x), helper(100 * x)])

    for _ in range(5):
        np.testing.assert_array_equal(call(tf.constant(1.0)), np.array([2.0, 20.0, 200.0]) * fusionctl.size())


def test_functions_of_one_name_keep_their_ops() -> None:
    total = tf.function(lambda x: fusion.allreduce(x, op=SUM, name="one name"))
    largest = tf.function(lambda x: fusion.allreduce(x, op=fusion.Max, name="one name"))
    for _ in range(2):
        np.testing.assert_array_equal(total(tf.ones(2)), np.full(2, fusionctl.size()))
        np.testing.assert_array_equal(largest(tf.ones(2)), np.ones(2))
    np.testing.assert_array_equal(fusion.allreduce(tf.ones(2), op=fusion.Product, name="one name"), np.ones(2))
    np.testing.assert_array_equal(total(tf.ones(2)), np.full(2, fusionctl.size()))


def test_many_are_pending_at_once() -> None:
    @graph
    def call(x: tf.Tensor) -> list[tf.Tensor]:
        return [fusion.allreduce(x + k, op=SUM, name=f"many.{k}") for k in range(150)]

    for _ in range(2):
        np.testing.assert_array_equal(tf.stack(call(tf.constant(1.0))), (np.arange(150) + 1.0) * fusionctl.size())


def test_graph_of_tensorflow_1() -> None:
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2])
        y = fusion.allreduce(x, op=SUM, name="v1") + fusion.allreduce(tf.ones(2), op=SUM, name="v1 constant")
        _, power = tf.compat.v1.while_loop(
            lambda i, _: i < 3, lambda i, a: (i + 1, fusion.allreduce(a, op=SUM, name="v1 loop")), [0, x]
        )
        (gradient,) = tf.gradients(y, x)
        with tf.compat.v1.Session() as session:
            for k in range(3):
                np.testing.assert_array_equal(session.run(y, {x: [k, 1.0]}), np.array([k + 1, 2]) * fusionctl.size())
            np.testing.assert_array_equal(session.run(power, {x: [1.0, 2.0]}), np.array([1, 2]) * fusionctl.size() ** 3)
            np.testing.assert_array_equal(session.run(gradient, {x: [1.0, 2.0]}), np.full(2, fusionctl.size()))


def test_xla_is_refused_with_advice() -> None:
    nested = tf.function(lambda x: fusion.allreduce(x))
    for function in (lambda x: fusion.allreduce(x), lambda x: nested(x)):
        with pytest.raises(Exception, match=r"XLA cannot compile communication.*jit_compile at False"):
            tf.function(function, jit_compile=True, autograph=False)(tf.ones(2))


def test_shapes_are_inferred() -> None:
    call = tf.function(lambda x, y: fusion.grouped_allreduce([x, y], name="inferred"))
    concrete = call.get_concrete_function(tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([], tf.int64))
    assert [tuple(output.shape) for output in concrete.structured_outputs] == [(None, 3), ()]


def test_nothing_is_submitted_in_a_function_whose_arguments_do_not_come() -> None:
    inner = tf.function(lambda x: x + fusion.allreduce(tf.constant([1.0]), op=SUM, name="without data"))
    outer = tf.function(lambda iterator: inner(iterator.get_next()))

    def once() -> Iterator[list[float]]:
        yield [2.0]
        time.sleep(0.1)  # in which what does not wait for data is sent

    for _ in range(3):
        iterator = iter(tf.data.Dataset.from_generator(once, output_signature=tf.TensorSpec([1])))
        assert outer(iterator).numpy() == [2.0 + fusionctl.size()]
        before = fusionctl.counters()["bytes_reduced"]
        with pytest.raises(tf.errors.OutOfRangeError):
            outer(iterator)
        assert fusionctl.counters()["bytes_reduced"] == before
    fusionctl.join()  # which nothing must be in flight for
