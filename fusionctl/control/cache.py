"""The response cache: which bits stand for the buckets of an agreed group (Romero et al., NSDI'22).

Laws: nothing here communicates or sleeps; every decision is a function of agreed history, so the bits are the same on all
ranks without a message.
"""

from __future__ import annotations

from collections.abc import Callable


class ResponseCache:
    """Agreed groups by name; beyond `capacity` bits the least recently used ones go, and their bits are inherited.

    A group stays while it has not been executed, or only some of its buckets have: it is needed at once, and so the cache
    may hold more than its capacity.  A capacity of 0 keeps a group until the next one is agreed.
    """

    def __init__(self, capacity: int, last_used: Callable[[int], int], executions: Callable[[int], int]) -> None:
        self.capacity = capacity
        self._last_used = last_used
        self._executions = executions
        self._bits: dict[str, tuple[int, ...]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._bits

    def bits(self, name: str) -> tuple[int, ...]:
        """The bits of a group's buckets, in bucket order."""
        return self._bits[name]

    def make_room(self, n_buckets: int) -> list[str]:
        """Names of the groups that must go before one of `n_buckets` comes, least recently used first."""
        excess = sum(map(len, self._bits.values())) + n_buckets - self.capacity
        evicted = []
        for name in sorted(filter(self._may_go, self._bits), key=self._age):
            if excess <= 0:
                break
            evicted.append(name)
            excess -= len(self._bits[name])
        return evicted

    def insert(self, name: str, n_buckets: int) -> tuple[int, ...]:
        """Give a group the lowest bits that are free."""
        taken = {bit for bits in self._bits.values() for bit in bits}
        free = (bit for bit in range(len(taken) + n_buckets) if bit not in taken)
        self._bits[name] = tuple(bit for bit, _ in zip(free, range(n_buckets), strict=False))
        return self._bits[name]

    def erase(self, name: str) -> tuple[int, ...]:
        """Forget a group; returns the bits that are free now."""
        return self._bits.pop(name)

    def _may_go(self, name: str) -> bool:
        executions = {self._executions(bit) for bit in self._bits[name]}
        return len(executions) == 1 and executions != {0}

    def _age(self, name: str) -> tuple[int, str]:
        return max(map(self._last_used, self._bits[name])), name
