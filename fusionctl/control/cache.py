"""The response cache: which bits stand for the buckets of an agreed group (Romero et al., NSDI'22).

Laws: nothing here communicates or sleeps; every decision is a function of agreed history, so the bits are the same on
all ranks without a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class ResponseCache:
    """Agreed groups by name; beyond `capacity` bits the least recently used ones go, and their bits are inherited.

    Only a group at rest may go: one that was executed, each of its buckets equally often.  A group that was just
    agreed, or is being executed, is needed at once; for its sake the cache holds more than its capacity for a while,
    and so every agreement leads to an execution.  With a capacity of 0 a group goes after its first execution.

    `last_used` and `executions` tell a bit's last agreed use and the number of uses since it was given away.
    """

    def __init__(self, capacity: int, last_used: Callable[[int], int], executions: Callable[[int], int]) -> None:
        self.capacity = capacity
        self._last_used = last_used
        self._executions = executions
        self._bits: dict[str, tuple[int, ...]] = {}
        self._held = 0
        self._free: list[int] = []

    def __contains__(self, name: str) -> bool:
        return name in self._bits

    def make_room(self, n_buckets: int) -> list[str]:
        """Names of the groups that must go before one of `n_buckets` comes, least recently used first, ties by name."""
        excess = self._held + n_buckets - self.capacity
        evicted = []
        for name in sorted(filter(self._rests, self._bits), key=self._age) if excess > 0 else ():
            evicted.append(name)
            excess -= len(self._bits[name])
            if excess <= 0:
                break
        return evicted

    def insert(self, name: str, n_buckets: int) -> tuple[int, ...]:
        """Give a group the lowest bits that are free, in bucket order."""
        fresh = range(self._held + len(self._free), self._held + n_buckets)
        bits = tuple(heapq.heappop(self._free) for _ in range(n_buckets - len(fresh))) + tuple(fresh)
        self._bits[name] = bits
        self._held += n_buckets
        return bits

    def erase(self, name: str) -> tuple[int, ...]:
        """Forget a group; returns the bits that are free now."""
        bits = self._bits.pop(name)
        self._held -= len(bits)
        for bit in bits:
            heapq.heappush(self._free, bit)
        return bits

    def _rests(self, name: str) -> bool:
        executions = {self._executions(bit) for bit in self._bits[name]}
        return len(executions) == 1 and executions != {0}

    def _age(self, name: str) -> tuple[int, str]:
        return max(map(self._last_used, self._bits[name])), name
