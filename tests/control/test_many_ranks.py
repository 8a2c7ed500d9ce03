"""Any number of ranks in one process: each with its own `Control` and `Table`, joined by an AND and a gather.

Programmes differ in the order and the time of everything they do, but submit the same tensors step by step.  Whatever
happens on the way (eviction, changed shapes, disagreement), every rank must see the same executions and failures, once
each, and nobody may wait for ever.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionctl._table import Table
from fusionctl.control.protocol import Control
from fusionctl.fusion.threshold import fuse
from fusionctl.request import Bucket, Collective, Group, Request

SETTLED = 2

MOST_IDLE = 3
"""Exchanges until all is done that all ranks have submitted: one on its way, one to announce it, one to agree."""


@dataclass(frozen=True)
class Case:
    """What all ranks run: `steps` holds for each step the version of each group on each rank: steps[i][name][rank].

    A held group has shapes that only its submissions tell: it is announced when its last member is submitted.  Fickle
    ranks also register versions that they do not submit.
    """

    size: int
    capacity: int
    threshold: int
    members: dict[str, int]
    held: frozenset[str]
    fickle: bool
    steps: list[dict[str, list[int]]]

    def request(self, name: str, index: int, version: int) -> Request:
        # The last member tells the versions apart, the others are in all of them.
        count = 1 + version * (index == self.members[name] - 1)
        return Request(f"{name}.{index}", Collective.ALLREDUCE, "float32", (count,))


@dataclass
class Round:
    """One submission of each member of a group, as far as it has come on one rank."""

    group: Group
    to_come: set[str]
    refused: bool = False


@dataclass
class Rank:
    """One rank: its programme, what the engine has not seen yet, its engine and its log."""

    case: Case
    rank: int
    rng: random.Random
    table: Table = field(default_factory=Table)
    registered: dict[str, Group] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    group_of: dict[int, str] = field(default_factory=dict)
    stated: dict[str, tuple[Request, ...]] = field(default_factory=dict)
    rounds: dict[str, Round] = field(default_factory=dict)
    pending: dict[int, Request] = field(default_factory=dict)
    flying: set[int] = field(default_factory=set)
    step: int = -1
    stale: list[int] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    unbound: list[str] = field(default_factory=list)
    news: bool = False
    offer: list[int] | None = None
    bound: dict[int, tuple[Request, ...]] = field(default_factory=dict)
    slots_of: dict[int, Sequence[int]] = field(default_factory=dict)
    executed: list[tuple[int, tuple[Request, ...]]] = field(default_factory=list)
    outcomes: dict[tuple[int, str], Request | str] = field(default_factory=dict)
    slow_paths: int = 0

    def __post_init__(self) -> None:
        fuse_here = partial(fuse, threshold=self.case.threshold)
        self.control = Control(self.rank, self.case.size, self.case.capacity, fuse_here, self.table, self)
        self.backwards = self.rng.random() < 0.5
        self.todo = self.programme()
        self.blocked = self.finished = False

    # -- the programme: whatever a user's threads do, one action at a time ----------------------------------------

    def act(self) -> bool:
        """Go on with the programme; False when it waits or is at its end."""
        if self.blocked or self.finished:
            return False
        self.finished = next(self.todo, None) is None
        return not self.finished

    def can_move(self) -> bool:
        """Whether something can happen here without the other ranks."""
        return not (self.blocked or self.finished) or bool(self.flying)

    def programme(self) -> Iterator[bool]:
        for versions in self.case.steps:
            self.step += 1
            actions = [(name, index) for name in versions for index in range(self.case.members[name])]
            for name in self.shuffled([*self.case.members, *versions]):
                if self.case.fickle and self.rng.random() < 0.1:
                    self.register(name, self.rng.randrange(3))
                    yield True
                elif name in versions and self.rng.random() < 0.3:
                    self.register(name, versions[name][self.rank])
                    yield True
            for name, index in self.shuffled(actions):
                self.submit(name, index, versions[name][self.rank])
                yield True
            self.blocked = bool(self.pending)
            yield True

    def shuffled(self, items: list) -> list:  # type: ignore[type-arg]
        return self.rng.sample(items, len(items))

    def register(self, name: str, version: int) -> None:
        if self.versions.get(name) == version:
            return
        self.versions[name] = version
        requests = tuple(self.case.request(name, i, version) for i in range(self.case.members[name]))
        requests = requests if self.backwards else requests[::-1]
        group = self.registered[name] = Group(name, requests)
        for request in requests:
            slot = self.slots.setdefault(request.name, 3 * len(self.slots) + self.rank % 3)
            self.group_of[slot] = name
        if name not in self.case.held:
            self.stale += [self.slots[request.name] for request in requests]
            self.control.register(group, [self.slots[request.name] for request in requests])
            self.news = True

    def submit(self, name: str, index: int, version: int) -> None:
        self.register(name, version)
        request = self.case.request(name, index, version)
        group = self.registered[name]
        here = self.rounds.setdefault(name, Round(group, {r.name for r in group.requests}))
        here.to_come.remove(request.name)
        slot = self.slots[request.name]
        assert slot not in self.pending
        if here.refused:
            self.note(request, "failed")
        else:
            self.pending[slot] = request
            if name not in self.case.held:
                self.submitted.append(slot)
        if not here.to_come:
            self.end_round(name, here)

    def end_round(self, name: str, here: Round) -> None:
        del self.rounds[name]
        if name not in self.case.held or here.refused:
            return
        slots = [self.slots[request.name] for request in here.group.requests]
        if self.stated.get(name) != here.group.requests:
            self.stated[name] = here.group.requests
            self.stale += slots
            self.changed.add(name)
        self.submitted += slots

    def note(self, request: Request, outcome: Request | str) -> None:
        assert (self.step, request.name) not in self.outcomes
        self.outcomes[self.step, request.name] = outcome

    # -- the engine -------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """What the engine's thread does between exchanges: drain the board, complete, post."""
        self.drain()
        for slot in [slot for slot in self.flying if self.rng.random() < 0.5]:
            self.land(slot)
        if self.offer is None and (self.unsettled() or self.table.has_offer()):
            self.offer = self.table.words(True, not self.unsettled())

    def drain(self) -> None:
        for slot in self.stale:
            self.table.disown(slot)
        for slot in self.submitted:
            if self.table.mark_ready(slot) == -1:
                self.unbound.append(self.group_of[slot])
        self.stale, self.submitted = [], []

    def unsettled(self) -> bool:
        return self.news or bool(self.unbound) or bool(self.changed)

    def land(self, slot: int) -> None:
        self.flying.remove(slot)
        self.note(self.pending[slot], self.pending.pop(slot))
        self.blocked &= bool(self.pending)

    def take(self, words: list[int]) -> None:
        self.offer = None
        for bit in self.table.take(words):
            requests = tuple(self.pending[slot] for slot in self.slots_of[bit])
            assert requests == self.bound[bit]  # what was submitted is what was agreed
            assert not self.flying.intersection(self.slots_of[bit])
            self.flying.update(self.slots_of[bit])
            self.executed.append((bit, requests))

    def payload(self) -> bytes:
        self.slow_paths += 1
        self.news = False
        for slot in self.stale:
            self.table.disown(slot)
        self.stale = []
        for name in sorted(self.changed):
            self.control.register(*self.last_stated(name))
        for name in self.unbound:
            self.control.needs(*self.last_stated(name))
        self.changed, self.unbound = set(), []
        return self.control.payload()

    def last_stated(self, name: str) -> tuple[Group, list[int]]:
        requests = self.stated[name] if name in self.case.held else self.registered[name].requests
        return Group(name, requests), [self.slots[request.name] for request in requests]

    def settle(self, payloads: list[bytes]) -> None:
        self.control.settle(payloads)
        self.news |= self.control.has_news()

    # -- hooks of the control plane ---------------------------------------------------------------------------------

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        self.table.bind(bit, slots)
        self.bound[bit] = tuple(group.requests[i] for i in bucket.members)
        self.slots_of[bit] = slots

    def unbind(self, bit: int) -> None:
        self.table.unbind(bit)
        del self.bound[bit], self.slots_of[bit]

    def adopt(self, group: Group) -> Sequence[int]:
        raise AssertionError("no rank has joined")

    def joined(self, ranks: Sequence[int], last: int) -> None:
        raise AssertionError("no rank has joined")

    def fail(self, group: Group, slots: Sequence[int], message: str) -> None:
        assert "submit the same shape on every rank" in message
        name = group.name
        here = [slot for slot in slots if slot in self.pending and slot not in self.flying]
        assert here  # nothing fails before it was submitted everywhere
        if name in self.rounds:
            self.rounds[name].refused = True
        for slot in here:
            self.note(self.pending.pop(slot), "failed")
            self.table.retract(slot)
        self.submitted = [slot for slot in self.submitted if slot not in here]
        self.unbound = [other for other in self.unbound if other != name]
        self.blocked &= bool(self.pending)


