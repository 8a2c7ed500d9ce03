"""The gradients of one step as one set: announced together, submitted each when it is ready, awaited once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import Collective, Group, ReduceOp, Request, checked_dtype
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.library import exchange, outside_autograph, static_shape
from fusionctl.tensorflow.names import variable_names
from fusionctl.tensorflow.presence import completed
from fusionctl.tensorflow.sparse import count_request, count_rows, densify, each_value, is_sparse, merged, reduce_rows

Groups = int | Sequence[Sequence[Any]] | None


@outside_autograph
def reduce_gradients(
    grads: Sequence[Any],
    variables: Sequence[Any],
    *,
    name: str = "gradients",
    op: ReduceOp = ReduceOp.AVERAGE,
    compression: Compressor = Compression.none,
    prescale: float = 1.0,
    postscale: float = 1.0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    use_generic_names: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce gradients over the ranks of a process set, in eager mode or in a graph; all pass the same variables.

    `groups` None lets the fusion threshold cut the set; a number n makes n fused groups of consecutive variables,
    nearly equal in number; a list of lists of variables makes each list a fused group and every other variable its own.
    `use_generic_names` names the tensors by their position, for variables whose names differ between the ranks.

    Sparse gradients (tf.IndexedSlices) come back sparse, each row once: repeated rows are merged before they travel,
    and the dense form travels where that is less.  `sparse_as_dense` makes them dense at once, and so does Adasum.

    A None is zeros if another rank has a gradient: the sum, or the average over all ranks, comes back on every rank.
    If no rank has one, None stays None in eager mode, and in a graph on one rank.  In a graph of several ranks it comes
    back as zeros, because what other ranks traced is not known in the trace, and asking could wait for ever; weight
    decay or momentum then act on the variable, so leave out of a set what no rank uses.  For the same reason a None in
    a graph that is a sparse gradient on another rank is a MismatchError, unless with `sparse_as_dense`.
    """
    if not variables:
        return []
    names = [f"tensor.{index}" for index in range(len(variables))] if use_generic_names else variable_names(variables)
    as_dense = sparse_as_dense or op == ReduceOp.ADASUM
    prepared = [prepare(grad, variable, as_dense) for grad, variable in zip(grads, variables, strict=True)]
    whole, totals = completed(prepared, variables, set_name(name, names), process_set)
    sent = {index: each_value(grad, compression.compress) for index, grad in whole.items()}
    requests = {
        index: request_for(names[index], grad, variables[index], ReduceOp(op), prescale, postscale)
        for index, grad in sent.items()
    }
    announced, order = [], []
    for members, fuses_whole in reversed(split(variables, groups)):
        # in the order in which they become ready; the rows of `totals` are known
        present = [index for index in reversed(members) if index in sent and index not in totals]
        if present:
            firsts = tuple(count_request(requests[i]) if is_sparse(sent[i]) else requests[i] for i in present)
            announced.append(Group(set_name(name, [names[i] for i in members]), firsts, fuses_whole))
            order += present
    tensors = [count_rows(sent[i]) if is_sparse(sent[i]) else sent[i] for i in order]
    reduced = exchange(tensors, announced, process_set) if order else []
    results: list[Any] = [None] * len(variables)
    for index, result in [*zip(order, reduced, strict=True), *totals.items()]:
        if is_sparse(sent[index]):
            group = set_name(name, [names[index]])
            result = reduce_rows(group, sent[index], result, requests[index], process_set)
        results[index] = each_value(result, partial(compression.decompress, dtype=whole[index].dtype))
    return results


def prepare(grad: Any, variable: Any, as_dense: bool) -> Any:
    """The gradient as a tensor, or as merged slices that know their dense shape, or None."""
    if grad is None or not is_sparse(grad) or as_dense:
        return None if grad is None else densify(grad, variable)
    return merged(tf.IndexedSlices(grad.values, grad.indices, tf.shape(variable, out_type=tf.int64)))


def request_for(name: str, grad: Any, variable: Any, op: ReduceOp, prescale: float, postscale: float) -> Request:
    """The request of a gradient, in its dense form; what the graph does not know of its shape the variable does."""
    checked_dtype(name, grad.dtype.name, op)
    if not is_sparse(grad) and not grad.shape.is_fully_defined():
        grad.set_shape(variable.shape)
    shape = tuple(variable.shape) if is_sparse(grad) else static_shape(grad)
    return Request(name, Collective.ALLREDUCE, grad.dtype.name, shape, op, prescale, postscale)


def set_name(name: str, members: Sequence[str]) -> str:
    """Name of a group: the same on all ranks that have the same variables, whichever of them have gradients."""
    if len(members) == 1:
        return f"{name}/{members[0]}"
    return f"{name}/{members[0]}..{members[-1]}/{len(members)}"


def split(variables: Sequence[Any], groups: Groups) -> list[tuple[list[int], bool]]:
    """Indices of the variables by group, and whether the group fuses whole."""
    everything = list(range(len(variables)))
    if groups is None or groups == 0:
        return [(everything, False)]
    if isinstance(groups, int):
        return [(part, True) for part in nearly_equal(everything, groups)]
    return split_by_lists(variables, groups)


def nearly_equal(items: list[int], n: int) -> list[list[int]]:
    """At most n consecutive parts whose lengths differ by one at most, the longer ones first."""
    if n < 0:
        raise UsageError(f"groups is {n}; pass the number of groups, a list of lists of variables, or None")
    short, longer = divmod(len(items), n)
    ends = [part * short + min(part, longer) for part in range(n + 1)]
    return [items[start:end] for start, end in pairwise(ends) if start < end]


def split_by_lists(variables: Sequence[Any], groups: Sequence[Sequence[Any]]) -> list[tuple[list[int], bool]]:
    """Each list is a group and every other variable its own, in the order of their first members."""
    index_of = {id(variable): index for index, variable in enumerate(variables)}
    parts = [[index_of[id(variable)] for variable in group if id(variable) in index_of] for group in groups]
    grouped = [index for part in parts for index in part]
    if len(set(grouped)) < len(grouped):
        twice = next(index for index in grouped if grouped.count(index) > 1)
        raise UsageError(f"variable '{variable_names(variables)[twice]}' is in `groups` twice; name it once")
    alone = [[index] for index in range(len(variables)) if index not in set(grouped)]
    return [(sorted(part), True) for part in sorted(filter(None, parts + alone), key=min)]
