"""Products that run on the engine of another dtype: complex numbers and short floats."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from engine_oracle import LAYOUTS, OUT_LAYOUTS, in_layout
from fuzzing import pattern
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.cpu import opened
from falcon_numba.cpu.opened import _widened, narrow

ml_dtypes = pytest.importorskip("ml_dtypes")
COMPLEX = ("complex64", "complex128")
SHORT = tuple(map(np.dtype, (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)))
CPU = {"executor": "cpu"}
LEVELS = ((), ("strassen",), ("hk233",), ("winograd", "strassen"))


def forced(levels):
    return {**CPU, "scheme": levels, "depth": len(levels)} if levels else {**CPU, "depth": 0}


def gaussian(rng, shape, dtype):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def gaussian_integers(rng, shape, dtype):
    return (rng.integers(-3, 4, shape) + 1j * rng.integers(-3, 4, shape)).astype(dtype)


def steps(x):
    """A copy in each way a conversion can meet it: by rows, by columns, neither."""
    spread = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)[1::2, ::3]
    spread[...] = x
    return x.copy(), np.asfortranarray(x), spread, x[::-1, ::-1].copy()[::-1, ::-1]


# Conversions


def bits(x):
    return x.view(f"u{x.itemsize}")


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_every_short_float_is_widened_exactly(dtype):
    every = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").reshape(-1, 16).view(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = every.astype(np.float32)
    for x in steps(every):
        got = _widened(x, np.full(x.shape, 7, np.float32), 2)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        np.testing.assert_array_equal(bits(got)[~np.isnan(got)], bits(expected)[~np.isnan(got)])


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_narrowing_rounds_to_nearest_even(dtype):
    rng = np.random.default_rng(0)
    every = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}").view(dtype).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    middles = ((finite[1:].astype("f8") + finite[:-1]) / 2).astype("f4")
    random = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    near = [np.nextafter(middles, np.float32(s), dtype="f4") for s in (-np.inf, np.inf)]
    x = np.concatenate([every, middles, *near, random])
    x = x[: x.size // 8 * 8].reshape(-1, 8)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    wide = expected.astype("f4")
    for layout in steps(np.zeros(x.shape, dtype)):
        narrow(x, layout, 2)
        got = layout.astype("f4")
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wide))
        same = ~np.isnan(wide)
        np.testing.assert_array_equal(got[same], wide[same])
        np.testing.assert_array_equal(np.signbit(got[same]), np.signbit(wide[same]))


# Complex numbers


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("levels", LEVELS, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_complex_integers_are_exact(dtype, levels, data):
    M, K, N = (data.draw(st.integers(1, 40)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a = in_layout(gaussian_integers(rng, (M, K), dtype), data.draw(st.sampled_from(LAYOUTS)))
    b = in_layout(gaussian_integers(rng, (K, N), dtype), data.draw(st.sampled_from(LAYOUTS)))
    c = gaussian_integers(rng, (M, N), dtype)
    expected = a.astype("c16") @ b.astype("c16")
    with fn.trace() as plans:
        got = fn.gemm(a, b, **forced(levels))
    assert got.dtype == dtype and [(p.executor, p.dtype, p.depth) for p in plans] == [("cpu", dtype, len(levels))]
    np.testing.assert_array_equal(got, expected)
    out = in_layout(np.full((M, N), np.nan + 1j, dtype), data.draw(st.sampled_from(OUT_LAYOUTS)))
    fn.gemm(a, b, out=out, **forced(levels))
    np.testing.assert_array_equal(out, expected)
    for alpha, beta in ((2, -1), (1j, 0), (1 - 1j, 2j), (0, 1j), (3, 1j)):
        got = fn.gemm(a, b, c, alpha=alpha, beta=beta, out=out, **forced(levels))
        np.testing.assert_array_equal(got, alpha * expected + beta * c)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_batches_broadcast(dtype, monkeypatch):
    rng = np.random.default_rng(1)
    a, b = gaussian_integers(rng, (3, 1, 20, 30), dtype), gaussian_integers(rng, (4, 30, 25), dtype)
    expected = np.matmul(a, b)
    for most in (opened.MOST_OPENED, 2**15):  # all at once, or piece by piece
        monkeypatch.setattr(opened, "MOST_OPENED", most)
        for options in (CPU, {**CPU, "depth": 1}, {}):
            np.testing.assert_array_equal(fn.matmul(a, b, **options), expected)
            out = np.full((25, 3, 4, 20), 7, dtype).transpose(1, 2, 3, 0)
            fn.matmul(a, b, out=out, **options)
            np.testing.assert_array_equal(out, expected)
            broadcast = np.broadcast_to(b[0], (4, 30, 25))
            np.testing.assert_array_equal(fn.matmul(a[0, 0], broadcast, **options), np.matmul(a[0, 0], broadcast))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("accuracy", ["balanced", "normwise"])
@pytest.mark.parametrize("levels", LEVELS, ids=str)
def test_error_of_each_part_is_within_the_bound(dtype, accuracy, levels):
    rng = np.random.default_rng(2)
    a, b = gaussian(rng, (70, 90), dtype), gaussian(rng, (90, 50), dtype)
    wide = "c16" if dtype == "complex64" else "G"
    with fn.trace() as plans:
        got = fn.gemm(a, b, accuracy=accuracy, **forced(levels))
    error = got.astype(wide) - a.astype(wide) @ b.astype(wide)
    parts = [max(abs(x.real).max(), abs(x.imag).max()) for x in (error, a, b)]
    (plan,) = plans
    assert 0 < parts[0] <= plan.error_bound * 90 * parts[1] * parts[2]
    assert plan.passes >= 1 and "complex" in str(plan)
    assert fn.verify_product(a, b, got, plan=plan)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_non_finite_parts_stand_where_four_real_products_have_them():
    for case in range(150):
        rng = np.random.default_rng([3, case])
        dtype = COMPLEX[case % 2]
        M, N, K = ((20, 30, 25), (3, 8, 40), (33, 1, 9))[case % 3]
        a, b = gaussian(rng, (M, K), dtype), gaussian(rng, (K, N), dtype)
        for x in (a, b):
            for _ in range(rng.integers(0, 3)):
                part = (x.real, x.imag)[rng.integers(2)]
                part[tuple(map(rng.integers, x.shape))] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
        real = a.real @ b.real - a.imag @ b.imag
        imaginary = a.real @ b.imag + a.imag @ b.real
        got = fn.gemm(a, b, **forced(LEVELS[case % 4]))
        np.testing.assert_array_equal(pattern(got.real), pattern(real))
        np.testing.assert_array_equal(pattern(got.imag), pattern(imaginary))


def test_complex_overflow_takes_the_classical_product():
    a = np.full((40, 40), 1e160 * (1 + 1j))
    with fn.trace() as plans:
        got = fn.gemm(a, np.full((40, 40), 1e146 + 0j), **forced(("strassen",)))
    assert plans[0].depth == 0 and plans[0].dtype == "complex128" and np.isfinite(got).all()


def test_complex_rows_in_other_units_are_scaled():
    rng = np.random.default_rng(4)
    a, b = gaussian(rng, (64, 64), "complex128"), gaussian(rng, (64, 64), "complex128")
    units, others = 10.0 ** rng.uniform(-8, 8, (64, 1)), 10.0 ** rng.uniform(-8, 8, (1, 64))
    got = fn.gemm(a * units, b * others, **forced(("strassen",)))
    expected = (a * units).astype("G") @ (b * others).astype("G")
    # Columns of B come in pairs, rows of A as they are, so the units of both are known.
    assert (abs(got - expected) / (units * others)).max() < 1e-12


@pytest.mark.parametrize("options", [{"check": True}, {"tune": True}, {"accuracy": "estimated", "max_error": 1e-9}])
def test_options_for_complex_products(options):
    rng = np.random.default_rng(5)
    a, b = gaussian(rng, (150, 140), "complex128"), gaussian(rng, (140, 160), "complex128")
    with fn.trace() as plans:
        got = fn.gemm(a, b, **options)
    np.testing.assert_allclose(got, a @ b, rtol=1e-9, atol=1e-9)
    assert [(p.M, p.N, p.K, p.dtype) for p in plans] == [(150, 160, 140, "complex128")]
    assert fn.plan(a, b, **options).dtype == "complex128"


def test_plan_and_workspace_of_complex_products():
    rng = np.random.default_rng(6)
    a, b = gaussian(rng, (200, 200), "complex64"), gaussian(rng, (200, 200), "complex64")
    plan = fn.plan(a, b, scheme="strassen", depth=2, executor="cpu")
    with fn.trace() as plans:
        got = fn.gemm(a, b, plan=plan)
    assert plans == [plan]
    np.testing.assert_array_equal(got, fn.gemm(a, b, scheme="strassen", depth=2, executor="cpu"))
    with pytest.raises(TypeError, match="the plan is for complex64"):
        fn.gemm(a.real.copy(), b.real.copy(), plan=plan)
    with pytest.raises(ValueError, match="workspace_limit"):
        fn.gemm(a, b, executor="cpu", workspace_limit=200_000)
    assert plan.workspace_bytes > 2 * b.nbytes
    with fn.trace() as plans:
        fn.gemm(a, b, workspace_limit=200_000)
    assert plans[0].executor == "numpy"


# Short floats


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_short_floats_are_rounded_once(dtype, data):
    """Of products that float32 represents there is one right answer."""
    M, K, N = (data.draw(st.integers(1, 40)) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b, c = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((M, K), (K, N), (M, N)))
    exact = a.astype("f8") @ b.astype("f8")
    a, b = (in_layout(x, data.draw(st.sampled_from(LAYOUTS))) for x in (a, b))
    exact = a.astype("f8") @ b.astype("f8")
    out = in_layout(np.zeros((M, N), dtype), data.draw(st.sampled_from(OUT_LAYOUTS)))
    for levels in LEVELS:
        got = fn.gemm(a, b, out=out, **forced(levels))
        np.testing.assert_array_equal(got.astype("f4"), exact.astype("f4").astype(dtype).astype("f4"))
        got = fn.gemm(a, b, c, alpha=2, beta=-0.5, **forced(levels))
        rounded = (2 * exact - 0.5 * c.astype("f8")).astype("f4").astype(dtype)
        np.testing.assert_array_equal(got.astype("f4"), rounded.astype("f4"))
        np.testing.assert_array_equal(fn.gemm(a, b, out_dtype="f4", **forced(levels)), exact)


def test_float16_in_matmul():
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 3, 1, 50, 60)).astype("f2")[0], rng.standard_normal((4, 60, 70)).astype("f2")
    for options in (CPU, {}, {"depth": 1, **CPU}):
        got = fn.matmul(a, b, **options)
        exact = np.matmul(a.astype("f8"), b.astype("f8"))
        assert got.dtype == np.float16 and got.shape == (3, 4, 50, 70)
        np.testing.assert_allclose(got, exact, rtol=2.0**-11 + 1e-4, atol=1e-4)
        vector = fn.matmul(a, b[0, :, 0], **options)
        np.testing.assert_array_equal(vector, fn.matmul(a, b[0, :, :1], **options)[..., 0])
    large = np.full((30, 30), 3e4, "f2")
    with np.errstate(all="ignore"):
        assert (fn.matmul(large, large, **CPU) == np.inf).all()
    tiny = np.full((30, 30), 2.0**-12, "f2")
    assert (fn.matmul(tiny, tiny, **CPU) == np.float16(30 * 2.0**-24)).all()  # subnormal
    assert type(fn.matmul(a[0, 0, 0], b[0, :, 0], **CPU)) is np.float16


def test_short_floats_in_products_of_float32():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 30, 30), np.float32)
    for dtype in SHORT[1:]:
        x, y = a.astype(dtype), b.astype(dtype)
        expected = x.astype("f4") @ y.astype("f4")
        for pair in ((x, y), (x, y.astype("f4")), (x.astype("f4"), y)):
            got = fn.matmul(*pair, **CPU)
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "complex64"])
def test_bits_do_not_depend_on_threads(dtype):
    rng = np.random.default_rng(9)
    a, b = (gaussian(rng, (700, 700), "complex64") for _ in range(2))
    a, b = (a, b) if dtype == "complex64" else (a.real.astype(dtype), b.real.astype(dtype))
    first, second = (fn.matmul(a, b, threads=n, depth=1, **CPU) for n in (1, 2))
    np.testing.assert_array_equal(first, second)
