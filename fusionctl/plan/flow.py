"""Maximum flow with whole numbers: Dinic's algorithm, and the cut that proves that there is no more."""

from __future__ import annotations

from collections import deque


class FlowNetwork:
    """Arcs with capacities between nodes 0 to n - 1; `flow` sends, `reset` takes all back."""

    def __init__(self, nodes: int) -> None:
        self.heads: list[int] = []
        self.capacities: list[int] = []
        self.residual: list[int] = []
        self.arcs: list[list[int]] = [[] for _ in range(nodes)]

    def add(self, src: int, dst: int, capacity: int) -> int:
        """Add an arc and return its number; the next number is its reverse, along which flow is taken back."""
        number = len(self.heads)
        for node, head, amount in ((src, dst, capacity), (dst, src, 0)):
            self.arcs[node].append(len(self.heads))
            self.heads.append(head)
            self.capacities.append(amount)
            self.residual.append(amount)
        return number

    def reset(self) -> None:
        """Take all flow back."""
        self.residual = list(self.capacities)

    def flow(self, src: int, dst: int, limit: int) -> int:
        """Send as much as can be added, up to the limit, and return how much it was."""
        sent = 0
        while sent < limit:
            levels = self._levels(src)
            if levels[dst] < 0:
                break
            position = [0] * len(self.arcs)
            while sent < limit:
                amount = self._augment(src, dst, limit - sent, levels, position)
                if not amount:
                    break
                sent += amount
        return sent

    def reached(self, src: int) -> list[int]:
        """The nodes to which more could be sent: the source's side of a smallest cut once the flow is the largest."""
        return [node for node, level in enumerate(self._levels(src)) if level >= 0]

    def _levels(self, src: int) -> list[int]:
        levels = [-1] * len(self.arcs)
        levels[src] = 0
        nodes = deque([src])
        heads, residual = self.heads, self.residual
        while nodes:
            node = nodes.popleft()
            for arc in self.arcs[node]:
                if residual[arc] and levels[heads[arc]] < 0:
                    levels[heads[arc]] = levels[node] + 1
                    nodes.append(heads[arc])
        return levels

    def _augment(self, src: int, dst: int, limit: int, levels: list[int], position: list[int]) -> int:
        """Send along one shortest way; the arcs before a node's position lead nowhere in this phase."""
        way: list[int] = []
        node = src
        while node != dst:
            arc = self._onward(node, levels, position)
            if arc is not None:
                way.append(arc)
                node = self.heads[arc]
            elif way:
                node = self.heads[way.pop() ^ 1]
                position[node] += 1
            else:
                return 0
        amount = min(limit, *(self.residual[arc] for arc in way))
        for arc in way:
            self.residual[arc] -= amount
            self.residual[arc ^ 1] += amount
        return amount

    def _onward(self, node: int, levels: list[int], position: list[int]) -> int | None:
        arcs = self.arcs[node]
        while position[node] < len(arcs):
            arc = arcs[position[node]]
            if self.residual[arc] and levels[self.heads[arc]] == levels[node] + 1:
                return arc
            position[node] += 1
        return None
