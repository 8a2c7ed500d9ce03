"""init, shutdown and the `Runtime`: the only place where control, fusion and data meet."""

from __future__ import annotations

import atexit
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from fusionctl import _board, _data, _engine, _mpi
from fusionctl._table import Table
from fusionctl.config import Config, disagreements, set_up_logging
from fusionctl.control.difference import ranks
from fusionctl.control.negotiation import digest
from fusionctl.control.protocol import Control
from fusionctl.control.stall import RankState, report
from fusionctl.data.dispatch import programs
from fusionctl.errors import ConfigError, FusionctlError, MismatchError, MPIError, PeerError, UsageError
from fusionctl.forks import is_forked, refuse_fork
from fusionctl.fusion.threshold import fuse
from fusionctl.job import abort, check_mpi, end_job_on_error, meet, place_in, where_is_main_thread
from fusionctl.recorder import Recorder
from fusionctl.registry import Registry, is_dynamic
from fusionctl.request import DTYPES, Bucket, Group, ReduceOp
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

MISMATCH = 2

_registry = Registry()
_runtime: Runtime | None = None


class Runtime:
    """One rank's fusionctl, from `init` to `shutdown`: registers groups, runs the engine, resolves futures."""

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        self.config = config
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.place = place_in(comm)
        self.log = set_up_logging(config, self.rank)
        self._comms = [comm.Dup(), comm.Dup()]
        for dup in self._comms:
            dup.Set_errhandler(MPI.ERRORS_RETURN)
        self._lock = threading.RLock()
        table = Table()
        plan = programs(config.allreduce, self.rank, self.size)
        fuse_to_threshold = partial(fuse, threshold=config.fusion_threshold)
        self._control = Control(self.rank, self.size, config.cache_capacity, fuse_to_threshold, table, self)
        self._engine = _engine.Engine(
            self,
            table,
            self.rank,
            self.size,
            _mpi_handles(*self._comms),
            config.chunk_limit,
            config.fusion_threshold,
            config.cycle_time / 1e3,
            config.stall_check_time,
            plan.native,
            plan.half,
            plan.native_scales,
        )
        self._futures: dict[int, tuple[Future[Any], Callable[[], Any]]] = {}
        self._resolver: threading.Thread | None = None
        self._next_token = 0
        self.recorder: Recorder | None = None
        self._phases = _data.phases(plan.native_name, plan.half_name)
        self._thread = threading.Thread(target=self._engine.run, name="fusionctl-engine", daemon=True)
        self._thread.start()

    # -- any thread -----------------------------------------------------------------------------------------------

    def register(self, group: Group) -> list[int]:
        """Slots of a group's members, in order; announces the group to the other ranks if it is new or changed."""
        with self._lock:
            registered, changed = _registry.add(group)
            if changed and not is_dynamic(registered.group):
                self._control.register(registered.group, registered.slots)
                self._engine.announce()
            return registered.slots

    def wait(self, slots: Sequence[int]) -> None:
        """Sleep until the slots are done; raises what went wrong with the first that failed."""
        check_status(*_board.wait(slots))

    def wait_later(self, slots: Sequence[int], result: Callable[[], Any]) -> Future[Any]:
        """A future that becomes `result()` once the slots are done."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # what was submitted can not be taken back
        with self._lock:
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
        return self._engine.counters()

    def start_timeline(self, path: str | Path) -> None:
        """Write this rank's spans to a file of its own at or under `path` from now on."""
        with self._lock:
            if self.recorder is not None:
                raise UsageError("the timeline runs already; stop_timeline() first")
            self.record(Timeline(path, self.rank))

    def record(self, timeline: Timeline) -> None:
        """Write this rank's spans to an open timeline from now on."""
        self.recorder = Recorder(timeline, _registry, self._phases)

    def stop_timeline(self) -> None:
        """Stop recording and complete the file; nothing happens when the timeline is off."""
        with self._lock:
            if self.recorder is not None:
                self.recorder.close()
                self.recorder = None

    def close(self) -> None:
        """Leave together with the other ranks; sleeps until they leave too or need this rank."""
        self._engine.stop()
        self._thread.join()
        self.stop_timeline()
        for comm in self._comms:
            comm.Free()

    def _resolve(self) -> None:
        while self._thread.is_alive() or self._futures:
            outcome = _board.next_outcome(1_000_000_000)
            if outcome is not None:
                token, status, message = outcome
                future, result = self._futures.pop(token)
                settle_future(future, status, message, result)

    # -- hooks of the engine, on its thread with the GIL held -------------------------------------------------------

    def negotiate(self, queried: bool) -> None:
        """The slow path: tell what is new here, hear what is new elsewhere, bind what all ranks agree on."""
        with self._lock:
            self._announce_what_was_submitted()
            payload = self._control.payload()
        heads = self._engine.gather(len(payload).to_bytes(8, "little") + digest(payload) + bytes([queried]))
        sizes = [int.from_bytes(head[:8], "little") for head in heads]
        same = len({head[8:24] for head in heads}) == 1
        payloads = [payload] * self.size if same else self._engine.gather(payload, sizes)
        with self._lock:
            self._control.settle(payloads)
            warning = self._control.take_warning()
            if self._control.has_news():
                self._engine.announce()
        if warning is not None and self.rank == 0:
            self.log.warning(warning)
        if any(head[24] for head in heads):
            self._report_stall()

    def bind(self, bit: int, group: Group, bucket: Bucket, slots: Sequence[int]) -> None:
        """Hook of the control plane: a bit stands for these slots from now on."""
        first = group.requests[bucket.members[0]]
        dtype = DTYPES.index(first.dtype)
        mergeable = len(group.requests) == 1
        self._engine.bind(
            bit, slots, first.collective, dtype, first.op, first.prescale, first.postscale, first.root, mergeable
        )

    def unbind(self, bit: int) -> None:
        """Hook of the control plane: a bit stands for nothing from now on."""
        self._engine.unbind(bit)

    def fail(self, name: str, message: str) -> None:
        """Hook of the control plane: the ranks disagree about a group."""
        self._engine.fail(_registry.by_name[name].number, MISMATCH, message)

    def _announce_what_was_submitted(self) -> None:
        self._engine.disown_stale()
        for number in self._engine.take_changed():
            registered = _registry.restate_from_engine(number, self._engine)
            self._control.register(registered.group, registered.slots)
        for slot in self._engine.take_unbound():
            registered, _ = _registry.by_slot[slot]
            self._control.needs(registered.group, registered.slots)

    def _report_stall(self) -> None:
        """Gather what every rank waits for; rank 0 logs it."""
        pending = tuple((_registry.tensor_name(slot), age) for slot, age in self._engine.pending())
        mine = RankState(pending, where_is_main_thread()).encode()
        sizes = [int.from_bytes(size, "little") for size in self._engine.gather(len(mine).to_bytes(8, "little"))]
        states = [RankState.decode(state) for state in self._engine.gather(mine, sizes)]
        self._engine.silence()
        if self.rank == 0:
            groups = [group for group in self._control.groups() if len(group.requests) > 1]
            for line in report(states, self.config.stall_check_time, groups, self._control.waiting()):
                self.log.warning(line)

    def leave(self) -> str:
        """The ranks part because at least one of them stopped: the message for what is still pending here."""
        flags = self._engine.gather(bytes([self._engine.stopping]))
        stopped = [rank for rank, flag in enumerate(flags) if flag[0]]
        return (
            f"the job ended before every rank submitted this tensor: {ranks(stopped)} left (by shutdown(), or at the "
            "end of the programme)"
        )

    def fatal(self, error: BaseException) -> None:
        """End the job everywhere: the engine can not go on, and the other ranks would wait for it."""
        traceback.print_exception(error)
        abort()


