"""Gradient rules of the collectives.

By default they are Horovod's, so that a migrated job keeps its numbers.  With g the gradient of a result, n the number
of ranks and FUSIONCTL_GRADIENTS=adjoint in the last column, where the gradients are those of one programme whose loss
is the sum of the ranks' losses:

    allreduce          the same all-reduce of g                     alike for Sum and Average
    (Min, Max, Product)                                             sum of g, to the ranks that the result came from
    broadcast          average of g on the root, else zero          sum
    allgather          average of g, this rank's rows               sum
    alltoall           g sent back where its rows came from         alike
    reducescatter      all ranks' g gathered; times n for Sum       as it is for Sum, divided by n for Average
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from fusionctl import runtime
from fusionctl.process_sets import ProcessSet
from fusionctl.request import ANY_ROWS, Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.library import collect, exchange, members, static_shape


def register_gradients() -> None:
    """Tell TensorFlow the rules; once per process."""
    tf.RegisterGradient("FusionctlSubmit")(submit_gradient)
    tf.RegisterGradient("FusionctlSubmitRows")(submit_rows_gradient)
    tf.RegisterGradient("FusionctlWait")(wait_gradient)
    tf.RegisterGradient("FusionctlCollect")(collect_gradient)
    tf.RegisterGradient("FusionctlDeliver")(deliver_gradient)


def is_adjoint() -> bool:
    """Whether gradients are to be those of the sum of the ranks' losses."""
    return runtime.current().config.gradients == "adjoint"


def submit_gradient(op: Any, grad: Any) -> list[Any]:
    """The wait's rule has reduced it; nothing flows into the tick."""
    return [grad, None]


def submit_rows_gradient(op: Any, grad: Any) -> list[Any]:
    """The collecting op's rule has sent it back; nothing flows into splits and tick."""
    return [grad, None, None]


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
        group = Group(f"{forward[0].group}.grad", requests)
        reduced = exchange(dense, [group], forward[0].process_set, backward=True)
        for index, member, grad in zip(present, forward, reduced, strict=True):
            results[index] = at_root(member.request, grad)
    return results


def backward(request: Request, grad: tf.Tensor) -> Request:
    """What reduces the gradient of a request's result."""
    to_root = ReduceOp.SUM if is_adjoint() else ReduceOp.AVERAGE
    return replace(
        request,
        name=f"{request.name}.grad",
        collective=Collective.ALLREDUCE,
        dtype=grad.dtype.name,
        shape=static_shape(grad),
        op=to_root if request.collective is Collective.BROADCAST else request.op,
        root=-1,
    )


def at_root(request: Request, grad: tf.Tensor) -> tf.Tensor:
    """Only the root's input took part in a broadcast."""
    if request.collective is Collective.BROADCAST and request.root != runtime.current().rank:
        return tf.zeros_like(grad)
    return grad


def collect_gradient(op: Any, *grads: Any) -> list[Any]:
    """Each row's gradient to where the row came from, as one group, named after the forward one."""
    slots, rows = op.get_attr("slots"), op.outputs[-1]
    present = [index for index, grad in enumerate(grads[:-1]) if grad is not None]
    results: list[Any] = [None] * (len(grads) - 1)
    if not present:
        return results
    forward = [members[slots[index]] for index in present]
    dense = [tf.convert_to_tensor(grads[index]) for index in present]
    splits = [
        None if member.request.collective is Collective.REDUCESCATTER else rows[index]
        for index, member in zip(present, forward, strict=True)
    ]
    requests = tuple(send_back(member.request, grad) for member, grad in zip(forward, dense, strict=True))
    group = Group(f"{forward[0].group}.grad", requests)
    returned, _ = collect(dense, [group], splits, forward[0].process_set, backward=True)
    for index, member, grad in zip(present, forward, returned, strict=True):
        results[index] = combine(member.request, grad, member.process_set.size())
    return results


def send_back(request: Request, grad: tf.Tensor) -> Request:
    """What carries the gradient of a request's result to the ranks that its rows came from."""
    gathered = request.collective is Collective.REDUCESCATTER
    return Request(
        f"{request.name}.grad",
        Collective.ALLGATHER if gathered else Collective.ALLTOALL,
        grad.dtype.name,
        (ANY_ROWS, *static_shape(grad)[1:]),
    )


def combine(request: Request, returned: tf.Tensor, n: int) -> tf.Tensor:
    """The gradient of a request's tensor from what n ranks returned of its rows."""
    if request.collective is Collective.ALLTOALL:
        return returned
    if request.collective is Collective.ALLGATHER:
        return from_ranks(returned, n, 1.0 if is_adjoint() else 1.0 / n)
    factor = request.prescale * request.postscale
    if is_adjoint():
        factor /= n if request.op is ReduceOp.AVERAGE else 1
    else:
        factor *= n if request.op is ReduceOp.SUM else 1
    return returned if factor == 1 else returned * tf.constant(factor, returned.dtype)


def from_ranks(returned: tf.Tensor, n: int, factor: float) -> tf.Tensor:
    """The sum, times a factor, of n blocks of equally many rows, one after the other; 16 bits sum in float32."""
    wide = tf.cast(returned, tf.float32) if returned.dtype.size < 4 else returned
    shape = tf.shape(returned)
    total = tf.reduce_sum(tf.reshape(wide, tf.concat([[n, shape[0] // n], shape[1:]], 0)), 0)
    return tf.cast(total * tf.constant(factor, total.dtype), returned.dtype)


def exchange_nonlinear(tensors: Sequence[tf.Tensor], group: Group, among: ProcessSet) -> list[tf.Tensor]:
    """`exchange` by Min, Max or Product, with their adjoint as the gradient."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def call(*xs: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
        ys = exchange(xs, [group], among)

        def gradient(*grads: tf.Tensor) -> list[tf.Tensor]:
            sums = [replace(r, name=f"{r.name}.grad", op=ReduceOp.SUM) for r in group.requests]
            inputs = [
                Request(f"{r.name}.inputs", Collective.ALLGATHER, r.dtype, (ANY_ROWS, *r.shape)) for r in group.requests
            ]
            totals = exchange(grads, [Group(f"{group.name}.grad", tuple(sums))], among, backward=True)
            rows = [x[tf.newaxis] for x in xs]
            stacked, _ = collect(rows, [Group(f"{group.name}.inputs", tuple(inputs))], None, among, backward=True)
            everyones = [
                tf.unstack(tf.ensure_shape(every, [among.size(), *x.shape]))
                for x, every in zip(xs, stacked, strict=True)
            ]
            return [
                of_nonlinear(request.op, x, y, total, every, among.rank())
                for request, x, y, total, every in zip(group.requests, xs, ys, totals, everyones, strict=True)
            ]

        return ys, gradient

    return list(call(*tensors))


def of_nonlinear(
    op: ReduceOp, x: tf.Tensor, y: tf.Tensor, grad: tf.Tensor, gathered: Sequence[tf.Tensor], me: int
) -> tf.Tensor:
    """The adjoint of y = the minimum, maximum or product of the ranks' x, given all ranks' x and the sum of their g.

    Ranks that tie share the gradient of a minimum or maximum equally, as in tf.reduce_max.
    """
    if op is ReduceOp.PRODUCT:
        others = [other for rank, other in enumerate(gathered) if rank != me]
        return grad * (tf.reduce_prod(tf.stack(others), 0) if others else tf.ones_like(x))
    reached = tf.cast(tf.equal(x, y), grad.dtype)
    ties = tf.add_n([tf.cast(tf.equal(other, y), grad.dtype) for other in gathered])
    return grad * reached / ties
