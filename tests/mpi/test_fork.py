"""The law: a process forked from a rank is refused with advice, and its end, of whatever kind, is nobody else's."""

from __future__ import annotations

import pytest

from launch import mpirun

PROGRAMME = """
import faulthandler, os, sys, time
import numpy as np, fusionctl
fusionctl.init()
fusionctl.allreduce(np.ones(4), "before")

def child():
    {child}

faulthandler.cancel_dump_traceback_later()  # the watchdog's thread, which a fork's exit would wait for
process = os.fork()
if process == 0:
    child()
    sys.exit(3)
deadline = time.monotonic() + 20
while (ended := os.waitpid(process, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.05)
print("child:", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs", flush=True)
print("parent:", fusionctl.allreduce(np.ones(1), "after", fusionctl.Sum))
"""

REFUSED = (
    "was forked after {}, and the engine and MPI stayed in its parent: use the spawn or forkserver start method, or "
    "create workers before init() and leave communication to the parent"
)


@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("fusionctl.allreduce(np.ones(4), 'child')", "init()"),
        ("fusionctl.rank()", "init()"),
        ("fusionctl.init()", "MPI was started"),
    ],
)
def test_calls_in_a_forked_process_are_refused(call: str, when: str) -> None:
    child = f"try: {call}\n    except fusionctl.UsageError as error: print(error, flush=True)"
    out = mpirun(PROGRAMME.format(child=child), 2).check().out
    wanted = f"this process {REFUSED.format(when)}\nchild: 3\nparent: [2.]\n"
    assert out == (wanted, wanted)


@pytest.mark.parametrize(
    ("child", "code"),
    [
        ("assert not fusionctl.is_initialized()", 3),
        ("fusionctl.shutdown()", 3),
        ("sys.exit()", 0),
        ("os._exit(4)", 4),
        ("raise ValueError('only in the child')", 1),
    ],
)
def test_however_a_forked_process_ends_the_job_goes_on(child: str, code: int) -> None:
    out = mpirun(PROGRAMME.format(child=child), 2).check().out
    assert out == (f"child: {code}\nparent: [2.]\n",) * 2


def test_workers_of_multiprocessing() -> None:
    source = """
import multiprocessing, numpy as np, fusionctl
def work(x):
    return x * x
if __name__ == "__main__":
    fusionctl.init()
    fusionctl.allreduce(np.ones(4), "before")
    for method in ("fork", "forkserver", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, [1, 2, 3]))
    print(fusionctl.allreduce(np.ones(1), "after", fusionctl.Sum))
"""
    out = mpirun(source, 2).check().out
    assert out == ("fork [1, 4, 9]\nforkserver [1, 4, 9]\nspawn [1, 4, 9]\n[2.]\n",) * 2


def test_mpi_ends_with_the_programme() -> None:
    source = """
import atexit
atexit.register(lambda: print("last:", MPI.Is_finalized()))
import fusionctl
from mpi4py import MPI
atexit.register(lambda: print("first:", MPI.Is_finalized()))
fusionctl.init()
"""
    assert mpirun(source, 2).check().out == ("first: False\nlast: True\n",) * 2
