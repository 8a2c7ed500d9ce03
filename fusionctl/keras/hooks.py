"""What some callbacks do before the first callback of a list is called.

Keras calls the callbacks of a fit one after the other, in the user's order.  What all of them are to find done,
wherever the callback that does it is listed, must happen before: hence three methods of `keras.callbacks.CallbackList`
are replaced, once.  Lists without such callbacks do what they did.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import keras

BEFORE = {
    "on_test_begin": ("check_epoch", "join_epoch"),
    "on_epoch_end": ("check_epoch", "join_epoch", "average_epoch"),
    "on_train_end": ("average_training",),
}
"""Methods of callbacks, from logs to logs, each called on all that have it before the next; and before which hook.

The batches of an epoch are over when its validation begins, or else when the epoch ends.
"""


def install() -> None:
    """Replace the methods of CallbackList; idempotent."""
    for hook, methods in BEFORE.items():
        plain = getattr(keras.callbacks.CallbackList, hook)
        if not hasattr(plain, "__wrapped__"):
            setattr(keras.callbacks.CallbackList, hook, _preceded(plain, methods))


def _preceded(plain: Any, methods: Sequence[str]) -> Any:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def hook(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        for method in methods:
            for callback in call.arguments["self"].callbacks:
                if hasattr(callback, method):
                    call.arguments["logs"] = getattr(callback, method)(call.arguments.get("logs") or {})
        return plain(*call.args, **call.kwargs)

    return hook
