"""One all-reduce through the engine against mpi4py's Allreduce, alternately in one run.

    mpirun -np 2 python scripts/bench/allreduce.py

Prints the medians over the repetitions of the slowest rank's time, per size.  Both sum float32 from one array into
another; the engine's call is the NumPy API's, with the name look-up and the hand-over between threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import fusionctl

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


def main() -> None:
    """Measure every size and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=3.0, help="seconds per size")
    budget = parser.parse_args().budget
    fusionctl.init()
    if fusionctl.rank() == 0:
        print(f"{'bytes':>12} {'engine us':>12} {'MPI us':>12} {'MPI/engine':>11}   {fusionctl.size()} ranks")
    for nbytes in SIZES:
        engine, raw = measure(nbytes, budget)
        if fusionctl.rank() == 0:
            print(f"{nbytes:>12} {engine * 1e6:>12.1f} {raw * 1e6:>12.1f} {raw / engine:>11.2f}", flush=True)
    fusionctl.shutdown()


if __name__ == "__main__":
    main()
