"""The law: DistributedGradientTape gives every rank the ranks' reduced gradients, in the structure of the sources."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import graph

import fusionctl
import fusionctl.tensorflow as fusion

LENGTHS = (3, 1, 4, 2, 5)


def make(prefix: str, dtype: str = "float32") -> list[tf.Variable]:
    return [tf.Variable(np.arange(n) + k, dtype=dtype, name=f"{prefix}.{k}") for k, n in enumerate(LENGTHS)]


def expected(scale: float = 1.0) -> list[np.ndarray]:
    """Gradients of sum(rank_factor * v * v), averaged."""
    factor = np.mean([rank + 1 for rank in range(fusionctl.size())]) * scale
    return [2 * (np.arange(n) + k) * factor for k, n in enumerate(LENGTHS)]


def loss_of(variables: Any) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(v * v) for v in variables]) * (fusionctl.rank() + 1.0)


def gradients(variables: Any, **options: Any) -> Any:
    with fusion.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = loss_of(variables)
    return tape.gradient(loss, variables)


def check(result: Any, wanted: Any, rtol: float = 1e-6) -> None:
    for got, want in zip(result, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 1},
        {"groups": 2},
        {"groups": 50},
        {"num_groups": 3},
        {"gradient_predivide_factor": 2.0},
        {"compression": fusion.Compression.bf16},
    ],
    ids=str,
)
def test_average(wrap: Any, options: dict[str, Any]) -> None:
    variables = make("average")
    call = wrap(lambda: gradients(variables, **options))
    for _ in range(2):
        check(call(), expected(), rtol=1e-2 if "compression" in options else 1e-6)


def test_sum() -> None:
    check(gradients(make("sum"), op=fusion.Sum), expected(fusionctl.size()))


def test_groups_of_variables_fuse_whole_and_the_rest_alone() -> None:
    variables = make("lists")
    call = tf.function(lambda: gradients(variables, groups=[[variables[3], variables[0]], [variables[2]]]))
    call()
    before = fusionctl.counters()["bytes_reduced"]
    check(call(), expected())
    assert fusionctl.counters()["bytes_reduced"] - before == 4 * sum(LENGTHS)


def test_one_set_takes_no_slow_path_after_its_first_step() -> None:
    variables = make("steady")
    call = tf.function(lambda: gradients(variables))
    call()
    fusionctl.barrier()
    before = fusionctl.counters()
    for _ in range(10):
        check(call(), expected())
    after = fusionctl.counters()
    assert after["slow_paths"] == before["slow_paths"]
    assert after["buckets"] - before["buckets"] == 10


def test_structure_of_the_sources_is_kept() -> None:
    a, b, c, *_ = make("nested")
    unrelated = tf.Variable(1.0)
    with fusion.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = loss_of([a, b, c])
    nested = tape.gradient(loss, {"x": [a, (b,)], "y": c, "z": unrelated})
    assert nested["z"] is None
    check([nested["x"][0], nested["x"][1][0], nested["y"]], expected()[:3])
    check([tape.gradient(loss, b)], expected()[1:2])
    zero = tape.gradient(loss, [unrelated], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    check(zero, [0.0])
    check(tape.gradient(loss, [b], output_gradients=tf.constant(3.0)), [3 * expected()[1]])


def test_nothing_connected() -> None:
    with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.constant(1.0)
    assert tape.gradient(loss, make("nothing")) == [None] * len(LENGTHS)


def test_two_gradients_of_one_persistent_tape_in_a_graph() -> None:
    variables = make("twice")

    @graph
    def call() -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            loss = loss_of(variables)
        return tape.gradient(loss, variables), tape.gradient(loss, variables)

    for _ in range(2):
        first, second = call()
        check(first, expected())
        check(second, expected())


def test_everything_else_is_the_wrapped_tapes() -> None:
    x = tf.constant([1.0, 2.0])
    plain = tf.GradientTape(persistent=True)
    with plain:
        plain.watch(x)
        y = x * x
    tape = fusion.DistributedGradientTape(plain)
    np.testing.assert_array_equal(tape.jacobian(y, x), np.diag([2.0, 4.0]))
    assert tape.watched_variables() == ()
    check([tape.gradient(y, x)], [[2.0, 4.0]])


def test_keras_variables_and_a_model() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    inputs = [tf.random.stateless_normal([5, 4], [rank, 0]) for rank in range(fusionctl.size())]

    @graph
    def local(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    @graph
    def distributed(x: tf.Tensor) -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    wanted = [np.mean(per_rank, axis=0) for per_rank in zip(*(local(x) for x in inputs), strict=True)]
    for got, want in zip(distributed(inputs[fusionctl.rank()]), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_arguments_that_contradict_each_other() -> None:
    with pytest.raises(fusionctl.UsageError, match=r"gradient_predivide_factor is 2\.0 with op SUM"):
        fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(fusionctl.UsageError, match="both num_groups and groups"):
        fusion.DistributedGradientTape(tf.GradientTape(), num_groups=2, groups=3)
    variables = make("contradict")
    with pytest.raises(fusionctl.UsageError, match=r"variable 'contradict\.1' is in `groups` twice"):
        gradients(variables, groups=[[variables[1]], [variables[0], variables[1]]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "fp16"}, "compression is 'fp16'; give Compression.none"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor is 0; give a number above 0"),
        ({"groups": [[1]]}, r"groups is \[\[1\]\]; pass the number of groups"),
    ],
)
def test_arguments_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fusionctl.UsageError, match=message):
        fusion.DistributedGradientTape(tf.GradientTape(), **options)


def test_what_is_no_tape() -> None:
    for wrong in (None, fusion.DistributedGradientTape(tf.GradientTape())):
        with pytest.raises(fusionctl.UsageError, match=r"wraps a tf\.GradientTape, once"):
            fusion.DistributedGradientTape(wrong)


@pytest.mark.parametrize("factor", ["a", None, [1.0, 2.0]])
def test_factors_that_are_no_numbers(factor: Any) -> None:
    with pytest.raises(fusionctl.UsageError, match="tensor 'scaled' has prescale_factor"):
        fusion.allreduce(tf.ones(1), prescale_factor=factor, name="scaled")


@pytest.mark.parametrize("wrong", [{"a": 1.0}, None])
def test_what_is_no_list_of_tensors(wrong: Any) -> None:
    with pytest.raises(fusionctl.UsageError, match="grouped_allreduce takes a list of tensors, not "):
        fusion.grouped_allreduce(wrong)
