"""Any number of ranks in one process: each with its own `Control` and `Table`, joined by an AND and a gather.

Programmes differ in the order and the time of everything they do, but submit the same tensors step by step, until they
join, each after some steps, and all go on when all have.  Whatever happens on the way (eviction, changed shapes,
disagreement, tensors that a rank which has joined does not know), every rank must see the same executions, and its
failures, once each; what is executed depends on the ranks that have not joined alone, and nobody may wait for ever.
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
from fusionctl.request import RESERVED, Bucket, Collective, Group, Request

SETTLED = 2

MOST_IDLE = 3
"""Exchanges until all is done that all ranks have submitted: one on its way, one to announce it, one to agree."""


@dataclass(frozen=True)
class Epoch:
    """Steps, with the version of each group on each rank, steps[i][name][rank], until all have joined.

    Each rank joins after stay[rank] steps; without `stay` nobody does.
    """

    steps: list[dict[str, list[int]]]
    stay: list[int] | None = None

    def active(self, number: int) -> list[int]:
        """Ranks that take a step."""
        size = len(next(iter(self.steps[number].values())))
        return [rank for rank in range(size) if self.stay is None or number < self.stay[rank]]


@dataclass(frozen=True)
class Case:
    """What all ranks run, epoch by epoch.

    A held group has shapes that only its submissions tell: it is announced when its last member is submitted.  Fickle
    ranks also register versions that they do not submit.
    """

    size: int
    capacity: int
    threshold: int
    members: dict[str, int]
    held: frozenset[str]
    fickle: bool
    epochs: list[Epoch]

    def request(self, name: str, index: int, version: int) -> Request:
        # The last member tells the versions apart, the others are in all of them.
        count = 1 + version * (index == self.members[name] - 1)
        return Request(f"{name}.{index}", Collective.ALLREDUCE, "float32", (count,))


@dataclass
class Round:
    """One submission of each member of a group, as far as it has come on one rank."""

    to_come: set[str]
    queued: set[int] = field(default_factory=set)
    refused: bool = False
    restated: bool = False


@dataclass
class Rank:
    """One rank: its programme, what the engine has not seen yet, its engine and its log."""

    case: Case
    rank: int
    rng: random.Random
    table: Table = field(default_factory=Table)
    versions: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    group_of: dict[int, str] = field(default_factory=dict)
    entered: dict[str, Group] = field(default_factory=dict)
    on_board: dict[int, Request] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
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
    away: bool = False
    last: int = -1
    lasts: list[int] = field(default_factory=list)

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
        for epoch in self.case.epochs:
            for number, versions in enumerate(epoch.steps):
                self.step += 1
                if self.rank in epoch.active(number):
                    yield from self.take_step(versions)
            if epoch.stay is not None:
                self.join()
                self.blocked = bool(self.pending)
                yield True

    def take_step(self, versions: dict[str, list[int]]) -> Iterator[bool]:
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

    def join(self) -> None:
        name = f"{RESERVED}join.{len(self.lasts)}"
        request = Request(name, Collective.JOIN, "uint8", (0,))
        (slot,) = self.enter(Group(name, (request,)))
        self.pending[slot] = request
        self.submitted.append(slot)

    def register(self, name: str, version: int) -> None:
        """Register what the programme has not yet; a held group tells its shapes by its submissions."""
        if self.versions.get(name) == version:
            return
        self.versions[name] = version
        requests = tuple(self.case.request(name, i, version) for i in range(self.case.members[name]))
        requests = requests if self.backwards else requests[::-1]
        if name not in self.case.held:
            self.enter(Group(name, requests))
        elif name not in self.entered:
            self.held.add(name)
            self.take_slots(Group(name, requests))

    def enter(self, group: Group) -> list[int]:
        """What the registry does, and the announcement."""
        if self.restate(group):
            self.control.register(group, self.take_slots(group))
            self.news = True
        return self.take_slots(group)

    def restate(self, group: Group) -> bool:
        """Let the board expect other requests for a group; whether they are others."""
        if group.name in self.entered and set(self.entered[group.name].requests) == set(group.requests):
            return False
        self.entered[group.name] = group
        for slot, request in zip(self.take_slots(group), group.requests, strict=True):
            assert slot not in self.pending
            self.on_board[slot] = request
            self.stale.append(slot)
        return True

    def take_slots(self, group: Group) -> list[int]:
        for request in group.requests:
            slot = self.slots.setdefault(request.name, 3 * len(self.slots) + self.rank % 3)
            self.group_of[slot] = group.name
        return [self.slots[request.name] for request in group.requests]

    def submit(self, name: str, index: int, version: int) -> None:
        self.register(name, version)
        request = self.case.request(name, index, version)
        members = [f"{name}.{i}" for i in range(self.case.members[name])]
        here = self.rounds.setdefault(name, Round(set(members)))
        here.to_come.remove(request.name)
        slot = self.slots[request.name]
        assert slot not in self.pending
        if self.on_board.get(slot) != request:
            self.on_board[slot] = request
            self.held.add(name)
            here.restated = True
        if here.refused:
            self.note(request, "failed")
        else:
            self.pending[slot] = request
            if name not in self.held:
                self.submitted.append(slot)
                here.queued.add(slot)
        if not here.to_come:
            self.end_round(name, [self.slots[member] for member in members])

    def end_round(self, name: str, slots: list[int]) -> None:
        here = self.rounds.pop(name)
        if name in self.held:
            self.submitted += [slot for slot in slots if slot in self.pending and slot not in here.queued]
        if here.restated:
            self.stale += slots
            self.changed.add(name)

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
        request = self.pending.pop(slot)
        if request.collective is Collective.JOIN:
            self.lasts.append(self.last)
        else:
            self.note(request, request)
        self.blocked &= bool(self.pending)

    def take(self, words: list[int]) -> None:
        self.offer = None
        for bit in self.table.take(words):
            self.executed.append((bit, self.bound[bit]))
            if not self.away:
                requests = tuple(self.pending[slot] for slot in self.slots_of[bit])
                assert requests == self.bound[bit]  # what was submitted is what was agreed
                assert not self.flying.intersection(self.slots_of[bit])
                self.flying.update(self.slots_of[bit])

    def payload(self) -> bytes:
        self.slow_paths += 1
        self.news = False
        for slot in self.stale:
            self.table.disown(slot)
        self.stale = []
        for name in sorted(self.changed):
            slots = [slot for slot, group in self.group_of.items() if group == name]
            slots = slots if self.backwards else slots[::-1]
            self.entered[name] = Group(name, tuple(self.on_board[slot] for slot in slots))
            self.control.register(self.entered[name], slots)
        for name in self.unbound:
            self.control.needs(self.entered[name], self.take_slots(self.entered[name]))
        self.changed, self.unbound = set(), []
        return self.control.payload()

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
        assert self.away
        if self.restate(group):
            self.held.add(group.name)
        return self.take_slots(group)

    def joined(self, ranks: Sequence[int], last: int) -> None:
        self.away = self.table.generous = self.rank in ranks
        self.last = last

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
            before, done = done, sum(len(rank.outcomes) + len(rank.lasts) for rank in self.ranks)
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
def cases(draw: st.DrawFn, max_size: int, max_steps: int = 5, joins: bool = False) -> Case:
    size = draw(st.integers(2, max_size))
    members = {f"g{i}": draw(st.integers(1, 4)) for i in range(draw(st.integers(1, 5)))}
    epochs = []
    for _ in range(draw(st.integers(1, 3)) if joins else 1):
        steps = []
        for _ in range(draw(st.integers(1, max_steps))):
            step = {}
            for name in draw(st.lists(st.sampled_from(sorted(members)), min_size=1, unique=True)):
                step[name] = [draw(st.integers(0, 2))] * size
                if draw(st.integers(0, 5)) == 5:
                    step[name][draw(st.integers(0, size - 1))] = draw(st.integers(0, 2))
            steps.append(step)
        stays = st.lists(st.integers(0, len(steps)), min_size=size, max_size=size)
        epochs.append(Epoch(steps, draw(stays) if joins else None))
    return Case(
        size=size,
        capacity=draw(st.sampled_from([0, 1, 2, 3, 5, 1024])),
        threshold=draw(st.sampled_from([0, 8, 1000])),
        members=members,
        held=frozenset(draw(st.sets(st.sampled_from(sorted(members))))),
        fickle=draw(st.booleans()),
        epochs=epochs,
    )


def outcomes(case: Case, rank: int) -> dict[tuple[int, str], Request | str]:
    """Of each tensor that a rank submits: executed, or failed if the versions of the ranks that are left differ."""
    expected: dict[tuple[int, str], Request | str] = {}
    every = [(step, epoch.active(number)) for epoch in case.epochs for number, step in enumerate(epoch.steps)]
    for number, (step, active) in enumerate(every):
        for name in step if rank in active else ():
            version = step[name][rank]
            agreed = all(step[name][other] == version for other in active)
            for request in (case.request(name, index, version) for index in range(case.members[name])):
                expected[number, request.name] = request if agreed else "failed"
    return expected


def check(job: Job, case: Case) -> None:
    """Every tensor was executed once, or failed, on the ranks that submitted it; all saw the same, and who was last."""
    joins = [epoch.stay for epoch in case.epochs if epoch.stay is not None]
    for rank in job.ranks:
        assert rank.outcomes == outcomes(case, rank.rank)
        assert rank.executed == job.ranks[0].executed
        assert rank.slow_paths == job.ranks[0].slow_paths
        assert rank.lasts == job.ranks[0].lasts
        assert [stay[last] for stay, last in zip(joins, rank.lasts, strict=True)] == [max(stay) for stay in joins]


SEEDS = st.integers(0, 2**32)
PACES = st.sampled_from([0.1, 0.5, 0.9, 0.99])


@given(case=cases(max_size=6), seed=SEEDS, pace=PACES)
@settings(max_examples=300)
def test_few_ranks_agree_whatever_happens(case: Case, seed: int, pace: float) -> None:
    job = Job(case, seed, pace)
    job.run()
    check(job, case)


@given(case=cases(max_size=5, max_steps=4, joins=True), seed=SEEDS, pace=PACES)
@settings(max_examples=300)
def test_ranks_join_and_go_on_whatever_happens(case: Case, seed: int, pace: float) -> None:
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
    case = Case(size, 1024, 0, dict.fromkeys(names, members), frozenset(names[::7]), False, [Epoch([step] * 4)])
    job = Job(case, seed=size, pace=0.9)
    job.run(until=0)
    slow_paths, exchanges, words = job.ranks[0].slow_paths, job.exchanges, job.words
    job.run()
    check(job, case)
    assert job.ranks[0].slow_paths == slow_paths
    assert job.words - words == (job.exchanges - exchanges) * math.ceil((groups * members + 2) / 64)
