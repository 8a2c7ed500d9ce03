"""The law: after broadcast_variables every rank's variables equal the root's, bit by bit."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.int8, tf.bool)
DTYPES_AS_BYTES = (tf.uint32, tf.uint64, tf.complex64, tf.complex128)


def test_variables_of_every_dtype_from_every_root() -> None:
    for root in range(fusionctl.size()):
        variables = [
            tf.Variable(tf.cast([k, fusionctl.rank() + k], dtype)) for k, dtype in enumerate(DTYPES + DTYPES_AS_BYTES)
        ]
        fusion.broadcast_variables(variables, root)
        for k, (variable, dtype) in enumerate(zip(variables, DTYPES + DTYPES_AS_BYTES, strict=True)):
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


def test_a_model_that_only_the_root_has_loaded() -> None:
    names = [f"{'loaded' if fusionctl.rank() == 0 else 'new'}.{k}" for k in range(2)]
    variables = [tf.Variable(np.full(k + 1, fusionctl.rank()), name=name) for k, name in enumerate(names)]
    fusion.broadcast_variables(variables, 0)
    assert [variable.numpy().tolist() for variable in variables] == [[0], [0, 0]]
    variables[1] = tf.Variable(np.zeros(2 + fusionctl.rank()), name=names[1])
    if fusionctl.size() > 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'broadcast/variable 1' of group .*: shape is"):
            fusion.broadcast_variables(variables, 0)


def test_in_a_function_and_none_at_all() -> None:
    variable = tf.Variable([1.0 * fusionctl.rank(), 2.0])
    call = tf.function(lambda: fusion.broadcast_variables([variable], fusionctl.size() - 1))
    for _ in range(2):
        variable.assign([fusionctl.rank(), 5.0])
        call()
        np.testing.assert_array_equal(variable, [fusionctl.size() - 1, 5.0])
    fusion.broadcast_variables([], 0)


def test_in_place_under_a_name() -> None:
    variables = [tf.Variable([1.0 * fusionctl.rank()]), keras.Variable([2.0 * fusionctl.rank()])]
    for given, returned in zip(variables, fusion.broadcast_(variables, 0, name="in place"), strict=True):
        assert returned is given
        np.testing.assert_array_equal(returned, [0.0])
    fusion.broadcast_variables(variables, 0, inplace=True)


def test_text_and_tables_are_left_alone_and_named(caplog: pytest.LogCaptureFixture) -> None:
    number, text = tf.Variable(fusionctl.rank(), name="number"), tf.Variable(f"{fusionctl.rank()}", name="words")
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert("rank", tf.constant(fusionctl.rank(), tf.int64))
    logging.getLogger("fusionctl").addHandler(caplog.handler)
    fusion.broadcast_variables([text, number, table], fusionctl.size() - 1)
    logging.getLogger("fusionctl").removeHandler(caplog.handler)
    assert int(number) == fusionctl.size() - 1
    assert (text.numpy().decode(), int(table.lookup("rank"))) == (f"{fusionctl.rank()}", fusionctl.rank())
    assert [record.getMessage() for record in caplog.records] == [
        "not broadcast, so that each rank keeps its own: words (string), number 2 (lookup table); have all ranks fill "
        "them from the same data"
    ]


def test_what_is_no_variable() -> None:
    with pytest.raises(fusionctl.UsageError, match=r"number 1 of the variables to broadcast is 3\.0, which is no var"):
        fusion.broadcast_variables([tf.Variable(1.0), 3.0], 0)


def test_there_are_no_global_variables_in_eager_mode() -> None:
    with pytest.raises(fusionctl.UsageError, match=r"use broadcast_variables\(model\.variables, root_rank\)"):
        fusion.broadcast_global_variables(0)