class Job:
    """All ranks, and how often they were exchanged with."""

    def __init__(self, case: Case, seed: int, pace: float) -> None:
        self.rng = random.Random(seed)
        self.pace = pace
        self.ranks = [Rank(case, rank, random.Random(f"{seed} {rank}")) for rank in range(case.size)]
        self.exchanges = 0
        self.words = 0

    def run(self, until: int | None = None) -> None:
        """Until every programme is at its end, or past a step; fails when the ranks wait for each other for ever."""
        done = idle = 0
        while self.turn(until):
            moving = any(rank.can_move() for rank in self.ranks)
            before, done = done, sum(len(rank.outcomes) for rank in self.ranks)
            idle = 0 if moving or done > before else idle + 1
            assert idle <= MOST_IDLE, "the ranks exchange, but nothing comes of it"
            if all(rank.offer is not None for rank in self.ranks):
                self.exchange()
            else:
                assert moving, "a rank waits in an exchange for ever"

    def turn(self, until: int | None) -> bool:
        """Let each rank go on for a while; False when none has anything left to do."""
        for rank in self.ranks:
            while self.rng.random() < self.pace and rank.act():
                pass
            rank.turn()
        return not all(rank.finished or (until is not None and rank.step > until) for rank in self.ranks)

    def exchange(self) -> None:
        offers = [rank.offer for rank in self.ranks if rank.offer is not None]
        words = [reduce(and_, column) for column in zip(*offers, strict=True)]
        self.exchanges += 1
        self.words += len(words)
        for rank in self.ranks:
            rank.take(words)
        if not words[0] & SETTLED:
            payloads = [rank.payload() for rank in self.ranks]
            for rank in self.ranks:  # programmes go on while the payloads are gathered
                if self.rng.random() < self.pace / 2:
                    rank.act()
            for rank in self.ranks:
                rank.settle(payloads)
        first = self.ranks[0]
        for rank in self.ranks:
            assert rank.bound == first.bound
            assert rank.table.n_words() == first.table.n_words()
            assert rank.control.waiting() == first.control.waiting()


