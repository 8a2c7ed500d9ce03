"""The law: a member of a group keeps its slot, whatever is registered under its name and in whatever order."""

from __future__ import annotations

from fusionctl.registry import Registry
from fusionctl.request import Collective, Group, Request


def group_of(*members: str, count: int = 4, collective: Collective = Collective.ALLREDUCE) -> Group:
    return Group("g", tuple(Request(member, collective, "float32", (count,)) for member in members))


def test_members_keep_their_slots_in_any_order() -> None:
    registry = Registry()
    _, (a, b, c), new = registry.add(group_of("a", "b", "c"), 0, 2)
    assert new
    registered, slots, changed = registry.add(group_of("c", "a", "b"), 0, 2)
    assert (slots, changed) == ([c, a, b], False)
    registered, slots, changed = registry.add(group_of("b", "c", "a", count=5), 0, 2)
    assert (slots, changed) == ([b, c, a], True)
    assert registered.group == group_of("a", "b", "c", count=5)
    assert registered.slots == [a, b, c]


def test_members_of_one_name_are_told_apart_by_their_number() -> None:
    registry = Registry()
    _, (first, other, second), _ = registry.add(group_of("a", "b", "a"), 0, 2)
    assert registry.add(group_of("b", "a", "a"), 0, 2)[1] == [other, first, second]


def test_other_members_take_the_slots_as_they_stand_and_other_collectives_new_ones() -> None:
    registry = Registry()
    _, slots, _ = registry.add(group_of("a", "b"), 0, 2)
    registered, kept, changed = registry.add(group_of("c", "a"), 0, 2)
    assert (registered.group, kept, changed) == (group_of("c", "a"), slots, True)
    for size, collective in ((2, Collective.ALLGATHER), (3, Collective.ALLGATHER)):
        registered, fresh, changed = registry.add(group_of("c", "a", collective=collective), 0, size)
        assert changed
        assert not set(fresh) & set(slots)
        assert registered.slots == fresh
