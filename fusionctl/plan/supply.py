"""Growing trees whose rest can always be completed: Edmonds's condition, kept by one flow into each rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Tree:
    """The ranks of a tree as far as it has grown, the root first."""

    def __init__(self, root: int) -> None:
        self.ranks = [root]
        self.inside = {root}

    def add(self, rank: int) -> None:
        """Add a rank."""
        self.ranks.append(rank)
        self.inside.add(rank)


class Arcs:
    """Arcs between ranks by number: where they lead, how many trees each can still take, and which were taken."""

    def __init__(self, size: int, capacities: dict[tuple[int, int], int]) -> None:
        self.src = [src for src, _ in capacities]
        self.dst = [dst for _, dst in capacities]
        self.left = list(capacities.values())
        self.taken: list[int] = []
        self.out: list[list[int]] = [[] for _ in range(size)]
        self.into: list[list[int]] = [[] for _ in range(size)]
        for arc, (src, dst) in enumerate(capacities):
            self.out[src].append(arc)
            self.into[dst].append(arc)


class Supply:
    """A flow to one rank, over arcs that are left, of one unit from each tree that lacks it, from any of its ranks.

    All trees can be completed as long as there is such a flow to every rank (Edmonds, 1973).  An arc may be added to a
    tree if, without it, there still is one to its destination from all other trees.  The flow is mended, not found
    anew: when an arc lost capacity that it uses, one unit is sent another way.
    """

    def __init__(self, rank: int, arcs: Arcs, trees: Sequence[Tree], flow: list[int]) -> None:
        self.rank = rank
        self.arcs = arcs
        self.trees = trees
        self.flow = flow
        self.seen = 0
        self.entry = {number: tree.ranks[0] for number, tree in enumerate(trees) if rank not in tree.inside}
        self.entering: list[set[int]] = [set() for _ in arcs.out]
        for number, at in self.entry.items():
            self.entering[at].add(number)

    def admits(self, number: int, arc: int) -> bool:
        """Whether the tree may take the arc to this rank; if so, the arc has one less left."""
        self._mend()
        start, left = self.entry.pop(number), self.arcs.left
        way = self._way(start)
        self.entering[start].remove(number)
        for used in way:
            self.flow[used] -= 1
        left[arc] -= 1
        if self.flow[arc] > left[arc] and not self._reroute(arc):
            left[arc] += 1
            for used in way:
                self.flow[used] += 1
            self.entering[start].add(number)
            self.entry[number] = start
            return False
        self.arcs.taken.append(arc)
        self.seen += 1
        return True

    def _mend(self) -> None:
        for arc in self.arcs.taken[self.seen :]:
            if self.flow[arc] > self.arcs.left[arc] and not self._reroute(arc):
                raise AssertionError(f"no way is left to rank {self.rank}")
        self.seen = len(self.arcs.taken)

    def _way(self, start: int) -> list[int]:
        """Arcs that carry a unit from a rank to this one."""
        came: dict[int, int] = {start: -1}
        ranks = deque([start])
        while self.rank not in came:
            for arc in self.arcs.out[ranks.popleft()]:
                if self.flow[arc] and self.arcs.dst[arc] not in came:
                    came[self.arcs.dst[arc]] = arc
                    ranks.append(self.arcs.dst[arc])
        way = []
        at = self.rank
        while at != start:
            way.append(came[at])
            at = self.arcs.src[came[at]]
        return way

    def _reroute(self, arc: int) -> bool:
        """Send one unit around an arc, over free arcs, back along used ones, or by letting a tree start elsewhere."""
        start, end = self.arcs.src[arc], self.arcs.dst[arc]
        came = self._search(start, end)
        if end not in came:
            return False
        self.flow[arc] -= 1
        at = end
        while at != start:
            before, change, number = came[at]
            if change:
                self.flow[number] += change
            else:
                self.entering[before].remove(number)
                self.entering[at].add(number)
                self.entry[number] = at
            at = before
        return True

    def _search(self, start: int, end: int) -> dict[int, tuple[int, int, int]]:
        """How each rank was reached: from which rank, and by more or less on which arc, or (0) by moving which tree."""
        came: dict[int, tuple[int, int, int]] = {start: (start, 0, 0)}
        ranks, moved = deque([start]), set[int]()
        arcs, flow = self.arcs, self.flow
        while ranks and end not in came:
            at = ranks.popleft()
            steps = [(arcs.dst[arc], 1, arc) for arc in arcs.out[at] if flow[arc] < arcs.left[arc]]
            steps += [(arcs.src[arc], -1, arc) for arc in arcs.into[at] if flow[arc]]
            for number in self.entering[at] - moved:
                moved.add(number)
                steps += [(rank, 0, number) for rank in self.trees[number].ranks]
            for rank, change, number in steps:
                if rank not in came:
                    came[rank] = (at, change, number)
                    ranks.append(rank)
        return came
