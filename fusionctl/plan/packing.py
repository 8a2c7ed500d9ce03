"""Tree packing: the all-gather at the optimal throughput of any network, as trees that fill its narrowest cut."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from fusionctl.errors import UsageError
from fusionctl.plan.flow import FlowNetwork
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.splitting import Way, split_off
from fusionctl.plan.supply import Arcs, Supply, Tree
from fusionctl.plan.throughput import optimum
from fusionctl.plan.topology import Topology
from fusionctl.plan.trees import both, network


def packing(topology: Topology | int, most_trees: int = 64) -> Schedule:
    """All-reduce at the throughput of the narrowest cut of any network (ForestColl, Zhao et al., arXiv 2402.06787).

    The bound of `optimum` is reached by k spanning trees from each rank, each for a chunk of 1 / (N k) of the data, so
    that no link carries more than its share.  Switches are split off first.  Then all trees grow together, one arc each
    in turn, the smallest first, wherever the rest of all trees can still be completed (Edmonds).  The paper grows one
    after the other, and has no steps; grown together, the trees are short and even.  At last the sends are put into
    steps, those over the links with the most left to carry first.  The reduce-scatter is the mirror.

    On tori and meshes with even sides there are as few steps as the bound says: 15 with quarters of a chunk each way on
    a 4 x 4 torus, where MultiTree takes 5 with whole ones.  Over switches it is the trees that are optimal: links are
    busy at the same rate, but with all sends of a step waiting for each other, 16 ranks of a fat tree take 26 steps for
    a bound of 15.  Where links differ in bandwidth, the faster ones idle in each step.

    UsageError if a rank cannot be reached, a switch does not give out as much as it takes in, or more than `most_trees`
    trees a rank are needed, as for bandwidths that are no small multiples of each other.

    Four ranks, 0 and 1 above 2 and 3, with two links each, in 3 half steps for each way in place of 2 whole ones:

    >>> from fusionctl.plan.topology import Link
    >>> links = dict.fromkeys([(0, 2), (0, 1), (1, 3), (1, 0), (2, 0), (2, 3), (3, 1), (3, 2)], Link())
    >>> print(packing(Topology("square", 4, links)))
    packing(square): allreduce, 4 ranks, 8 chunks, 6 steps
    0: +2 0->1, +4 0->2, +1 1->0, +7 1->3, +0 2->0, +6 2->3, +3 3->1, +5 3->2
    1: +6 0->1, +7 0->2, +5 1->0, +4 1->3, +3 2->0, +2 2->3, +0 3->1, +1 3->2
    2: +3 0->1, +5 0->2, +0 1->0, +6 1->3, +1 2->0, +7 2->3, +2 3->1, +4 3->2
    3: =0 0->1, =1 0->2, =3 1->0, =2 1->3, =5 2->0, =4 2->3, =6 3->1, =7 3->2
    4: =5 0->1, =3 0->2, =6 1->0, =0 1->3, =7 2->0, =1 2->3, =4 3->1, =2 3->2
    5: =1 0->1, =0 0->2, =2 1->0, =3 1->3, =4 2->0, =5 2->3, =7 3->1, =6 3->2
    """
    whole = network(topology)
    return both(f"packing({whole.name})", whole, lambda part: allgather(part, most_trees))


def allgather(topology: Topology | int, most_trees: int = 64) -> Schedule:
    """The second half: chunks c k to c k + k - 1 of N k start on rank c."""
    whole = network(topology)
    best = optimum(whole)
    if best.trees > most_trees:
        raise UsageError(
            f"{whole.name}: the optimum takes {best.trees} trees from each rank, more than {most_trees}: "
            f"give bandwidths that are small multiples of each other"
        )
    forest = _Forest(whole, best.trees, split_off(whole, best))
    forest.grow()
    n_chunks = whole.size * best.trees
    steps = tuple(map(Step, _steps(whole, forest.branches)))
    return Schedule(f"packing_allgather({whole.name})", "allgather", whole.size, n_chunks, steps)


class Branch(NamedTuple):
    """A chunk's way from a rank of its tree to the next; in the order of growth, after the way to that rank."""

    chunk: int
    way: Way


class _Lanes:
    """The channels of links that are taken in one step."""

    def __init__(self, topology: Topology) -> None:
        self.links = topology.links
        self.taken: set[tuple[int, int, int]] = set()

    def free(self, way: Way) -> int | None:
        """The lowest channel that is free on all links of a way, if there is one."""
        hops = list(pairwise(way))
        channels = range(min(self.links[hop].channels for hop in hops))
        return next((number for number in channels if not any((*hop, number) in self.taken for hop in hops)), None)

    def take(self, way: Way, channel: int) -> None:
        """Take a channel on all links of a way."""
        self.taken.update((*hop, channel) for hop in pairwise(way))


