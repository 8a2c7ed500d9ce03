"""Runs a Python programme on N ranks under the mpirun of this interpreter's MPI, and ends it when it hangs."""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RANK = Path(__file__).with_name("rank.py")

GRACE = 15
"""Seconds past its limit after which a job that its own watchdogs did not end is killed from outside."""

OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",  # MPI_Init without probing for networks: 0.2 s instead of 1.5 s
    "OMPI_MCA_btl": "self,sm,tcp",
}

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Job:
    """How a job ended: mpirun's exit code and words, and by rank what went to stdout, to stderr, and the stacks."""

    size: int
    returncode: int
    seconds: float
    mpirun: str
    out: tuple[str, ...]
    err: tuple[str, ...]
    stacks: tuple[str, ...]

    def __str__(self) -> str:
        """All of it, rank by rank, for a failure message."""
        parts = [f"{self.size} ranks ended with exit code {self.returncode} after {self.seconds:.1f} s\n{self.mpirun}"]
        for rank in range(self.size):
            texts = {"stdout": self.out[rank], "stderr": self.err[rank], "stacks": self.stacks[rank]}
            parts += [f"--- rank {rank} {kind}\n{text[-8000:]}" for kind, text in texts.items() if text]
        return "\n".join(parts)

    def check(self) -> Job:
        """Return the job if it ended well; AssertionError with all its output otherwise."""
        assert self.returncode == 0, str(self)
        return self


def mpirun(
    script: str | Path,
    size: int,
    *args: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    folder: Path | None = None,
) -> Job:
    """Run a script (a Path) or a programme's text (a str) on `size` ranks; whatever the exit code, the Job is returned.

    After `timeout` seconds every rank writes the stacks of all its threads and the job is killed: AssertionError, with
    the stacks.  FUSIONCTL_* and HOROVOD_* variables of the caller are not passed on; those of `env` are.
    """
    with tempfile.TemporaryDirectory(prefix="mpirun-") as made:
        place = folder or Path(made)
        started = time.monotonic()
        target = _script(script, place)
        code, words = _run([*launcher(size), sys.executable, RANK, place, timeout, target, *args], env or {}, timeout)
        seconds = time.monotonic() - started
        texts = (
            tuple(_read(place / f"rank{rank}.{kind}") for rank in range(size)) for kind in ("out", "err", "stacks")
        )
        job = Job(size, code, seconds, words, *texts)
    if seconds >= timeout:
        raise AssertionError(f"hung for {timeout} s; {job}")
    return job


def launcher(size: int) -> list[str]:
    """The start of the command line that runs something on `size` ranks."""
    start = [mpirun_path(), "-np", str(size)]
    return [*start, "--oversubscribe", "--bind-to", "none"] if is_open_mpi() else start


@functools.cache
def mpirun_path() -> str:
    """The mpirun beside this interpreter, where the MPI wheels put it, else the one on PATH."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    assert found, f"no mpirun beside {sys.executable} nor on PATH: install the mpich or the openmpi extra"
    return found


@functools.cache
def is_open_mpi() -> bool:
    """Whether mpirun is Open MPI's."""
    version = subprocess.run([mpirun_path(), "--version"], env=_environ({}), capture_output=True, text=True, check=True)
    return "Open MPI" in version.stdout


def _script(script: str | Path, folder: Path) -> Path:
    if isinstance(script, Path):
        return script
    path = folder / "programme.py"
    path.write_text(script)
    return path


def _environ(env: Mapping[str, str]) -> dict[str, str]:
    foreign = re.compile("FUSIONCTL_|HOROVOD_|PMI|OMPI_|PRTE_|SLURM_")
    inherited = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    return {**inherited, **OPEN_MPI, **ONE_THREAD, **QUIET, **env}


def _run(command: list[object], env: Mapping[str, str], timeout: float) -> tuple[int, str]:
    process = subprocess.Popen(
        [str(part) for part in command],
        env=_environ(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        words, _ = process.communicate(timeout=timeout + GRACE)
    except BaseException as error:
        _kill(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        words, _ = process.communicate()
    return process.returncode, words


def _kill(process: subprocess.Popen[str]) -> None:
    """SIGTERM lets mpirun end its ranks, which may have process groups of their own; SIGKILL ends mpirun."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
