"""init, shutdown and the `Runtime`: the only place where control, fusion and data meet."""

from __future__ import annotations

import atexit
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

from mpi4py import MPI

from fusionctl import _board, _data, _engine, _mpi, _shared
from fusionctl._lane import Lane
from fusionctl._table import Table
from fusionctl.config import Config, disagreements, set_up_logging
from fusionctl.control.difference import ranks
from fusionctl.data.dispatch import SHM, possible, programs, topology_of
from fusionctl.errors import ConfigError, FusionctlError, MismatchError, MPIError, PeerError, UsageError
from fusionctl.forks import is_forked, refuse_fork
from fusionctl.fusion.threshold import fuse
from fusionctl.job import check_mpi, end_job_on_error, meet, mpi_handles, on_one_node, place_in, share_memory
from fusionctl.plan import Topology
from fusionctl.recorder import Recorder
from fusionctl.registry import Registry
from fusionctl.request import DTYPES, RESERVED, Collective, Group, Request
from fusionctl.slow_path import SlowPath
from fusionctl.timeline import Timeline

STATUS_ERRORS: dict[int, type[FusionctlError]] = {
    1: UsageError,
    2: MismatchError,
    3: PeerError,
    4: MPIError,
    5: UsageError,
    6: UsageError,
}
"""What each status code of the engine is raised as."""

_registry = Registry()
_runtime: Runtime | None = None


