"""Averages of an epoch's metrics over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fusionctl
from fusionctl.errors import UsageError
from fusionctl.keras.agreement import all_names


def average(logs: dict[str, Any], weight_of: Callable[[str], float]) -> dict[str, Any]:
    """Flat logs with, in place of each number and for each that other ranks have, the mean over the ranks that have it.

    A rank counts by the weight it gives to the metric of this name.  What is NaN on one of them is NaN on all.  Raises
    UsageError on all ranks for a metric whose weights are 0 everywhere.
    """
    flat = _flat(logs)
    numbers = {name: value for name, value in flat.items() if isinstance(value, float)}
    names = all_names(sorted(numbers), "metrics")
    weights = np.array([weight_of(name) if name in numbers else 0.0 for name in names], np.float64)
    values = np.array([numbers.get(name, 0.0) for name in names], np.float64)
    parts = np.array([np.multiply(weights, values, where=weights > 0, out=np.zeros_like(values)), weights])
    sums, totals = fusionctl.allreduce(parts, name="metrics", op=fusionctl.Sum)
    if not totals.all():
        raise UsageError(
            f"no rank has counted a sample for metric '{names[int(np.argmin(totals))]}': MetricAverageCallback("
            "weighted=True) counts those of the model's 'loss' metric, which a train_step of your own must update with "
            "sample_weight=<batch size>; or leave weighted at False"
        )
    return flat | dict(zip(names, (sums / totals).tolist(), strict=True))


def samples_seen(model: Any) -> float | None:
    """How many samples the model's loss metric has counted since its last reset; None if there is none that counts."""
    for metric in model.metrics:
        if metric.name == "loss" and hasattr(metric, "count"):
            return float(metric.count)
    return None


def _flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Scalars as floats and no dictionary in another, as Keras's callbacks get them."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, dict):
            flat |= _flat(value)
        else:
            flat[name] = float(value) if np.ndim(value) == 0 and _is_number(value) else value
    return flat


def _is_number(value: Any) -> bool:
    return np.issubdtype(np.asarray(value).dtype, np.number)
