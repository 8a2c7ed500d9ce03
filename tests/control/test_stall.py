"""The stall report, line by line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fusionctl.control.stall import RankState, report, stalled
from fusionctl.request import Collective, Group, Request


def state(where: str = "train.py:34 in <module>", /, **pending: float) -> RankState:
    return RankState(tuple(pending.items()), where)


def group(name: str, *members: str) -> Group:
    return Group(name, tuple(Request(member, Collective.ALLREDUCE, "float32", (1,)) for member in members))


def test_a_tensor_that_one_rank_never_submits() -> None:
    states = [state(x=61.4, y=2.0), state("data.py:7 in load", y=3.0), state(x=59.0)]
    assert stalled(dict(enumerate(states)), 60.0) == {"x": [0, 2]}
    assert report(states, 60.0) == [
        "stalled for 61 s: tensor 'x' was submitted on ranks 0, 2, but not on rank 1",
        "  rank 1 is at data.py:7 in load, waits for tensor 'y'",
    ]


def test_two_ranks_that_wait_for_each_other() -> None:
    states = [state("a.py:1 in f", x=70.0), state("b.py:2 in g", y=65.0)]
    assert report(states, 60.0) == [
        "stalled for 70 s: tensor 'x' was submitted on rank 0, but not on rank 1",
        "  rank 1 is at b.py:2 in g, waits for tensor 'y'",
        "stalled for 65 s: tensor 'y' was submitted on rank 1, but not on rank 0",
        "  rank 0 is at a.py:1 in f, waits for tensor 'x'",
    ]


def test_tensors_with_the_same_fate_share_a_line_and_long_lists_are_shortened() -> None:
    states = [state(**{f"t{i}": 61.0 + i for i in range(8)}), *[state("s.py:9 in sleep")] * 9]
    assert report(states, 60.0) == [
        "stalled for 68 s: tensors 't0', 't1', 't2', 't3', 't4', 't5' and 2 more were submitted on rank 0, but not on "
        "ranks 1-9",
        *(f"  rank {rank} is at s.py:9 in sleep, waits for no tensor" for rank in range(1, 7)),
        "  and 3 more ranks",
    ]


def test_a_rank_that_never_announced_the_group_is_told_so() -> None:
    states = [state(x=61.0), state(), state()]
    assert report(states, 60.0, [group("g", "x", "y"), group("h", "z")], {"g": [2], "h": [1]}) == [
        "stalled for 61 s: tensor 'x' was submitted on rank 0, but not on ranks 1-2",
        "  rank 1 is at train.py:34 in <module>, waits for no tensor",
        "  rank 2 is at train.py:34 in <module>, waits for no tensor and has never announced group 'g'",
    ]


def test_tensors_that_wait_for_the_rest_of_their_group_or_are_on_their_way() -> None:
    states = [state(x=61.0), state(x=62.0)]
    text = "stalled for 62 s: tensor 'x' was submitted on all ranks, but not all tensors of the same group"
    assert report(states, 60.0) == []
    assert report(states, 60.0, [group("g", "w", "x", "y"), group("h", "z")]) == [
        f"{text}: no rank has submitted tensors 'w', 'y'"
    ]


def test_nothing_is_stalled_before_the_limit() -> None:
    assert report([state(x=60.0), state()], 60.0) == []


@given(st.lists(st.tuples(st.text(), st.floats(0, allow_infinity=False))).map(tuple), st.text())
def test_a_state_survives_the_gather(pending: tuple[tuple[str, float], ...], where: str) -> None:
    assert RankState.decode(RankState(pending, where).encode()) == RankState(pending, where)
