"""The response cache: lowest free bits, LRU by agreed uses, and what may not go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusionctl.control.cache import ResponseCache


class History:
    """Uses of bits as a table would tell them."""

    def __init__(self, capacity: int) -> None:
        self.used: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.now = 0
        self.cache = ResponseCache(capacity, self.used.__getitem__, self.runs.__getitem__)

    def insert(self, name: str, n_buckets: int) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
        evicted = {other: self.cache.erase(other) for other in self.cache.make_room(n_buckets)}
        bits = self.cache.insert(name, n_buckets)
        for bit in bits:
            self.used[bit], self.runs[bit] = self.now, 0
        return bits, evicted

    def use(self, *bits: int) -> None:
        self.now += 1
        for bit in bits:
            self.used[bit] = self.now
            self.runs[bit] += 1


def test_bits_are_the_lowest_free_ones() -> None:
    history = History(100)
    assert [history.insert(name, n) for name, n in [("a", 2), ("b", 1), ("c", 3)]] == [
        ((0, 1), {}),
        ((2,), {}),
        ((3, 4, 5), {}),
    ]
    assert (history.cache.erase("c"), history.cache.erase("a")) == ((3, 4, 5), (0, 1))
    assert "a" not in history.cache
    assert "b" in history.cache
    assert history.insert("d", 4) == ((0, 1, 3, 4), {})
    assert history.insert("e", 3) == ((5, 6, 7), {})


def test_the_least_recently_used_goes_and_its_bits_are_inherited() -> None:
    history = History(3)
    for name in "cab":
        history.insert(name, 1)
    history.use(0, 1, 2)
    history.use(0)
    assert history.insert("d", 1) == ((1,), {"a": (1,)})  # a and b were used last at the same time
    history.use(1)
    assert history.insert("e", 2) == ((0, 2), {"b": (2,), "c": (0,)})


def test_a_group_is_as_recent_as_its_latest_bucket() -> None:
    history = History(3)
    history.insert("a", 2)
    history.insert("b", 1)
    history.use(0)
    history.use(2)
    history.use(1)
    assert history.insert("c", 1) == ((2,), {"b": (2,)})


def test_what_was_not_executed_since_it_was_agreed_stays() -> None:
    history = History(2)
    history.insert("a", 1)
    history.insert("b", 2)
    assert history.insert("c", 1) == ((3,), {})
    history.use(0, 1)
    assert history.insert("d", 1) == ((0,), {"a": (0,)})  # b is only half done
    history.use(2, 0, 3)
    assert history.insert("e", 1) == ((1,), {"b": (1, 2), "c": (3,)})  # back to the capacity


def test_a_group_larger_than_the_capacity_stands_alone() -> None:
    history = History(2)
    history.insert("a", 1)
    history.use(0)
    assert history.insert("b", 5) == ((0, 1, 2, 3, 4), {"a": (0,)})
    history.use(0, 1, 2, 3, 4)
    assert history.insert("c", 1) == ((0,), {"b": (0, 1, 2, 3, 4)})


def test_without_capacity_a_group_goes_once_it_was_executed() -> None:
    history = History(0)
    history.insert("a", 1)
    history.insert("b", 1)
    history.use(1)
    assert history.insert("c", 1) == ((1,), {"b": (1,)})
    assert history.insert("d", 1) == ((2,), {})


def test_a_group_without_buckets_has_no_bits() -> None:
    history = History(1)
    assert history.insert("a", 0) == ((), {})
    assert history.insert("b", 1) == ((0,), {})
    history.use(0)
    assert history.insert("c", 1) == ((0,), {"b": (0,)})
    assert history.cache.erase("a") == ()


@given(
    capacity=st.integers(0, 12),
    story=st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 40)), st.booleans()), max_size=30),
)
def test_bits_are_given_once_and_the_capacity_holds_for_groups_at_rest(
    capacity: int, story: list[tuple[int, list[int], bool]]
) -> None:
    history = History(capacity)
    held: dict[str, tuple[int, ...]] = {}
    for number, (n_buckets, uses, everything) in enumerate(story):
        bits, evicted = history.insert(str(number), n_buckets)
        assert {name: held.pop(name) for name in evicted} == evicted
        taken = {bit for others in held.values() for bit in others}
        lowest = [bit for bit in range(len(taken) + n_buckets) if bit not in taken][:n_buckets]
        assert bits == tuple(lowest)
        runs = [{history.runs[bit] for bit in others} for others in held.values()]
        resting = [counts for counts in runs if len(counts) == 1 and counts != {0}]
        in_all = sum(map(len, held.values())) + n_buckets
        assert in_all <= capacity or not resting
        held[str(number)] = bits
        known = sorted({bit for others in held.values() for bit in others})
        history.use(*(known if everything else {known[use % len(known)] for use in uses}))