class _Forest:
    """All trees, k of each root in turn; tree number c is that of chunk c."""

    def __init__(self, topology: Topology, k: int, ways: dict[tuple[int, int], dict[Way, int]]) -> None:
        self.topology, self.k, size = topology, k, topology.size
        ordered = sorted(ways, key=lambda pair: (pair[1] - pair[0]) % size)
        self.ways = [ways[pair] for pair in ordered]
        self.arcs = Arcs(size, {pair: sum(group.values()) for pair, group in zip(ordered, self.ways, strict=True)})
        self.trees = [Tree(chunk // k) for chunk in range(size * k if size > 1 else 0)]
        self.supplies = [Supply(rank, self.arcs, self.trees, self._flow(rank)) for rank in range(size)]
        self.branches: list[Branch] = []

    def _flow(self, rank: int) -> list[int]:
        """K units from each rank to this one, on each arc."""
        size = self.topology.size
        network = FlowNetwork(size + 1)
        for root in range(size):
            network.add(size, root, self.k)
        arcs = [network.add(*arc) for arc in zip(self.arcs.src, self.arcs.dst, self.arcs.left, strict=True)]
        network.flow(size, rank, size * self.k)
        return [network.residual[arc ^ 1] for arc in arcs]

    def grow(self) -> None:
        """Round after round, until each tree holds all ranks."""
        while any(len(tree.ranks) < self.topology.size for tree in self.trees):
            before = len(self.branches)
            self._round()
            if len(self.branches) == before:
                raise AssertionError(f"{self.topology.name}: no tree can grow")

    def _round(self) -> None:
        """One chunk on each channel of each link, from ranks that were there before."""
        lanes = _Lanes(self.topology)
        turns = sorted(range(len(self.trees)), key=lambda number: (len(self.trees[number].ranks), number % self.k))
        waiting = [self._candidates(list(tree.ranks)) for tree in self.trees]
        while turns:
            turns = [number for number in turns if self._extend(number, waiting[number], lanes)]

    def _candidates(self, ranks: list[int]) -> Iterator[int]:
        return (arc for rank in ranks for arc in self.arcs.out[rank])

    def _extend(self, number: int, candidates: Iterator[int], lanes: _Lanes) -> bool:
        """Add the first arc to a tree that leads out of it, is free in this round, and leaves room for all the rest."""
        tree = self.trees[number]
        for arc in candidates:
            rank = self.arcs.dst[arc]
            if not self.arcs.left[arc] or rank in tree.inside:
                continue
            free = ((way, lanes.free(way)) for way, left in self.ways[arc].items() if left)
            way, channel = next(((way, channel) for way, channel in free if channel is not None), ((), 0))
            if way and self.supplies[rank].admits(number, arc):
                lanes.take(way, channel)
                self.ways[arc][way] -= 1
                self.branches.append(Branch(number, way))
                tree.add(rank)
                return True
        return False


def _steps(topology: Topology, branches: list[Branch]) -> Iterator[list[Send]]:
    """Put branches into steps, those first whose links have the most left to carry, then those with most below them."""
    below: Counter[tuple[int, int]] = Counter()
    after: defaultdict[tuple[int, int], list[Branch]] = defaultdict(list)
    load: Counter[tuple[int, int]] = Counter()
    for branch in reversed(branches):
        chunk, way = branch
        below[chunk, way[0]] += 1 + below[chunk, way[-1]]
        after[chunk, way[0]].append(branch)
        load.update(pairwise(way))

    def urgency(branch: Branch) -> tuple[int, int]:
        return max(load[hop] for hop in pairwise(branch.way)), below[branch.chunk, branch.way[-1]]

    reached = {(chunk, way[-1]) for chunk, way in branches}
    ready = [branch for branch in branches if (branch.chunk, branch.way[0]) not in reached]
    while ready:
        lanes, sends, waiting = _Lanes(topology), [], []
        for branch in sorted(ready, key=urgency, reverse=True):
            chunk, way = branch
            channel = lanes.free(way)
            if channel is None:
                waiting.append(branch)
                continue
            lanes.take(way, channel)
            load.subtract(pairwise(way))
            sends.append(Send(chunk, way[0], way[-1], False, channel, way[1:-1]))
            waiting.extend(after[chunk, way[-1]])
        ready = waiting
        yield sends
