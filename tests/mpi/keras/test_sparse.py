"""The law: sparse gradients update by a wrapped optimizer as the mean of their dense forms does by a plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl.keras as fusion

SIZES = (1, 2, 3)
ROWS = 300
MAKE: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "momentum and decay": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=1.0),
    "global clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.5),
    "keras accumulates": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "average of weights": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0),
}


def slices_of(rank: int, step: int, bad: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows, one of them twice, and their values."""
    rows = np.array([5, (7 * step + rank) % ROWS, 5])
    values = (np.arange(6).reshape(3, 2) + rank + step / 4 - 2).astype(np.float32)
    return rows, values * np.inf if bad else values


def dense_of(rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    dense = np.zeros([ROWS, 2], np.float32)
    np.add.at(dense, rows, values)
    return dense


def sparse(rank: int, step: int, bad: bool) -> Any:
    rows, values = slices_of(rank, step, bad)
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([ROWS, 2]))


def mean(step: int, bad: int) -> tf.Tensor:
    with np.errstate(invalid="ignore"):
        dense = [dense_of(*slices_of(rank, step, rank == bad)) for rank in range(fusion.size())]
        return tf.constant(np.mean(dense, axis=0, dtype=np.float32))


def trained(optimizer: Any, gradient: Callable[[int], Any], wrap: Any) -> np.ndarray:
    table = keras.Variable(np.ones([ROWS, 2], np.float32), name="table")
    bias = keras.Variable(np.ones([2], np.float32), name="bias")
    call = wrap(lambda grad: optimizer.apply([grad, tf.constant([1.0, -1.0])], [table, bias]))
    for step in range(4):
        call(gradient(step))
    return np.concatenate([table.numpy(), bias.numpy()[None]])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", MAKE)
def test_updates(kind: str, wrap: Any) -> None:
    wrapped = fusion.DistributedOptimizer(MAKE[kind](), name=f"sparse {kind}")
    got = trained(wrapped, lambda step: sparse(fusion.rank(), step, False), wrap)
    np.testing.assert_allclose(got, trained(MAKE[kind](), lambda step: mean(step, -1), wrap), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_an_overflow_of_one_rank_is_skipped_by_all(wrap: Any) -> None:
    last = fusion.size() - 1
    wrapped = fusion.DistributedOptimizer(MAKE["loss scale"](), name="sparse overflow")
    got = trained(wrapped, lambda step: sparse(fusion.rank(), step, step == 1 and fusion.rank() == last), wrap)
    plain = MAKE["loss scale"]()
    wanted = trained(plain, lambda step: mean(step, last if step == 1 else -1), wrap)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert float(wrapped.dynamic_scale) == float(plain.dynamic_scale) == 4.0


def test_fit_with_an_embedding() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3], dtype="int32"), keras.layers.Embedding(ROWS, 4), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(fusion.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.arange(24 * fusion.size()).reshape(-1, 3) % 20
    y = x.sum(1, keepdims=True) / 60.0
    mine = slice(fusion.rank(), None, fusion.size())
    history = model.fit(x[mine], y[mine], batch_size=4, epochs=5, shuffle=False, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    for index, weight in enumerate(model.get_weights()):
        np.testing.assert_array_equal(weight, fusion.broadcast(weight, 0, name=f"weight {index}").numpy())
