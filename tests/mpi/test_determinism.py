"""The law: on a fixed graph a training run repeats itself bit by bit, with fusion on, whatever the timing."""

from __future__ import annotations

import pytest

from launch import mpirun

TRAIN = """
import hashlib, random, sys, time
import keras, numpy as np, tensorflow as tf
import fusionctl, fusionctl.tensorflow as fusion
fusion.init()
keras.utils.set_random_seed(7)
shapes = [(17, 31), (31,), (31, 29), (29,), (29, 5), (5,)]
weights = [tf.Variable(np.random.standard_normal(shape) / 5, dtype=tf.float32, name=f"w{k}")
           for k, shape in enumerate(shapes)]
data = np.random.default_rng(fusion.rank()).standard_normal((8, 16, 17)).astype(np.float32)

@tf.function
def step(x):
    with fusion.DistributedGradientTape(tf.GradientTape(), **{options}) as tape:
        for kernel, bias in zip(weights[::2], weights[1::2]):
            x = tf.tanh(x @ kernel + bias)
        loss = tf.reduce_mean(x * x)
    for weight, grad in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.5 * grad)

jitter = random.Random(time.time_ns())
for k in range(40):
    if jitter.random() < 0.2:
        time.sleep(0.003 * jitter.random())  # no run arrives as another did
    step(data[k % 8])
everything = b"".join(weight.numpy().tobytes() for weight in weights)
print(hashlib.sha256(everything).hexdigest())
print(fusionctl.counters()["buckets"], file=sys.stderr)
"""


@pytest.mark.parametrize(("size", "algorithm"), [(2, "auto"), (3, "shm"), (3, "direct"), (3, "ring")])
def test_two_runs_are_equal_on_all_ranks(size: int, algorithm: str) -> None:
    env = {"FUSIONCTL_ALLREDUCE": algorithm}
    runs = [mpirun(TRAIN.replace("{options}", "{}"), size, env=env).check() for _ in range(2)]
    hashes = {text for run in runs for text in run.out}
    assert len(hashes) == 1, hashes
    assert [run.err[0].split()[-1] for run in runs] == ["40", "40"]  # all six fused in one bucket a step


def test_groups_and_compression_repeat_themselves_too() -> None:
    options = "{'groups': 2, 'compression': fusion.Compression.bf16}"
    runs = [mpirun(TRAIN.replace("{options}", options), 3).check() for _ in range(2)]
    assert len({text for run in runs for text in run.out}) == 1
