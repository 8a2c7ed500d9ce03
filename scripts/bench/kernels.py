"""Speed of the kernels beside NumPy doing the same: GB/s of memory read and written, median of repeated runs."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fusionctl import _kernels
from fusionctl.request import DTYPES, ITEMSIZE, ReduceOp

Array = NDArray[Any]
Case = tuple[str, int, Callable[[], object], Callable[[], object]]
"""Label, bytes moved, the kernel, NumPy's equivalent."""

NUMPY_DTYPE = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of that name; bfloat16 is ml_dtypes'."""
    return NUMPY_DTYPE.get(name) or np.dtype(name)


def octets(array: Array) -> NDArray[np.uint8]:
    """The array's memory, without a copy."""
    return array.view(np.uint8)


def reduce_case(name: str, nbytes: int, k: int) -> Case:
    """The sum of k arrays."""
    code, dtype = DTYPES.index(name), numpy_dtype(name)
    arrays = [np.ones(nbytes // dtype.itemsize, dtype) for _ in range(k)]
    out = np.zeros_like(arrays[0])
    sources = [octets(array) for array in arrays]

    def equivalent() -> None:
        np.add(arrays[0], arrays[1], out=out)
        for array in arrays[2:]:
            np.add(out, array, out=out)

    return (
        f"reduce {k} {name}",
        (k + 1) * nbytes,
        lambda: _kernels.reduce_bytes(code, ReduceOp.SUM, octets(out), sources),
        equivalent,
    )


def scale_case(name: str, nbytes: int) -> Case:
    """Halving each element."""
    source = np.ones(nbytes // ITEMSIZE[name], numpy_dtype(name))
    out = np.zeros_like(source)
    return (
        f"scale {name}",
        2 * nbytes,
        lambda: _kernels.scale_bytes(DTYPES.index(name), octets(source), octets(out), 0.5),
        lambda: np.multiply(source, 0.5, out=out, casting="unsafe"),
    )


def cases(nbytes: int) -> Iterator[Case]:
    """Every reducible type, on arrays of nbytes bytes."""
    for name in DTYPES[:6]:
        yield reduce_case(name, nbytes, 2)
        yield reduce_case(name, nbytes, 8)
        yield scale_case(name, nbytes)


def rate(function: Callable[[], object], nbytes: int, seconds: float) -> float:
    """GB/s: the median over as many runs as fit into the given seconds, three at least."""
    function()
    durations: list[float] = []
    while sum(durations) < seconds or len(durations) < 3:
        start = time.perf_counter()
        function()
        durations.append(time.perf_counter() - start)
    return nbytes / statistics.median(durations) / 1e9


def main() -> None:
    """Print one line per case and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 64], help="sizes of each array in MiB")
    parser.add_argument("--seconds", type=float, default=0.2, help="time given to each measurement")
    arguments = parser.parse_args()
    for mib in arguments.mib:
        print(f"{f'GB/s, {mib} MiB per array':<28}{'kernel':>10} {'numpy':>8} {'ratio':>7}")
        for label, nbytes, kernel, equivalent in cases(mib << 20):
            ours, theirs = (rate(function, nbytes, arguments.seconds) for function in (kernel, equivalent))
            print(f"{label:<28}{ours:>10.1f} {theirs:>8.1f} {ours / theirs:>6.1f}x")


if __name__ == "__main__":
    main()
