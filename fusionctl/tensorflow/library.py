"""The compiled ops, loaded once, and the one way in which tensors go through the engine: submit each, wait for all.

Law: within a graph nothing is chained, so ranks may trace in different orders; calls of functions run in the order of
the programme, as in eager mode.  `_tf.pyx` says how each op achieves its part.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from fusionctl import _board, runtime
from fusionctl.errors import FusionctlError, UsageError
from fusionctl.process_sets import ProcessSet, global_process_set, set_id
from fusionctl.registry import DUPLICATE
from fusionctl.request import Group, Request
from fusionctl.tensorflow.names import settle_name

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_autograph(function: Function) -> Function:
    """Keep AutoGraph, which rewrites what a tf.function calls, out of our Python: it runs in the trace as it is."""
    return cast(Function, tf.autograph.experimental.do_not_convert(function))


@dataclass(frozen=True, slots=True)
class Member:
    """What a slot stands for: a request, the name of its group, and the ranks."""

    group: str
    request: Request
    process_set: ProcessSet


members: dict[int, Member] = {}
"""By slot; the gradient rules, which see only slots, need it for as long as traced functions live."""


def exchange(
    tensors: Sequence[tf.Tensor],
    groups: Sequence[Group],
    process_set: ProcessSet = global_process_set,
    backward: bool = False,
) -> list[tf.Tensor]:
    """Submit every tensor the moment it exists, and deliver all results by one wait that blocks no thread.

    `tensors` and the results follow the groups' requests, one group after the other.  In a tf.function the groups are
    registered once, in the trace.  A step fails with tf.errors.InvalidArgumentError, in eager mode UsageError, for a
    tensor that is still in flight, FailedPreconditionError where the ranks' metadata differ, AbortedError when a rank
    has left, InternalError when MPI fails.  Inputs live in host memory.
    """
    slots, pending = submit(tensors, groups, process_set, backward)
    results: list[tf.Tensor] = list(ops().fusionctl_wait(pending, slots=slots))
    if tf.executing_eagerly():
        return results
    run_unordered(results[0].op)
    return list(ops().fusionctl_deliver(results)) if len(results) > 1 else results


def collect(
    tensors: Sequence[tf.Tensor],
    groups: Sequence[Group],
    splits: Sequence[tf.Tensor | None] | None = None,
    process_set: ProcessSet = global_process_set,
    backward: bool = False,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The same for results that the engine allocates: all-gather, all-to-all, reduce-scatter.

    `splits` are the rows that an all-to-all sends to each rank, None for equal shares.  Also returns how many rows of
    each result came from each rank, int64 of shape (results, ranks).
    """
    slots, pending = submit_rows(tensors, groups, splits, process_set, backward)
    results, rows = ops().fusionctl_collect(pending, slots=slots)
    if not tf.executing_eagerly():
        run_unordered(rows.op)
        *results, rows = ops().fusionctl_deliver([*results, rows])
    for result, slot in zip(results, slots, strict=True):
        shape = members[slot].request.shape
        result.set_shape([None, *(None if length == -1 else length for length in shape[1:])])
    return list(results), rows


def submit(
    tensors: Sequence[tf.Tensor], groups: Sequence[Group], process_set: ProcessSet, backward: bool = False
) -> tuple[list[int], list[tf.Tensor]]:
    """The first half of `exchange`: the slots to wait for, and the tensors that are the results once that is done."""
    slots, tick = register(groups, process_set), current_tick(backward)
    return slots, [ops().fusionctl_submit(x, tick, slot=slot) for x, slot in zip(tensors, slots, strict=True)]


def submit_rows(
    tensors: Sequence[tf.Tensor],
    groups: Sequence[Group],
    splits: Sequence[tf.Tensor | None] | None,
    process_set: ProcessSet,
    backward: bool = False,
) -> tuple[list[int], list[tf.Tensor]]:
    """The first half of `collect`: the slots to wait for, and tensors that stand for the results in a graph."""
    slots, tick, none = register(groups, process_set), current_tick(backward), tf.zeros([0], tf.int64)
    chosen = [none if split is None else tf.cast(split, tf.int64) for split in splits or [None] * len(slots)]
    return slots, [
        ops().fusionctl_submit_rows(x, split, tick, slot=slot)
        for x, split, slot in zip(tensors, chosen, slots, strict=True)
    ]


def register(groups: Sequence[Group], process_set: ProcessSet) -> list[int]:
    """Slots of the groups' members, one group after the other.

    In eager mode UsageError if one is in flight: nothing is submitted of a group that can not be submitted whole.
    """
    number = set_id(process_set)
    settled = [settle_name(group, number) for group in groups]
    slots = [slot for group in settled for slot in runtime.current().register(group, number)]
    known = [Member(group.name, request, process_set) for group in settled for request in group.requests]
    members.update(zip(slots, known, strict=True))
    for slot in slots if tf.executing_eagerly() else ():
        if _board.busy(slot):
            raise UsageError(DUPLICATE.format(members[slot].request.name))
    return slots


