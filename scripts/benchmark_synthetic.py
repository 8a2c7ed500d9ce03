"""Throughput of a Keras model of images in training, on random data, so that nothing is read or downloaded.

mpirun -np 2 python scripts/benchmark_synthetic.py
mpirun -np 2 python scripts/benchmark_synthetic.py --model ResNet50 --batch-size 8 --fp16-allreduce --compare

With --compare, blocks of steps that reduce the gradients and of steps that keep them on each rank are measured in turn.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or every rank tells of its CPU
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf

import fusionctl.tensorflow as fusion

Step = Callable[[], tf.Tensor]


def main() -> None:
    """Measure, and print what rank 0 knows of all ranks."""
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    fusion.init()
    keras.utils.set_random_seed(fusion.rank())
    model, reduced, local = build(options)
    if fusion.rank() == 0:
        size = f"{options.image_size} x {options.image_size}"
        print(f"{options.model}, {model.count_params():,} parameters, {options.batch_size} images of {size} a step")
        print(f"{fusion.size()} ranks, TensorFlow {tf.__version__}")

    steps = [local, reduced] if options.compare else [reduced]
    for step in steps:
        timed(step, options.num_warmup_batches)
    seconds = np.array(
        [[timed(step, options.num_batches_per_iter) for step in steps] for _ in range(options.num_iters)]
    )
    seconds /= options.num_batches_per_iter
    everyone = fusion.allgather(seconds[np.newaxis], name="seconds").numpy()  # by rank, iteration and kind of step
    if fusion.rank() == 0:
        report_rates(options.batch_size / everyone[:, :, -1])
        if options.compare:
            report_cost(*np.median(everyone.max(axis=0), axis=0))


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Measure training on random images.")
    parser.add_argument("--model", default="MobileNetV2", help="name of a model in keras.applications")
    parser.add_argument("--batch-size", type=int, default=8, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--num-warmup-batches", type=int, default=5, help="steps before the measured ones")
    parser.add_argument("--num-batches-per-iter", type=int, default=5, help="steps that are measured as one")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--threads", type=int, default=1, help="threads of TensorFlow per rank; 0 for all processors")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--adasum", action="store_true", help="combine gradients by Adasum and not by their average")
    parser.add_argument("--compare", action="store_true", help="measure steps without reduction too")
    options = parser.parse_args()
    if not callable(getattr(keras.applications, options.model, None)):
        parser.error(f"--model {options.model}: there is no such model in keras.applications")
    return options


def build(options: argparse.Namespace) -> tuple[keras.Model, Step, Step]:
    """The model, a step that reduces its gradients over the ranks, and one that applies this rank's."""
    shape = (options.image_size, options.image_size, 3)
    model = getattr(keras.applications, options.model)(weights=None, input_shape=shape)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    fusion.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    images = tf.random.uniform([options.batch_size, *shape])
    labels = tf.random.uniform([options.batch_size], maxval=1000, dtype=tf.int64)
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    def make_step(tape_of: Callable[[], Any]) -> Step:
        @tf.function  # type: ignore[untyped-decorator]
        def step() -> tf.Tensor:
            with tape_of() as tape:
                loss = loss_of(labels, model(images, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
            return loss

        return step  # type: ignore[no-any-return]

    def distributed_tape() -> Any:
        return fusion.DistributedGradientTape(
            tf.GradientTape(),
            compression=fusion.Compression.fp16 if options.fp16_allreduce else fusion.Compression.none,
            op=fusion.Adasum if options.adasum else fusion.Average,
        )

    return model, make_step(distributed_tape), make_step(tf.GradientTape)


def timed(step: Step, batches: int) -> float:
    """Seconds that this rank needs for some steps, which all ranks begin together."""
    fusion.barrier()
    begun = time.perf_counter()
    for loss in [step() for _ in range(batches)]:
        loss.numpy()
    return time.perf_counter() - begun


def report_rates(rates: np.ndarray) -> None:
    """Images per second, of a rank and of all; `rates` are by rank and iteration."""
    for who, values in (("per rank", rates), ("total", rates.sum(axis=0))):
        print(f"img/s {who}: {values.mean():.1f} +-{1.96 * values.std():.1f}")


def report_cost(local: float, reduced: float) -> None:
    """What the reduction costs, from the median of each kind of step's time on the slowest rank."""
    print(f"a step takes {1e3 * local:.1f} ms without reduction and {1e3 * reduced:.1f} ms with it")
    print(f"ratio {reduced / local:.3f}: the reduction is {100 * (1 - local / reduced):.1f} % of the time")


if __name__ == "__main__":
    main()
