"""The slow path, exchange by exchange: what is announced, agreed, refused and ended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.control.negotiation import Negotiation, Settlement, decode, digest, encode
from fusionctl.request import DTYPES, Collective, Group, ReduceOp, Request


def single(name: str, shape: tuple[int, ...] = (4,)) -> Group:
    return Group(name, (Request(name, Collective.ALLREDUCE, "float32", shape),))


A, B, C = single("a"), single("b"), single("c")


class Ranks:
    """All ranks of a job; one `exchange` is a slow path that each takes part in."""

    def __init__(self, size: int) -> None:
        self.each = [Negotiation(rank, size) for rank in range(size)]

    def exchange(self, *announcements: list[Group]) -> Settlement:
        for negotiation, groups in zip(self.each, announcements, strict=True):
            for group in groups:
                negotiation.announce(group)
        payloads = [negotiation.payload() for negotiation in self.each]
        settlements = [negotiation.settle(payloads) for negotiation in self.each]
        assert len(set(map(repr, settlements))) == 1  # in words, since nan is not equal to itself
        assert all(negotiation.waiting() == self.each[0].waiting() for negotiation in self.each)
        return settlements[0]


NOTHING = Settlement((), (), ())


def test_what_all_announce_is_agreed_at_once() -> None:
    assert Ranks(3).exchange([A, B], [A, B], [A, B]) == Settlement((A, B), (), ())


def test_a_verdict_waits_for_the_last_rank() -> None:
    ranks = Ranks(3)
    assert ranks.exchange([A], [], []) == NOTHING
    assert ranks.each[0].waiting() == {"a": [1, 2]}
    assert ranks.exchange([], [B], [A]) == NOTHING
    assert ranks.each[0].waiting() == {"a": [1], "b": [0, 2]}
    assert ranks.exchange([B], [A], []) == Settlement((A,), (), ())
    assert ranks.exchange([], [], [B]) == Settlement((B,), (), ())
    assert ranks.each[0].waiting() == {}


def test_the_agreed_come_in_the_order_of_their_first_announcement_lower_ranks_first() -> None:
    ranks = Ranks(2)
    assert ranks.exchange([], [C]) == NOTHING
    assert ranks.exchange([B, A, C], [A, B]) == Settlement((C, B, A), (), ())


def test_ranks_that_announce_the_members_in_another_order_follow_rank_0() -> None:
    mine = Group("g", (A.requests[0], B.requests[0]))
    theirs = Group("g", (B.requests[0], A.requests[0]))
    assert Ranks(3).exchange([mine], [theirs], [theirs]) == Settlement((mine,), (), ())


def test_a_difference_fails_on_all_ranks_and_nothing_is_left_of_it() -> None:
    ranks = Ranks(2)
    other = single("a", (5,))
    text = "tensor 'a': shape is (4,) on rank 0 and (5,) on rank 1; submit the same shape on every rank"
    assert ranks.exchange([A, B], [B, other]) == Settlement((B,), (), ())
    assert (ranks.each[0].disputed(), ranks.each[0].waiting()) == (["a"], {})
    ranks.each[0].insist(A)
    assert ranks.exchange([], []) == NOTHING
    ranks.each[1].insist(other)
    assert ranks.exchange([], []) == Settlement((), (("a", text),), ())
    assert ranks.each[0].disputed() == []
    assert ranks.exchange([A], []) == NOTHING
    assert ranks.exchange([], [A]) == Settlement((A,), (), ())


def test_a_dispute_ends_when_a_rank_that_does_not_insist_replaces_its_version() -> None:
    ranks = Ranks(2)
    ranks.exchange([A], [single("a", (5,))])
    ranks.each[0].insist(A)
    assert ranks.exchange([], [A]) == Settlement((A,), (), ())


def test_equal_versions_agree_whoever_insists() -> None:
    ranks = Ranks(2)
    ranks.each[0].insist(A)
    assert ranks.exchange([], [A]) == Settlement((A,), (), ())


def test_an_announcement_before_the_verdict_replaces_the_earlier_one() -> None:
    ranks = Ranks(2)
    changed = single("a", (5,))
    assert ranks.exchange([A], []) == NOTHING
    ranks.each[1].announce(A)
    assert ranks.exchange([changed], [changed]) == Settlement((changed,), (), ())


def test_a_changed_group_ends_the_agreement_until_all_have_changed() -> None:
    ranks = Ranks(3)
    changed = single("a", (5,))
    ranks.exchange([A, B], [A, B], [A, B])
    assert ranks.exchange([], [changed], []) == Settlement((), (), ("a",))
    assert ranks.exchange([changed], [], []) == NOTHING
    assert ranks.exchange([], [], [changed]) == Settlement((changed,), (), ())
    assert ranks.exchange([A], [A], [A]) == Settlement((A,), (), ("a",))


def test_an_equal_announcement_ends_the_agreement_too() -> None:
    ranks = Ranks(2)
    ranks.exchange([A], [A])
    assert ranks.exchange([A], []) == Settlement((), (), ("a",))
    assert ranks.exchange([], [A]) == Settlement((A,), (), ())


def test_a_forgotten_agreement_starts_anew() -> None:
    ranks = Ranks(2)
    ranks.exchange([A], [A])
    for negotiation in ranks.each:
        negotiation.forget("a")
    assert ranks.exchange([A], [A]) == Settlement((A,), (), ())


def test_a_rank_knows_what_it_has_announced() -> None:
    ranks = Ranks(2)
    ranks.each[0].announce(A)
    history = [[negotiation.is_announced("a") for negotiation in ranks.each]]
    for theirs in ([], [A]):
        ranks.exchange([], theirs)
        history.append([negotiation.is_announced("a") for negotiation in ranks.each])
    assert history == [[True, False], [True, False], [False, False]]


def test_a_rank_knows_what_it_insists_on() -> None:
    ranks = Ranks(2)
    history = [ranks.each[0].insists("a")]
    for announce in (ranks.each[0].announce, ranks.each[0].insist):
        announce(A)
        history.append(ranks.each[0].insists("a"))
        ranks.exchange([], [])
        history.append(ranks.each[0].insists("a"))
    assert history == [False, False, False, True, True]


def test_a_payload_says_what_is_queued_once() -> None:
    negotiation = Negotiation(0, 1)
    negotiation.announce(A)
    negotiation.announce(single("b", (5,)))
    negotiation.insist(B)
    assert negotiation.queued() == ("a", "b")
    assert negotiation.payload() == (
        b'?["a",false,[["a",0,"float32",[4],1,"0x1.0000000000000p+0","0x1.0000000000000p+0",-1]]]\n'
        b'!["b",false,[["b",0,"float32",[4],1,"0x1.0000000000000p+0","0x1.0000000000000p+0",-1]]]'
    )
    assert (negotiation.queued(), negotiation.payload()) == ((), b"")


def test_a_digest_has_16_bytes() -> None:
    assert digest(b"") == bytes.fromhex("cae66941d9efbd404e4d88758ea67670")
    assert digest(b"a") != digest(b"b")


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1])
def test_equal_scales_agree_whatever_they_are(scale: float) -> None:
    mine, theirs = (Group("x", (replace(A.requests[0], prescale=float(str(scale))),)) for _ in range(2))
    settlement = Ranks(2).exchange([mine], [theirs])
    assert [repr(group.requests[0].prescale) for group in settlement.agreed] == [repr(scale)]


NAMES = st.text(max_size=30) | st.sampled_from(["\ud800", "\n", "\x1c\x85\u2028", '"\\', "x" * 5_000, ""])

REQUESTS = st.builds(
    Request,
    name=NAMES,
    collective=st.sampled_from(Collective),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 2**40)).map(tuple),
    op=st.sampled_from(ReduceOp),
    prescale=st.floats(allow_nan=False),
    postscale=st.floats(allow_nan=False),
    root=st.integers(-1, 63),
)

GROUPS = st.builds(Group, NAMES, st.lists(REQUESTS, max_size=4).map(tuple), st.booleans())


@given(GROUPS)
def test_a_text_holds_the_whole_group(group: Group) -> None:
    text = encode(group)
    assert decode(text) == group
    assert encode(decode(text)) == text
    assert text.isascii()
    assert text.splitlines() == [text]
