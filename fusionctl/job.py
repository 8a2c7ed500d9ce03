"""The job as a whole: whether its MPI can carry the engine, where and what a rank is, and how one rank ends all."""

from __future__ import annotations

import logging
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mpi4py import MPI

from fusionctl.config import launcher_size
from fusionctl.errors import MPIError
from fusionctl.forks import is_forked
from fusionctl.request import DTYPES, ReduceOp


def check_mpi() -> None:
    """MPIError unless the MPI that mpi4py initialised, and the launcher, can carry the engine."""
    if MPI.Is_finalized():
        raise MPIError("MPI is finalised already; call fusionctl.init() before MPI.Finalize()")
    if not MPI.Is_initialized():
        raise MPIError("mpi4py has not initialised MPI; leave mpi4py.rc.initialize at True or call MPI.Init_thread()")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        names = {MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE", MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED"}
        raise MPIError(
            f"MPI was initialised with {names[MPI.Query_thread()]}, but fusionctl calls it from a thread of its own "
            "and needs MPI_THREAD_SERIALIZED or more; set mpi4py.rc.thread_level = 'multiple' before its import"
        )
    check_launcher()


def check_launcher() -> None:
    """MPIError when the launcher started more ranks than this MPI library sees."""
    said = launcher_size()
    if said is not None and said.size != MPI.COMM_WORLD.Get_size():
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        raise MPIError(
            f"{said.variable} says that {said.size} ranks were started, but MPI ({library}) sees "
            f"{MPI.COMM_WORLD.Get_size()}: this mpirun belongs to another MPI than the one mpi4py loaded; use the "
            f"mpirun beside {sys.executable}, or the one of that library"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: on its node, among the ranks of its local rank on other nodes, and beside its programme."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool
    threads_multiple: bool


def place_in(comm: MPI.Intracomm) -> Place:
    """This rank's place; collective.  Nodes are what shares memory."""
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cross = comm.Split(local.Get_rank(), comm.Get_rank())
    sizes = comm.allgather(local.Get_size())
    place = Place(
        local.Get_rank(),
        local.Get_size(),
        cross.Get_rank(),
        cross.Get_size(),
        homogeneous=len(set(sizes)) == 1,
        threads_multiple=MPI.Query_thread() == MPI.THREAD_MULTIPLE,
    )
    local.Free()
    cross.Free()
    return place


def on_one_node(comm: MPI.Intracomm) -> bool:
    """Whether all ranks share memory; collective."""
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    together: bool = local.Get_size() == comm.Get_size()
    local.Free()
    return together


def share_memory(comm: MPI.Intracomm, nbytes: int) -> tuple[MPI.Win, list[int]]:
    """The window of a segment from each rank, and this rank's addresses of all, in rank order; collective.

    The ranks are on one node.  The segments are zeros.
    """
    window = MPI.Win.Allocate_shared(nbytes, comm=comm)
    segments = [window.Shared_query(rank)[0] for rank in range(comm.Get_size())]
    segments[comm.Get_rank()][:] = bytes(nbytes)
    comm.Barrier()
    return window, [segment.address for segment in segments]


def mpi_handles(control: MPI.Intracomm, data: MPI.Intracomm) -> dict[str, Any]:
    """What the engine calls MPI with, as integers: communicators, datatypes and ops."""
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


def abort() -> None:
    """End the job on all ranks at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)


def end_job_on_error() -> None:
    """From now on a rank that raises ends the job everywhere, after its traceback is printed; idempotent.

    The other ranks would wait for it, if only in MPI_Finalize.  An interactive interpreter goes on, and a process that
    was forked from a rank ends alone.
    """
    previous = sys.excepthook
    if getattr(previous, "ends_the_job", False):
        return

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        previous(kind, error, where)
        alone = not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1
        if not alone and not is_forked() and not hasattr(sys, "ps1"):
            abort()

    hook.ends_the_job = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def meet(comm: MPI.Intracomm, patience: float) -> None:
    """Sleep until all ranks are here; after `patience` seconds log that some are not."""
    barrier, begun, told = comm.Ibarrier(), time.monotonic(), False
    nap = 1e-4
    while not barrier.Test():
        time.sleep(nap)
        nap = min(1.5 * nap, 0.05)
        if not told and time.monotonic() - begun > patience:
            told = True
            logging.getLogger("fusionctl").warning(
                "rank %d has waited in init() for %.0f s: some ranks have not called it", comm.Get_rank(), patience
            )


def where_is_main_thread() -> str:
    """File, line and function of the innermost frame of the main thread that belongs to the user's programme."""
    frame = innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "unknown"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_foreign(file: str) -> bool:
    """Whether code is fusionctl's own, generated, or of an installed package."""
    return file.startswith((str(Path(__file__).parent), "<frozen")) or file == "<string>" or "site-packages" in file
