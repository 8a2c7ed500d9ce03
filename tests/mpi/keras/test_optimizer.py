"""The law: N ranks with batches of b train as one process does with a batch of N * b, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from alike import (
    FLOAT32_TOLERANCE,
    FLOAT64_TOLERANCE,
    LOSS,
    STEPS,
    check_trains_alike,
    data_here,
    data_of_all,
    model_of,
    weights,
)
from fusionctl import FusionctlError, UsageError

SIZES = (1, 2, 3)

Make = Callable[[], Any]


def decaying() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9)


OPTIMIZERS: dict[str, Make] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "weight decay and moving average": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.05),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "schedule": decaying,
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}


@keras.saving.register_keras_serializable("test")
class Halving(keras.optimizers.SGD):  # type: ignore[misc]
    """An optimizer of the user's own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate / 2)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_ranks_train_as_one_process_with_the_batches_of_all(make: Make) -> None:
    check_trains_alike(model_of(fusion.DistributedOptimizer(make())), model_of(make()))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_float32_weights_are_those_of_one_process_but_for_rounding(make: Make) -> None:
    model, reference = model_of(fusion.DistributedOptimizer(make()), "float32"), model_of(make(), "float32")
    check_trains_alike(model, reference, FLOAT32_TOLERANCE)


@pytest.mark.parametrize(
    "options",
    [{"gradient_predivide_factor": 4.0}, {"num_groups": 2}, {"sparse_as_dense": True}, {"name": "mine"}],
    ids=str,
)
def test_options_leave_the_average_as_it_is(options: dict[str, Any]) -> None:
    check_trains_alike(model_of(fusion.DistributedOptimizer(decaying(), **options)), model_of(decaying()))


def test_sum_is_the_average_with_a_learning_rate_as_many_times_larger() -> None:
    summed = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1), op=fusion.Sum)
    reference = keras.optimizers.SGD(0.1)
    model, plain = model_of(summed), model_of(reference)
    model.train_on_batch(*data_here(0))
    x, y = data_of_all(0)
    with tf.GradientTape() as tape:
        loss = LOSS(y, plain(x))
    grads = tape.gradient(loss, plain.trainable_variables)
    reference.apply([grad * fusion.size() for grad in grads], plain.trainable_variables)
    np.testing.assert_allclose(weights(model), weights(plain), *FLOAT64_TOLERANCE)


def test_eager_steps_and_several_steps_per_execution_reduce_too() -> None:
    check_trains_alike(model_of(fusion.DistributedOptimizer(decaying()), run_eagerly=True), model_of(decaying()))
    model = model_of(fusion.DistributedOptimizer(decaying()), steps_per_execution=2)
    reference = model_of(decaying(), steps_per_execution=2)
    for each, data in ((model, data_here), (reference, data_of_all)):
        x, y = (np.concatenate(batches) for batches in zip(*(data(step) for step in range(STEPS)), strict=True))
        each.fit(x, y, batch_size=len(x) // STEPS, shuffle=False, verbose=0)
    np.testing.assert_allclose(weights(model), weights(reference), *FLOAT64_TOLERANCE)


def test_one_optimizer_may_train_two_sets_of_variables_in_turn() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variables = [keras.Variable(np.zeros(2), dtype="float64", name=name) for name in ("a", "b", "c")]
    optimizer.build(variables)
    rank, mean = float(fusion.rank()), (fusion.size() - 1) / 2

    @tf.function  # type: ignore[untyped-decorator]
    def step(first: bool) -> None:
        chosen = variables[:2] if first else variables[::2]
        optimizer.apply([tf.fill([2], tf.constant(rank + index, "float64")) for index in range(2)], chosen)

    for _ in range(2):
        step(True)
        step(False)
    got = [variable.numpy().tolist() for variable in variables]
    assert got == [[-4 * mean] * 2, [-2 * (mean + 1)] * 2, [-2 * (mean + 1)] * 2]


def test_a_variable_without_gradient_stays_as_it_is() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0))
    used, unused = keras.Variable(0.0, name="used"), keras.Variable(5.0, name="unused")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras says that a gradient is missing
        optimizer.apply([tf.constant(float(fusion.rank())), None], [used, unused])
    assert (float(used), float(unused)) == (-(fusion.size() - 1) / 2, 5.0)


def test_wrapping_keeps_the_instance_and_its_slots() -> None:
    optimizer = keras.optimizers.Adam(0.01)
    model, reference = model_of(optimizer), model_of(keras.optimizers.Adam(0.01))
    for each in (model, reference):
        each.train_on_batch(*data_of_all(0))
    before = weights(model)
    model.compile(fusion.DistributedOptimizer(optimizer), loss=LOSS, jit_compile=False)
    assert model.optimizer is optimizer
    np.testing.assert_array_equal(weights(model), before)
    check_trains_alike(model, reference)


# -- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*OPTIMIZERS.values(), lambda: Halving(0.1)], ids=[*OPTIMIZERS, "custom"])
def test_serialises_as_the_plain_optimizer(make: Make) -> None:
    optimizer = make()
    plain = keras.saving.serialize_keras_object(optimizer)
    wrapped = keras.saving.serialize_keras_object(fusion.DistributedOptimizer(optimizer))
    assert json.dumps(wrapped) == json.dumps(plain)


