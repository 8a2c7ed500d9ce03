"""One all-reduce through the engine against mpi4py's Allreduce, alternately in one run.

    mpirun -np 2 python scripts/bench/allreduce.py

Prints the medians over the repetitions of the slowest rank's time, per size.  Both sum float32 from one array into
another; the engine's call is the NumPy API's, with the name look-up and the hand-over between threads.  Where the
ranks are on one node, `--bound` adds what no all-reduce can beat: vectors that are in shared memory before and after.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

import fusionctl
from fusionctl.job import meet

SIZES = (4, 64 << 10, 1 << 20, 16 << 20, 256 << 20)


def timed(call: Callable[[], object]) -> float:
    """Seconds that the slowest rank needs for one call, all starting together."""
    MPI.COMM_WORLD.Barrier()
    begun = time.perf_counter()
    call()
    return float(MPI.COMM_WORLD.allreduce(time.perf_counter() - begun, MPI.MAX))


def repetitions(nbytes: int, budget: float) -> int:
    """How often a size is measured: more often the smaller it is, for about `budget` seconds."""
    return max(5, min(1000, int(budget / (2e-4 + 2e-9 * nbytes))))


def measure(nbytes: int, budget: float) -> tuple[float, float]:
    """Median seconds of the engine and of MPI."""
    send = np.full(nbytes // 4, MPI.COMM_WORLD.Get_rank(), np.float32)
    receive = np.empty_like(send)
    name = f"bench.{nbytes}"
    fusionctl.allreduce(send, name, fusionctl.Sum)
    engine, raw = [], []
    for _ in range(repetitions(nbytes, budget)):
        engine.append(timed(lambda: fusionctl.allreduce(send, name, fusionctl.Sum, out=receive)))
        raw.append(timed(lambda: MPI.COMM_WORLD.Allreduce(send, receive)))
    return float(np.median(engine)), float(np.median(raw))


def bounds(ranks: int) -> list[float]:
    """Median seconds of shared_memory.c for each size."""
    with tempfile.TemporaryDirectory() as folder:
        programme = Path(folder, "shared_memory")
        source = Path(__file__).with_suffix("").with_name("shared_memory.c")
        subprocess.run(["gcc", "-O3", "-march=native", "-o", programme, source], check=True)
        sizes = [str(nbytes) for nbytes in SIZES]
        said = subprocess.run([programme, str(ranks), *sizes], check=True, capture_output=True, text=True).stdout
    return [float(line) / 1e6 for line in said.split()]


def main() -> None:
    """Measure every size and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds per size")
    parser.add_argument("--bound", action="store_true", help="measure the bound of shared memory too (needs gcc)")
    options = parser.parse_args()
    first = MPI.COMM_WORLD.Get_rank() == 0
    least = bounds(MPI.COMM_WORLD.Get_size()) if options.bound and first else [float("nan")] * len(SIZES)
    meet(MPI.COMM_WORLD, 3600)  # asleep, while the first rank measures the bound
    fusionctl.init()
    if first:
        heads = ("engine us", "MPI us", "MPI/engine", "bound us", "engine/bound")
        print(f"{'bytes':>10}" + "".join(f"{head:>13}" for head in heads) + f"   {fusionctl.size()} ranks")
    for nbytes, bound in zip(SIZES, least, strict=True):
        engine, raw = measure(nbytes, options.budget)
        if first:
            times = (engine * 1e6, raw * 1e6, raw / engine, bound * 1e6, engine / bound if bound else float("nan"))
            print(f"{nbytes:>10}" + "".join(f"{each:>13.2f}" for each in times), flush=True)


if __name__ == "__main__":
    main()
