"""The compiled table, one rank at a time: marks, words, agreements; `test_many_ranks.py` drives many together."""

from __future__ import annotations

from functools import reduce
from operator import and_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl._table import Table

RUNNING, SETTLED = 2**0, 2**1


def table_of(*buckets: list[int]) -> Table:
    table = Table()
    for bit, slots in enumerate(buckets):
        table.bind(bit, slots)
    return table


def test_an_empty_table_speaks_of_its_status_alone() -> None:
    table = Table()
    assert table.n_words() == 1
    assert not table.has_offer()
    assert [table.words(running, settled) for running in (False, True) for settled in (False, True)] == [
        [0],
        [SETTLED],
        [RUNNING],
        [RUNNING + SETTLED],
    ]
    assert table.take([RUNNING + SETTLED]) == []


def test_a_bucket_is_offered_when_its_last_slot_is_ready() -> None:
    table = table_of([7], [3, 5])
    assert [table.mark_ready(slot) for slot in (3, 7, 5)] == [0, 1, 1]
    assert table.words(True, True) == [RUNNING + SETTLED + 2**2 + 2**3]


def test_marks_tell_what_they_did() -> None:
    table = table_of([0, 1])
    assert [table.mark_ready(slot) for slot in (0, 0, 4, 4, 1)] == [0, -2, -1, -2, 1]
    assert [table.is_ready(slot) for slot in (0, 1, 2, 3, 4, 1000)] == [True, True, False, False, True, False]
    assert [table.is_bound(slot) for slot in (0, 1, 2, 4, 1000)] == [True, True, False, False, False]


def test_agreed_bits_come_in_order_and_clear_their_marks() -> None:
    table = table_of([2], [0, 1], [3])
    for slot in range(4):
        table.mark_ready(slot)
    assert table.take([RUNNING + SETTLED + 2**4 + 2**3]) == [1, 2]
    assert table.words(True, True) == [RUNNING + SETTLED + 2**2]
    assert [table.is_ready(slot) for slot in range(4)] == [False, False, True, False]
    assert [table.mark_ready(slot) for slot in (0, 1, 3)] == [0, 1, 1]


def test_slots_that_are_ready_before_their_bucket_is_bound_count() -> None:
    table = Table()
    assert [table.mark_ready(0), table.mark_ready(1)] == [-1, -1]
    table.bind(0, [0, 1])
    assert table.words(False, False) == [2**2]


def test_the_others_can_bring_forward_what_is_complete_or_has_no_bucket_yet() -> None:
    table = table_of([0, 1])
    history = [table.has_offer()]
    for change, slot in [
        (table.mark_ready, 0),
        (table.mark_ready, 2),
        (table.retract, 2),
        (table.disown, 0),
        (table.unbind, 0),
        (table.mark_ready, 1),
        (table.retract, 0),
    ]:
        change(slot)
        history.append(table.has_offer())
    table.bind(0, [0, 1])
    assert history == [False, False, True, False, True, True, True, True]
    assert not table.has_offer()


def test_unbinding_keeps_the_marks() -> None:
    table = table_of([0], [1])
    table.mark_ready(0)
    table.mark_ready(1)
    table.unbind(0)
    assert table.words(False, False) == [2**3]
    assert (table.is_ready(0), table.is_bound(0), table.slots(0), table.slots(1)) == (True, False, [], [1])
    table.bind(2, [0])
    assert table.words(False, False) == [2**3 + 2**4]


def test_a_retracted_slot_no_longer_counts() -> None:
    table = table_of([0, 1])
    table.mark_ready(0)
    table.mark_ready(1)
    table.retract(1)
    table.retract(1)
    table.retract(9)
    assert not table.has_offer()
    assert [table.mark_ready(0), table.mark_ready(1)] == [-2, 1]


def test_a_disowned_slot_keeps_its_bucket_back_until_it_is_bound_anew() -> None:
    table = table_of([0, 1])
    table.mark_ready(0)
    table.disown(0)
    assert [table.is_bound(0), table.is_bound(1)] == [False, True]
    assert [table.mark_ready(1), table.mark_ready(0)] == [0, -2]
    assert table.words(False, False) == [0]
    table.unbind(0)
    table.bind(0, [0, 1])
    assert table.words(False, False) == [2**2]


def test_a_disowned_slot_says_that_it_has_no_bucket() -> None:
    table = table_of([0])
    table.disown(0)
    assert table.mark_ready(0) == -1


