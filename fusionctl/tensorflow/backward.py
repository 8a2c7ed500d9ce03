"""Gradient rules: an all-reduce's is the same all-reduce; a broadcast's is the average on the root, zero elsewhere.

They are those of Horovod, stated for the loss that is the sum of the ranks' losses (the average, for an average).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from fusionctl import runtime
from fusionctl.errors import UsageError
from fusionctl.request import Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.library import exchange, members, static_shape

DIFFERENTIABLE = (ReduceOp.AVERAGE, ReduceOp.SUM)


def register_gradients() -> None:
    """Tell TensorFlow the rules; once per process."""
    tf.RegisterGradient("FusionctlSubmit")(submit_gradient)
    tf.RegisterGradient("FusionctlWait")(wait_gradient)
    tf.RegisterGradient("FusionctlDeliver")(deliver_gradient)


def submit_gradient(op: Any, grad: Any) -> list[Any]:
    """The wait's rule has reduced it; nothing flows into the tick."""
    return [grad, None]


def deliver_gradient(op: Any, *grads: Any) -> list[Any]:
    """An identity's."""
    return list(grads)


def wait_gradient(op: Any, *grads: Any) -> list[Any]:
    """All the set's gradients reduced as one group, named after the forward one."""
    slots = op.get_attr("slots")
    present = [index for index, grad in enumerate(grads) if grad is not None]
    dense = [tf.convert_to_tensor(grads[index]) for index in present]
    forward = [members[slots[index]] for index in present]
    requests = tuple(backward(member.request, grad) for member, grad in zip(forward, dense, strict=True))
    results: list[Any] = [None] * len(grads)
    if requests:
        reduced = exchange(dense, [Group(f"{forward[0].group}.grad", requests)], backward=True)
        for index, member, grad in zip(present, forward, reduced, strict=True):
            results[index] = at_root(member.request, grad)
    return results


def backward(request: Request, grad: tf.Tensor) -> Request:
    """What reduces the gradient of a request's result; UsageError where there is no rule."""
    op = ReduceOp.AVERAGE if request.collective is Collective.BROADCAST else request.op
    if op not in DIFFERENTIABLE:
        raise UsageError(
            f"tensor '{request.name}' was reduced by {op.name}, which has no gradient; differentiate Sum or Average, "
            "or wrap the tensor in tf.stop_gradient"
        )
    return replace(
        request,
        name=f"{request.name}.grad",
        collective=Collective.ALLREDUCE,
        dtype=grad.dtype.name,
        shape=static_shape(grad),
        op=op,
        root=-1,
    )


def at_root(request: Request, grad: tf.Tensor) -> tf.Tensor:
    """Only the root's input took part in a broadcast."""
    if request.collective is Collective.BROADCAST and request.root != runtime.current().rank:
        return tf.zeros_like(grad)
    return grad
