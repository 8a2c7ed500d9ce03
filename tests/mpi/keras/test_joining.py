"""JoinCallback: an update is by the ranks that still have data, and after each epoch the ranks are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.keras as fusion
from alike import BATCH, FLOAT64_TOLERANCE, LOSS, model_of, of_root, weights
from fusionctl import UsageError
from fusionctl.keras.agreement import check_same_length
from fusionctl.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    JoinCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from fusionctl.tensorflow import DistributedGradientTape

SIZES = (1, 2, 3)
EPOCHS = 2

pytestmark = pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")  # Keras, of unknown lengths

QUIET: dict[str, Any] = {"verbose": 0, "shuffle": False}
Batches = list[tuple[np.ndarray, np.ndarray]]


def momentum() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def batches_of(rank: int, count: int) -> Batches:
    random = np.random.default_rng(rank)
    return [
        (random.normal(size=(BATCH, 3)).astype("float32"), random.normal(size=(BATCH, 2)).astype("float32"))
        for _ in range(count)
    ]


def dataset(batches: Batches) -> tf.data.Dataset:
    specs = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
    known = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    return known.apply(tf.data.experimental.assert_cardinality(len(batches)))


def unknown(batches: Batches) -> tf.data.Dataset:
    return dataset(batches).filter(lambda x, y: True)


class State(keras.callbacks.Callback):  # type: ignore[misc]
    """Checks that this rank is equal to the first wherever Keras calls, and notes the state after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[np.ndarray] = []

    def on_test_begin(self, logs: Any = None) -> None:
        np.testing.assert_array_equal(weights(self.model), of_root(weights(self.model)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.on_test_begin()
        self.epochs.append(weights(self.model))


def reference(counts: Sequence[int], passes: int = 1, epochs: int = EPOCHS) -> Iterator[np.ndarray]:
    """The state after each epoch, of one process that has all ranks' batches."""
    model = model_of(momentum())
    sums: list[list[tf.Tensor]] = [[] for _ in counts]
    for _ in range(epochs):
        data = [iter(batches_of(rank, count)) for rank, count in enumerate(counts)]
        while True:
            for mine, batches in zip(sums, data, strict=True):
                while len(mine) < passes and (batch := next(batches, None)) is not None:
                    with tf.GradientTape() as tape:
                        loss = LOSS(batch[1], model(batch[0]))
                    mine.append(tape.gradient(loss, model.trainable_variables))
            full = [mine for mine in sums if len(mine) == passes]
            if not full:
                break
            grads = [tf.add_n(list(each)) / len(full) for each in zip(*(g for mine in full for g in mine), strict=True)]
            model.optimizer.apply(grads, model.trainable_variables)
            for mine in full:
                mine.clear()
        yield weights(model)


def fit(
    counts: Sequence[int],
    make: Callable[[Batches], Any] = dataset,
    passes: int = 1,
    callbacks: Sequence[Any] = (),
    fits: int = 1,
    validates: bool = False,
    **options: Any,
) -> tuple[State, dict[str, list[float]]]:
    """Fit on each rank as many batches as `counts` says of it; the states, and the last history."""
    rank, state = fusion.rank(), State()
    model = model_of(fusion.DistributedOptimizer(momentum(), backward_passes_per_step=passes), **options)
    validation = {"validation_data": batches_of(9, 1)[0]} if validates else {}
    callbacks = [state, *callbacks, BroadcastGlobalVariablesCallback(0), JoinCallback()]
    for _ in range(fits):
        history = model.fit(
            make(batches_of(rank, counts[rank])), epochs=EPOCHS, **QUIET, callbacks=callbacks, **validation
        ).history
    return state, history


def counts_of(shift: int = 0) -> list[int]:
    """2, 4, 6 batches, and so on round the ranks."""
    return [2 + 2 * ((rank + shift) % fusion.size()) for rank in range(fusion.size())]


CASES: dict[str, dict[str, Any]] = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "validation": {"validates": True},
    "steps per execution": {"steps_per_execution": 3},
    "unknown length": {"make": unknown},
    "unknown length, steps per execution": {"make": unknown, "steps_per_execution": 3},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_every_update_is_the_average_over_the_ranks_that_have_data(options: dict[str, Any]) -> None:
    counts = counts_of(1)
    state, history = fit(counts, **options)
    assert len(history["loss"]) == EPOCHS
    for got, wanted in zip(state.epochs, reference(counts), strict=True):
        np.testing.assert_allclose(got, wanted, *FLOAT64_TOLERANCE)


def test_windows_of_several_passes_that_are_open_at_an_end_go_on_in_the_next_epoch() -> None:
    counts = [3 + rank for rank in range(fusion.size())]
    state, _ = fit(counts, passes=2, fits=2)
    for got, wanted in zip(state.epochs, reference(counts, passes=2, epochs=2 * EPOCHS), strict=True):
        np.testing.assert_allclose(got, wanted, *FLOAT64_TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"make": unknown}], ids=str)
