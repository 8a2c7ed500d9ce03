"""One inter-op thread must do for every test of this folder: an op that blocked it would hang."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
