"""MultiTree: a spanning tree for each rank's chunk, all grown together step by step out of the links that are free."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from fusionctl.errors import UsageError
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology
from fusionctl.plan.trees import both, mirrored, network, transposed


def multitree(topology: Topology | int, full_round: bool = True) -> Schedule:
    """All-reduce along N trees without contention, made for the network at hand (Huang et al., ISCA 2021).

    The trees of the all-gather grow from their roots.  In each step all links are free at first; the trees take turns,
    and each adds one rank per turn to the first of its ranks, oldest first, that has a free way to a rank outside of
    the tree.  A way is a link, or leads over switches: the nearest rank is taken, and a switch that has ranks of its
    own is not passed.  A rank that was added in this step has nothing to pass on yet.  The reduce-scatter is the
    mirror, so that both take as many steps.

    A step ends after a round in which no tree grew; with `full_round=False`, as in the authors' programme, after one in
    which the last tree did not, which leaves links of a mesh idle: 10 steps in place of 8 for an all-gather on 4 x 4.
    The order of the links matters: north, south, west, east gives the paper's numbers.  Each link carries one chunk per
    channel and step, so links of equal bandwidth are assumed.  UsageError if a rank cannot be reached.

    Four ranks, 0 and 1 above 2 and 3, with two links each:

    >>> from fusionctl.plan.topology import Link
    >>> links = dict.fromkeys([(0, 2), (0, 1), (1, 3), (1, 0), (2, 0), (2, 3), (3, 1), (3, 2)], Link())
    >>> print(multitree(Topology("square", 4, links)))
    multitree(square): allreduce, 4 ranks, 4 chunks, 4 steps
    0: +3 0->1, +2 1->0, +1 2->3, +0 3->2
    1: +1 0->1, +2 0->2, +0 1->0, +3 1->3, +0 2->0, +3 2->3, +1 3->1, +2 3->2
    2: =0 0->1, =0 0->2, =1 1->0, =1 1->3, =2 2->0, =2 2->3, =3 3->1, =3 3->2
    3: =2 0->1, =3 1->0, =0 2->3, =1 3->2
    """
    whole = network(topology)
    name = f"multitree({whole.name})" if full_round else f"multitree({whole.name},full_round=False)"
    return both(name, whole, lambda part: allgather(part, full_round))


def reduce_scatter(topology: Topology | int, full_round: bool = True) -> Schedule:
    """The first half: chunk c of N ends on rank c."""
    whole = network(topology)
    return mirrored(f"multitree_reduce_scatter({whole.name})", allgather(transposed(whole), full_round))


def allgather(topology: Topology | int, full_round: bool = True) -> Schedule:
    """The second half: chunk c of N starts on rank c and goes down tree c."""
    whole = network(topology)
    steps = tuple(_Forest(whole).steps(full_round))
    return Schedule(f"multitree_allgather({whole.name})", "allgather", whole.size, whole.size, steps)


class _Links:
    """The links that are free in one step.  Sets of nodes are bit masks, of all nodes that a node has a link to."""

    def __init__(self, topology: Topology) -> None:
        self.bits = [1 << node for node in range(topology.nodes)]
        self.ranks: list[list[int]] = [[] for _ in self.bits]
        self.switches: list[list[int]] = [[] for _ in self.bits]
        for src, dst in topology.links:
            (self.ranks if dst < topology.size else self.switches)[src].append(dst)
        channels = max((link.channels for link in topology.links.values()), default=1)
        self.whole = [self._channel(topology, channel) for channel in range(channels)]
        self.reset()

    def _channel(self, topology: Topology, channel: int) -> list[int]:
        masks = [0] * len(self.bits)
        for (src, dst), link in topology.links.items():
            masks[src] |= self.bits[dst] if channel < link.channels else 0
        return masks

    def reset(self) -> None:
        """Free all links, for the next step."""
        self.free = [list(masks) for masks in self.whole]
        self.any = list(self.whole[0])

    def take(self, start: int, outside: int) -> tuple[tuple[int, ...], int]:
        """Take the links of the shortest free way to a rank outside; nodes and channel, or no nodes."""
        for channel, free in enumerate(self.free):
            way = self._way(start, free, outside)
            for src, dst in pairwise(way):
                free[src] ^= self.bits[dst]
                if len(self.free) == 1 or not any(masks[src] & self.bits[dst] for masks in self.free):
                    self.any[src] ^= self.bits[dst]
            if way:
                return way, channel
        return (), 0

    def _way(self, start: int, free: list[int], outside: int) -> tuple[int, ...]:
        ways: deque[tuple[int, ...]] = deque([(start,)])
        bits = self.bits
        while ways:
            way = ways.popleft()
            node = way[-1]
            wanted = free[node] & outside
            if wanted:
                for rank in self.ranks[node]:
                    if wanted & bits[rank]:
                        return (*way, rank)
            if len(way) < 3 or not self.ranks[node]:
                for switch in self.switches[node]:
                    if wanted & bits[switch]:
                        outside ^= bits[switch]
                        ways.append((*way, switch))
        return ()


class _Forest:
    """The trees as far as they have grown: their ranks, oldest first, and the nodes outside, switches always."""

    def __init__(self, topology: Topology) -> None:
        self.name = topology.name
        self.roots = range(topology.size)
        self.links = _Links(topology)
        self.ranks = (1 << topology.size) - 1
        self.outside = [(1 << topology.nodes) - 1 - (1 << root) for root in self.roots]
        self.parents = [[root] for root in self.roots]

    def steps(self, full_round: bool) -> Iterator[Step]:
        """Let the trees grow until each holds all ranks."""
        while any(outside & self.ranks for outside in self.outside):
            sends = self._step(full_round)
            if not sends:
                root = next(root for root in self.roots if self.outside[root] & self.ranks)
                lost = (self.outside[root] & self.ranks).bit_length() - 1
                raise UsageError(f"{self.name}: there is no way from rank {root} to rank {lost}")
            yield Step(sends)

    def _step(self, full_round: bool) -> list[Send]:
        """One step.  Links are only taken and ranks only added: what failed once need not be tried again in it."""
        self.links.reset()
        waiting = [self._useful(root) for root in self.roots]
        sends: list[Send] = []
        turns = list(self.roots)
        while turns:
            turns = [root for root in turns if self._grow(root, waiting[root], sends)]
            if not full_round and turns[-1:] != [self.roots[-1]]:
                break
        return sends

    def _useful(self, root: int) -> list[int]:
        """The ranks of a tree that have a link to a switch or to a rank outside, oldest last."""
        outside, links = self.outside[root], self.links.any
        self.parents[root] = [parent for parent in self.parents[root] if links[parent] & outside]
        return self.parents[root][::-1]

    def _grow(self, root: int, waiting: list[int], sends: list[Send]) -> bool:
        """Add one rank to a tree; False if no rank of it has a free way to one outside."""
        outside, free = self.outside[root], self.links.any
        while waiting:
            if free[waiting[-1]] & outside:
                way, channel = self.links.take(waiting[-1], outside)
                if way:
                    sends.append(Send(root, way[0], way[-1], False, channel, way[1:-1]))
                    self.outside[root] ^= self.links.bits[way[-1]]
                    self.parents[root].append(way[-1])
                    return True
            waiting.pop()
        return False
