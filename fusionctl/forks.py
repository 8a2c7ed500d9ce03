"""Processes that a rank starts: they have neither engine nor MPI, are told so, and leave MPI alone when they end.

To be imported before MPI.  At exit mpi4py calls MPI_Finalize, in a forked process too, where it waits for ever and,
with MPICH, takes the job down.  So fusionctl does that instead, in the process that started MPI.  Where the programme
imported `mpi4py.MPI` first, or settled `mpi4py.rc.finalize`, that stays as it is, and such a process should end by
`os._exit`, as those of multiprocessing do.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from pathlib import Path

import mpi4py

from fusionctl.errors import UsageError

_PID = os.getpid()

FORKED = (
    "this process was forked after {}, and the engine and MPI stayed in its parent: use the spawn or forkserver start "
    "method, or create workers before init() and leave communication to the parent"
)


def is_forked() -> bool:
    """Whether this process is not the one that imported fusionctl."""
    return os.getpid() != _PID


def refuse_fork(when: str) -> None:
    """UsageError, with advice, in a process that was forked; `when` is what came before the fork."""
    if is_forked():
        raise UsageError(FORKED.format(when))


def is_worker() -> bool:
    """Whether this is a process of multiprocessing, or its forkserver, as it imports the main programme again."""
    importing = getattr(multiprocessing.current_process(), "_inheriting", False)  # the forkserver has no other mark
    return importing or multiprocessing.parent_process() is not None


def _finalize() -> None:
    """End MPI at exit, as mpi4py would."""
    if is_forked():
        return
    from mpi4py import MPI

    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def _mpi_is_loaded() -> bool:
    """Whether something in this process uses MPI already; who initialises it finalises it."""
    if "mpi4py.MPI" in sys.modules:
        return True
    maps = Path("/proc/self/maps")
    return maps.exists() and "/libmpi" in maps.read_text(errors="replace")


if is_worker():  # the launcher does not know it: MPI_Init would fail, and end it
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
elif mpi4py.rc.finalize is None and mpi4py.rc.initialize and not _mpi_is_loaded():
    mpi4py.rc.finalize = False
    atexit.register(_finalize)