def test_a_rank_without_any_batch_ends_like_the_others(options: dict[str, Any]) -> None:
    counts = [0, 2, 3, 1][: fusion.size()] if fusion.size() > 1 else [2]
    state, _ = fit(counts, **options)
    for got, wanted in zip(state.epochs, reference(counts), strict=True):
        np.testing.assert_allclose(got, wanted, *FLOAT64_TOLERANCE)


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_model_that_a_rank_without_batches_has_not_built(eager: bool) -> None:
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile(fusion.DistributedOptimizer(keras.optimizers.Adam(0.1)), loss="mse", run_eagerly=eager)
    batches = batches_of(1, 2 * fusion.rank() if fusion.size() > 1 else 1)
    model.fit(dataset(batches), **QUIET, callbacks=[JoinCallback()])
    assert int(model.optimizer.iterations) == max(1, 2 * (fusion.size() - 1))
    mine = np.concatenate([np.ravel(variable) for variable in [*model.weights, *model.optimizer.variables]])
    np.testing.assert_array_equal(mine, of_root(mine))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["join first", "average first"])
def test_metrics_are_averaged_and_stop_all_ranks_after_the_join(weighted: bool, first: bool) -> None:
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=1e9, restore_best_weights=True)
    join, average = JoinCallback(), MetricAverageCallback(weighted=weighted)
    callbacks = [stop, State(), *([average, join] if first else [join, average])]
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    rank, counts = fusion.rank(), counts_of()
    history = model.fit(
        dataset(batches_of(rank, counts[rank])),
        epochs=5,
        **QUIET,
        callbacks=callbacks,
        validation_data=dataset(batches_of(rank, counts[rank])),
    ).history
    np.testing.assert_array_equal(weights(model), of_root(weights(model)))
    losses = [[float(LOSS(y, model(x))) for x, y in batches_of(each, count)] for each, count in enumerate(counts)]
    wanted = np.mean(np.concatenate(losses)) if weighted else np.mean([np.mean(of_rank) for of_rank in losses])
    np.testing.assert_allclose([history["loss"], history["val_loss"]], [[wanted] * 2] * 2, rtol=1e-6)


def test_an_epoch_without_batches_on_a_rank_is_no_part_of_an_average() -> None:
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    epochs, batches = iter([1, 1 if fusion.size() == 1 else fusion.rank()]), batches_of(fusion.rank(), 1)
    specs = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
    data = tf.data.Dataset.from_generator(lambda: iter(batches * next(epochs)), output_signature=specs)
    history = model.fit(data, epochs=2, **QUIET, callbacks=[JoinCallback(), MetricAverageCallback()]).history
    losses = [float(LOSS(y, model(x))) for rank in range(fusion.size()) for x, y in batches_of(rank, 1)]
    np.testing.assert_allclose(history["loss"], [np.mean(losses), np.mean(losses[1:] or losses)], rtol=1e-6)


def test_nothing_is_sent_where_all_ranks_end_with_the_same_update() -> None:
    model = model_of(fusion.DistributedOptimizer(momentum()))
    join = JoinCallback()
    model.fit(dataset(batches_of(fusion.rank(), 2)), **QUIET, callbacks=[join])
    before = fusionctl.counters()["buckets"]
    join.on_epoch_begin(1)
    join.join_epoch({})
    join.join_epoch({})
    assert fusionctl.counters()["buckets"] - before == 1


def test_what_is_local_stays() -> None:
    layers = [keras.layers.Dense(3, name="own"), keras.layers.Dense(2, name="shared")]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(fusion.PartialDistributedOptimizer(momentum(), local_layers=layers[0]), loss="mse", jit_compile=False)
    layers[0].set_weights([np.full((3, 3), float(fusion.rank())), np.zeros(3)])
    frozen, given = layers[0].kernel, layers[1].bias
    given.assign(given + fusion.rank())
    before = given.numpy().tolist()
    layers[1].trainable = False
    model.fit(
        dataset(batches_of(fusion.rank(), counts_of()[fusion.rank()])),
        **QUIET,
        callbacks=[JoinCallback(local_variables=[given])],
    )
    assert given.numpy().tolist() == before
    everyones = fusion.allgather(frozen.numpy()[None], name="own kernels").numpy()
    assert len({each.tobytes() for each in everyones}) == fusion.size()
    kernel = layers[1].kernel.numpy()
    np.testing.assert_array_equal(kernel, of_root(kernel))


