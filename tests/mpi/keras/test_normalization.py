"""SyncBatchNormalization: each rank's part of what Keras's layer does with all ranks' samples in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion
from alike import BATCH, FLOAT64_TOLERANCE, LOSS, check_trains_alike, of_root, weights
from fusionctl import UsageError
from fusionctl.keras import SyncBatchNormalization
from fusionctl.tensorflow import DistributedGradientTape

SIZES = (1, 2, 3)
STEPS = 2
Keras = keras.layers.BatchNormalization

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras and NumPy


def samples(shape: tuple[int, ...], rows: Callable[[int], int], step: int) -> list[np.ndarray]:
    """The inputs of each rank."""
    random = np.random.default_rng(step)
    return [random.normal(3.0, 2.0, size=(rows(rank), *shape)) for rank in range(fusion.size())]


def layers_of(axis: int, shape: tuple[int, ...], dtype: str = "float64", **options: Any) -> tuple[Any, Any]:
    """Ours and Keras's, of equal weights."""
    both = []
    for make in (SyncBatchNormalization, Keras):
        layer = make(axis=axis, dtype=dtype, momentum=0.8, **options)
        layer.build((None, *shape))
        for index, weight in enumerate(layer.weights[:2]):
            weight.assign(np.linspace(1.0, 2.0, weight.shape[0]) + index)
        both.append(layer)
    return both[0], both[1]


def run(layer: Any, x: Any, mask: Any, scale: float, wraps: bool, reduce: bool) -> list[Any]:
    """Outputs, and gradients of the inputs, gamma and beta, of a loss that weights the outputs by squares of inputs."""

    def call(x: Any, mask: Any) -> list[Any]:
        tape = tf.GradientTape(persistent=True)
        with tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            loss = scale * tf.reduce_sum(tf.cast(y, x.dtype) * tf.square(x))
        of_variables: Any = DistributedGradientTape(tape) if reduce else tape
        return [y, tape.gradient(loss, x), *of_variables.gradient(loss, [layer.gamma, layer.beta])]

    results = (tf.function(call) if wraps else call)(tf.constant(x), None if mask is None else tf.constant(mask))
    return [result.numpy() for result in results]


ROWS: dict[str, Callable[[int], int]] = {
    "equal": lambda rank: 4,
    "unequal": lambda rank: 3 + 2 * rank,
    "none on the first": lambda rank: 4 * rank if fusion.size() > 1 else 4,
}


