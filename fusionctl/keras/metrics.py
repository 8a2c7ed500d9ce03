"""Averages of an epoch's metrics, for all callbacks at once.

Keras hands one dictionary to the callbacks of a fit, one after the other.  For those that are listed before
MetricAverageCallback to see averages, they must be in it before the first is called: hence three methods of
`keras.callbacks.CallbackList` are replaced, once, for lists in which some callback `averages_metrics`.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import numpy as np

import fusionctl
from fusionctl.keras.agreement import check_same_names

HOOKS = ("on_epoch_end", "on_test_end", "on_train_end")


def install() -> None:
    """Replace the methods of CallbackList; idempotent."""
    for hook in HOOKS:
        plain = getattr(keras.callbacks.CallbackList, hook)
        if not hasattr(plain, "__wrapped__"):
            setattr(keras.callbacks.CallbackList, hook, _averaging(plain))


def average(logs: dict[str, Any], where: str) -> dict[str, Any]:
    """Flat logs with the mean over the ranks in place of each number; MismatchError unless all have the same names."""
    flat = _flat(logs)
    numbers = {name: flat[name] for name in sorted(flat) if isinstance(flat[name], float)}
    check_same_names(list(numbers), f"metrics {where}")
    means = fusionctl.allreduce(np.array([*numbers.values()], np.float64), name=f"metrics {where}")
    return flat | dict(zip(numbers, means.tolist(), strict=True))


def _averaging(plain: Any) -> Any:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def averaging(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        callbacks, logs = call.arguments["self"].callbacks, call.arguments.get("logs")
        if logs and any(getattr(callback, "averages_metrics", False) for callback in callbacks):
            call.arguments["logs"] = average(logs, plain.__name__)
        return plain(*call.args, **call.kwargs)

    return averaging


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
