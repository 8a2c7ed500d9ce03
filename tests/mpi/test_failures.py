"""What users meet first: ranks that fail, disagree, repeat themselves or come late, and an MPI that is of no use.

Each test starts a whole job and reads what the ranks printed and how the job ended.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from launch import Job, is_open_mpi, mpirun

SOON = 20.0
"""Seconds after which a job that should have ended counts as hung: the 10 s that are promised, and the start."""

START = """
import os, signal, sys, time
import numpy as np, fusionctl
fusionctl.init()
rank = fusionctl.rank()
"""
LOOP = "while True:\n    fusionctl.allreduce(np.ones(4), 'loop')\n"
CATCH = """
try:
    {call}
except fusionctl.FusionctlError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def everything(job: Job) -> str:
    """All that a user sees of a job, in no order."""
    return "\n".join([job.mpirun, *job.out, *job.err])


def caught(call: str, size: int, after: str = "") -> tuple[str, ...]:
    """What each rank printed of the error that a call raised there; the job goes on and ends well."""
    return mpirun(START + CATCH.format(call=call) + after, size).check().out


def mismatch(difference: str, field: str) -> str:
    """What each rank prints of a mismatch."""
    return f"MismatchError: {difference}; submit the same {field} on every rank\n"


# -- a rank that ends before its time ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("raise ArithmeticError('the third step is wrong')", "ArithmeticError: the third step is wrong"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9|[Kk]illed"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11|[Ss]egmentation fault"),
    ],
)
def test_a_rank_that_fails_ends_the_job(end: str, cause: str, size: int) -> None:
    source = f"{START}fusionctl.allreduce(np.ones(4), 'loop')\nif rank == 1:\n    {end}\n{LOOP}"
    job = mpirun(source, size, timeout=SOON)
    assert job.returncode != 0
    assert re.search(cause, everything(job)), str(job)


def test_a_rank_that_exits_with_an_error_ends_the_job() -> None:
    source = f"{START}fusionctl.allreduce(np.ones(4), 'loop')\nif rank == 1:\n    sys.exit('out of data')\n{LOOP}"
    job = mpirun(source, 2, timeout=SOON)
    assert job.returncode != 0
    assert "out of data" in job.err[1]
    assert "PeerError: the job ended before every rank submitted this tensor: rank 1 left" in job.err[0]


def test_a_rank_that_shuts_down_fails_what_the_others_wait_for() -> None:
    out = caught("fusionctl.shutdown() if rank == 2 else fusionctl.allreduce(np.ones(4), 'alone')", 3)
    text = (
        "PeerError: the job ended before every rank submitted this tensor: rank 2 left (by shutdown(), or at the end "
        "of the programme)\n"
    )
    assert out == (text, text, "")


# -- ranks that disagree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "first", "second"),
    [
        ("np.ones(2 + rank), 't'", "shape", "(2,)", "(3,)"),
        ("np.ones((4, 1 + rank)), 't'", "shape", "(4, 1)", "(4, 2)"),
        ("np.ones(2, ['f4', 'i8'][rank]), 't'", "dtype", "float32", "int64"),
        ("np.ones(2), 't', [fusionctl.Sum, fusionctl.Max][rank]", "op", "sum", "max"),
        ("np.ones(2), 't', prescale_factor=1 + rank", "prescale_factor", "1.0", "2.0"),
    ],
)
def test_a_mismatch_is_the_same_error_on_every_rank(arguments: str, field: str, first: str, second: str) -> None:
    expected = mismatch(f"tensor 't': {field} is {first} on rank 0 and {second} on rank 1", field)
    assert caught(f"fusionctl.allreduce({arguments})", 2) == (expected,) * 2


def test_roots_that_differ() -> None:
    expected = mismatch("tensor 't': root_rank is 0 on rank 0 and 1 on rank 1", "root_rank")
    assert caught("fusionctl.broadcast(np.ones(2), rank, 't')", 2) == (expected,) * 2