class Runtime:
    """One rank's fusionctl, from `init` to `shutdown`: registers groups, runs the engine, resolves futures."""

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        self.config = config
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.place = place_in(comm)
        self.log = set_up_logging(config, self.rank)
        self.topology = self._agreed_topology(comm)
        self.lock = threading.RLock()
        self.registry = _registry
        self.fuse = partial(fuse, threshold=config.fusion_threshold)
        self.stopping = False
        self._comms: dict[int, list[MPI.Intracomm]] = {}
        self._windows: list[MPI.Win] = []
        self._sets: dict[int, SlowPath | None] = {}
        self._members: dict[int, tuple[int, ...]] = {0: tuple(range(self.size))}
        self._n_sets = 1
        self._phases: tuple[str, ...] = ()
        self._n_events: Counter[str] = Counter()
        self._retired: list[SlowPath] = []
        self._futures: dict[int, tuple[Future[Any], Callable[[list[_board.Memory]], Any]]] = {}
        self._resolver: threading.Thread | None = None
        self._next_token = 0
        self.recorder: Recorder | None = None
        everyone = self._open_set(0, comm.Dup())
        self._engine = _engine.Engine(everyone.lane, config.stall_check_time)
        self._thread = threading.Thread(target=self._engine.run, name="fusionctl-engine", daemon=True)
        self._thread.start()

    # -- any thread -----------------------------------------------------------------------------------------------

    def register(self, group: Group, process_set: int = 0) -> list[int]:
        """Slots of a group's members, in order; announces the group to the other ranks if it is new or changed."""
        with self.lock:
            chosen = self.set_of(process_set)
            registered, slots, changed = _registry.add(group, process_set, chosen.size)
            if changed:
                chosen.register(registered.group, registered.slots)
            return slots

    def set_of(self, process_set: int) -> SlowPath:
        """A process set that this rank is in; UsageError otherwise."""
        chosen = self._sets.get(process_set)
        if chosen is None and process_set in self._sets:
            members = ranks(self._members[process_set])
            raise UsageError(f"rank {self.rank} is not in process set {process_set}, which is {members}")
        if chosen is None:
            raise UsageError(f"there is no process set {process_set}; add it with add_process_set()")
        return chosen

    def members(self, process_set: int) -> tuple[int, ...] | None:
        """Ranks of a process set, ascending; None when it is not there."""
        return self._members.get(process_set)

    def wait(self, slots: Sequence[int]) -> list[_board.Memory]:
        """Sleep until the slots are done; what the engine allocated for them, or the error of the first that failed."""
        status, message, memories = _board.wait(slots)
        check_status(status, message)
        return memories

    def wait_later(self, slots: Sequence[int], result: Callable[[list[_board.Memory]], Any]) -> Future[Any]:
        """A future that becomes `result` of what the engine allocated once the slots are done."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # what was submitted can not be taken back
        with self.lock:
            token = self._next_token
            self._next_token += 1
            self._futures[token] = (future, result)
            if self._resolver is None:
                self._resolver = threading.Thread(target=self._resolve, name="fusionctl-futures", daemon=True)
                self._resolver.start()
        _board.wait_later(slots, token)
        return future

    def counters(self) -> dict[str, int]:
        """What this rank has exchanged and reduced since `init`: exchanges, bytes, slow paths, buckets, messages."""
        total: Counter[str] = Counter()
        for chosen in [*self._sets.values(), *self._retired]:
            if chosen is not None:
                total.update(chosen.lane.counters())
        return dict(total)

    def start_timeline(self, path: str | Path) -> None:
        """Write this rank's spans to a file of its own at or under `path` from now on."""
        with self.lock:
            if self.recorder is not None:
                raise UsageError("the timeline runs already; stop_timeline() first")
            self.record(Timeline(path, self.rank))

    def record(self, timeline: Timeline) -> None:
        """Write this rank's spans to an open timeline from now on."""
        self.recorder = Recorder(timeline, _registry, self._phases)

    def stop_timeline(self) -> None:
        """Stop recording and complete the file; nothing happens when the timeline is off."""
        with self.lock:
            if self.recorder is not None:
                self.recorder.close()
                self.recorder = None

    def close(self) -> None:
        """Leave together with the other ranks; sleeps until they leave too or need this rank."""
        self.stopping = True
        self._engine.stop()
        self._thread.join()
        self.stop_timeline()
        for window in self._windows:
            window.Free()
        for comm in chain.from_iterable(self._comms.values()):
            comm.Free()

    # -- what all ranks agree on ------------------------------------------------------------------------------------

    def add_set(self, members: tuple[int, ...]) -> int:
        """Id of a new process set of these ranks; collective."""
        known = members in self._members.values()
        self._agree("add_process_set", Collective.ADD_SET, members)
        if known:
            raise UsageError(f"there is a process set of {ranks(members)} already")
        return next(number for number, theirs in self._members.items() if theirs == members)

    def remove_set(self, process_set: int) -> None:
        """Remove a process set; collective."""
        self._agree("remove_process_set", Collective.REMOVE_SET, (process_set,))

    def join(self) -> int:
        """Take part without data in what the other ranks do, until all have joined; the rank that joined last."""
        pending = self.set_of(0).lane.pending()
        if pending:
            name = _registry.tensor_name(pending[0][0])
            raise UsageError(f"tensor '{name}' is still in flight on this rank: wait for it before join()")
        self._agree("join", Collective.JOIN, (0,))
        return self.set_of(0).last_joined

    def _agree(self, call: str, event: Collective, values: tuple[int, ...]) -> None:
        """Let the ranks agree on the n-th event of a kind; its values travel as the shape of a tensor that is none."""
        name = f"{RESERVED}{call}.{self._n_events[call]}"
        self._n_events[call] += 1
        slots = self.register(Group(name, (Request(name, event, "uint8", values),)))
        check_status(*_board.submit(slots[0], DTYPES.index("uint8"), values, 0, 0))
        try:
            self.wait(slots)
        except MismatchError as error:
            text = str(error).replace(f"tensor '{name}': shape is", f"{call}() is given")
            raise MismatchError(text.replace("submit the same shape", "give the same")) from None

    def _agreed_topology(self, comm: MPI.Intracomm) -> Topology | None:
        """The first rank's reading of FUSIONCTL_TOPOLOGY, or its ConfigError, on all ranks; collective."""
        found: tuple[Topology | None, ConfigError | None] = (None, None)
        if self.rank == 0:
            try:
                found = (topology_of(self.config.topology, self.size), None)
            except ConfigError as error:
                found = (None, error)
        topology, refused = comm.bcast(found)
        if refused is not None:
            raise refused
        return topology  # type: ignore[no-any-return]

    def ranks_of(self, chosen: Iterable[int] | MPI.Comm) -> list[int]:
        """The ranks in a list, or of a communicator; UsageError for those that do not exist, or stand there twice."""
        if isinstance(chosen, MPI.Comm):
            chosen = MPI.Group.Translate_ranks(chosen.Get_group(), None, self._comms[0][0].Get_group())
        given = list(chosen)
        if not all(isinstance(rank, Integral) for rank in given):
            raise UsageError(f"a process set of {chosen!r}: give whole numbers, the ranks, or an mpi4py communicator")
        listed = sorted(int(rank) for rank in given)
        if not listed or len(set(listed)) < len(listed) or not 0 <= listed[0] <= listed[-1] < self.size:
            raise UsageError(f"a process set of ranks {listed}: give some of the ranks 0 to {self.size - 1}, each once")
        return listed

    # -- on the engine's thread ---------------------------------------------------------------------------------------

    def make_lane(self, hooks: SlowPath, table: Table) -> Lane:
        """The engine's part of a process set."""
        config, comms = self.config, self._comms[hooks.set_id]
        for comm in comms:
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        name = config.allreduce if hooks.set_id == 0 else possible(config.allreduce, hooks.size)
        one_node = name == SHM and on_one_node(comms[1])
        plan = programs(name, hooks.rank, hooks.size, one_node, self.topology if hooks.set_id == 0 else None)
        self._phases = self._phases or _data.phases(plan)  # of all ranks' set, which is opened first
        handles = mpi_handles(*comms)
        if plan.shared:
            window, handles["segments"] = share_memory(comms[1], _shared.segment_bytes())
            self._windows.append(window)
        return Lane(
            hooks.set_id,
            hooks,
            table,
            hooks.rank,
            hooks.size,
            handles,
            plan,
            config.chunk_limit,
            config.fusion_threshold,
            config.cycle_time / 1e3,
            config.stall_check_time,
        )

    def _open_set(self, number: int, comm: MPI.Intracomm) -> SlowPath:
        self._comms[number] = [comm, comm.Dup()]
        opened = self._sets[number] = SlowPath(self, number, self._members[number], Table())
        return opened

    def create_set(self, members: tuple[int, ...]) -> None:
        """All ranks have agreed on a new process set; nothing happens if there is one of these members."""
        if members in self._members.values():
            return
        number, self._n_sets = self._n_sets, self._n_sets + 1
        self._members[number] = members
        self._sets[number] = None
        if self.rank in members:
            world = self._comms[0][0]
            comm = world.Create_group(world.Get_group().Incl(members), number)
            self._engine.add(self._open_set(number, comm).lane)

    def retire_set(self, process_set: int) -> None:
        """All ranks have agreed to remove a process set."""
        retired = self._sets.pop(process_set, None)
        self._members.pop(process_set, None)
        if retired is not None:
            self._retired.append(retired)
            retired.lane.retire()

    def forget_set(self, retired: SlowPath) -> None:
        """The ranks of a removed set have parted."""
        self._engine.remove(retired.lane)

    def _resolve(self) -> None:
        while self._thread.is_alive() or self._futures:
            outcome = _board.next_outcome(1_000_000_000)
            if outcome is not None:
                token, status, message, memories = outcome
                future, result = self._futures.pop(token)
                settle_future(future, status, message, partial(result, memories))


