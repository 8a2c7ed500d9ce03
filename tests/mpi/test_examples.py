"""The examples in scripts/ and in the guide do what they say, on two ranks and with less to do than by default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launch import mpirun

SCRIPTS = Path(__file__).parents[2] / "scripts"
GUIDE = SCRIPTS.parent / "docs" / "migrating-from-horovod.md"

AROUND = """
import os, sys
import keras, numpy as np, tensorflow as tf
os.chdir(sys.argv[1])
steps, epochs = 60, 2
random = np.random.default_rng(0)
x = random.standard_normal((60 * 8, 4)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, (x.sum(axis=1) > 0).astype("int64"))).batch(8).repeat()
loss = keras.losses.SparseCategoricalCrossentropy()
def build_model():
    layers = [keras.Input((4,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(2, activation="softmax")]
    return keras.Sequential(layers)
"""
"""What the guide's scripts have before them: a problem of two classes."""


def run(script: str, *args: object) -> str:
    """What rank 0 prints; the other rank prints nothing."""
    out = mpirun(SCRIPTS / script, 2, *args, timeout=180).check().out
    assert out[1] == ""
    return out[0]


def numbers(pattern: str, text: str) -> list[float]:
    """The groups of the only match of a pattern."""
    (found,) = re.findall(pattern, text)
    return [float(number) for number in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("script", ["train_digits.py", "train_digits_tape.py"])
def test_digits_are_learned(script: str) -> None:
    (accuracy,) = numbers(r"test accuracy (\S+) on 2 ranks\n$", run(script, "--epochs", 8))
    assert accuracy >= 0.95


def test_a_checkpoint_is_resumed_at_its_epoch(tmp_path: Path) -> None:
    options = ("--checkpoints", tmp_path, "--warmup-epochs", 2)
    first = run("train_digits_advanced.py", "--epochs", 9, *options)
    assert numbers(r"test accuracy (\S+) on 2 ranks\n$", first)[0] >= 0.95
    rates = [float(rate) for rate in re.findall(r" - lr: (\S+)\n", first)]
    assert rates == pytest.approx([0.03, 0.04, 0.04, 0.04, 0.04, 0.04, 0.004, 0.004, 0.0004])

    best = max(int(path.stem) for path in tmp_path.glob("*.keras"))
    losses = {epoch: float(loss) for epoch, loss in enumerate(re.findall(r"val_loss: (\S+)", first), start=1)}
    assert losses[best] == min(losses.values())

    second = run("train_digits_advanced.py", "--epochs", best + 1, "--resume", *options)
    assert second.startswith(f"resuming after epoch {best} from {tmp_path / str(best)}.keras\nEpoch {best + 1}/")
    (loss,) = numbers(r"val_loss: (\S+)", second)
    assert loss < (losses[1] + losses[best]) / 2


def test_throughput_is_measured() -> None:
    small = ("--model", "MobileNet", "--image-size", 32, "--batch-size", 2)
    few = ("--num-warmup-batches", 1, "--num-batches-per-iter", 2, "--num-iters", 2)
    out = run("benchmark_synthetic.py", *small, *few, "--fp16-allreduce", "--adasum", "--compare")
    (per_rank,), (total,) = numbers(r"img/s per rank: (\S+) \+-", out), numbers(r"img/s total: (\S+) \+-", out)
    local, reduced = numbers(r"a step takes (\S+) ms without reduction and (\S+) ms with it\n", out)
    (ratio,) = numbers(r"ratio (\S+):", out)
    assert per_rank > 0
    assert total == pytest.approx(2 * per_rank, abs=0.2)
    assert local > 0
    assert ratio == pytest.approx(reduced / local, rel=0.01)


def test_words_of_a_topic_get_similar_vectors() -> None:
    out = run("train_word2vec.py", "--words", 20_000)
    rows, table = numbers(r"have (\S+) of the tables' (\S+) rows", out)
    start, end = numbers(r"loss (\S+) at the start, (\S+) at the end", out)
    share, chance = numbers(r"neighbours of the same topic: (\S+), by chance (\S+):", out)
    assert rows < 0.1 * table
    assert end < 0.8 * start
    assert share > 10 * chance


def test_the_scripts_of_the_guide_run_when_they_are_changed(tmp_path: Path) -> None:
    diffs = re.findall(r"```diff\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    changed = ["".join(line[1:] + "\n" for line in diff.splitlines() if not line.startswith("-")) for diff in diffs]
    out = mpirun("\n".join([AROUND, *changed]), 2, tmp_path, timeout=180).check().out
    assert out[1] == ""
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-1.keras", "checkpoint-2.keras"]
    first, last = (float(loss) for loss in re.findall(r"step (?:0|20): loss (\S+)\n", out[0]))
    assert last < first
