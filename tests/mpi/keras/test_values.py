"""The value API: collectives on what Keras hands around, over all ranks or a process set."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from fusionctl import UsageError

SIZES = (1, 2, 3)


def test_global_variables_are_a_usage_error_that_names_what_to_call() -> None:
    with pytest.raises(UsageError, match=r"call broadcast_variables\(\[\*model\.weights, "):
        fusion.broadcast_global_variables(0)
    variable = keras.Variable(float(fusion.rank()))
    fusion.broadcast_variables([variable], root_rank=fusion.size() - 1)
    assert float(variable) == fusion.size() - 1


def test_values_are_combined_as_asked() -> None:
    rank, size = fusion.rank(), fusion.size()
    mean, total = 1.5 * (size - 1), 3.0 * size * (size - 1) / 2
    for value in (3.0 * rank, np.float32(3 * rank), tf.constant(3.0 * rank), keras.Variable(3.0 * rank)):
        assert float(fusion.allreduce(value, name="value")) == mean
    assert float(fusion.allreduce(3.0 * rank, average=False, name="total")) == total
    assert float(fusion.allreduce(3.0 * rank, op=fusion.Sum, prescale_factor=2.0, postscale_factor=0.5)) == total
    assert fusion.broadcast([rank, 7], root_rank=size - 1).numpy().tolist() == [size - 1, 7]
    with pytest.raises(UsageError, match="has both average=True and op="):
        fusion.allreduce(1.0, average=True, op=fusion.Sum)


def test_rows_are_gathered_and_shared_out() -> None:
    rank, size = fusion.rank(), fusion.size()
    gathered = fusion.allgather(np.full([rank, 1], float(rank)), name="rows")
    assert gathered.numpy().tolist() == [[float(each)] for each in range(size) for _ in range(each)]
    share = fusion.reducescatter(np.arange(2.0 * size) + rank, "shares")
    assert share.numpy().tolist() == [2 * rank + (size - 1) / 2, 2 * rank + 1 + (size - 1) / 2]
    total = fusion.reducescatter(np.ones(size, "float32"), name="sums", op=fusion.Sum)
    assert total.numpy().tolist() == [size]


def test_a_process_set_limits_them() -> None:
    last = fusion.add_process_set([fusion.size() - 1]) if fusion.size() > 1 else fusion.global_process_set
    if last.included():
        assert float(fusion.allreduce(5.0, process_set=last)) == 5.0
        assert float(fusion.broadcast(6.0, fusion.size() - 1, process_set=last)) == 6.0
        assert fusion.allgather([7.0], process_set=last).numpy().tolist() == [7.0]
        assert fusion.reducescatter([8.0], process_set=last).numpy().tolist() == [8.0]
    fusion.barrier("members are done")
    assert fusion.remove_process_set(last) if fusion.size() > 1 else True
