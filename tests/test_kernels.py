"""The kernels against one-line NumPy equivalents, for each instruction set that this processor can run."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fusionctl import _kernels
from fusionctl.request import DTYPES, ITEMSIZE, ReduceOp

Array = NDArray[Any]

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
INTS = ("int32", "int64", "int8", "uint8", "int16", "uint16")
UFUNC = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
ODD_SIZES = (0, 1, 7, 16, 33, 1000)
"""None, less than a vector, and whole tiles with and without a rest."""

pytestmark = [
    pytest.mark.parametrize("portable", [name == "portable" for name in _kernels.INSTRUCTION_SETS]),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def computed(name: str) -> np.dtype[Any]:
    return np.dtype(np.float32) if name in HALVES else dtype_of(name)


def octets(array: Array) -> NDArray[np.uint8]:
    return array.view(np.uint8)


def unaligned(array: Array) -> Array:
    """The same elements, one byte past an aligned address."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    memory[1:] = octets(array)
    return memory[1:].view(array.dtype)


def scale(name: str, source: Array, factor: float, portable: bool) -> Array:
    out = unaligned(np.zeros(source.size, dtype_of(name)))
    _kernels.scale_bytes(DTYPES.index(name), octets(unaligned(source)), octets(out), factor, portable)
    return out


def reduce(name: str, op: ReduceOp, sources: list[Array], portable: bool, scale: float = 1.0) -> Array:
    out = unaligned(np.zeros(sources[0].size, dtype_of(name)))
    views = [octets(unaligned(source)) for source in sources]
    _kernels.reduce_bytes(DTYPES.index(name), op, octets(out), views, scale, portable)
    return out


def samples(name: str, n: int, seed: int) -> Array:
    """Elements of every magnitude: random bits, which hold denormals, infinities, NaNs and both zeros."""
    bits = np.random.default_rng(seed).integers(0, 256, n * ITEMSIZE[name], dtype=np.uint8)
    return bits.view(dtype_of(name))


def moderate(name: str, n: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 100, n).astype(dtype_of(name))


def all_halves(name: str) -> Array:
    return np.arange(2**16, dtype=np.uint16).view(dtype_of(name))


def assert_same(actual: Array, expected: Array) -> None:
    """Equal types and elements, NaN equal to NaN; NumPy's own check does not know bfloat16's NaN."""
    assert actual.dtype == expected.dtype
    if actual.dtype == dtype_of("bfloat16"):
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "factor", [-1.0, 0.5, 2.0, 3.0, 1 / 3, 1 + 2**-8, 1 + 2**-11, 1 - 2**-12, 2.0**-14, 2.0**-24, 2.0**15]
)
@pytest.mark.parametrize("name", HALVES)
def test_each_sixteen_bit_value_is_widened_exactly_and_rounded_to_nearest_even(
    name: str, factor: float, portable: bool
) -> None:
    wide = all_halves(name).astype(np.float32) * np.float32(factor)
    scaled = scale(name, all_halves(name), factor, portable)
    assert_same(scaled, wide.astype(dtype_of(name)))
    assert_same(np.signbit(scaled), np.signbit(wide))


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize("name", DTYPES)
def test_scaling_by_one_copies_every_bit(name: str, n: int, portable: bool) -> None:
    source = samples(name, n, seed=n)
    assert scale(name, source, 1.0, portable).tobytes() == source.tobytes()


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_scaled_and_rounded_once(name: str, n: int, portable: bool) -> None:
    source, factor = samples(name, n, seed=n), computed(name).type(0.37)
    assert_same(scale(name, source, 0.37, portable), (source.astype(computed(name)) * factor).astype(dtype_of(name)))


@pytest.mark.parametrize("name", INTS)
def test_integers_are_scaled_in_double_and_truncated(name: str, portable: bool) -> None:
    source = np.array([0, 1, 3, 101], dtype_of(name))
    assert scale(name, source, 0.75, portable).tolist() == [0, 0, 2, 75]
    if np.iinfo(source.dtype).min:
        assert scale(name, -source, 0.75, portable).tolist() == [0, 0, -2, -75]


