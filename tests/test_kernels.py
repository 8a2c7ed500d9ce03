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

FLOAT32, FLOAT64, INT32, INT64 = (DTYPES.index(name) for name in ("float32", "float64", "int32", "int64"))
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
INTS = ("int32", "int64")
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


def pack(name: str, wire: str, source: Array, scale: float, portable: bool) -> Array:
    out = unaligned(np.zeros(source.size, dtype_of(wire)))
    codes = DTYPES.index(name), DTYPES.index(wire)
    _kernels.pack_bytes(*codes, octets(unaligned(source)), octets(out), scale, portable)
    return out


def unpack(name: str, wire: str, source: Array, scale: float, divisor: int, portable: bool) -> Array:
    out = unaligned(np.zeros(source.size, dtype_of(name)))
    codes = DTYPES.index(name), DTYPES.index(wire)
    _kernels.unpack_bytes(*codes, octets(unaligned(source)), octets(out), scale, divisor, portable)
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


def between_halves(name: str) -> NDArray[np.float32]:
    """Every 16-bit value, what lies midway to its neighbours, and the float32 values next to all of these."""
    exact = all_halves(name).astype(np.float32).view(np.uint32)
    midway = np.uint32(0x1000 if name == "float16" else 0x8000)
    offsets = np.array([0, 1, -1, midway, midway - 1, midway + 1], np.int64).astype(np.uint32)
    tiny = (np.arange(-4100, 4100) * np.float32(2.0**-26)).astype(np.float32)
    return np.concatenate([np.add.outer(exact, offsets).ravel().view(np.float32), tiny])


