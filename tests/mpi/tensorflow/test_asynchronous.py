"""The law: an asynchronous call returns at once, and its future gives what the plain form gives."""

from __future__ import annotations

import gc
import random
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion

SIZES = (1, 2, 3)
RANK = fusionctl.rank
SIZE = fusionctl.size
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "int8", "uint8", "int16", "uint16", "bool")


def rows(dtype: str, count: int | None = None) -> tf.Tensor:
    """Small whole numbers that differ by rank and place."""
    count = RANK() + 1 if count is None else count
    return tf.cast(tf.reshape(tf.range(2 * count) + RANK(), [count, 2]) % 5, dtype)


def calls(dtype: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of each plain form, without name."""
    op = {"op": fusion.Max if dtype == "bool" else fusion.Sum}
    x, pair = rows(dtype, SIZE()), [rows(dtype, SIZE() + 1), rows("float32", 3)]
    return {
        "allreduce": ((x,), op),
        "grouped_allreduce": ((pair,), {"op": fusion.Max}),
        "allgather": ((rows(dtype),), {}),
        "grouped_allgather": (([rows(dtype), rows("int32")],), {}),
        "broadcast": ((x, SIZE() - 1), {}),
        "alltoall": ((x,), {}),
        "reducescatter": ((x,), op),
        "grouped_reducescatter": ((pair,), {"op": fusion.Max}),
    }


def assert_same(mine: Any, plain: Any) -> None:
    assert type(mine) is type(plain)
    for a, b in zip(tf.nest.flatten(mine), tf.nest.flatten(plain), strict=True):
        assert (a.dtype, a.device) == (b.dtype, b.device)
        np.testing.assert_array_equal(tf.cast(a, tf.int64), tf.cast(b, tf.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_those_of_the_plain_forms(dtype: str) -> None:
    handles = {
        plain: getattr(fusion, f"{plain}_async")(*args, **options) for plain, (args, options) in calls(dtype).items()
    }
    for plain, (args, options) in calls(dtype).items():
        assert_same(fusion.synchronize(handles[plain]), getattr(fusion, plain)(*args, **options))
        assert fusion.poll(handles[plain])
        assert fusion.synchronize(handles[plain]) is handles[plain].result()


def test_splits_factors_compression_and_averages() -> None:
    x, splits = tf.range(2 * SIZE(), dtype=tf.float32) / 3, [2] * SIZE()
    fp16 = {"compression": fusion.Compression.fp16, "prescale_factor": 3.0, "postscale_factor": 0.5}
    for plain, args, options in (
        ("alltoall", (x, splits), {}),
        ("allreduce", (x,), fp16),
        ("allreduce", (x,), {"average": False}),
        ("allreduce", (x,), {}),
        ("reducescatter", (x,), fp16),
        ("grouped_allreduce", ([x, tf.range(3)],), fp16),
    ):
        handle = getattr(fusion, f"{plain}_async")(*args, **options)
        expected = getattr(fusion, plain)(*args, **options)
        for a, b in zip(tf.nest.flatten(handle.result()), tf.nest.flatten(expected), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for plain in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        assert fusion.synchronize(getattr(fusion, f"{plain}_async")([])) == []


def test_many_in_flight_in_an_order_of_each_ranks_own() -> None:
    order = random.Random(RANK()).sample(range(60), 60)
    handles: dict[int, Future[Any]] = {}
    for n in order:
        x, name = tf.fill([n + 1], n + RANK()), f"many.{n}"
        if n % 3 == 0:
            handles[n] = fusion.allreduce_async(x, op=fusion.Sum, name=name)
        elif n % 3 == 1:
            handles[n] = fusion.allgather_async(x[: RANK() + 1], name=name)
        else:
            handles[n] = fusion.broadcast_async(x, 0, name=name)
    for n in reversed(order):
        each = [np.full(n + 1, n + rank) for rank in range(SIZE())]
        expected = [sum(each), np.concatenate([x[: rank + 1] for rank, x in enumerate(each)]), each[0]]
        np.testing.assert_array_equal(fusion.synchronize(handles[n]), expected[n % 3])


def test_poll_tells_without_waiting() -> None:
    if RANK() == 0:
        handle = fusion.allreduce_async(tf.ones(2), op=fusion.Sum, name="polled")
        assert SIZE() == 1 or not fusion.poll(handle)
        fusion.barrier("only then do the others submit")
    else:
        fusion.barrier("only then do the others submit")
        handle = fusion.allreduce_async(tf.ones(2), op=fusion.Sum, name="polled")
    while not fusion.poll(handle):
        pass
    np.testing.assert_array_equal(handle.result(timeout=0), [SIZE()] * 2)


def test_any_thread_may_wait() -> None:
    handles = [fusion.allgather_async(tf.fill([1], RANK()), name=f"threads.{n}") for n in range(8)]
    with ThreadPoolExecutor(4) as threads:
        for gathered in threads.map(fusion.synchronize, [*handles, *handles]):
            np.testing.assert_array_equal(gathered, range(SIZE()))


def test_a_name_that_is_in_flight_is_taken_and_its_group_left_whole() -> None:
    a, b = tf.ones(2), tf.ones([3, 1])
    if RANK() == 0:
        handle = fusion.grouped_allreduce_async([a, b], op=fusion.Sum, name="taken")
        if SIZE() > 1:
            for call in (fusion.grouped_allreduce_async, fusion.grouped_allreduce):
                with pytest.raises(fusionctl.UsageError, match=r"tensor 'taken.0' is still in flight on this rank"):
                    call([a, b], op=fusion.Sum, name="taken")
        fusion.barrier("only then")
    else:
        fusion.barrier("only then")
        handle = fusion.grouped_allreduce_async([a, b], op=fusion.Sum, name="taken")
    np.testing.assert_array_equal(handle.result()[1], [[SIZE()]] * 3)
    np.testing.assert_array_equal(fusion.grouped_allreduce([a, b], op=fusion.Sum, name="taken")[0], [SIZE()] * 2)


def test_a_name_that_is_done_may_be_used_again_before_anybody_waits() -> None:
    first = [fusion.allgather_async(tf.fill([1], RANK()), name="again")]
    while not fusion.poll(first[0]):
        pass
    first.append(fusion.allgather_async(tf.fill([2], -RANK()), name="again"))
    second = fusion.synchronize(first[1])
    np.testing.assert_array_equal(fusion.synchronize(first[0]), range(SIZE()))
    np.testing.assert_array_equal(second, np.repeat(-np.arange(SIZE()), 2))


@dataclass
class Finished:
    """Tells when a dropped call is done."""

    count: int = 0

    def __call__(self, future: Future[Any]) -> None:
        self.count += 1


def test_a_future_that_is_dropped() -> None:
    finished = Finished()
    for step in range(3):
        handles = [
            fusion.allreduce_async(tf.fill([1000], 1.0), name="dropped"),
            fusion.allgather_async(tf.fill([RANK()], 1.0), name="dropped rows"),
        ]
        for handle in handles:
            handle.add_done_callback(finished)
        del handle, handles
        gc.collect()
        while finished.count < 2 * step + 2:
            pass
    np.testing.assert_array_equal(fusion.allreduce(tf.ones(1000), name="dropped"), np.ones(1000))


def test_differing_shapes_fail_when_they_are_waited_for() -> None:
    if SIZE() > 1:
        handle = fusion.allreduce_async(tf.ones(3 if RANK() == 1 else 2), name="shape")
        rows_handle = fusion.allgather_async(tf.ones([1, 3 if RANK() == 1 else 2]), name="tail")
        for _ in range(2):
            with pytest.raises(fusionctl.MismatchError, match=r"tensor 'shape': shape is \(2,\) on .*\(3,\) on rank 1"):
                fusion.synchronize(handle)
        with pytest.raises(fusionctl.MismatchError, match=r"tensor 'tail': shape is \(any, 2\) on"):
            fusion.synchronize(rows_handle)
        assert fusion.poll(handle)
    np.testing.assert_array_equal(fusion.synchronize(fusion.allreduce_async(tf.ones(4), name="shape")), np.ones(4))


def test_bad_input_is_refused_at_once() -> None:
    for call, message in (
        (lambda: fusion.allreduce_async(tf.constant(["text"]), name="bad"), "tensor 'bad' has dtype string"),
        (lambda: fusion.allreduce_async(tf.ones(1), average=True, op=fusion.Sum), "has both average=True and op="),
        (lambda: fusion.allgather_async(1.0, name="bad"), "tensor 'bad' is a scalar"),
        (lambda: fusion.broadcast_async(1.0, SIZE()), f"root_rank is {SIZE()}, but the ranks are 0 to {SIZE() - 1}"),
        (lambda: fusion.alltoall_async(tf.ones(2), [0.5], name="bad"), "give one whole number of rows for each rank"),
        (lambda: fusion.reducescatter_async(tf.ones(2), op=fusion.Adasum), "reducescatter accepts Average, Sum"),
    ):
        with pytest.raises(fusionctl.UsageError, match=message):
            call()  # type: ignore[no-untyped-call]


def test_in_a_graph_the_plain_form_is_named() -> None:
    call = tf.function(lambda x: fusion.allreduce_async(x).result(), autograph=False)
    with pytest.raises(
        fusionctl.UsageError, match="is for eager mode; in a graph use allreduce, which is asynchronous"
    ):
        call(tf.ones(1))


def test_no_gradient_goes_past_the_other_ranks() -> None:
    x = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        y = fusion.synchronize(fusion.allreduce_async(x * 2, name="no gradient"))
    assert tape.gradient(y, x) is None


def test_a_result_that_cannot_be_made_is_an_error_of_that_call_alone() -> None:
    class Broken(fusion.Compression.none.__class__):  # type: ignore[name-defined, misc]
        def decompress(self, tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
            raise MemoryError("no room")

    broken = fusion.allreduce_async(tf.ones(1), compression=Broken(None), name="broken")
    with pytest.raises(MemoryError, match="no room"):
        fusion.synchronize(broken)
    np.testing.assert_array_equal(fusion.synchronize(fusion.allreduce_async(tf.ones(1), name="broken")), [1.0])


def test_within_a_process_set() -> None:
    if SIZE() > 2:
        pair = fusion.add_process_set([SIZE() - 2, SIZE() - 1])
        if pair.included():
            handle = fusion.allgather_async([RANK()], process_set=pair)
            total = fusion.allreduce_async([RANK()], op=fusion.Sum, process_set=pair)
            np.testing.assert_array_equal(fusion.synchronize(handle), pair.ranks)
            np.testing.assert_array_equal(fusion.synchronize(total), [sum(pair.ranks)])
        fusion.remove_process_set(pair)