def test_a_mismatch_names_all_ranks_by_their_values() -> None:
    expected = mismatch("tensor 't': shape is (1,) on ranks 0, 2 and (5,) on rank 1", "shape")
    assert caught("fusionctl.allreduce(np.ones(5 if rank == 1 else 1), 't')", 3) == (expected,) * 3


def test_a_tensor_of_a_group_that_one_rank_lacks() -> None:
    expected = mismatch("tensor 'g.2' of group 'g' is announced on ranks 0, 2, but not on rank 1", "tensors")
    call = "fusionctl.grouped_allreduce([np.ones(2)] * (2 if rank == 1 else 3), 'g')"
    assert caught(call, 3) == (expected,) * 3


def test_after_a_mismatch_the_job_goes_on() -> None:
    expected = mismatch("tensor 't': shape is (2,) on rank 0 and (3,) on rank 1", "shape") + "[3.0, 3.0]\n"
    after = "print(fusionctl.allreduce(np.full(2, rank + 1.0), 't', fusionctl.Sum).tolist())"
    assert caught("fusionctl.allreduce(np.ones(2 + rank), 't', fusionctl.Sum)", 2, after) == (expected,) * 2


# -- a rank that repeats itself, or comes late ------------------------------------------------------------------------


def test_a_name_that_is_still_in_flight() -> None:
    source = f"""{START}
if rank == 0:
    first = fusionctl.allreduce_async(np.ones(2), 't', fusionctl.Sum)
    try:
        fusionctl.allreduce(np.ones(2), 't', fusionctl.Sum)
    except fusionctl.UsageError as error:
        print(error)
    fusionctl.barrier()
else:
    fusionctl.barrier()
    first = fusionctl.allreduce_async(np.ones(2), 't', fusionctl.Sum)
print(first.result(30).tolist())
"""
    text = (
        "tensor 't' is still in flight on this rank: wait for it before submitting it again, or give the second tensor "
        "a name of its own\n"
    )
    assert mpirun(source, 2).check().out == (text + "[2.0, 2.0]\n", "[2.0, 2.0]\n")


def test_a_late_rank_is_reported() -> None:
    source = f"""{START}
def prepare():
    time.sleep(5)
if rank == 1:
    prepare()
fusionctl.allreduce(np.ones(2), 'late')
"""
    err = mpirun(source, 3, env={"FUSIONCTL_STALL_CHECK_TIME": "1"}).check().err
    head = r"\[fusionctl rank 0\] WARNING [-0-9]+ [0-9:,]+ "
    report = (
        rf"{head}stalled for [12] s: tensor 'late' was submitted on ranks 0, 2, but not on rank 1\n"
        rf"{head}  rank 1 is at programme\.py:\d+ in prepare, waits for no tensor\n"
    )
    assert re.match(report, err[0]), err[0]
    assert err[1:] == ("", "")


def test_ranks_that_wait_for_different_tensors_are_reported() -> None:
    source = f"""{START}
future = fusionctl.allreduce_async(np.ones(2), ['a', 'b'][rank])
time.sleep(5)
fusionctl.allreduce(np.ones(2), ['b', 'a'][rank])
future.result(30)
"""
    err = mpirun(source, 2, env={"FUSIONCTL_STALL_CHECK_TIME": "1"}).check().err
    for tensor, has, lacks, other in (("a", 0, 1, "b"), ("b", 1, 0, "a")):
        assert f"tensor '{tensor}' was submitted on rank {has}, but not on rank {lacks}\n" in err[0]
        assert re.search(rf"rank {lacks} is at programme\.py:\d+ in .*, waits for tensor '{other}'\n", err[0]), err[0]


# -- a rank that never gets through init() -----------------------------------------------------------------------------


