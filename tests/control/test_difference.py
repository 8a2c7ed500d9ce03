"""Messages about what the ranks disagree on, word by word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fusionctl.control.difference import describe_difference, ranks
from fusionctl.request import Collective, Group, ReduceOp, Request

X = Request("x", Collective.ALLREDUCE, "float32", (2, 3))
Y = Request("y", Collective.ALLREDUCE, "float32", (5,))
Z = Request("z", Collective.ALLREDUCE, "float32", (7,))


def group(*requests: Request, fuses_whole: bool = False) -> Group:
    return Group("g", requests, fuses_whole)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([7, 0, 1, 2, 3, 4, 5], "ranks 0-5, 7"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        ([10, 11, 12, 63], "ranks 10-12, 63"),
    ],
)
def test_ranks_as_text(members: list[int], text: str) -> None:
    assert ranks(members) == text


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"shape": (3, 2)}, "shape is (2, 3) on rank 0 and (3, 2) on rank 1; submit the same shape"),
        ({"shape": ()}, "shape is (2, 3) on rank 0 and () on rank 1; submit the same shape"),
        ({"dtype": "float64"}, "dtype is float32 on rank 0 and float64 on rank 1; submit the same dtype"),
        ({"op": ReduceOp.AVERAGE}, "op is sum on rank 0 and average on rank 1; submit the same op"),
        (
            {"prescale": 0.1 + 0.2},
            "prescale_factor is 1.0 on rank 0 and 0.30000000000000004 on rank 1; submit the same prescale_factor",
        ),
        (
            {"postscale": float("nan")},
            "postscale_factor is 1.0 on rank 0 and nan on rank 1; submit the same postscale_factor",
        ),
        ({"root": 2}, "root_rank is -1 on rank 0 and 2 on rank 1; submit the same root_rank"),
        (
            {"collective": Collective.BROADCAST, "root": 0},
            "collective is allreduce on rank 0 and broadcast on rank 1; submit the same collective",
        ),
    ],
)
def test_one_field_differs(other: dict[str, object], text: str) -> None:
    versions = [(group(X), [0]), (group(replace(X, **other)), [1])]  # type: ignore[arg-type]
    assert describe_difference(versions) == f"tensor 'x' of group 'g': {text} on every rank"


def test_a_single_tensor_is_its_group() -> None:
    versions = [(Group("x", (X,)), [0, 1]), (Group("x", (replace(X, shape=(6,)),)), [2])]
    assert describe_difference(versions) == (
        "tensor 'x': shape is (2, 3) on ranks 0-1 and (6,) on rank 2; submit the same shape on every rank"
    )


def test_ranks_are_grouped_by_value_and_values_are_shortened() -> None:
    shapes = [(8,), (8,), (4,), (3,), (4,), (2,), (1,)]
    versions = [(group(Y, replace(X, shape=shape)), [rank]) for rank, shape in enumerate(shapes)]
    assert describe_difference(versions) == (
        "tensor 'x' of group 'g': shape is (8,) on ranks 0-1, (4,) on ranks 2, 4, (3,) on rank 3 and 2 other values "
        "elsewhere; submit the same shape on every rank"
    )


def test_missing_tensors_are_named() -> None:
    versions = [(group(X, Y), [0, 3]), (group(Y, Z), [1, 2])]
    assert describe_difference(versions) == (
        "tensor 'x' of group 'g' is announced on ranks 0, 3, but not on ranks 1-2; tensor 'z' of group 'g' is "
        "announced on ranks 1-2, but not on ranks 0, 3; submit the same tensors on every rank"
    )


def test_a_second_tensor_of_the_same_name_can_be_missing() -> None:
    versions = [(group(X, X), [0]), (group(X), [1])]
    assert describe_difference(versions) == (
        "tensor 'x' of group 'g' is announced on rank 0, but not on rank 1; submit the same tensors on every rank"
    )


def test_fuses_whole_differs() -> None:
    versions = [(group(X), [0]), (group(X, fuses_whole=True), [1])]
    assert describe_difference(versions) == (
        "group 'g': fuses_whole is False on rank 0 and True on rank 1; submit the same groups on every rank"
    )


def test_the_first_three_differences_are_told() -> None:
    mine = [replace(X, name=f"t{i}") for i in range(6)]
    theirs = [replace(request, shape=(1,)) for request in mine]
    theirs[1] = replace(mine[1], dtype="int32")
    assert describe_difference([(group(*mine), [0]), (group(*theirs), [1])]) == (
        "tensor 't0' of group 'g': shape is (2, 3) on rank 0 and (1,) on rank 1; tensor 't1' of group 'g': dtype is "
        "float32 on rank 0 and int32 on rank 1; tensor 't2' of group 'g': shape is (2, 3) on rank 0 and (1,) on rank "
        "1; 3 more differences; submit the same shape and dtype on every rank"
    )


def test_an_order_is_no_difference() -> None:
    assert describe_difference([(group(X, Y), [0]), (group(Y, X), [1])]) is None
    assert describe_difference([(group(X, Y), [0, 1])]) is None