def test_what_was_offered_is_agreed_even_if_it_was_disowned_meanwhile() -> None:
    table = table_of([0, 1])
    table.mark_ready(0)
    table.mark_ready(1)
    offered = table.words(True, True)
    table.disown(0)
    assert table.take(offered) == [0]
    assert not table.has_offer()
    assert [table.mark_ready(1), table.mark_ready(0)] == [0, -1]


def test_a_one_shot_bucket_is_agreed_once() -> None:
    table = table_of([0], [1])
    table.one_shot = True
    table.mark_ready(0)
    assert table.take([2**2]) == [0]
    assert table.mark_ready(0) == -1
    assert table.mark_ready(1) == 1
    table.unbind(0)
    table.bind(0, [0])
    assert table.words(False, False) == [2**2 + 2**3]


def test_the_history_of_a_bit() -> None:
    table = table_of([0], [1])
    history = [[table.last_used(0), table.last_used(1), table.executions(0), table.executions(1)]]
    for words in ([2**2], [0], [2**3], [2**3]):
        table.mark_ready(0)
        table.mark_ready(1)
        table.take(words)
        history.append([table.last_used(0), table.last_used(1), table.executions(0), table.executions(1)])
    table.unbind(1)
    table.bind(1, [1])
    history.append([table.last_used(0), table.last_used(1), table.executions(0), table.executions(1)])
    assert history == [[0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 0], [1, 3, 1, 1], [1, 4, 1, 2], [1, 4, 1, 0]]


@pytest.mark.parametrize(("bit", "words"), [(0, 1), (61, 1), (62, 2), (125, 2), (126, 3), (1023, 17)])
def test_the_words_reach_up_to_the_highest_bound_bit(bit: int, words: int) -> None:
    table = Table()
    table.bind(bit, [5])
    assert table.n_words() == words
    table.mark_ready(5)
    assert table.words(True, False) == [
        RUNNING * (i == 0) + 2 ** ((bit + 2) % 64) * (i == words - 1) for i in range(words)
    ]
    assert table.take(table.words(True, False)) == [bit]
    table.unbind(bit)
    assert table.n_words() == 1


@pytest.mark.parametrize(
    ("bit", "slots", "text"),
    [
        (0, [5], "bit 0 is negative or bound already"),
        (-1, [5], "bit -1 is negative or bound already"),
        (1, [], "a bucket needs slots, each of them once, not []"),
        (1, [5, 5], "a bucket needs slots, each of them once, not [5, 5]"),
        (1, [-3], "slot -3 is negative"),
        (1, [0], "slot 0 is bound to bit 0 already"),
    ],
)
def test_a_wrong_binding_is_refused_and_changes_nothing(bit: int, slots: list[int], text: str) -> None:
    table = table_of([0])
    with pytest.raises(ValueError, match=text.replace("[", r"\[").replace("]", r"\]")):
        table.bind(bit, slots)
    assert (table.slots(0), table.slots(1), table.n_words()) == ([0], [], 1)


def test_an_exchange_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="an exchange of 1 words brought 2"):
        Table().take([0, 0])


@given(
    buckets=st.lists(st.integers(1, 4), max_size=150),
    ready=st.lists(st.sets(st.integers(0, 599), max_size=600), min_size=1, max_size=5),
)
def test_the_and_of_the_offers_is_what_is_complete_everywhere(buckets: list[int], ready: list[set[int]]) -> None:
    starts = [sum(buckets[:i]) for i in range(len(buckets))]
    slots = [list(range(start, start + n)) for start, n in zip(starts, buckets, strict=True)]
    tables = [table_of(*slots) for _ in ready]
    for table, mine in zip(tables, ready, strict=True):
        for slot in mine:
            table.mark_ready(slot)
    result = [reduce(and_, words) for words in zip(*(table.words(True, True) for table in tables), strict=True)]
    expected = [bit for bit, bucket in enumerate(slots) if all(mine.issuperset(bucket) for mine in ready)]
    assert [table.take(result) for table in tables] == [expected] * len(tables)
    for table, mine in zip(tables, ready, strict=True):
        left = [bit for bit, bucket in enumerate(slots) if bit not in expected and mine.issuperset(bucket)]
        assert table.has_offer() == (bool(left) or any(slot >= sum(buckets) for slot in mine))
        as_one = sum(word << 64 * i for i, word in enumerate(table.words(False, False)))
        assert as_one == sum(2 ** (2 + bit) for bit in left)
