"""The law: after broadcast_variables every rank's variables equal the root's, bit by bit."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.int8, tf.bool)


def test_variables_of_every_dtype_from_every_root() -> None:
    for root in range(fusionctl.size()):
        variables = [tf.Variable(tf.cast([k, fusionctl.rank() + k], dtype)) for k, dtype in enumerate(DTYPES)]
        fusion.broadcast_variables(variables, root)
        for k, (variable, dtype) in enumerate(zip(variables, DTYPES, strict=True)):
            np.testing.assert_array_equal(variable, tf.cast([k, root + k], dtype))


def test_a_keras_model_with_its_optimizer() -> None:
    keras.utils.set_random_seed(fusionctl.rank())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.Adam(0.001 * (fusionctl.rank() + 1))
    optimizer.build(model.trainable_variables)
    fusion.broadcast_variables([*model.variables, *optimizer.variables], 0)
    for variable in (*model.variables, *optimizer.variables):
        value = np.asarray(variable, np.float64)
        np.testing.assert_array_equal(fusionctl.broadcast(value, 0, variable.path), value)
    np.testing.assert_allclose(optimizer.learning_rate, 0.001)


def test_in_a_function_and_none_at_all() -> None:
    variable = tf.Variable([1.0 * fusionctl.rank(), 2.0])
    call = tf.function(lambda: fusion.broadcast_variables([variable], fusionctl.size() - 1))
    for _ in range(2):
        variable.assign([fusionctl.rank(), 5.0])
        call()
        np.testing.assert_array_equal(variable, [fusionctl.size() - 1, 5.0])
    fusion.broadcast_variables([], 0)