@pytest.mark.parametrize("wraps", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("count", "axis", "masks"),
    [("equal", -1, False), ("unequal", 1, False), ("unequal", -1, True), ("none on the first", -1, False)],
)
def test_outputs_statistics_and_gradients(count: str, axis: int, masks: bool, wraps: bool) -> None:
    rank, size, shape, rows = fusion.rank(), fusion.size(), (3, 2), ROWS[count]
    ours, kerass = layers_of(axis, shape)
    for step in range(STEPS):
        parts = samples(shape, rows, step)
        everyone = [np.random.default_rng(step).random(part.shape[:2]) < 0.6 for part in parts] if masks else None
        ends = np.cumsum([len(part) for part in parts])
        mine = slice(ends[rank] - len(parts[rank]), ends[rank])
        own = run(ours, parts[rank], everyone and everyone[rank], size, wraps, reduce=True)
        all_masks = None if everyone is None else np.concatenate(everyone)
        y, dx, *of_variables = run(kerass, np.concatenate(parts), all_masks, 1.0, wraps, reduce=False)
        for got, wanted in zip(own, [y[mine], size * dx[mine], *of_variables], strict=True):
            np.testing.assert_allclose(got, wanted, 1e-9, 1e-9)
        statistics = np.concatenate(ours.get_weights())
        np.testing.assert_allclose(statistics, np.concatenate(kerass.get_weights()), *FLOAT64_TOLERANCE)
        np.testing.assert_array_equal(statistics, of_root(statistics))
    x = samples(shape, ROWS["equal"], 9)[rank]
    np.testing.assert_allclose(ours(x), kerass(x), *FLOAT64_TOLERANCE)


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def model_of(make: Any, optimizer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(7)
    layers = [keras.layers.Dense(4, dtype="float64"), make(dtype="float64"), keras.layers.Dense(2, dtype="float64")]
    model = keras.Sequential([keras.Input((3,), dtype="float64"), *layers])
    model.compile(optimizer, loss=LOSS, jit_compile=False, **options)
    return model


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_model_trains_as_one_process(eager: bool) -> None:
    model = model_of(SyncBatchNormalization, fusion.DistributedOptimizer(momentum()), run_eagerly=eager)
    check_trains_alike(model, model_of(Keras, momentum()))


def test_ranks_that_have_joined_have_no_samples() -> None:
    model = model_of(SyncBatchNormalization, fusion.DistributedOptimizer(momentum()))
    reference = model_of(Keras, momentum())
    data = []
    for rank in range(fusion.size()):
        random = np.random.default_rng(rank)
        count = (1 + rank) * BATCH
        data.append((random.normal(size=(count, 3)).astype("f"), random.normal(size=(count, 2)).astype("f")))
    join = fusion.callbacks.JoinCallback()
    model.fit(*data[fusion.rank()], batch_size=BATCH, shuffle=False, verbose=0, callbacks=[join])
    for step in range(fusion.size()):
        batch = [[part[step * BATCH :][:BATCH] for part in of_rank] for of_rank in data]
        reference.train_on_batch(*(np.concatenate(parts) for parts in zip(*batch, strict=True)))
    np.testing.assert_allclose(weights(model), weights(reference), *FLOAT64_TOLERANCE)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_16_bits_are_computed_in_32(policy: str) -> None:
    ours, kerass = layers_of(-1, (2,), policy)
    parts = [part.astype(ours.compute_dtype) for part in samples((2,), ROWS["unequal"], 0)]
    outputs = [layer(x, training=True) for layer, x in ((ours, parts[fusion.rank()]), (kerass, np.concatenate(parts)))]
    assert outputs[0].dtype == outputs[1].dtype == ours.compute_dtype
    for got, wanted in zip(ours.get_weights(), kerass.get_weights(), strict=True):
        np.testing.assert_allclose(got.astype("f"), wanted.astype("f"), 1e-5 if got.dtype == "float32" else 2e-3)


def test_a_large_mean_does_not_swallow_the_variance() -> None:
    layer = SyncBatchNormalization(momentum=0.0)
    parts = [(1e4 + part).astype("float32") for part in samples((2,), lambda rank: 50 + rank, 0)]
    layer(parts[fusion.rank()], training=True)
    everything = np.concatenate(parts).astype("float64")
    np.testing.assert_allclose(layer.moving_mean, everything.mean(0), 1e-6)
    np.testing.assert_allclose(layer.moving_variance, everything.var(0), 1e-6)


def test_one_rank_is_bit_equal_to_keras() -> None:
    alone = fusion.add_process_set([0]) if fusion.size() > 1 else fusion.global_process_set
    ours, kerass = layers_of(-1, (2,), "float32")
    if fusion.rank() == 0:
        ours.process_set = alone
        x = samples((2,), ROWS["equal"], 0)[0].astype("float32")
        np.testing.assert_array_equal(ours(x, training=True), kerass(x, training=True))
        for got, wanted in zip(ours.get_weights(), kerass.get_weights(), strict=True):
            np.testing.assert_array_equal(got, wanted)
    fusion.barrier("alone")
    assert alone is fusion.global_process_set or fusion.remove_process_set(alone)


def test_a_process_set_is_what_it_says() -> None:
    if fusion.size() < 3:
        return
    pair = fusion.add_process_set([0, 2])
    layer = SyncBatchNormalization(momentum=0.0, process_set=pair, dtype="float64", name="of a pair")
    parts = samples((2,), ROWS["unequal"], 0)
    if pair.included():
        layer(parts[fusion.rank()], training=True)
        np.testing.assert_allclose(layer.moving_mean, np.concatenate([parts[0], parts[2]]).mean(0), *FLOAT64_TOLERANCE)
    else:
        with pytest.raises(UsageError, match="rank 1 is not in process set"):
            layer(parts[fusion.rank()], training=True)
    copy = SyncBatchNormalization.from_config(layer.get_config())
    assert copy.process_set.ranks == [0, 2]
    copy(parts[0])
    with pytest.raises(UsageError, match=r"is not there; add it with add_process_set\(\)"):
        copy(parts[0], training=True)
    fusion.barrier("pair")
    fusion.remove_process_set(pair)


LOAD = """
import sys
sys.modules["fusionctl"] = None
import keras, numpy, tensorflow
class SyncBatchNormalization(keras.layers.BatchNormalization): ...
layers = {"fusionctl>SyncBatchNormalization": SyncBatchNormalization}
x = numpy.ones((2, 3))
print(keras.models.load_model(sys.argv[1] + ".keras", custom_objects=layers).predict(x, verbose=0).tolist())
exported = tensorflow.saved_model.load(sys.argv[1])
print(exported.serve(x).numpy().tolist())
"""


def test_a_saved_model_loads_and_is_served_without_fusionctl() -> None:
    model = model_of(lambda **options: SyncBatchNormalization(fused=True, **options), momentum())
    x = np.ones((2, 3))
    model.fit(x + fusion.rank(), np.ones((2, 2)), verbose=0)
    if fusion.rank() > 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        model.save(f"{path}.keras")
        model.export(path, verbose=False)
        loaded = keras.models.load_model(f"{path}.keras")
        assert type(loaded.layers[1]) is SyncBatchNormalization
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "OMPI_"))}
        done = subprocess.run(
            [sys.executable, "-c", LOAD, path], check=True, capture_output=True, text=True, env=environment
        )
    expected = model.predict(x, verbose=0).tolist()
    assert loaded.predict(x, verbose=0).tolist() == expected
    assert done.stdout.splitlines() == [str(expected)] * 2
