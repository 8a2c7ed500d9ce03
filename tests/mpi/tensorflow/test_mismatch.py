"""The law: metadata that differ between the ranks fail the step on every rank, with both ranks and both values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion
from fusionctl.tensorflow.library import current_tick, members, ops

SIZES = (2, 3)


def failure(call: Callable[[], Any]) -> str:
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_shape_dtype_and_op(wrap: Any) -> None:
    odd = fusionctl.rank() == 1
    mode = "eager" if wrap is not tf.function else "graph"
    text = failure(wrap(lambda: fusion.allreduce(tf.ones([3 if odd else 2]), name=f"shape.{mode}")))
    assert f"tensor 'shape.{mode}': shape is (2,) on" in text
    assert "(3,) on rank 1" in text
    text = failure(wrap(lambda: fusion.allreduce(tf.ones(2, tf.int32 if odd else tf.float32), name=f"dtype.{mode}")))
    assert f"tensor 'dtype.{mode}': dtype is float32 on" in text
    assert "int32 on rank 1" in text
    text = failure(wrap(lambda: fusion.allreduce(tf.ones(2), op=fusion.Max if odd else fusion.Sum, name=f"op.{mode}")))
    assert f"tensor 'op.{mode}': op is sum on" in text
    assert "max on rank 1" in text


def test_shapes_that_differ_at_run_time_only() -> None:
    call = tf.function(
        lambda x: fusion.allreduce(x, op=fusion.Sum, name="late"), input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    np.testing.assert_array_equal(call(tf.ones(2)), np.full(2, fusionctl.size()))
    text = failure(lambda: call(tf.ones(3 if fusionctl.rank() == 1 else 2)))
    assert "tensor 'late': shape is (2,) on" in text
    assert "(3,) on rank 1" in text
    np.testing.assert_array_equal(call(tf.ones(2)), np.full(2, fusionctl.size()))


def test_a_duplicate_is_this_ranks_error() -> None:
    x = tf.ones(2)
    fusion.allreduce(x, name="doubled")
    slot = next(slot for slot, member in members.items() if member.request.name == "doubled")
    if fusionctl.rank() == 0:
        pending = ops().fusionctl_submit(x, current_tick(), slot=slot)
        with pytest.raises(tf.errors.InvalidArgumentError, match="'doubled' is still in flight on this rank"):
            ops().fusionctl_submit(x, current_tick(), slot=slot)
    fusionctl.barrier("only then do the others submit")
    if fusionctl.rank() != 0:
        pending = ops().fusionctl_submit(x, current_tick(), slot=slot)
    np.testing.assert_array_equal(ops().fusionctl_wait([pending], slots=[slot])[0], [1.0, 1.0])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("field", ["prescale_factor", "postscale_factor", "op", "root_rank"])
def test_the_name_can_be_used_again(wrap: Any, field: str) -> None:
    """What the ranks disagreed about is forgotten on all of them, also on those that had it wrong."""
    name = f"again.{field}.{wrap is tf.function}"
    wrong: Any = {"op": fusion.Max, "root_rank": 1}.get(field, 2.0)

    def call(**options: Any) -> Any:
        if field == "root_rank":
            return fusion.broadcast(tf.ones(2), options.get(field, 0), name=name)
        return fusion.allreduce(tf.ones(2), **({"op": fusion.Sum} | options), name=name)

    assert f"tensor '{name}'" in failure(wrap(lambda: call(**({field: wrong} if fusionctl.rank() == 1 else {}))))
    for _ in range(2):
        total = 1 if field == "root_rank" else fusionctl.size()
        np.testing.assert_array_equal(wrap(call)(), [total, total])
