"""Process sets: some of the ranks, which communicate among themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fusionctl import runtime
from fusionctl.errors import UsageError


class ProcessSet:
    """Ranks that a collective may be limited to; made of ranks or of an mpi4py communicator, and used once it is added.

    `process_set_id` is None before `add_process_set` or `init(process_sets=...)` and after `remove_process_set`, and
    else equal on all ranks.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self._ranks = ranks_or_comm

    @property
    def ranks(self) -> list[int]:
        """The members' ranks, ascending."""
        if isinstance(self._ranks, list):
            return self._ranks
        if runtime.is_initialized():
            self._ranks = runtime.current().ranks_of(self._ranks)
            return self.ranks
        return sorted(self._ranks)

    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def rank(self) -> int:
        """This process's place among the members; UsageError when it is not one of them."""
        if not self.included():
            raise UsageError(f"rank {runtime.rank()} is not in process set {self}")
        return self.ranks.index(runtime.rank())

    def included(self) -> bool:
        """Whether this process is a member."""
        return runtime.rank() in self.ranks

    def __str__(self) -> str:
        return f"{self.process_set_id} {self._ranks}"

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self._ranks})"


class _Everyone(ProcessSet):
    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        return list(range(runtime.size()))

    def __str__(self) -> str:
        return "0 (all ranks)"


global_process_set: ProcessSet = _Everyone()
"""All ranks."""


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Let a process set, or a new one of these ranks, communicate; every rank of the job calls it alike.

    Returns when all ranks have.  Raises UsageError for ranks that do not exist or stand there twice, and for a set with
    the same members as another one; MismatchError on all ranks when they give different ones.
    """
    chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if chosen.process_set_id is not None:
        raise UsageError(f"process set {chosen} is there already; add a set once")
    here = runtime.current()
    chosen._ranks = here.ranks_of(chosen._ranks)
    chosen.process_set_id = here.add_set(tuple(chosen.ranks))
    return chosen


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set; every rank of the job calls it alike.

    Returns when all ranks have: True, or False for a set that is not there.  What its members still wait for fails with
    a PeerError.  The set of all ranks stays: UsageError.
    """
    if checked_set(process_set).process_set_id == 0:
        raise UsageError("the set of all ranks can not be removed")
    if process_set.process_set_id is None:
        return False
    runtime.current().remove_set(process_set.process_set_id)
    process_set.process_set_id = None
    return True


def checked_set(process_set: object) -> ProcessSet:
    """The process set; UsageError for what is none."""
    if not isinstance(process_set, ProcessSet):
        raise UsageError(f"process_set is {process_set!r}; give a ProcessSet, as add_process_set([...]) returns it")
    return process_set


def set_id(process_set: ProcessSet) -> int:
    """The id of a process set that this rank can use; UsageError otherwise."""
    checked_set(process_set)
    if process_set.process_set_id is None:
        raise UsageError(f"{process_set!r} is not there; add it with add_process_set() or init(process_sets=[...])")
    runtime.current().set_of(process_set.process_set_id)
    return process_set.process_set_id
