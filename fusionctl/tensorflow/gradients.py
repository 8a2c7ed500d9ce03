"""The gradients of one step as one set: announced together, submitted each when it is ready, awaited once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.request import Collective, Group, ReduceOp, Request, checked_dtype
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.library import exchange, outside_autograph, static_shape
from fusionctl.tensorflow.names import variable_names
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
) -> list[tf.Tensor | None]:
    """Reduce gradients over the ranks, in eager mode or in a graph; None stays None.

    `groups` None lets the fusion threshold cut the set; a number n makes n fused groups of consecutive variables,
    nearly equal in number; a list of lists of variables makes each list a fused group and every other variable its own.
    Sparse gradients become dense.  All ranks must have gradients for the same variables.
    """
    names = variable_names(variables)
    dense = {
        index: compression.compress(densify(grad, variables[index], sparse_as_dense))
        for index, grad in enumerate(grads)
        if grad is not None
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
    reduced = dict(zip(order, exchange([dense[index] for index in order], announced), strict=True))
    return [
        None if grad is None else compression.decompress(reduced[index], grad.dtype) for index, grad in enumerate(grads)
    ]


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