@st.composite
def cases(draw: st.DrawFn, max_size: int, max_steps: int = 5) -> Case:
    size = draw(st.integers(2, max_size))
    members = {f"g{i}": draw(st.integers(1, 4)) for i in range(draw(st.integers(1, 5)))}
    steps = []
    for _ in range(draw(st.integers(1, max_steps))):
        step = {}
        for name in draw(st.lists(st.sampled_from(sorted(members)), min_size=1, unique=True)):
            step[name] = [draw(st.integers(0, 2))] * size
            if draw(st.integers(0, 5)) == 5:
                step[name][draw(st.integers(0, size - 1))] = draw(st.integers(0, 2))
        steps.append(step)
    return Case(
        size=size,
        capacity=draw(st.sampled_from([0, 1, 2, 3, 5, 1024])),
        threshold=draw(st.sampled_from([0, 8, 1000])),
        members=members,
        held=frozenset(draw(st.sets(st.sampled_from(sorted(members))))),
        fickle=draw(st.booleans()),
        steps=steps,
    )


def check(job: Job, case: Case) -> None:
    """Every tensor was executed once on all ranks, or failed on all where the versions differ; all saw the same."""
    expected = {
        (number, f"{name}.{index}"): case.request(name, index, versions[0]) if len(set(versions)) == 1 else "failed"
        for number, step in enumerate(case.steps)
        for name, versions in step.items()
        for index in range(case.members[name])
    }
    for rank in job.ranks:
        assert rank.outcomes == expected
        assert rank.executed == job.ranks[0].executed
        assert rank.slow_paths == job.ranks[0].slow_paths


SEEDS = st.integers(0, 2**32)
PACES = st.sampled_from([0.1, 0.5, 0.9, 0.99])


@given(case=cases(max_size=6), seed=SEEDS, pace=PACES)
@settings(max_examples=300)
def test_few_ranks_agree_whatever_happens(case: Case, seed: int, pace: float) -> None:
    job = Job(case, seed, pace)
    job.run()
    check(job, case)


@given(case=cases(max_size=64, max_steps=3), seed=SEEDS, pace=PACES)
@settings(max_examples=30)
def test_many_ranks_agree_whatever_happens(case: Case, seed: int, pace: float) -> None:
    job = Job(case, seed, pace)
    job.run()
    check(job, case)


@pytest.mark.parametrize(("size", "groups", "members"), [(1, 200, 1), (2, 1, 200), (4, 200, 1), (64, 30, 3)])
def test_a_fixed_set_of_tensors_is_negotiated_in_the_first_step_only(size: int, groups: int, members: int) -> None:
    names = [f"g{i}" for i in range(groups)]
    step = {name: [0] * size for name in names}
    case = Case(size, 1024, 0, dict.fromkeys(names, members), frozenset(names[::7]), False, [step] * 4)
    job = Job(case, seed=size, pace=0.9)
    job.run(until=0)
    slow_paths, exchanges, words = job.ranks[0].slow_paths, job.exchanges, job.words
    job.run()
    check(job, case)
    assert job.ranks[0].slow_paths == slow_paths
    assert job.words - words == (job.exchanges - exchanges) * math.ceil((groups * members + 2) / 64)
