"""Settings change how a job runs and never what it computes; a rank that waits costs nothing."""

from __future__ import annotations

import pytest

from fusionctl.config import ALLREDUCES
from launch import mpirun

SUMS = """
import hashlib
import ml_dtypes, numpy as np
import fusionctl

fusionctl.init()
rank, digest = fusionctl.rank(), hashlib.sha256()
for dtype in ("float16", ml_dtypes.bfloat16, "float32", "float64", "int32", "int64"):
    for n in (0, 1, 2, 7, 249, 1000, 4097):
        array = ((np.arange(n) + 3 * rank) % 7 - 3).astype(dtype)
        for op in (fusionctl.Sum, fusionctl.Min, fusionctl.Max, fusionctl.Average):
            digest.update(fusionctl.allreduce(array, f"{array.dtype}.{n}.{op}", op).tobytes())
mixed = [np.full(700, rank, dtype) for dtype in ("float32", "int64", "float32", "float64")]
for array in fusionctl.grouped_allreduce(mixed, "mixed", fusionctl.Sum):
    digest.update(array.tobytes())
digest.update(fusionctl.broadcast(np.arange(3000) + rank, fusionctl.size() - 1, "broadcast").tobytes())
print(digest.hexdigest())
"""
"""Prints one word for the results: of small whole numbers, whose sums are exact in whatever order."""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_results_do_not_depend_on_the_settings(size: int) -> None:
    settings = [
        {},
        {"FUSIONCTL_ALLREDUCE": "mpi"},
        {"FUSIONCTL_ALLREDUCE": "ring"},
        {"FUSIONCTL_ALLREDUCE": "direct"},
        {"FUSIONCTL_ALLREDUCE": "shm"},
        {"FUSIONCTL_ALLREDUCE": "mpi", "FUSIONCTL_CHUNK_LIMIT": "1000"},
        {"FUSIONCTL_ALLREDUCE": "ring", "FUSIONCTL_CHUNK_LIMIT": "1000"},
        {"FUSIONCTL_ALLREDUCE": "direct", "FUSIONCTL_CHUNK_LIMIT": "1000"},
        {"FUSIONCTL_FUSION_THRESHOLD": "0"},
        {"FUSIONCTL_CACHE_CAPACITY": "2"},
    ]
    words = [word for env in settings for word in mpirun(SUMS, size, env=env).check().out]
    assert words == [words[0]] * (size * len(settings))


def test_results_do_not_depend_on_the_schedule() -> None:
    jobs = [mpirun(SUMS, 4, env={"FUSIONCTL_ALLREDUCE": name, "FUSIONCTL_CHUNK_LIMIT": "1000"}) for name in ALLREDUCES]
    words = [word for job in jobs for word in job.check().out]
    assert words == [words[0]] * (4 * len(ALLREDUCES))


def test_initialised_ranks_that_do_nothing_use_no_processor() -> None:
    source = """
import time
import numpy as np
import fusionctl

fusionctl.init()
fusionctl.allreduce(np.ones(4))
time.sleep(0.5)
used, began = time.process_time(), time.monotonic()
time.sleep(3)
print(round(100 * (time.process_time() - used) / (time.monotonic() - began)))
"""
    assert mpirun(source, 4).check().out == ("0\n",) * 4


def test_init_after_shutdown() -> None:
    source = """
import numpy as np
import fusionctl

for _ in range(3):
    fusionctl.init()
    fusionctl.init()
    print(fusionctl.allreduce(np.full(2, fusionctl.rank() + 1.0), "t", fusionctl.Sum).tolist())
    fusionctl.shutdown()
    fusionctl.shutdown()
print(fusionctl.is_initialized())
"""
    assert mpirun(source, 3).check().out == ("[6.0, 6.0]\n" * 3 + "False\n",) * 3


def test_an_mpi_that_fusionctl_did_not_initialise_stays_usable() -> None:
    source = """
from mpi4py import MPI
import numpy as np
import fusionctl

fusionctl.init()
fusionctl.allreduce(np.ones(2))
fusionctl.shutdown()
print(MPI.Is_finalized(), MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank()))
"""
    assert mpirun(source, 3).check().out == ("False 3\n",) * 3
