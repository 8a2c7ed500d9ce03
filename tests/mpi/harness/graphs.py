"""tf.function as a decorator that keeps the function's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])


def graph(function: Function) -> Function:
    """Trace the function when it is called."""
    return cast(Function, tf.function(function))