@pytest.mark.parametrize("name", INTS)
def test_scaled_integers_that_do_not_fit_are_the_nearest_that_do(name: str, portable: bool) -> None:
    limits = np.iinfo(dtype_of(name))
    source = np.array([limits.max, limits.min, 1], dtype_of(name))
    assert scale(name, source, 2.0, portable).tolist() == [limits.max, limits.min, 2]
    assert scale(name, source, -2.0, portable).tolist() == [
        limits.min,
        limits.max if limits.min else 0,
        max(-2, limits.min),
    ]
    assert scale(name, source, float("nan"), portable).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", [*FLOATS, *INTS])
@given(st.sampled_from(list(UFUNC)), st.integers(1, 9), st.integers(0, 150), st.integers(0, 2**32 - 1))
def test_reduction_is_the_ufunc_applied_in_source_order(
    portable: bool, name: str, op: ReduceOp, k: int, n: int, seed: int
) -> None:
    sources = [samples(name, n, seed + j) for j in range(k)]
    expected = functools.reduce(UFUNC[op], (source.astype(computed(name)) for source in sources))
    assert_same(reduce(name, op, sources, portable), expected.astype(dtype_of(name)))


@pytest.mark.parametrize("name", FLOATS)
def test_sums_are_scaled_before_the_only_rounding_of_a_sixteen_bit_type(name: str, portable: bool) -> None:
    sources = [moderate(name, 1001, seed) for seed in range(5)]
    total = functools.reduce(np.add, (source.astype(computed(name)) for source in sources))
    assert_same(
        reduce(name, ReduceOp.SUM, sources, portable, 0.2), (total * computed(name).type(0.2)).astype(dtype_of(name))
    )


@pytest.mark.parametrize("name", INTS)
def test_the_mean_of_integers_is_exact_where_their_sum_does_not_fit(name: str, portable: bool) -> None:
    limits = np.iinfo(name)
    rows = [[limits.max, limits.min, limits.max - k, limits.min + k, 7 + k] for k in range(5)]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    means = [abs(total) // len(rows) * (1 if total > 0 else -1) for total in sums]
    arrays = [np.array(row, name) for row in rows]
    assert reduce(name, ReduceOp.AVERAGE, arrays, portable, scale=5.0).tolist() == means


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize("name", FLOATS)
def test_adasum_is_its_definition(name: str, n: int, portable: bool) -> None:
    a, b = moderate(name, n, 1), moderate(name, n, 2)
    x, y = a.astype(np.float64), b.astype(np.float64)
    expected = (1 - x @ y / (2 * x @ x)) * x + (1 - x @ y / (2 * y @ y)) * y if n else x
    out = unaligned(np.zeros(n, dtype_of(name)))
    _kernels.adasum_bytes(DTYPES.index(name), octets(out), octets(unaligned(a)), octets(unaligned(b)), portable)
    unit = float(ml_dtypes.finfo(dtype_of(name)).eps)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=2 * unit, atol=400 * unit)


@pytest.mark.parametrize("name", FLOATS)
def test_adasum_of_equals_is_either_of_orthogonals_the_sum_and_of_nothing_the_other(name: str, portable: bool) -> None:
    def adasum(a: list[float], b: list[float]) -> list[float]:
        out = np.array(a, dtype_of(name))  # in place
        other = np.array(b, dtype_of(name))
        _kernels.adasum_bytes(DTYPES.index(name), octets(out), octets(out), octets(other), portable)
        return [float(value) for value in out]

    assert adasum([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
    assert adasum([1.0, 0.0], [0.0, 3.0]) == [1.0, 3.0]
    assert adasum([0.0, 0.0], [2.0, 3.0]) == adasum([2.0, 3.0], [0.0, 0.0]) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("name", "op"),
    [
        *((name, op) for name in (*FLOATS, *INTS) for op in UFUNC),
        *(("bool", op) for op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT)),
    ],
)
def test_neutral_elements_change_nothing(name: str, op: ReduceOp, portable: bool) -> None:
    values = np.array([0, 1], dtype_of(name)) if name == "bool" else samples(name, 100, seed=5)
    nothing = np.zeros_like(values)
    _kernels.neutral_bytes(DTYPES.index(name), op, octets(nothing))
    assert_same(reduce(name, op, [values, nothing], portable), values)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("name", FLOATS)
