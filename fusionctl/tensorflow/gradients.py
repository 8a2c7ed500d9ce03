"""The gradients of one step as one set: announced together, submitted each when it is ready, awaited once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, global_process_set
from fusionctl.request import Collective, Group, ReduceOp, Request, checked_dtype
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.library import exchange, outside_autograph, static_shape
from fusionctl.tensorflow.names import variable_names
from fusionctl.tensorflow.presence import absent, completed, mask, mask_request, needs_mask
from fusionctl.tensorflow.sparse import densify

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
) -> list[tf.Tensor | None]:
    """Reduce gradients over the ranks of a process set, in eager mode or in a graph; all pass the same variables.

    `groups` None lets the fusion threshold cut the set; a number n makes n fused groups of consecutive variables,
    nearly equal in number; a list of lists of variables makes each list a fused group and every other variable its own.
    Sparse gradients become dense.  `use_generic_names` names the tensors by their position, for variables whose names
    differ between the ranks.

    A None is zeros if another rank has a gradient: the sum, or the average over all ranks, comes back on every rank.
    If no rank has one, None stays None in eager mode, and in a graph on one rank.  In a graph of several ranks it comes
    back as zeros, because what other ranks traced is not known in the trace, and asking could wait for ever; weight
    decay or momentum then act on the variable, so leave out of a set what no rank uses.
    """
    names = [f"tensor.{index}" for index in range(len(variables))] if use_generic_names else variable_names(variables)
    whole = completed(grads, variables, process_set)
    dense = {
        index: compression.compress(densify(grad, variables[index], sparse_as_dense)) for index, grad in whole.items()
    }
    announced, order = [], []
    for members, fuses_whole in reversed(split(variables, groups)):
        present = [index for index in reversed(members) if index in dense]  # the order in which they become ready
        requests = tuple(
            request_for(names[index], dense[index], variables[index], ReduceOp(op), prescale, postscale)
            for index in present
        )
        if requests:
            announced.append(Group(set_name(name, [names[index] for index in members]), requests, fuses_whole))
            order += present
    if not order:
        return list(grads)
    reduced, missing = send([dense[index] for index in order], announced, grads, process_set)
    results: list[tf.Tensor | None] = [None] * len(variables)
    for index, tensor in zip(order, reduced, strict=True):
        if index not in missing:
            results[index] = compression.decompress(tensor, whole[index].dtype)
    return results


def send(
    tensors: list[tf.Tensor], groups: list[Group], grads: Sequence[Any], process_set: ProcessSet
) -> tuple[Sequence[tf.Tensor], Collection[int]]:
    """The reduced tensors, and the indices of the gradients that are known to be None on all ranks."""
    if not needs_mask(process_set):
        return exchange(tensors, groups, process_set), ()
    last = groups[-1].requests[-1]
    request = mask_request(len(grads), last)
    *others, group = groups
    groups = [*others, replace(group, requests=(*group.requests, request))]
    *reduced, masks = exchange([*tensors, mask(grads, last.dtype)], groups, process_set)
    return reduced, absent(masks)


def request_for(
    name: str, tensor: tf.Tensor, variable: Any, op: ReduceOp, prescale: float, postscale: float
) -> Request:
    """The request of a gradient; what the graph does not know of its shape the variable does."""
    checked_dtype(name, tensor.dtype.name, op)
    if not tensor.shape.is_fully_defined():
        tensor.set_shape(variable.shape)
    return Request(name, Collective.ALLREDUCE, tensor.dtype.name, static_shape(tensor), op, prescale, postscale)


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