LOAD = """
import json, sys
sys.modules["fusionctl"] = None
import keras
optimizer = keras.models.load_model(sys.argv[1]).optimizer
kind = type(optimizer)
slots = [variable.numpy().tolist() for variable in optimizer.variables]
print(json.dumps([kind.__module__, kind.__name__, type(optimizer._learning_rate).__name__, slots]))
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # between Keras and NumPy
def test_a_saved_model_loads_where_fusionctl_is_not_installed() -> None:
    model = model_of(fusion.DistributedOptimizer(decaying()))
    model.train_on_batch(*data_here(0))
    slots = [variable.numpy().tolist() for variable in model.optimizer.variables]
    if fusion.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            command = [sys.executable, "-c", LOAD, f"{folder}/model.keras"]
            loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        assert loaded == ["keras.src.optimizers.sgd", "SGD", "ExponentialDecay", slots]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # between Keras and NumPy
def test_weights_and_checkpoints_are_those_of_the_plain_optimizer() -> None:
    model, restored = (
        model_of(fusion.DistributedOptimizer(keras.optimizers.Adam(0.1))),
        model_of(keras.optimizers.Adam(0.1)),
    )
    model.train_on_batch(*data_here(0))
    restored.optimizer.build(restored.trainable_variables)
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/model.weights.h5")
        restored.load_weights(f"{folder}/model.weights.h5")
        np.testing.assert_array_equal(weights(restored), weights(model))
        model.train_on_batch(*data_here(1))
        path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(f"{folder}/checkpoint")
        status = tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).read(path)
        status.assert_consumed()
    np.testing.assert_array_equal(weights(restored), weights(model))


def test_an_exported_graph_holds_no_operation_of_ours() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.train_on_batch(*data_here(0))
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        graph = tf.saved_model.load(folder).signatures["serving_default"].graph.as_graph_def()
    operations = {node.op for nodes in [graph.node, *(f.node_def for f in graph.library.function)] for node in nodes}
    assert "MatMul" in operations
    assert {operation for operation in operations if "fusionctl" in operation.lower()} == set()


# -- what must not pass silently --------------------------------------------------------------------------------------


def test_updates_around_apply_raise() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, name="sgd"), name="guarded")
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    message = (
        r"^optimizer 'sgd' \(guarded\) was about to update its variables with gradients of this rank alone: {}\(\) was "
        r"called around apply\(\); call apply\(\) or apply_gradients\(\) of the object that "
        r"DistributedOptimizer returned$"
    )
    with pytest.raises(FusionctlError, match=message.format("_backend_apply_gradients")):
        keras.optimizers.SGD.apply(optimizer, [tf.constant(1.0)], [variable])
    with pytest.raises(FusionctlError, match=message.format("update_step")):
        optimizer.update_step(tf.constant(1.0), variable, 0.1)
    assert float(variable) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0; give the number of passes"),
        ({"op": fusion.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor is 2.0 with op SUM"),
        ({"op": 3}, "op is 3; gradients can be combined by Average, Sum or Adasum"),
        ({"num_groups": 2, "groups": 3}, "both num_groups and groups are given"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_a_usage_error(options: dict[str, Any], message: str) -> None:
    optimizer = keras.optimizers.SGD(0.1)
    with pytest.raises(UsageError, match=message):
        fusion.DistributedOptimizer(optimizer, **options)
    fusion.DistributedOptimizer(optimizer)  # the failed call left it plain


def test_only_plain_optimizers_are_wrapped() -> None:
    wrapped = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, name="sgd"))
    for twice in (wrapped, keras.optimizers.LossScaleOptimizer(wrapped, name="sgd")):
        with pytest.raises(UsageError, match="optimizer 'sgd' is wrapped already; call DistributedOptimizer once"):
            fusion.DistributedOptimizer(twice)
    with pytest.raises(UsageError, match="wraps an instance of a Keras 3 optimizer, not 'sgd'"):
        fusion.DistributedOptimizer("sgd")


def test_the_inner_optimizer_of_a_wrapped_loss_scale_reduces_when_it_is_used_alone() -> None:
    scaling = fusion.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0)))
    variable = keras.Variable(0.0)
    scaling.build([variable])
    scaling.inner_optimizer.apply([tf.constant(float(fusion.rank()))], [variable])
    assert float(variable) == -(fusion.size() - 1) / 2


def test_the_parts_of_a_multi_optimizer_reduce_as_one_set_or_alone() -> None:
    slow, fast = keras.optimizers.SGD(1.0), keras.optimizers.SGD(2.0)
    chosen = keras.optimizers.MultiOptimizer(lambda variable: {"slow": slow, "fast": fast}[variable.name])
    optimizer = fusion.DistributedOptimizer(chosen)
    variables = [keras.Variable(0.0, name="slow"), keras.Variable(0.0, name="fast")]
    grads = [tf.constant(float(fusion.rank()))] * 2
    mean = (fusion.size() - 1) / 2
    optimizer.apply(grads, variables)
    assert [float(variable) for variable in variables] == [-mean, -2 * mean]
    keras.optimizers.MultiOptimizer.apply(optimizer, grads, variables)
    fast.apply(grads[1:], variables[1:])
    assert [float(variable) for variable in variables] == [-2 * mean, -6 * mean]


def test_variables_may_be_given_by_an_iterator() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = keras.Variable(0.0)
    optimizer.apply([tf.constant(float(fusion.rank()))], iter([variable]))
    assert float(variable) == -(fusion.size() - 1) / 2


def test_gradients_and_variables_must_be_as_many() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, name="sgd"))
    with pytest.raises(UsageError, match="optimizer 'sgd' got 1 gradients for 0 variables"):
        optimizer.apply([tf.constant(1.0)])
