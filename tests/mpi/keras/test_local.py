"""Local variables: each rank updates its own by its own gradients, and the others as one process would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from alike import FLOAT64_TOLERANCE, LOSS, STEPS, data_here, of_root
from fusionctl import UsageError

SIZES = (1, 2, 3)


def layers_of(seed: int, dtype: str = "float64") -> list[keras.layers.Layer]:
    """Both start from weights that the seed alone determines."""
    start = keras.initializers.RandomUniform(seed=seed)
    return [
        keras.layers.Dense(4, activation="tanh", kernel_initializer=start, dtype=dtype, name="own"),
        keras.layers.Dense(2, kernel_initializer=start, dtype=dtype, name="shared"),
    ]


def model_of(layers: list[keras.layers.Layer], optimizer: Any, **options: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,), dtype="float64"), *layers])
    model.compile(optimizer, loss=LOSS, jit_compile=False, **options)
    return model


def partial(layers: list[keras.layers.Layer], **options: Any) -> Any:
    return fusion.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), local_layers=layers[:1], **options
    )


def registered(layers: list[keras.layers.Layer], **options: Any) -> Any:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **options)
    layers[0].build((None, 3))
    for variable in layers[0].trainable_variables:
        optimizer.register_local_var(variable)
    return optimizer


def reference(scale: bool, passes: int = 1) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights of this rank's own layer and the shared one, by one plain optimizer and means written down by hand."""
    layers = layers_of(3)
    model = model_of(layers, keras.optimizers.SGD(0.1, momentum=0.9))
    for step in range(0, STEPS, passes):
        with tf.GradientTape() as tape:
            loss = sum(LOSS(y, model(x)) for x, y in map(data_here, range(step, step + passes)))
        own, shared = tape.gradient(loss, [layer.trainable_variables for layer in layers])
        own = [grad / (fusion.size() if scale else 1) for grad in own]
        shared = [fusion.allreduce(grad, name=f"shared {index}") for index, grad in enumerate(shared)]
        model.optimizer.apply([*own, *shared], model.trainable_variables)
    return layers[0].get_weights(), layers[1].get_weights()


def check(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for mine, one in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, one, *FLOAT64_TOLERANCE)


@pytest.mark.parametrize("wrap", [partial, registered])
@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "as they are"])
@pytest.mark.parametrize("passes", [1, 2])
def test_local_layers_follow_their_own_gradients(wrap: Callable[..., Any], scale: bool, passes: int) -> None:
    layers = layers_of(3)
    model = model_of(layers, wrap(layers, scale_local_gradients=scale, backward_passes_per_step=passes))
    for step in range(STEPS):
        model.train_on_batch(*data_here(step))
    own, shared = reference(scale, passes)
    check(layers[0].get_weights(), own)
    check(layers[1].get_weights(), shared)
    for weight in layers[1].get_weights():
        np.testing.assert_array_equal(weight, of_root(weight))
    if fusion.rank() > 0:
        assert np.any(layers[0].get_weights()[0] != of_root(layers[0].get_weights()[0]))
    else:
        of_root(layers[0].get_weights()[0])


def test_layers_may_be_built_after_the_optimizer_was_wrapped_and_fit_leaves_their_start_alone() -> None:
    layers = layers_of(3 + fusion.rank())
    optimizer = partial(layers)
    model = model_of(layers, optimizer)
    own = layers[0].get_weights()
    optimizer.build(model.trainable_variables)
    for slot in optimizer.variables[2:]:
        slot.assign(slot + 1 + fusion.rank())
    model.optimizer.learning_rate = 0.0
    callback = fusion.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    callback.set_params({"steps": 1, "epochs": 1})
    callback.on_train_begin()
    check(layers[0].get_weights(), own)
    check(layers[1].get_weights(), layers_weights(3)[1])
    assert [float(np.mean(slot)) for slot in optimizer.variables[2:]] == [1.0 + fusion.rank()] * 2 + [1.0] * 2


def layers_weights(seed: int) -> list[list[np.ndarray]]:
    layers = layers_of(seed)
    model_of(layers, "sgd")
    return [layer.get_weights() for layer in layers]


def test_variables_given_to_the_broadcast_stay_this_ranks_own() -> None:
    layers = layers_of(3 + fusion.rank())
    model = model_of(layers, fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    kernel = layers[0].trainable_variables[0]
    before = kernel.numpy()
    callback = fusion.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[kernel])
    model.fit(*data_here(0), epochs=0, verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(kernel.numpy(), before)
    np.testing.assert_array_equal(layers[1].get_weights()[0], of_root(layers[1].get_weights()[0]))


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_overflow_of_a_local_gradient_skips_the_step_on_all_ranks(eager: bool, sparse: bool) -> None:
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 8.0)
    optimizer = fusion.DistributedOptimizer(scaling, scale_local_gradients=False)
    own, shared = keras.Variable(np.zeros((2, 1)), dtype="float32"), keras.Variable(0.0)
    optimizer.register_local_var(own)
    optimizer.build([own, shared])

    def apply(value: tf.Tensor) -> None:
        values = tf.reshape(value, (1, 1))
        slices = tf.IndexedSlices(values, tf.constant([1]), tf.constant([2, 1]))
        optimizer.apply([slices if sparse else tf.concat([0 * values, values], 0), tf.constant(4.0)], [own, shared])

    step = apply if eager else tf.function(apply)
    last = fusion.rank() == fusion.size() - 1
    log = []
    for grad in (1.0, np.inf if last else 1.0, 1.0):
        step(tf.constant(grad * float(optimizer.dynamic_scale), "float32"))
        log.append((float(optimizer.dynamic_scale), float(shared), float(own[1, 0])))
    assert log == [(8.0, -0.5, -1.0), (4.0, -0.5, -1.0), (4.0, -1.5, -2.0)]


def test_a_plain_overflow_of_a_local_gradient_stays_on_its_rank() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0), scale_local_gradients=False)
    own, shared = keras.Variable(0.0), keras.Variable(0.0)
    optimizer.register_local_var(own)
    optimizer.apply([tf.constant(np.inf if fusion.rank() else 1.0), tf.constant(1.0)], [own, shared])
    assert (float(own), float(shared)) == (-np.inf if fusion.rank() else -1.0, -1.0)


def test_all_variables_may_be_local() -> None:
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(1.0))
    own = keras.Variable(0.0)
    optimizer.register_local_var(own)
    optimizer.apply([tf.constant(float(fusion.rank() * fusion.size()))], [own])
    assert float(own) == -fusion.rank()


def test_what_cannot_be_local_is_a_usage_error() -> None:
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=1.0, name="sgd")
    with pytest.raises(UsageError, match="local_layers holds 'dense', which is not a Keras layer"):
        fusion.PartialDistributedOptimizer(optimizer, local_layers=["dense"])
    fusion.DistributedOptimizer(optimizer, name="mine")  # the failed call left it plain
    variable = keras.Variable(0.0)
    with pytest.raises(UsageError, match="is not a variable, of Keras or TensorFlow"):
        optimizer.register_local_var([variable])
    optimizer.register_local_var(variable)
    with pytest.raises(UsageError, match=r"optimizer 'sgd' has local variables and global_clipnorm=1\.0"):
        optimizer.apply([tf.constant(1.0)], [variable])
    with pytest.raises(UsageError, match=r"register_local_var\(\) of optimizer 'sgd' \(mine\) after its first step"):
        optimizer.register_local_var(variable)
