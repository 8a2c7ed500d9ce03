"""What the reduction adds to a step of many tiny variables in one tf.function, measured alternately in one run.

    mpirun -np 2 python scripts/bench/step_overhead.py

Each step computes the gradients of the variables and subtracts them.  "tape" reduces them through
DistributedGradientTape (one submission for each, one wait), "allreduce" by separate calls of `allreduce`.  Prints the
medians over the repetitions of the slowest rank's time, and the tensors a step sends through the engine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from mpi4py import MPI

import fusionctl
import fusionctl.tensorflow as fusion

Step = Callable[[tf.Tensor], tf.Tensor]


def make_steps(n: int, length: int) -> dict[str, Step]:
    """The same step without communication, through the tape and by separate calls."""
    variables = [tf.Variable(np.full(length, k, np.float32), name=f"v{k}") for k in range(n)]

    def step(reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]], distributed: bool) -> Step:
        def run(x: tf.Tensor) -> tf.Tensor:
            tape = tf.GradientTape()
            with fusion.DistributedGradientTape(tape) if distributed else tape as recording:
                loss = tf.add_n([tf.reduce_sum(v * v * x) for v in variables])
            for variable, grad in zip(variables, reduce(recording.gradient(loss, variables)), strict=True):
                variable.assign_sub(0.001 * grad)
            return loss

        return tf.function(run, autograph=False)  # type: ignore[no-any-return]

    def separately(grads: list[tf.Tensor]) -> list[tf.Tensor]:
        return [fusion.allreduce(grad, name=f"separate.{k}") for k, grad in enumerate(grads)]

    return {
        "plain": step(lambda grads: grads, False),
        "tape": step(lambda grads: grads, True),
        "allreduce": step(separately, False),
    }


def timed(step: Step, x: tf.Tensor) -> float:
    """Seconds that the slowest rank needs for one step, all starting together."""
    MPI.COMM_WORLD.Barrier()
    begun = time.perf_counter()
    step(x).numpy()
    return float(MPI.COMM_WORLD.allreduce(time.perf_counter() - begun, MPI.MAX))


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variables", type=int, default=200)
    parser.add_argument("--length", type=int, default=4, help="floats in each variable")
    parser.add_argument("--repetitions", type=int, default=300)
    options = parser.parse_args()
    fusionctl.init()
    steps = make_steps(options.variables, options.length)
    x = tf.constant(1.0)
    for step in steps.values():
        for _ in range(20):
            timed(step, x)
    seconds = {name: np.empty(options.repetitions) for name in steps}
    for repetition in range(options.repetitions):
        for name, step in steps.items():
            seconds[name][repetition] = timed(step, x)
    if fusionctl.rank() == 0:
        report(seconds, options.variables)
    fusionctl.shutdown()


def report(seconds: dict[str, np.ndarray], n: int) -> None:
    """One row for each kind of step; the added time is the median of the paired differences."""
    print(f"{n} variables, {fusionctl.size()} ranks, TensorFlow {tf.__version__}")
    print(f"{'step':>10} {'ms':>8} {'added ms':>9} {'us a tensor':>12}")
    for name, times in seconds.items():
        added = float(np.median(times - seconds["plain"]))
        print(f"{name:>10} {np.median(times) * 1e3:>8.2f} {added * 1e3:>9.2f} {added / n * 1e6:>12.1f}")


if __name__ == "__main__":
    main()
