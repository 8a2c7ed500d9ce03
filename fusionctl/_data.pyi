"""Typed view of the compiled module; what the engine calls is declared in its `.pxd`."""

from typing import Any

def phases(plan: Any) -> tuple[str, ...]: ...
