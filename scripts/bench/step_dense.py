"""A training step of a deep dense network: alone, through fusionctl, and through TensorFlow's own strategy, in one run.

    mpirun -np 2 python scripts/bench/step_dense.py

50 square matrices, 4.8 million float32 parameters, batch 64, one intra-op thread a rank.  "alone" does not communicate,
"fusionctl" reduces by DistributedGradientTape, "multiworker" is tf.distribute.MultiWorkerMirroredStrategy between the
same processes, over loopback ports.  Measured alternately; prints medians over the steps of the slowest rank's time.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import tensorflow as tf
from mpi4py import MPI

import fusionctl
import fusionctl.tensorflow as fusion

Step = Callable[[tf.Tensor], tf.Tensor]
Wrap = Callable[[tf.GradientTape], AbstractContextManager[tf.GradientTape]]
WORLD = MPI.COMM_WORLD


def connect() -> tf.distribute.MultiWorkerMirroredStrategy:
    """The strategy, with every rank a worker; TensorFlow wants it made before anything else."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        workers = WORLD.allgather(f"localhost:{free.getsockname()[1]}")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=WORLD.Get_rank(), rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver)


def make_variables(n: int, width: int) -> list[tf.Variable]:
    """Matrices that keep the activations' size."""
    random = np.random.default_rng(1)
    return [tf.Variable(random.normal(0, width**-0.5, (width, width)).astype(np.float32)) for _ in range(n)]


def make_step(variables: list[tf.Variable], wrap: Wrap) -> Step:
    """Forward, backward and update; plain gradient descent."""
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1e-3)

    def step(x: tf.Tensor) -> tf.Tensor:
        with wrap(tf.GradientTape()) as tape:
            for variable in variables:
                x = tf.nn.relu(x @ variable)
            loss = tf.reduce_mean(x**2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step


def make_steps(strategy: tf.distribute.Strategy, n: int, width: int) -> dict[str, Step]:
    """The three kinds of step, each with variables of its own."""
    alone = make_step(make_variables(n, width), lambda tape: tape)
    distributed = make_step(make_variables(n, width), fusion.DistributedGradientTape)
    with strategy.scope():
        mirrored = make_step(make_variables(n, width), lambda tape: tape)
    return {
        "alone": tf.function(alone),
        "fusionctl": tf.function(distributed),
        "multiworker": tf.function(lambda x: strategy.run(mirrored, args=(x,))),
    }


def timed(step: Step, x: tf.Tensor) -> float:
    """Seconds that the slowest rank needs for one step, all starting together."""
    WORLD.Barrier()
    begun = time.perf_counter()
    step(x).numpy()
    return float(WORLD.allreduce(time.perf_counter() - begun, MPI.MAX))


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=50)
    parser.add_argument("--width", type=int, default=310)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=40)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = connect()
    fusionctl.init()
    steps = make_steps(strategy, options.layers, options.width)
    x = tf.random.stateless_normal([options.batch, options.width], [fusionctl.rank(), 0])
    for step in steps.values():
        for _ in range(5):
            timed(step, x)
    seconds = {name: np.empty(options.repetitions) for name in steps}
    for repetition in range(options.repetitions):
        for name, step in steps.items():
            seconds[name][repetition] = timed(step, x)
    if fusionctl.rank() == 0:
        report(seconds, options.layers * options.width**2)
    fusionctl.shutdown()


def report(seconds: dict[str, np.ndarray], parameters: int) -> None:
    """One row for each kind of step."""
    alone = float(np.median(seconds["alone"]))
    print(f"{parameters / 1e6:.1f} M parameters, {fusionctl.size()} ranks, TensorFlow {tf.__version__}")
    print(f"{'step':>12} {'ms':>8} {'/ alone':>8}")
    for name, times in seconds.items():
        print(f"{name:>12} {np.median(times) * 1e3:>8.1f} {np.median(times) / alone:>8.2f}")
    print(f"multiworker / fusionctl: {np.median(seconds['multiworker']) / np.median(seconds['fusionctl']):.2f}")


if __name__ == "__main__":
    main()
