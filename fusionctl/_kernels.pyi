"""Typed view of the compiled module: the loops themselves are declared in its `.pxd`."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

INSTRUCTION_SETS: tuple[str, ...]

def scale_bytes(dtype: int, src: Bytes, dst: Bytes, factor: float, portable: bool = False) -> None: ...
def reduce_bytes(
    dtype: int, op: int, dst: Bytes, srcs: list[Bytes], scale: float = 1.0, portable: bool = False
) -> None: ...
def adasum_bytes(dtype: int, dst: Bytes, a: Bytes, b: Bytes, portable: bool = False) -> None: ...
def neutral_bytes(dtype: int, op: int, dst: Bytes) -> None: ...
