"""The law: the ops load with this TensorFlow, and what cannot work is refused before it is tried."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf
from graphs import graph

import fusionctl.tensorflow as fusion
from fusionctl import UsageError, _tf
from fusionctl.tensorflow.library import ops, static_shape


def test_the_ops_are_registered_and_complete_late() -> None:
    assert _tf.problem() == ""
    assert ops().fusionctl_probe().numpy() == 0


def test_a_call_before_init_is_refused() -> None:
    with pytest.raises(UsageError, match=r"call fusionctl\.init\(\) first"):
        fusion.allreduce(tf.constant(1.0))


def test_without_tensorflow_the_module_says_what_is_missing() -> None:
    code = "from fusionctl import _tf; print(_tf.problem())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "libtensorflow_framework.so.2, which is not loaded: import tensorflow first\n"


def test_the_keras_side_is_imported_only_for_what_is_handed_over() -> None:
    code = (
        "import sys, fusionctl.tensorflow as fusion\n"
        "print('SyncBatchNormalization' in dir(fusion), 'fusionctl.keras' in sys.modules)\n"
        "from fusionctl.tensorflow import SyncBatchNormalization\n"
        "import fusionctl.keras\n"
        "print(SyncBatchNormalization is fusionctl.keras.SyncBatchNormalization, hasattr(fusion, 'nothing'))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["True False", "True False"]


def test_static_shapes() -> None:
    shapes: list[tuple[int, ...]] = []

    @graph
    def trace(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> None:
        shapes.extend(static_shape(tensor) for tensor in (a, b, c))

    specs = [tf.TensorSpec(shape, tf.float32) for shape in ([2, 3], [None, 3], None)]
    trace.get_concrete_function(*specs)  # type: ignore[attr-defined]
    assert shapes == [(2, 3), (-1, 3), (-1,)]
