"""Names that are the same on all ranks: from variables, arguments and counts, never from generated op names."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from fusionctl import runtime
from fusionctl.process_sets import ProcessSet, checked_set
from fusionctl.request import Group

_unnamed: Counter[int | None] = Counter()
_asynchronous = itertools.count()
_variants: dict[tuple[int, str], list[tuple[object, ...] | None]] = {}


def variable_names(variables: Sequence[Any]) -> list[str]:
    """One name for each variable, of Keras or TensorFlow, or other source of a gradient; the second "w" is "w#2"."""
    seen: Counter[str] = Counter()
    names = []
    for index, variable in enumerate(variables):
        name = variable_name(variable, index)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def variable_name(variable: Any, index: int) -> str:
    """A Keras variable's path, a tf.Variable's name; other tensors are known by their position."""
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    if isinstance(variable, tf.Variable):
        return str(variable.name).removesuffix(":0")
    return f"tensor.{index}"


def default_name(collective: str, process_set: ProcessSet) -> str:
    """Name of an unnamed call: one for all eager ones, as each is over before the next; in graphs the set's n-th."""
    among = checked_set(process_set).process_set_id
    if tf.executing_eagerly():
        return f"{collective}.eager"
    _unnamed[among] += 1
    return f"{collective}.{_unnamed[among] - 1}"


def unique_name(collective: str) -> str:
    """Name of an unnamed asynchronous call, of which many may be in flight: the n-th of this process."""
    return f"{collective}_async.tensor.{next(_asynchronous)}"


def settle_name(group: Group, process_set: int = 0) -> Group:
    """The group under a name of its own.

    A second use in one graph, where both may be in flight, is "name#2".  A group of the same name but another meaning
    (op, factors, root, number of members) than some graph holds is "name~2": that graph keeps the slots it was traced
    with.  Differing dtypes and shapes share a name, so that ranks which disagree are told so; and what they disagreed
    about counts no more, so that the next use has the same name on all of them.
    """
    name = group.name if tf.executing_eagerly() else _name_in_graph(group.name, process_set)
    meaning = tuple((r.collective, r.op, r.prescale, r.postscale, r.root) for r in group.requests)
    variants = _variants.setdefault((process_set, name), [])
    names = [name, *(f"{name}~{index}" for index in range(2, len(variants) + 2))]
    for index in range(len(variants)):
        if runtime.take_refused(process_set, names[index]):
            variants[index] = None
    if meaning not in variants and (variants or not tf.executing_eagerly()):
        free = variants.index(None) if None in variants else len(variants)
        variants[free:] = [meaning, *variants[free + 1 :]]
    return replace(group, name=names[variants.index(meaning) if variants else 0])


def _name_in_graph(name: str, process_set: int) -> str:
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "fusionctl_names"):
        graph.fusionctl_names = Counter()
    graph.fusionctl_names[process_set, name] += 1
    uses = graph.fusionctl_names[process_set, name]
    return name if uses == 1 else f"{name}#{uses}"
