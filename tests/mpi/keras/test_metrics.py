"""MetricAverageCallback: all callbacks of all ranks see the same averages, each rank counting as it should."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.keras as fusion
from alike import FLOAT64_TOLERANCE, LOSS
from fusionctl import UsageError
from fusionctl.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback
from fusionctl.keras.metrics import average

SIZES = (1, 2, 3)


class Watch(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []
        self.end: dict[str, float] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(dict(logs))

    def on_train_end(self, logs: Any = None) -> None:
        self.end = dict(logs or {})


def model_of(learning_rate: float = 0.01, kind: type = keras.Sequential, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(5)
    model = kind([keras.Input((2,), dtype="float64"), keras.layers.Dense(1, dtype="float64")])
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(learning_rate))
    error = keras.metrics.MeanAbsoluteError("mae", dtype="float64")
    model.compile(optimizer, **{"loss": LOSS, "metrics": [error], "jit_compile": False, **options})
    return model


def data_of(rank: int, count: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(rank)
    return random.normal(size=(count, 2)).astype("float32"), random.normal(size=(count, 1)).astype("float32")


def data() -> tuple[np.ndarray, np.ndarray]:
    return data_of(fusion.rank())


def test_metrics_are_averaged_for_all_callbacks_and_the_history() -> None:
    early, late = Watch(), Watch()
    model = model_of()
    own = []
    model.evaluate_own = model.evaluate

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        result = model.evaluate_own(*args, **kwargs)
        own.append([result["loss"], result["mae"]])
        return result

    model.evaluate = evaluate  # what fit calls: its result is this rank's own
    callbacks = [early, BroadcastGlobalVariablesCallback(0), MetricAverageCallback(), late]
    history = model.fit(*data(), validation_data=data(), epochs=2, batch_size=4, verbose=0, callbacks=callbacks).history
    averages = fusionctl.allreduce(np.array(own), name="the validation here").tolist()
    got = [[logs["val_loss"], logs["val_mae"]] for logs in early.epochs]
    np.testing.assert_allclose(got, averages, rtol=1e-12)
    assert [sorted(logs) for logs in early.epochs] == [["loss", "mae", "val_loss", "val_mae"]] * 2
    mine = np.array([[logs["loss"], logs["mae"]] for logs in early.epochs])
    np.testing.assert_array_equal(mine, fusionctl.broadcast(mine, root_rank=0, name="averages of the root"))
    assert late.epochs == early.epochs
    assert [{name: values[epoch] for name, values in history.items()} for epoch in range(2)] == early.epochs
    assert early.end == late.end == early.epochs[-1]


def test_a_list_without_the_callback_keeps_its_own_metrics() -> None:
    MetricAverageCallback()  # CallbackList is patched
    watch = Watch()
    keras.callbacks.CallbackList([watch]).on_epoch_end(0, {"loss": float(fusion.rank())})
    assert watch.epochs == [{"loss": float(fusion.rank())}]


def alike(name: str) -> float:
    return 1.0


def test_only_numbers_are_averaged() -> None:
    rank, size = fusion.rank(), fusion.size()
    logs = {
        "loss": tf.constant(rank, "float32"),
        "f1": {"macro": np.float64(3 * rank), "each": np.array([rank])},
        "n": "x",
    }
    mean = (size - 1) / 2
    assert average(logs, alike) == {"loss": mean, "macro": 3 * mean, "each": np.array([rank]), "n": "x"}


def test_a_metric_of_some_ranks_is_averaged_over_these_and_all_get_it() -> None:
    rank, size = fusion.rank(), fusion.size()
    logs = {"loss": 1.0 + rank, f"of {rank}": 2.0 * rank}
    if rank > 0:
        logs["but the first"] = float(rank)
    expected = {"loss": 1 + (size - 1) / 2, **{f"of {other}": 2.0 * other for other in range(size)}}
    if size > 1:
        expected["but the first"] = size / 2
    assert average(logs, alike) == expected
    assert average({} if rank else {"loss": 3.0}, alike) == {"loss": 3.0}


def test_nan_of_a_rank_that_has_the_metric_is_nan_on_all() -> None:
    last = fusion.rank() == fusion.size() - 1
    logs = {"loss": np.nan if last else 1.0, "mae": 2.0, **({"ours": 5.0} if last else {})}
    got = average(logs, alike)
    assert np.isnan(got.pop("loss"))
    assert got == {"mae": 2.0, "ours": 5.0}


def test_a_validation_on_one_rank_only_is_seen_by_all() -> None:
    validation = {"validation_data": data_of(9)} if fusion.rank() == 0 else {}
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9)
    callbacks = [stop, MetricAverageCallback()]
    history = model_of().fit(*data(), epochs=3, verbose=0, callbacks=callbacks, **validation).history
    mine = np.array([history["val_loss"], history["loss"]])
    assert mine.shape == (2, 2)  # all stopped after the second epoch
    np.testing.assert_array_equal(mine, fusionctl.broadcast(mine, root_rank=0, name="metrics of the root"))


def count_of(rank: int, scale: int) -> int:
    return scale * (2 + rank)


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("options", [{}, {"steps_per_execution": 2}, {"run_eagerly": True}], ids=str)
def test_weighted_averages_are_the_metrics_of_one_process(validates: bool, options: dict[str, Any]) -> None:
    ranks = range(fusion.size())
    train = [data_of(rank, count_of(rank, 4)) for rank in ranks]
    test = [data_of(10 + rank, count_of(fusion.size() - rank, 3)) for rank in ranks]
    model = model_of(learning_rate=0.0, **options)
    x, y = train[fusion.rank()]
    history = model.fit(
        *(x, y),
        batch_size=len(x) // 4,
        epochs=2,
        verbose=0,
        validation_data=test[fusion.rank()] if validates else None,
        callbacks=[MetricAverageCallback(weighted=True)],
    ).history
    expected: dict[str, list[float]] = {}
    for prefix, parts in {"": train, "val_": test if validates else []}.items():
        if parts:
            everything = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
            result = model.evaluate(*everything, verbose=0, return_dict=True)
            expected |= {prefix + name: [value] * 2 for name, value in result.items()}
    assert sorted(history) == sorted(expected)
    for name, values in history.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6)  # Keras's sum of losses is float32
    assert np.abs(np.array(history["mae"]) - expected["mae"]).max() < FLOAT64_TOLERANCE[0]


class Uncounted(keras.Sequential):  # type: ignore[misc]
    """A model whose step of its own counts no samples."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def test_a_model_that_counts_no_samples_is_a_usage_error_if_weighted() -> None:
    model = model_of(kind=Uncounted, metrics=None)
    model.fit(*data(), verbose=0, callbacks=[MetricAverageCallback()])
    with pytest.raises(UsageError, match="no rank has counted a sample for metric 'loss'"):
        model.fit(*data(), verbose=0, callbacks=[MetricAverageCallback(weighted=True)])


class Bare(keras.Sequential):  # type: ignore[misc]
    """A model that shows no loss."""

    metrics = ()


def test_a_model_without_a_loss_metric_is_a_usage_error_if_weighted() -> None:
    with pytest.raises(UsageError, match=r"MetricAverageCallback\(weighted=True\): model '.*' has no metric 'loss'"):
        model_of(kind=Bare).fit(*data(), verbose=0, callbacks=[MetricAverageCallback(weighted=True)])


def test_an_epoch_costs_two_reductions_of_metrics() -> None:
    before = fusionctl.counters()["buckets"]
    average({"loss": 1.0, "mae": 2.0, "val_loss": 3.0}, alike)
    reductions = fusionctl.counters()["buckets"] - before
    assert reductions == 2 or fusion.size() == 1
