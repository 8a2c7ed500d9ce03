"""What each rank of a job runs: `rank.py FOLDER LIMIT SCRIPT ARGS...`, output to files, a watchdog, then the script.

The watchdog needs neither the GIL nor the main thread: at the limit a thread of faulthandler writes all stacks to
FOLDER/rankN.stacks, and a little later, so that every rank gets to do so, the kernel ends the process by SIGALRM.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import TextIO

DELAY = 3
"""Seconds between the stacks and the end: more than what the ranks start apart."""


def rank_of_launcher() -> int:
    """The rank that mpirun gave this process; MPI is not started yet."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return int(next(os.environ[name] for name in names if name in os.environ))


def redirect(folder: Path, rank: int) -> None:
    """Send stdout and stderr, also of C code, to the rank's own files."""
    for fd, kind in ((1, "out"), (2, "err")):
        file = os.open(folder / f"rank{rank}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, fd)
        os.close(file)


def arm(limit: float, stacks: TextIO) -> None:
    """End this process in `limit` seconds from now, after it has shown its stacks; arming again starts anew."""
    faulthandler.dump_traceback_later(limit, file=stacks)
    signal.setitimer(signal.ITIMER_REAL, limit + DELAY)


def prepare(folder: Path, rank: int) -> TextIO:
    """Stacks are shown on a crash and on SIGUSR1 too; returns the file that they go to."""
    stacks = (folder / f"rank{rank}.stacks").open("w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return stacks


def main(folder: str, limit: str, script: str, *args: str) -> None:
    """Run a script as if it had been started by itself."""
    rank = rank_of_launcher()
    redirect(Path(folder), rank)
    arm(float(limit), prepare(Path(folder), rank))
    sys.argv = [script, *args]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