def test_a_rank_that_raises_before_init_ends_the_job() -> None:
    source = """
from mpi4py import MPI
import fusionctl

if MPI.COMM_WORLD.Get_rank() == 1:
    raise ArithmeticError("before init")
fusionctl.init()
"""
    job = mpirun(source, 3, timeout=SOON)
    assert job.returncode != 0
    assert "ArithmeticError: before init" in everything(job)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("CYCLE_TIME", "nan", "FUSIONCTL_CYCLE_TIME='nan' cannot be used"),
        ("TIMELINE", "/proc/x", "timeline: /proc/x/rank1.json cannot be written"),
    ],
)
def test_a_setting_that_one_rank_cannot_use_is_an_error_on_all(variable: str, value: str, text: str) -> None:
    source = f"""
import os
from mpi4py import MPI

if MPI.COMM_WORLD.Get_rank() == 1:
    os.environ["FUSIONCTL_{variable}"] = {value!r}
import fusionctl
try:
    fusionctl.init()
except fusionctl.ConfigError as error:
    print(error)
"""
    for out in mpirun(source, 3, timeout=SOON).check().out:
        assert out.startswith(f"rank 1 can not start: {text}")


# -- an MPI that cannot carry the engine ------------------------------------------------------------------------------


def test_the_mpirun_of_another_mpi_is_refused() -> None:
    variable = "PMI_SIZE" if is_open_mpi() else "OMPI_COMM_WORLD_SIZE"
    run = subprocess.run(
        [sys.executable, "-P", "-c", "import fusionctl\nfusionctl.init()"],
        env={**os.environ, variable: "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    expected = (
        rf"fusionctl\.errors\.MPIError: {variable} says that 2 ranks were started, but MPI \(.*\) sees 1: this mpirun "
        rf"belongs to another MPI than the one mpi4py loaded; use the mpirun beside {re.escape(sys.executable)}, or "
        r"the one of that library\n$"
    )
    assert re.search(expected, run.stderr), run.stderr


@pytest.mark.parametrize(("level", "name"), [("single", "MPI_THREAD_SINGLE"), ("funneled", "MPI_THREAD_FUNNELED")])
def test_a_thread_level_that_is_too_low_is_refused(level: str, name: str) -> None:
    source = f"import mpi4py\nmpi4py.rc.thread_level = {level!r}\nimport fusionctl\nfusionctl.init()"
    job = mpirun(source, 2, timeout=SOON)
    assert job.returncode != 0
    expected = (
        f"fusionctl.errors.MPIError: MPI was initialised with {name}, but fusionctl calls it from a thread of its own "
        "and needs MPI_THREAD_SERIALIZED or more; set mpi4py.rc.thread_level = 'multiple' before its import\n"
    )
    assert expected in everything(job)  # the first rank to raise ends the other, which may be about to say the same


def test_a_finalised_mpi_is_refused() -> None:
    source = f"from mpi4py import MPI\nimport fusionctl\nMPI.Finalize(){CATCH.format(call='fusionctl.init()')}"
    text = "MPIError: MPI is finalised already; call fusionctl.init() before MPI.Finalize()\n"
    assert mpirun(source, 2).check().out == (text, text)


def test_settings_that_differ_are_refused_on_every_rank() -> None:
    source = f"""
import os
from mpi4py import MPI
os.environ["FUSIONCTL_FUSION_THRESHOLD"] = ["1MB", "2MB"][MPI.COMM_WORLD.Get_rank() == 1]
import fusionctl
{CATCH.format(call="fusionctl.init()")}"""
    text = (
        "ConfigError: the ranks' settings differ: fusion_threshold=1048576 (from FUSIONCTL_FUSION_THRESHOLD) on ranks "
        "0, 2, fusion_threshold=2097152 (from FUSIONCTL_FUSION_THRESHOLD) on rank 1; set the same on all ranks (mpirun "
        "-genv NAME VALUE, under Open MPI -x NAME=VALUE)\n"
    )
    assert mpirun(source, 3).check().out == (text,) * 3


def test_a_call_before_init_is_refused() -> None:
    source = f"import numpy as np, fusionctl{CATCH.format(call='fusionctl.allreduce(np.ones(2))')}"
    text = "UsageError: fusionctl has not been initialised; call fusionctl.init() first\n"
    assert mpirun(source, 1).check().out == (text,)