def test_the_loss_scale_of_mixed_float16_is_equal_afterwards() -> None:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_float16")])
    model.dtype_policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    model.compile(fusion.DistributedOptimizer(momentum()), loss="mse", jit_compile=False)
    last = fusion.rank() == fusion.size() - 1
    batches = [(0.01 * x, 0.01 * y) for x, y in batches_of(fusion.rank(), 1)]  # no overflow in float16
    if last:  # makes a last step alone, which overflows
        batches.append((np.full((BATCH, 3), np.inf, "float32"), batches[0][1]))
    model.fit(dataset(batches), epochs=2, **QUIET, callbacks=[JoinCallback()])
    assert (int(model.optimizer.iterations), float(model.optimizer.dynamic_scale)) == (2, 2.0**13)
    mine = np.concatenate([np.ravel(variable) for variable in [*model.weights, *model.optimizer.variables]])
    np.testing.assert_array_equal(mine, of_root(mine))


class Stop(keras.callbacks.Callback):  # type: ignore[misc]
    """Stops the last rank in the middle of the first epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if fusion.rank() == fusion.size() - 1:
            self.model.stop_training = True


def test_a_rank_that_stops_within_an_epoch_stops_all_after_it() -> None:
    state, history = fit([3] * fusion.size(), callbacks=[Stop()])
    assert len(history["loss"]) == 1
    wanted = next(reference([3] * (fusion.size() - 1) + [1], epochs=1))
    np.testing.assert_allclose(state.epochs[0], wanted, *FLOAT64_TOLERANCE)


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The rate of each batch, once the callbacks before it have set it."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))


def test_an_epoch_of_the_warm_up_is_that_of_the_rank_with_most_steps() -> None:
    watch = Rates()
    counts = counts_of()
    model = model_of(fusion.DistributedOptimizer(keras.optimizers.SGD(1.0)))
    warmup = LearningRateWarmupCallback(1.0, warmup_epochs=1)
    model.fit(
        dataset(batches_of(fusion.rank(), counts[fusion.rank()])), **QUIET, callbacks=[JoinCallback(), warmup, watch]
    )
    most, size = max(counts), fusion.size()
    wanted = [((step + 1) / most * (size - 1) + 1) / size for step in range(counts[fusion.rank()])]
    np.testing.assert_allclose(watch.rates, wanted, rtol=1e-6)
    np.testing.assert_array_equal(weights(model), of_root(weights(model)))


class Taped(keras.Sequential):  # type: ignore[misc]
    """A model whose step of its own reduces by a tape, for a plain optimizer."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with DistributedGradientTape(tf.GradientTape()) as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
def test_a_step_of_the_models_own_that_reduces_by_a_tape(eager: bool) -> None:
    layers = model_of(momentum()).layers
    model = Taped([keras.Input((3,), dtype="float64"), *layers])
    model.compile(momentum(), loss=LOSS, run_eagerly=eager, jit_compile=False)
    counts, state = counts_of(), State()
    for variable in model.trainable_variables if fusion.rank() > 0 else []:
        variable.assign(variable + 1.0)
    callbacks = [state, JoinCallback(), BroadcastGlobalVariablesCallback(0), MetricAverageCallback()]
    model.fit(dataset(batches_of(fusion.rank(), counts[fusion.rank()])), epochs=EPOCHS, **QUIET, callbacks=callbacks)
    for got, wanted in zip(state.epochs, reference(counts), strict=True):
        np.testing.assert_allclose(got, wanted, *FLOAT64_TOLERANCE)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_lengths_may_differ_where_all_ranks_list_it_but_epochs_may_not() -> None:
    check_same_length(2 + fusion.rank(), 3, joins=True)
    if fusion.size() > 1:
        with pytest.raises(UsageError, match="the ranks' epochs are 3"):
            check_same_length(2, 3 + fusion.rank(), joins=True)
        with pytest.raises(UsageError, match=r"^JoinCallback is not listed on rank 0: list it on all ranks$"):
            check_same_length(2, 3, joins=fusion.rank() > 0)


def test_an_optimizer_of_a_process_set_is_refused() -> None:
    mine = fusion.add_process_set([0]) if fusion.size() > 1 else None
    model = model_of(fusion.DistributedOptimizer(momentum(), process_set=mine or fusion.global_process_set))
    if mine is not None and mine.included():
        with pytest.raises(UsageError, match=r"reduces over process set .* but JoinCallback is for all ranks"):
            model.fit(dataset(batches_of(0, 1)), **QUIET, callbacks=[JoinCallback()])
    fusion.barrier("refused")
    assert mine is None or fusion.remove_process_set(mine)
