"""The law: after the first step of a fixed set there is no slow path, and an exchange costs a word per 64 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import fusionctl

SIZES = (1, 2, 3, 4, 8, 16)


def counted(step: Callable[[], object], times: int) -> dict[str, int]:
    """What `times` steps added to the counters; the first step, which negotiates, is not counted."""
    step()
    fusionctl.barrier("counted")
    fusionctl.barrier("counted")
    before = fusionctl.counters()
    for _ in range(times):
        step()
    after = fusionctl.counters()
    return {key: after[key] - before[key] for key in after}


def test_a_step_of_200_tensors_costs_one_exchange() -> None:
    arrays = [np.full(4, k, "float32") for k in range(200)]
    counts = counted(lambda: fusionctl.grouped_allreduce(arrays, "step200"), 10)
    assert counts["slow_paths"] == 0
    assert counts["exchanges"] == 10
    assert counts["exchange_bytes"] % (8 * 10) == 0
    assert counts["buckets"] == 10
    assert counts["bytes_reduced"] == 10 * 200 * 4 * 4


def test_single_tensors_never_take_the_slow_path_again() -> None:
    def step() -> None:
        futures = [fusionctl.allreduce_async(np.full(4, k, "float32"), f"single.{k}") for k in range(70)]
        for k, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(60), np.full(4, k))

    counts = counted(step, 5)
    assert counts["slow_paths"] == 0
    assert counts["buckets"] <= 5 * 70
    assert counts["bytes_reduced"] == 5 * 70 * 4 * 4


def test_a_changed_shape_takes_the_slow_path_once() -> None:
    fusionctl.allreduce(np.ones(3), "grows")
    fusionctl.barrier("counted")
    before = fusionctl.counters()["slow_paths"]
    for _ in range(3):
        np.testing.assert_array_equal(fusionctl.allreduce(np.ones(4), "grows"), np.ones(4))
    assert fusionctl.counters()["slow_paths"] - before == 1