def test_minimum_and_maximum_are_nan_whichever_operand_is(name: str, op: ReduceOp, portable: bool) -> None:
    nan, one = (np.array([value] * 5, dtype_of(name)) for value in (np.nan, 1.0))
    for sources in ([nan, one], [one, nan], [one, nan, one]):
        assert np.isnan(reduce(name, op, sources, portable).astype(np.float32)).tolist() == [True] * 5


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_the_destination_may_be_any_of_the_sources(name: str, k: int, portable: bool) -> None:
    sources = [moderate(name, 1001, seed) for seed in range(k)]
    expected = reduce(name, ReduceOp.SUM, sources, portable)
    for j in range(k):
        own = [source.copy() for source in sources]
        _kernels.reduce_bytes(
            DTYPES.index(name), ReduceOp.SUM, octets(own[j]), [octets(a) for a in own], portable=portable
        )
        assert own[j].tobytes() == expected.tobytes()
        assert [a.tobytes() for a in own[:j] + own[j + 1 :]] == [a.tobytes() for a in sources[:j] + sources[j + 1 :]]


@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_scaling_may_happen_in_place(name: str, portable: bool) -> None:
    code, source = DTYPES.index(name), moderate(name, 1001, seed=3)
    own = source.copy()
    _kernels.scale_bytes(code, octets(own), octets(own), 0.5, portable)
    assert own.tobytes() == scale(name, source, 0.5, portable).tobytes()


def test_nothing_is_written_past_the_end(portable: bool) -> None:
    for n in range(70):
        memory = np.full(n + 70, 9, np.float32)
        sources = [octets(np.ones(n, np.float32)) for _ in range(3)]
        _kernels.reduce_bytes(DTYPES.index("float32"), ReduceOp.SUM, octets(memory[:n]), sources, portable=portable)
        assert memory.tolist() == [3.0] * n + [9.0] * 70


def test_buffers_of_another_size_are_refused(portable: bool) -> None:
    four, five = np.zeros(4, np.uint8), np.zeros(5, np.uint8)
    with pytest.raises(ValueError, match="a buffer has 5 bytes where 1 elements of 4 bytes were expected"):
        _kernels.scale_bytes(DTYPES.index("float32"), four, five, 1.0, portable)
    with pytest.raises(ValueError, match="a buffer has 5 bytes where 1 elements of 4 bytes were expected"):
        _kernels.reduce_bytes(DTYPES.index("float32"), ReduceOp.SUM, four, [four, five], portable=portable)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("scale_bytes(10, bytes(4), bytearray(4), 2.0", "no kernel for scaling dtype 10 of 11"),
        ("reduce_bytes(2, 2, bytearray(4), [bytes(4), bytes(4)], 1.0", "no kernel for reducing dtype 2 by op 2"),
        (
            "reduce_bytes(2, 0, bytearray(4), [bytes(4), bytes(4)], 1.0",
            "no kernel for averaging dtype 2 from sources: 2",
        ),
    ],
)
def test_a_combination_without_a_kernel_ends_the_process(call: str, message: str, portable: bool) -> None:
    # The module alone, for an MPI that the package loads may report the signal in its own way.
    program = (
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        f"spec = spec_from_file_location('_kernels', {_kernels.__file__!r})\n"
        "_kernels = module_from_spec(spec)\n"
        "spec.loader.exec_module(_kernels)\n"
        f"_kernels.{call}, portable={portable})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (-signal.SIGABRT, f"fusionctl: {message}\n")
