"""Typed view of the compiled module; what only other compiled modules call is declared in its `.pxd`."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from fusionctl._table import Table

Talk = Generator[tuple[bytes, Sequence[int] | None], list[bytes], Any]

class Hooks(Protocol):
    def negotiate(self, queried: bool) -> Talk: ...
    def leave(self) -> Talk: ...
    def fatal(self, error: BaseException) -> None: ...

class Lane:
    id: int
    rank: int
    size: int
    table: Table
    retiring: bool
    def __init__(
        self,
        lane_id: int,
        hooks: Hooks,
        table: Table,
        rank: int,
        size: int,
        handles: dict[str, Any],
        plan: Any,
        chunk_limit: int,
        fusion_threshold: int,
        cycle_time: float,
        stall_time: float,
    ) -> None: ...
    def announce(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
    def bind(
        self,
        bit: int,
        slots: Sequence[int],
        counts: Sequence[int],
        collective: int,
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        root: int,
        mergeable: bool,
    ) -> None: ...
    def unbind(self, bit: int) -> None: ...
    def retire(self) -> None: ...
    def set_joined(self, ranks: Sequence[int]) -> None: ...
    def fail(self, group: int, status: int, message: str) -> None: ...
    def disown_stale(self) -> None: ...
    def take_unbound(self) -> list[int]: ...
    def take_changed(self) -> list[int]: ...
    def silence(self) -> None: ...
    def signature(self, slot: int) -> tuple[int, tuple[int, ...]]: ...
    def pending(self) -> list[tuple[int, float]]: ...
