"""One rank's control plane, told as stories: what its hooks are called with, in order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fusionctl._table import Table
from fusionctl.control.protocol import Control
from fusionctl.fusion.threshold import fuse
from fusionctl.request import Bucket, Collective, Group, Request


class Alone:
    """One rank that is all ranks; what its hooks were told."""

    def __init__(self, capacity: int) -> None:
        self.table = Table()
        self.control = Control(0, 1, capacity, partial(fuse, threshold=0), self.table, self)
        self.log: list[tuple[object, ...]] = []

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        self.log.append(("bind", bit, group.name, bucket.members, slots))
        self.table.bind(bit, slots)

    def unbind(self, bit: int) -> None:
        self.log.append(("unbind", bit))
        self.table.unbind(bit)

    def adopt(self, group: Group) -> Sequence[int]:
        raise AssertionError("no rank has joined")

    def joined(self, ranks: Sequence[int], last: int) -> None:
        raise AssertionError("no rank has joined")

    def fail(self, group: Group, slots: Sequence[int], message: str) -> None:
        self.log.append(("fail", group.name, slots))

    def negotiate(self) -> None:
        self.control.settle([self.control.payload()])

    def execute(self, *slots: int) -> None:
        for slot in slots:
            self.table.mark_ready(slot)
        self.log.append(("agreed", *self.table.take(self.table.words(True, True))))


def group_of(name: str, *counts: int) -> Group:
    members = [(f"{name}.{i}", count) for i, count in enumerate(counts)]
    return Group(name, tuple(Request(member, Collective.ALLREDUCE, "float32", (n,)) for member, n in members))


def test_the_story_of_a_group() -> None:
    rank = Alone(capacity=10)
    rank.control.register(group_of("g", 4, 5), [7, 3])
    assert rank.control.has_news()
    rank.negotiate()
    assert not rank.control.has_news()
    rank.execute(3, 7)
    rank.control.needs(group_of("g", 4, 5), [7, 3])
    assert not rank.control.has_news()  # it has its buckets
    rank.control.register(group_of("g", 4, 6), [7, 3])
    rank.negotiate()
    assert rank.log == [
        ("bind", 0, "g", (0,), [7]),
        ("bind", 1, "g", (1,), [3]),
        ("agreed", 0, 1),
        ("unbind", 0),
        ("unbind", 1),
        ("bind", 0, "g", (0,), [7]),
        ("bind", 1, "g", (1,), [3]),
    ]
    assert [group.requests[1].shape for group in rank.control.groups()] == [(6,)]


def test_what_is_bound_are_the_slots_of_the_version_that_was_announced() -> None:
    rank = Alone(capacity=10)
    rank.control.register(group_of("g", 4, 5), [0, 1])
    payload = rank.control.payload()
    rank.control.register(group_of("g", 4), [2])  # while the payloads are on their way
    rank.control.settle([payload])
    rank.negotiate()
    assert rank.log == [
        ("bind", 0, "g", (0,), [0]),
        ("bind", 1, "g", (1,), [1]),
        ("unbind", 0),
        ("unbind", 1),
        ("bind", 0, "g", (0,), [2]),
    ]


def test_a_cache_that_is_too_small_is_told_once() -> None:
    rank = Alone(capacity=1)
    warnings = []
    for turn in range(6):
        slot = turn % 2
        rank.control.needs(group_of("gh"[slot], 4), [slot])
        rank.negotiate()
        rank.execute(slot)
        warnings.append(rank.control.take_warning())
    text = (
        "group 'g' is negotiated again because it was evicted from the response cache, which holds 1 buckets; a larger "
        "cache capacity avoids this"
    )
    assert warnings == [None, None, text, None, None, None]


def test_without_a_cache_every_execution_is_negotiated() -> None:
    rank = Alone(capacity=0)
    for _ in range(2):
        rank.control.needs(group_of("g", 4), [5])
        rank.negotiate()
        rank.execute(5)
    assert rank.table.mark_ready(5) == -1
    rank.control.register(group_of("h", 4), [6])
    rank.negotiate()
    assert rank.log == [
        ("bind", 0, "g", (0,), [5]),
        ("agreed", 0),
        ("unbind", 0),
        ("bind", 0, "g", (0,), [5]),
        ("agreed", 0),
        ("unbind", 0),
        ("bind", 0, "h", (0,), [6]),
    ]
    assert rank.control.has_news()  # g is pending and was forgotten
    assert rank.control.take_warning() is None
