"""The law: with a process set, tapes, optimizers and broadcasts are those of a job that has its members alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

SIZES = (2, 3, 4)
WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])


@pytest.fixture(scope="module")
def both() -> Iterator[list[fusion.ProcessSet]]:
    """The even ranks, and the odd ones."""
    sets = [fusion.add_process_set(range(first, fusion.size(), 2)) for first in (0, 1)]
    yield sets
    fusionctl.barrier("sets are done with")
    for each in sets:
        fusion.remove_process_set(each)


@pytest.fixture
def mine(both: list[fusion.ProcessSet]) -> fusion.ProcessSet:
    return both[fusion.rank() % 2]


def mean_of(among: fusion.ProcessSet) -> float:
    return float(np.mean([rank + 1.0 for rank in among.ranks]))


@WRAPS
@pytest.mark.parametrize("unused", [False, True])
def test_tape(wrap: Any, unused: bool, mine: fusion.ProcessSet) -> None:
    shared, own = tf.Variable([1.0, 2.0], name="set shared"), tf.Variable(3.0, name="set own")
    idle = unused and fusion.rank() == mine.ranks[0]

    def step() -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), process_set=mine) as tape:
            loss = own * (fusion.rank() + 1.0)
            if not idle:
                loss += tf.reduce_sum(shared) * (fusion.rank() + 1.0)
        tape.register_local_source(own)
        return tape.gradient(loss, [shared, own])

    gradient, local = wrap(step)()
    wanted = mean_of(mine) - (mine.ranks[0] + 1.0) / mine.size() * unused
    if unused and mine.size() == 1:
        assert gradient is None
    else:
        np.testing.assert_allclose(gradient, [wanted, wanted], rtol=1e-6)
    np.testing.assert_allclose(local, (fusion.rank() + 1.0) / mine.size(), rtol=1e-6)


@WRAPS
@pytest.mark.parametrize(
    "make",
    [lambda: keras.optimizers.SGD(1.0), lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0)],
    ids=["keras", "v1"],
)
def test_optimizers(wrap: Any, make: Callable[[], Any], mine: fusion.ProcessSet) -> None:
    optimizer = fusion.DistributedOptimizer(make(), name=f"set {make().__module__}", process_set=mine)
    weight = tf.Variable([0.0], name="weight of a set")
    gradient = tf.constant([fusion.rank() + 1.0])

    def step() -> None:
        if isinstance(optimizer, keras.optimizers.Optimizer):
            optimizer.apply([gradient], [weight])
        else:
            optimizer.minimize(lambda: weight * gradient, var_list=[weight])

    wrap(step)()
    np.testing.assert_allclose(weight, [-mean_of(mine)], rtol=1e-6)


@WRAPS
def test_broadcast_of_variables(wrap: Any, mine: fusion.ProcessSet) -> None:
    variables = [tf.Variable([float(fusion.rank())], name="to members"), tf.Variable(fusion.rank(), name="whole")]
    root = mine.ranks[-1]
    wrap(lambda: fusion.broadcast_variables(variables, root, process_set=mine))()
    assert [each.numpy().item() for each in variables] == [root, root]
    if fusion.rank() == mine.ranks[0]:
        variables[1].assign(9)
    fusion.broadcast_(variables, mine.ranks[0], process_set=mine)
    assert [each.numpy().item() for each in variables] == [root, 9]
    with pytest.raises(fusionctl.UsageError, match="root_rank is"):
        fusion.broadcast_variables(variables, next(rank for rank in range(9) if rank not in mine.ranks), mine)


@WRAPS
def test_adasum_of_gradients(wrap: Any) -> None:
    variable, other = tf.Variable([1.0, 2.0], name="adasum"), tf.Variable(0.0, name="without gradient")
    mine = np.array([1.0 + fusion.rank(), 1.0], np.float32)

    def step() -> Any:
        with fusion.DistributedGradientTape(tf.GradientTape(), op=fusion.Adasum) as tape:
            loss = tf.reduce_sum(variable * mine)
        return tape.gradient(loss, [variable, other])

    gradient, unused = wrap(step)()
    np.testing.assert_allclose(gradient, fusionctl.allreduce(mine, name="wanted", op=fusion.Adasum), rtol=1e-6)
    assert unused is None or float(unused) == 0.0


def test_ranks_outside_of_the_set_are_told(both: list[fusion.ProcessSet]) -> None:
    variable = tf.Variable(0.0, name="outside")
    with fusion.DistributedGradientTape(tf.GradientTape(), process_set=both[1 - fusion.rank() % 2]) as tape:
        loss = 2.0 * variable
    with pytest.raises(fusionctl.UsageError, match=f"rank {fusion.rank()} is not in process set"):
        tape.gradient(loss, [variable])


def test_unnamed_calls_are_counted_for_each_set(both: list[fusion.ProcessSet], mine: fusion.ProcessSet) -> None:
    first = both[0]
    if first.included():
        tf.function(lambda: fusion.allreduce(tf.ones(1), process_set=first))()
    np.testing.assert_array_equal(tf.function(lambda: fusion.allreduce(tf.ones(1), op=fusion.Sum))(), [fusion.size()])


@pytest.mark.parametrize("wrong", [0, [0], None])
def test_what_is_no_process_set(wrong: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: fusion.allreduce(tf.ones(1), process_set=wrong),
        lambda: fusion.barrier(process_set=wrong),
        lambda: fusion.remove_process_set(wrong),
        lambda: fusion.DistributedGradientTape(tf.GradientTape(), process_set=wrong),
        lambda: fusion.DistributedOptimizer(keras.optimizers.SGD(), process_set=wrong),
    ]
    for call in calls:
        with pytest.raises(fusionctl.UsageError, match="process_set is"):
            call()
