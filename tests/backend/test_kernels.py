"""The CPU tile kernels against float64 numpy, for each instruction set the compiler can target."""

import ctypes
import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.backend

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "prism" / "codegen" / "cpu" / "include"
HARNESS = Path(__file__).with_name("kernels_harness.cpp")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-fno-trapping-math",
    "-fopenmp",
    # GCC's own AVX-512 intrinsics use undefined registers on purpose and warn of them.
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
TARGETS = {
    "native": ["-march=native"],
    "avx2": ["-march=native", "-mno-avx512f"],
    "portable": ["-march=x86-64"],
}
DTYPES = ("fp32", "bf16", "fp16")
STORAGE = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.float16}


def to_bf16(x):
    """Bits of float32 values rounded to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (u >> 16).astype(np.uint16) | np.uint16(0x40), rounded)


def encode(x, dtype):
    """Values in their storage type."""
    return to_bf16(x) if dtype == "bf16" else np.asarray(x).astype(STORAGE[dtype])


def decode(x, dtype):
    """Storage to float64."""
    if dtype == "bf16":
        with np.errstate(invalid="ignore"):
            return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def pointer(x):
    """Address of an array's first element."""
    return ctypes.c_void_p(x.ctypes.data)


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request, tmp_path_factory):
    """The harness compiled for one target."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler on PATH")
    library = tmp_path_factory.mktemp("kernels") / "kernels.so"
    subprocess.run(
        [
            compiler,
            *FLAGS,
            *TARGETS[request.param],
            "-shared",
            "-fPIC",
            "-I",
            str(INCLUDE),
            str(HARNESS),
            "-o",
            str(library),
        ],
        check=True,
    )
    return ctypes.CDLL(str(library))


def unary(kernels, name, x, out=np.float32):
    """harness_NAME over an array."""
    x = np.ascontiguousarray(x)
    y = np.empty(x.size, out)
    getattr(kernels, f"harness_{name}")(ctypes.c_long(x.size), pointer(x), pointer(y))
    return y


def gemm(kernels, a, ta, b, tb, c, accumulate):
    """c (+)= a @ b for strided views of storage arrays; returns nothing, c is written."""
    (m, k), n = a.shape, b.shape[1]
    strides = [s // x.itemsize for x in (a, b, c) for s in x.strides]
    sizes = (ctypes.c_long * 9)(m, n, k, *strides)
    kernels.harness_gemm(
        DTYPES.index(ta),
        DTYPES.index(tb),
        sizes,
        pointer(a),
        pointer(b),
        pointer(c),
        int(accumulate),
    )


def guarded(x, transpose, gap):
    """A copy of a matrix with its rows (or columns) contiguous and `gap` NaNs (storage bits of
    all ones for integers) after each, so that a read beyond an edge shows."""
    source = x.T if transpose else x
    bad = np.uint16(0xFFFF) if x.dtype == np.uint16 else np.nan
    buffer = np.full((source.shape[0] + 1, source.shape[1] + gap), bad, x.dtype)
    buffer[: source.shape[0], : source.shape[1]] = source
    view = buffer[: source.shape[0], : source.shape[1]]
    return view.T if transpose else view


def check_gemm(kernels, rng, m, n, k, ta, tb, layout=(0, 0, 0), accumulate=False, gap=7):
    """One product with random values; layout: transposed a, b, c; `gap` is between rows of b."""
    a = encode(rng.standard_normal((m, k)), ta)
    b = encode(rng.standard_normal((k, n)), tb)
    start = rng.standard_normal((m, n)).astype(np.float32)
    expected = decode(a, ta) @ decode(b, tb) + (start if accumulate else 0.0)
    scale = np.abs(decode(a, ta)) @ np.abs(decode(b, tb)) + np.abs(start)
    c = guarded(start, layout[2], 3)
    outside = c.base.copy() if c.base.base is None else c.base.base.copy()
    gemm(kernels, guarded(a, layout[0], 5), ta, guarded(b, layout[1], gap), tb, c, accumulate)
    # fp32 sums of k products; an fp32 a may be rounded to bf16 (8 bits) beside a bf16 b.
    rounded = (ta, tb) == ("fp32", "bf16")
    bound = (2.0**-8 if rounded else 0.0) + 2.0**-23 * (4 + math.sqrt(k))
    worst = np.max(np.abs(c - expected) / scale, initial=0.0)
    assert worst <= bound, (m, n, k, ta, tb, layout, accumulate, worst)
    buffer = c.base if c.base.base is None else c.base.base
    assert np.array_equal(np.isnan(buffer), np.isnan(outside)), "written outside c"


@pytest.mark.parametrize("ta", DTYPES)
@pytest.mark.parametrize("tb", DTYPES)
def test_gemm_shapes_and_strides(kernels, ta, tb):
    """All layouts and odd sizes, overwriting and accumulating."""
    rng = np.random.default_rng(1)
    for layout in np.ndindex(2, 2, 2):
        for _ in range(12):
            m, n, k = rng.integers(1, (20, 150, 90))
            check_gemm(kernels, rng, m, n, k, ta, tb, layout, bool(rng.integers(2)))
    for m in range(1, 18):
        for layout in ((0, 0, 0), (0, 1, 0)):
            check_gemm(kernels, rng, m, 67, 37, ta, tb, layout, True)
    check_gemm(kernels, rng, 33, 37, 65, ta, tb)
    check_gemm(kernels, rng, 200, 1, 65, ta, tb, (0, 0, 1))
    check_gemm(kernels, rng, 6, 40, 2100, ta, tb, (0, 1, 0), True)
    check_gemm(kernels, rng, 16, 33, 700, ta, tb, (1, 1, 1), True)
    check_gemm(kernels, rng, 8, 1100, 131, ta, tb)
    check_gemm(kernels, rng, 5, 19, 1101, ta, tb, (0, 1, 0))
    check_gemm(kernels, rng, 1, 128, 1000, ta, tb, (1, 0, 0))


@pytest.mark.parametrize("ta", DTYPES)
@pytest.mark.parametrize("tb", DTYPES)
def test_gemm_rows_at_a_stride_of_8_kib(kernels, ta, tb):
    """Few rows of A by a B whose rows are that far apart: other passes, also with odd edges."""
    rng, row = np.random.default_rng(4), 8192 // (4 if tb == "fp32" else 2)
    for m, n, k in ((8, 1100, 49), (8, 2048, 16), (5, 1024, 17), (9, 1025, 33), (4, 1030, 35)):
        for accumulate in (False, True):
            check_gemm(kernels, rng, m, n, k, ta, tb, (0, 0, 0), accumulate, gap=row - n)


@pytest.mark.parametrize("ta", DTYPES)
@pytest.mark.parametrize("tb", DTYPES)
def test_gemm_rows_that_follow_one_another(kernels, ta, tb):
    """Whole rows of B are one run of memory: passes over all of them, also beyond their limit."""
    rng = np.random.default_rng(5)
    for m, n, k in ((8, 2080, 35), (3, 4099, 33), (1, 2049, 64), (8, 8200, 18), (9, 2080, 33)):
        for accumulate in (False, True):
            check_gemm(kernels, rng, m, n, k, ta, tb, (0, 0, 0), accumulate, gap=0)


@pytest.mark.parametrize("ta", DTYPES)
@pytest.mark.parametrize("tb", DTYPES)
def test_gemm_columns_at_a_stride_of_2_kib(kernels, ta, tb):
    """A B that is contiguous along k, with columns that far apart: they go through a copy."""
    rng, column = np.random.default_rng(6), 2048 // (4 if tb == "fp32" else 2)
    for m, n, k in ((8, 35, 300), (2, 64, 129), (5, 16, 256), (1, 33, 200)):
        for accumulate in (False, True):
            check_gemm(kernels, rng, m, n, k, ta, tb, (0, 1, 0), accumulate, gap=column - k)


def test_gemm_general_strides(kernels):
    """Steps other than 1 along both axes of every matrix."""
    rng = np.random.default_rng(2)
    a = rng.standard_normal((9, 3, 40, 2)).astype(np.float32)[:, 1, :, 1]
    b = rng.standard_normal((40, 2, 70, 3)).astype(np.float32)[:, 1, :, 2]
    c = np.zeros((9, 2, 70, 2), np.float32)
    gemm(kernels, a, "fp32", b, "fp32", c[:, 1, :, 1], False)
    assert np.allclose(c[:, 1, :, 1], a.astype(float) @ b, atol=1e-4)
    assert not c[:, 0].any() and not c[:, 1, :, 0].any()


def test_gemm_empty(kernels):
    """No k: zeros, or c unchanged; no rows or columns: nothing is written."""
    for m, n, k, accumulate in ((3, 5, 0, 0), (3, 5, 0, 1), (0, 5, 4, 0), (3, 0, 4, 0)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        c = np.full((m + 1, n + 1), 7.0, np.float32)
        gemm(kernels, a, "fp32", b, "fp32", c[:m, :n], accumulate)
        assert (c[:m, :n] == (7.0 if accumulate else 0.0)).all()
        assert (c[m:] == 7.0).all() and (c[:, n:] == 7.0).all()


@pytest.mark.parametrize("tb", DTYPES)
@pytest.mark.parametrize("transpose", [False, True])
def test_gemm_special_values(kernels, tb, transpose):
    """Infinity and NaN reach exactly the elements that they reach in IEEE arithmetic."""
    rng = np.random.default_rng(3)
    for m, n, k in ((1, 35, 7), (3, 50, 33), (8, 33, 64), (11, 130, 41)):
        a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
        a[0, 0], a[m - 1, k - 1] = 0.0, np.inf
        b[0, n // 2], b[k - 1, n - 1], b[k - 1, 0], b[k // 2, 1] = np.inf, 0.0, np.inf, np.nan
        a, b = encode(a, tb), encode(b, tb)
        with np.errstate(invalid="ignore"):
            products = decode(a, tb)[:, :, None] * decode(b, tb)[None]
            expected = products.sum(axis=1)
        c = np.empty((m, n), np.float32)
        gemm(kernels, guarded(a, False, 3), tb, guarded(b, transpose, 3), tb, c, False)
        assert np.array_equal(np.isnan(c), np.isnan(expected))
        assert np.array_equal(c[np.isinf(expected)], expected[np.isinf(expected)])
        finite = np.isfinite(expected)
        assert np.allclose(c[finite], expected[finite], atol=1e-4)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, -100.0], np.float32)


def test_exp(kernels):
    """Within 2 ulp, denormal results within one of them; limits exact."""
    x = np.linspace(-87.0, 88.7, 400_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(unary(kernels, "exp", x) - exact) / np.spacing(exact.astype("f4"))) < 2
    x = np.linspace(-110.0, -87.0, 10_001).astype(np.float32)
    assert np.max(np.abs(unary(kernels, "exp", x) - np.exp(x.astype(np.float64)))) <= 2.0**-149
    got = unary(kernels, "exp", SPECIAL)
    assert np.isnan(got[0])
    assert got[1:7].tolist() == [math.inf, 0.0, 1.0, 1.0, math.inf, 0.0]
    assert unary(kernels, "exp", np.array([88.73], np.float32))[0] == math.inf


def test_silu(kernels):
    """Relative error of a few ulp down to where e^-x overflows, and 0 below."""
    x = np.linspace(-87.5, 100.0, 400_001).astype(np.float32)
    exact = x / (1.0 + np.exp(-x.astype(np.float64)))
    got = unary(kernels, "silu", x)
    assert np.max(np.abs(got - exact) / np.maximum(np.abs(exact), 1e-36)) < 4e-7
    got = unary(kernels, "silu", SPECIAL)
    assert np.isnan(got[0])
    assert got[1:].tolist() == [math.inf, 0.0, 0.0, 0.0, np.float32(1e30), 0.0, 0.0]


def test_gelu(kernels):
    """Absolute error 1e-6 of |x|, and relative 1e-5 in the negative tail; limits exact."""
    x = np.linspace(-12.0, 12.0, 60_001).astype(np.float32)
    exact = np.array([0.5 * v * math.erfc(-v / math.sqrt(2.0)) for v in x.astype(float)])
    error = np.abs(unary(kernels, "gelu", x) - exact)
    assert np.max(error - 1e-6 * np.abs(x)) <= 0.0
    tail = (x < 0) & (x > -11)
    assert np.max(error[tail] / np.abs(exact[tail])) < 1e-5
    got = unary(kernels, "gelu", SPECIAL)
    assert np.isnan(got[0])
    assert got[1:].tolist() == [math.inf, 0.0, 0.0, 0.0, np.float32(1e30), 0.0, 0.0]


def test_relu(kernels):
    """max(x, 0), NaN kept."""
    got = unary(kernels, "relu", SPECIAL)
    assert np.isnan(got[0])
    assert got[1:].tolist() == [math.inf, 0.0, 0.0, 0.0, np.float32(1e30), 0.0, 0.0]


def test_conversions(kernels):
    """Every 16-bit pattern widens exactly; rounding is to nearest even, with overflow and NaN."""
    bits = np.arange(65536, dtype=np.uint16)
    half = bits.view(np.float16)
    assert np.array_equal(unary(kernels, "from_fp16", bits), half.astype("f4"), equal_nan=True)
    assert np.array_equal(
        unary(kernels, "from_bf16", bits), decode(bits, "bf16").astype("f4"), equal_nan=True
    )
    rng = np.random.default_rng(4)
    finite = half[np.isfinite(half)].astype("f8")
    ties = ((np.sort(finite)[1:] + np.sort(finite)[:-1]) / 2).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.concatenate(
            [
                rng.integers(0, 2**32, 500_000, dtype=np.uint32).view(np.float32),
                np.linspace(-7e4, 7e4, 100_001),
                np.linspace(-1e-4, 1e-4, 100_001),
                finite,
                ties,
                np.nextafter(ties, np.float32(np.inf)),
                np.nextafter(ties, np.float32(-np.inf)),
                [np.inf, -np.inf, np.nan, 3.39e38, -3.4e38, 65519.996, 65520.0],
            ]
        ).astype(np.float32)
        expected = x.astype(np.float16)
    got = unary(kernels, "to_fp16", x, np.uint16).view(np.float16)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(x))
    nan = np.isnan(x)
    got = unary(kernels, "to_bf16", x, np.uint16)
    assert np.array_equal(got[~nan], to_bf16(x)[~nan])
    assert np.isnan(decode(got[nan], "bf16")).all()