def init(comm: MPI.Intracomm | Sequence[int] | None = None) -> None:
    """Start fusionctl on this rank; collective over `comm` (default: COMM_WORLD; or some ranks of it).

    Does nothing when already initialised.  Raises MPIError for a wrong launcher, a finalised MPI or a thread level
    below MPI_THREAD_SERIALIZED, ConfigError for environment variables that are wrong or differ between the ranks.
    """
    global _runtime
    refuse_fork("MPI was started")
    if _runtime is not None:
        return
    check_mpi()
    _mpi.bind(MPI.__file__.encode(), MPI.ANY_SOURCE)
    world = _communicator(comm)
    settings, timeline = _agreed_settings(world)
    _runtime = Runtime(world, settings)
    if timeline is not None:
        _runtime.record(timeline)
    atexit.register(shutdown)


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


def start_timeline(path: str | Path) -> None:
    """Write this rank's spans to a file of its own at or under `path` from now on."""
    current().start_timeline(path)


def stop_timeline() -> None:
    """Stop recording and complete the file; nothing happens when the timeline is off."""
    current().stop_timeline()


def check_status(status: int, message: str) -> None:
    """Raise what a status code of the engine stands for."""
    if status != 0:
        raise STATUS_ERRORS[status](message)


def settle_future(future: Future[Any], status: int, message: str, result: Callable[[], Any]) -> None:
    """Give a future its result or its error."""
    if status == 0:
        future.set_result(result())
    else:
        future.set_exception(STATUS_ERRORS[status](message))


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


def _mpi_handles(control: MPI.Intracomm, data: MPI.Intracomm) -> dict[str, Any]:
    types = {
        "float32": MPI.FLOAT,
        "float64": MPI.DOUBLE,
        "int8": MPI.INT8_T,
        "int16": MPI.INT16_T,
        "int32": MPI.INT32_T,
        "int64": MPI.INT64_T,
        "uint8": MPI.UINT8_T,
        "uint16": MPI.UINT16_T,
        "bool": MPI.UINT8_T,
    }
    ops = {ReduceOp.SUM: MPI.SUM, ReduceOp.MIN: MPI.MIN, ReduceOp.MAX: MPI.MAX, ReduceOp.PRODUCT: MPI.PROD}
    return {
        "control": MPI._handleof(control),
        "comm": MPI._handleof(data),
        "byte": MPI._handleof(MPI.BYTE),
        "word": MPI._handleof(MPI.UINT64_T),
        "band": MPI._handleof(MPI.BAND),
        "in_place": int(MPI.IN_PLACE) % 2**64,
        "dtypes": {DTYPES.index(name): MPI._handleof(datatype) for name, datatype in types.items()},
        "ops": {int(op): MPI._handleof(handle) for op, handle in ops.items()},
    }


end_job_on_error()