def static_shape(tensor: tf.Tensor) -> tuple[int, ...]:
    """The tensor's shape as far as the graph knows it, -1 for what is known at run time only."""
    if tensor.shape.rank is None:
        return (-1,)
    return tuple(-1 if length is None else length for length in tensor.shape.as_list())


def _load() -> Any:
    spec = importlib.util.find_spec("fusionctl._tf")
    if spec is None:
        raise FusionctlError("fusionctl._tf, the compiled TensorFlow kernels, is missing; install fusionctl again")
    library = tf.load_op_library(spec.origin)  # runs the constructor that registers the ops: before the import

    from fusionctl import _tf

    if _tf.problem() or not hasattr(library, "fusionctl_submit"):
        raise FusionctlError(
            f"TensorFlow {tf.__version__} did not take fusionctl's ops: {_tf.problem() or 'none was registered'}; "
            "import fusionctl.tensorflow before fusionctl._tf, and use a TensorFlow that fusionctl was tested with"
        )
    return library


_library = _load()


@functools.cache
def ops() -> Any:
    """The ops as Python functions; the first call tests them, which starts TensorFlow's runtime."""
    _probe(_library)
    return _library


def _probe(library: Any) -> None:
    """Complete a kernel after it has returned, which relies on an implementation detail of TensorFlow."""
    try:
        with tf.init_scope():
            if tf.executing_eagerly():
                library.fusionctl_probe()
                return
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            session.run(library.fusionctl_probe())
    except tf.errors.UnimplementedError as error:
        raise FusionctlError(
            f"TensorFlow {tf.__version__} completes asynchronous kernels in a way that fusionctl does not know "
            f"({error.message}); use a TensorFlow that fusionctl was tested with"
        ) from error


def current_tick(backward: bool = False) -> tf.Tensor:
    """The tick of the graph that is being built, or of eager mode: what makes submissions depend on their run."""
    if tf.executing_eagerly():
        return _eager_tick()
    graph = tf.compat.v1.get_default_graph()
    tick = getattr(graph, "fusionctl_tick", None)
    if tick is None:
        refuse_xla(graph)
        with tf.control_dependencies(None), tf.control_dependencies(arguments()):  # outside of all loops of the graph
            tick = graph.fusionctl_tick = ops().fusionctl_tick(_handle() if backward else _order())
    return tick


def arguments() -> list[tf.Tensor]:
    """What the function that is being traced is called with; nothing in eager mode.

    TensorFlow runs what does not depend on the arguments even if an iterator has no more to give for them, as at the
    end of each epoch of a length that Keras does not know.  Whatever counts or sends must wait for them.
    """
    graph = tf.compat.v1.get_default_graph()
    captured = {id(tensor) for tensor in getattr(graph, "internal_captures", ())}
    return [tensor for tensor in getattr(graph, "inputs", ()) if id(tensor) not in captured]


@functools.cache
def _eager_tick() -> tf.Tensor:
    with tf.device("CPU:0"):
        return ops().fusionctl_tick(_order())


def _order() -> tf.Tensor:
    """A handle that the ticks of all graphs seem to write, so that calls of functions keep their order.

    Graphs of gradients have handles of their own: where they become part of a loop they cannot capture eager tensors.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        if tf.executing_eagerly():
            return _eager_order()
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "fusionctl_order"):
            graph.fusionctl_order = _handle()
        return graph.fusionctl_order


@functools.cache
def _eager_order() -> tf.Tensor:
    return _handle()


def _handle() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name="fusionctl_order")


def run_unordered(op: tf.Operation) -> None:
    """Let a stateful op run always, but not in the order of the trace.

    Where TensorFlow offers no such thing the waits of a graph run one after the other: slower, and still right, since
    no submission depends on them.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    run_independently = getattr(manager, "run_independently", None)
    if run_independently is not None:
        run_independently(op)


def run_branch_unordered(value: Any) -> None:
    """The same for the tf.cond that a value came from."""
    if not tf.executing_eagerly():
        op = value.op.inputs[0].op if value.op.type == "Identity" else value.op
        if op.type in ("If", "StatelessIf"):
            run_unordered(op)


def refuse_xla(graph: tf.Graph) -> None:
    """UsageError inside tf.function(jit_compile=True)."""
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise UsageError(
            "a collective inside tf.function(jit_compile=True): XLA cannot compile communication; compile only "
            "functions that do not communicate, and leave jit_compile at False for the one that does "
            "(in Keras: model.compile(..., jit_compile=False))"
        )