def assert_same(actual: Array, expected: Array) -> None:
    """Equal types and elements, NaN equal to NaN; NumPy's own check does not know bfloat16's NaN."""
    assert actual.dtype == expected.dtype
    if actual.dtype == dtype_of("bfloat16"):
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def truncated(values: Array, divisor: int) -> Array:
    return np.where(values < 0, -(-values // divisor), values // divisor)


@pytest.mark.parametrize("name", HALVES)
def test_each_sixteen_bit_value_is_widened_exactly(name: str, portable: bool) -> None:
    assert_same(pack(name, "float32", all_halves(name), 1.0, portable), all_halves(name).astype(np.float32))


@pytest.mark.parametrize("name", HALVES)
def test_narrowing_rounds_to_nearest_even_overflows_to_infinity_and_keeps_nan(name: str, portable: bool) -> None:
    values = between_halves(name)
    narrow = unpack(name, "float32", values, 1.0, 1, portable)
    assert_same(narrow, values.astype(dtype_of(name)))
    assert_same(np.signbit(narrow), np.signbit(values))


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize("name", DTYPES)
def test_packing_without_conversion_copies_every_bit(name: str, n: int, portable: bool) -> None:
    source = samples(name, n, seed=n)
    assert pack(name, name, source, 1.0, portable).tobytes() == source.tobytes()
    assert unpack(name, name, source, 1.0, 1, portable).tobytes() == source.tobytes()


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize(("name", "wire"), [*zip(FLOATS, FLOATS, strict=True), *((half, "float32") for half in HALVES)])
def test_floats_are_scaled_and_rounded_once(name: str, wire: str, n: int, portable: bool) -> None:
    source, factor = samples(name, n, seed=n), computed(name).type(0.37)
    assert_same(
        pack(name, wire, source, 0.37, portable), (source.astype(computed(name)) * factor).astype(dtype_of(wire))
    )


@pytest.mark.parametrize("n", ODD_SIZES)
@pytest.mark.parametrize(("name", "wire"), [*zip(FLOATS, FLOATS, strict=True), *((half, "float32") for half in HALVES)])
def test_the_mean_of_floats_is_one_multiplication(name: str, wire: str, n: int, portable: bool) -> None:
    source, factor = samples(wire, n, seed=n), computed(name).type(2.5 / 3)
    assert_same(
        unpack(name, wire, source, 2.5, 3, portable), (source.astype(computed(name)) * factor).astype(dtype_of(name))
    )


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(1, 1000), st.sampled_from([1.0, 0.5, -1.5, 3.0]))
def test_the_mean_of_int32_is_exact_through_int64(
    portable: bool, values: list[int], divisor: int, scale: float
) -> None:
    source = np.array(values, np.int32)
    wire = pack("int32", "int64", source, 1.0, portable) * divisor + np.sign(source) * (divisor - 1)
    mean = unpack("int32", "int64", wire, scale, divisor, portable)
    assert_same(mean, np.trunc(source * scale).clip(-(2**31), 2**31 - 1).astype(np.int32))


@pytest.mark.parametrize("name", INTS)
def test_integers_are_divided_exactly_toward_zero(name: str, portable: bool) -> None:
    source = samples(name, 1000, seed=1)
    assert_same(unpack(name, name, source, 1.0, 7, portable), truncated(source, 7))


@pytest.mark.parametrize(("name", "wire"), [("int32", "int32"), ("int32", "int64"), ("int64", "int64")])
def test_integers_are_scaled_in_double_and_truncated(name: str, wire: str, portable: bool) -> None:
    source = np.array([0, 1, -1, 3, -3, 1000001, -1000001], dtype_of(name))
    assert pack(name, wire, source, -1.5, portable).tolist() == [0, -1, 1, -4, 4, -1500001, 1500001]


@pytest.mark.parametrize("name", INTS)
def test_scaled_integers_that_do_not_fit_are_the_nearest_that_do(name: str, portable: bool) -> None:
    limits = np.iinfo(dtype_of(name))
    source = np.array([limits.max, limits.min, 1], dtype_of(name))
    assert pack(name, name, source, 2.0, portable).tolist() == [limits.max, limits.min, 2]
    assert pack(name, name, source, -2.0, portable).tolist() == [limits.min, limits.max, -2]
    assert pack(name, name, source, float("nan"), portable).tolist() == [0, 0, 0]


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
    _kernels.pack_bytes(code, code, octets(own), octets(own), 0.5, portable)
    assert own.tobytes() == pack(name, name, source, 0.5, portable).tobytes()
    _kernels.unpack_bytes(code, code, octets(own), octets(own), 3.0, 2, portable)
    assert own.tobytes() == unpack(name, name, pack(name, name, source, 0.5, portable), 3.0, 2, portable).tobytes()


def test_nothing_is_written_past_the_end(portable: bool) -> None:
    for n in range(70):
        memory = np.full(n + 70, 9, np.float32)
        sources = [octets(np.ones(n, np.float32)) for _ in range(3)]
        _kernels.reduce_bytes(FLOAT32, ReduceOp.SUM, octets(memory[:n]), sources, portable=portable)
        assert memory.tolist() == [3.0] * n + [9.0] * 70


def test_buffers_of_another_size_are_refused(portable: bool) -> None:
    four, five = np.zeros(4, np.uint8), np.zeros(5, np.uint8)
    with pytest.raises(ValueError, match="a buffer has 5 bytes where 1 elements of 4 bytes were expected"):
        _kernels.pack_bytes(FLOAT32, FLOAT32, four, five, 1.0, portable)
    with pytest.raises(ValueError, match="a buffer has 5 bytes where 1 elements of 4 bytes were expected"):
        _kernels.unpack_bytes(FLOAT32, FLOAT32, four, five, 1.0, 1, portable)
    with pytest.raises(ValueError, match="a buffer has 5 bytes where 1 elements of 4 bytes were expected"):
        _kernels.reduce_bytes(FLOAT32, ReduceOp.SUM, four, [four, five], portable=portable)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("pack_bytes(2, 3, bytes(4), bytearray(8), 1.0", "no kernel for packing dtype 2 as 3"),
        ("unpack_bytes(6, 6, bytes(4), bytearray(4), 1.0, 2", "no kernel for unpacking dtype 6 from 6"),
        ("reduce_bytes(2, 2, bytearray(4), [bytes(4), bytes(4)], 1.0", "no kernel for reducing dtype 2 by op 2"),
        (
            "reduce_bytes(6, 1, bytearray(4), [bytes(4), bytes(4)], 1.0",
            "no kernel for reducing dtype 6 from sources: 2",
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