def init(comm: MPI.Intracomm | Sequence[int] | None = None, process_sets: Sequence[Any] | str | None = None) -> None:
    """Start fusionctl on this rank; collective over `comm` (default: COMM_WORLD; or some ranks of it).

    `process_sets` are added at once, on all ranks alike; "dynamic" says that more will be added later, which is always
    possible.  Does nothing when already initialised.  Raises MPIError for a wrong launcher, a finalised MPI or a thread
    level below MPI_THREAD_SERIALIZED, ConfigError for environment variables that are wrong or differ between the ranks.
    """
    global _runtime
    refuse_fork("MPI was started")
    if _runtime is not None:
        return
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise UsageError(f"process_sets is {process_sets!r}; give a list of ProcessSet, or 'dynamic'")
    check_mpi()
    _mpi.bind(MPI.__file__.encode(), MPI.ANY_SOURCE)
    world = _communicator(comm)
    settings, timeline = _agreed_settings(world)
    _runtime = Runtime(world, settings)
    if timeline is not None:
        _runtime.record(timeline)
    atexit.register(shutdown)
    sets: Sequence[Any] = [] if process_sets is None or isinstance(process_sets, str) else process_sets
    for chosen in sets:
        chosen.process_set_id = _runtime.add_set(tuple(chosen.ranks))


