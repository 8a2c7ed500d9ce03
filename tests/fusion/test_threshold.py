"""The threshold policy: runs of sizes, and groups cut into buckets of one kind."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.fusion.threshold import fuse, limit, runs
from fusionctl.request import Bucket, Collective, Group, ReduceOp, Request


@pytest.mark.parametrize(
    ("nbytes", "threshold", "expected"),
    [
        ([], 6, []),
        ([3, 3, 3, 8], 6, [[0, 1], [2], [3]]),
        ([8, 3, 3], 6, [[0], [1, 2]]),
        ([3, 3, 3], 0, [[0], [1], [2]]),
        ([3, 3, 3], 9, [[0, 1, 2]]),
        ([0, 0], 0, [[0], [1]]),
        ([0, 6, 0, 0, 1], 6, [[0, 1, 2, 3], [4]]),
        ([7, 0], 6, [[0], [1]]),
    ],
)
def test_runs(nbytes: list[int], threshold: int, expected: list[list[int]]) -> None:
    assert [list(run) for run in runs(nbytes, threshold)] == expected


@given(st.lists(st.integers(0, 100)), st.integers(0, 200))
def test_runs_cover_all_fit_the_threshold_and_are_as_long_as_they_can_be(nbytes: list[int], threshold: int) -> None:
    cut = runs(nbytes, threshold)
    assert [i for run in cut for i in run] == list(range(len(nbytes)))
    assert all(len(run) == 1 or sum(nbytes[i] for i in run) <= threshold for run in cut)
    assert all(threshold == 0 or sum(nbytes[i] for i in a) + nbytes[b[0]] > threshold for a, b in pairwise(cut))


def request(name: str, dtype: str = "float32", count: int = 1, **fields: object) -> Request:
    return Request(name, Collective.ALLREDUCE, dtype, (count,), **fields)  # type: ignore[arg-type]


MIXED = Group("g", (request("a"), request("b", "int32"), request("c"), request("d", "int32"), request("e")))


def test_kinds_do_not_mix_and_buckets_come_in_the_order_in_which_they_are_ready() -> None:
    assert fuse(MIXED, 8) == (Bucket("g", (0, 2), 8), Bucket("g", (1, 3), 8), Bucket("g", (4,), 4))
    assert fuse(MIXED, 12) == (Bucket("g", (1, 3), 8), Bucket("g", (0, 2, 4), 12))


def test_no_fusion() -> None:
    assert fuse(MIXED, 0) == tuple(Bucket("g", (i,), 4) for i in range(5))


def test_an_explicit_group_is_one_bucket_per_kind() -> None:
    whole = Group("g", MIXED.requests, fuses_whole=True)
    assert fuse(whole, 0) == (Bucket("g", (1, 3), 8), Bucket("g", (0, 2, 4), 12))


def test_what_separates_kinds() -> None:
    requests = (
        request("a"),
        request("b", op=ReduceOp.MAX),
        request("c", prescale=0.5),
        request("d", postscale=0.5),
        Request("e", Collective.BROADCAST, "float32", (1,), root=0),
        Request("f", Collective.BROADCAST, "bool", (1,), root=0),
        Request("g", Collective.BROADCAST, "bool", (1,), root=1),
        Request("h", Collective.BARRIER, "uint8", (0,)),
        request("i"),
    )
    assert [bucket.members for bucket in fuse(Group("g", requests), 100)] == [
        (1,),
        (2,),
        (3,),
        (4, 5),
        (6,),
        (7,),
        (0, 8),
    ]


def test_a_group_without_requests_has_no_buckets() -> None:
    assert fuse(Group("g", ()), 100) == ()
    assert fuse(Group("g", (), fuses_whole=True), 100) == ()


@given(
    st.lists(st.tuples(st.sampled_from(["float32", "int64"]), st.integers(0, 9))), st.integers(0, 100), st.booleans()
)
def test_every_request_is_in_one_bucket_of_its_kind(
    sizes: list[tuple[str, int]], threshold: int, fuses_whole: bool
) -> None:
    group = Group("g", tuple(request(f"t{i}", *size) for i, size in enumerate(sizes)), fuses_whole)
    buckets = fuse(group, threshold)
    assert sorted(i for bucket in buckets for i in bucket.members) == list(range(len(sizes)))
    for bucket in buckets:
        assert bucket.members == tuple(sorted(bucket.members))
        assert len({group.requests[i].kind for i in bucket.members}) == 1
        assert bucket.nbytes == sum(group.requests[i].nbytes for i in bucket.members)
    assert [bucket.members[-1] for bucket in buckets] == sorted(bucket.members[-1] for bucket in buckets)


@pytest.mark.parametrize(
    ("total", "threshold", "bytes_each"),
    [
        (16 << 20, 128 << 20, 4 << 20),
        ((16 << 20) + 1, 128 << 20, (4 << 20) + 1),
        (16 << 20, 2 << 20, 2 << 20),
        (1 << 20, 128 << 20, 1 << 20),
        (5000, 128 << 20, 1 << 20),
        (16 << 20, 0, 0),
    ],
)
def test_a_large_set_is_cut_for_overlap(total: int, threshold: int, bytes_each: int) -> None:
    assert limit(total, threshold) == bytes_each
