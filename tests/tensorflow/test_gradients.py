"""The law: every variable is in one group, and names depend on nothing but variables and counts."""

from __future__ import annotations

import pytest
import tensorflow as tf

import fusionctl
from fusionctl.request import Collective, Group, ReduceOp, Request
from fusionctl.tensorflow.gradients import nearly_equal, set_name, split
from fusionctl.tensorflow.names import settle_name, variable_names


class Named:
    """Stands for a Keras variable."""

    def __init__(self, path: str) -> None:
        self.path = path


def group(name: str, op: ReduceOp = ReduceOp.SUM, shape: tuple[int, ...] = (2,)) -> Group:
    return Group(name, (Request(f"{name}.0", Collective.ALLREDUCE, "float32", shape, op),))


def test_a_number_of_groups_is_nearly_equal_parts() -> None:
    assert nearly_equal([0, 1, 2, 3, 4], 2) == [[0, 1, 2], [3, 4]]
    assert nearly_equal([0, 1, 2, 3, 4, 5, 6], 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert nearly_equal([0, 1], 5) == [[0], [1]]
    with pytest.raises(fusionctl.UsageError, match="groups is -1"):
        nearly_equal([0, 1], -1)


def test_split() -> None:
    a, b, c, d = variables = [Named(name) for name in "abcd"]
    assert split(variables, None) == [([0, 1, 2, 3], False)]
    assert split(variables, 0) == [([0, 1, 2, 3], False)]
    assert split(variables, 3) == [([0, 1], True), ([2], True), ([3], True)]
    assert split(variables, [[d, b], [Named("elsewhere")]]) == [([0], True), ([1, 3], True), ([2], True)]
    assert split(variables, [[a, b, c, d]]) == [([0, 1, 2, 3], True)]


def test_names_of_variables() -> None:
    plain = tf.Variable(1.0, name="plain")
    assert variable_names([Named("dense/kernel"), plain, plain, tf.constant(1.0), Named("dense/kernel")]) == [
        "dense/kernel",
        "plain",
        "plain#2",
        "tensor.3",
        "dense/kernel#2",
    ]


def test_names_of_sets() -> None:
    assert set_name("gradients", ["a"]) == "gradients/a"
    assert set_name("gradients", ["a", "b", "c"]) == "gradients/a..c/3"


def test_the_second_use_of_a_name_in_one_graph_is_another() -> None:
    with tf.Graph().as_default():
        assert [settle_name(group("use")).name for _ in range(3)] == ["use", "use#2", "use#3"]
    with tf.Graph().as_default():
        assert settle_name(group("use")).name == "use"
    assert [settle_name(group("use")).name for _ in range(2)] == ["use", "use"]


def test_another_meaning_does_not_take_a_graphs_name() -> None:
    assert settle_name(group("meaning", ReduceOp.MAX)).name == "meaning"  # eager, and over: it holds nothing
    with tf.Graph().as_default():
        assert settle_name(group("meaning")).name == "meaning"
    with tf.Graph().as_default():
        assert settle_name(group("meaning", ReduceOp.MIN)).name == "meaning~2"
    assert settle_name(group("meaning", ReduceOp.MIN)).name == "meaning~2"
    assert settle_name(group("meaning", ReduceOp.SUM, (3,))).name == "meaning"