def shutdown() -> None:
    """Leave the job: collective; tensors that other ranks still wait for fail there with a PeerError.

    A process that was forked from a rank has not joined, and does nothing.
    """
    global _runtime
    if _runtime is None or is_forked():
        return
    runtime, _runtime = _runtime, None
    atexit.unregister(shutdown)
    runtime.close()


def is_initialized() -> bool:
    """Whether `init` was called, in this process, and `shutdown` was not."""
    return _runtime is not None and not is_forked()


def current() -> Runtime:
    """The Runtime of this process; UsageError before `init`, after `shutdown`, and in a forked process."""
    if _runtime is None:
        raise UsageError("fusionctl has not been initialised; call fusionctl.init() first")
    refuse_fork("init()")
    return _runtime


def rank() -> int:
    """This process's rank."""
    return current().rank


def size() -> int:
    """Number of ranks."""
    return current().size


def local_rank() -> int:
    """This process's rank among those of its node."""
    return current().place.local_rank


def local_size() -> int:
    """Number of ranks on this node."""
    return current().place.local_size


def counters() -> dict[str, int]:
    """What this rank has exchanged and reduced since `init`: exchanges, bytes, slow paths, buckets, messages."""
    return current().counters()


def start_timeline(path: str | Path, mark_cycles: bool = False) -> None:
    """Write this rank's spans to a file of its own at or under `path` from now on.

    `mark_cycles` is Horovod's and has no effect: every exchange is a span of the engine's track.
    """
    current().start_timeline(path)


def stop_timeline() -> None:
    """Stop recording and complete the file; nothing happens when the timeline is off."""
    current().stop_timeline()


def take_refused(process_set: int, name: str) -> bool:
    """Whether the ranks have disagreed about a group of this name since this was last asked."""
    return _registry.take_refused(process_set, name)


def check_status(status: int, message: str) -> None:
    """Raise what a status code of the engine stands for."""
    if status != 0:
        raise STATUS_ERRORS[status](message)


def settle_future(future: Future[Any], status: int, message: str, result: Callable[[], Any]) -> None:
    """Give a future its result or its error; also that of `result`, as the thread has others to settle."""
    try:
        check_status(status, message)
        future.set_result(result())
    except Exception as error:
        future.set_exception(error)


def _communicator(comm: MPI.Intracomm | Sequence[int] | None) -> MPI.Intracomm:
    if comm is None:
        return MPI.COMM_WORLD
    if isinstance(comm, MPI.Intracomm):
        return comm
    group = MPI.COMM_WORLD.Get_group().Incl(list(comm))
    return MPI.COMM_WORLD.Create_group(group)


def _agreed_settings(world: MPI.Intracomm) -> tuple[Config, Timeline | None]:
    """This rank's settings and its open timeline; ConfigError on every rank if one rank's are of no use, or differ."""
    mine, timeline = _own_settings(world.Get_rank())
    meet(world, Config().stall_check_time)
    everyone = world.allgather(mine)
    refused = [rank for rank, theirs in enumerate(everyone) if isinstance(theirs, ConfigError)]
    if refused:
        who = "" if len(refused) == len(everyone) else f"{ranks(refused)} can not start: "
        raise ConfigError(f"{who}{everyone[refused[0]]}")
    text = disagreements(everyone)
    if text is not None:
        raise ConfigError(text)
    return everyone[world.Get_rank()], timeline


def _own_settings(rank: int) -> tuple[Config | ConfigError, Timeline | None]:
    try:
        settings = Config.from_env()
        return settings, None if settings.timeline is None else Timeline(settings.timeline, rank)
    except ConfigError as error:
        return error, None


end_job_on_error()
