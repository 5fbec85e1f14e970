"""Products of integers on the engine: exact in the ring of the result, whatever scheme, depth, layout and dtype."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from engine_oracle import LAYOUTS, OUT_LAYOUTS, guarded, in_layout
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba import dispatch, launching
from falcon_numba.algorithms import Scheme, flatten
from falcon_numba.integers import lane_for, signed

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
WIDENED = [
    ("int8", "int8", "int32"),
    ("uint8", "int8", "int32"),
    ("uint8", "uint8", "uint32"),
    ("int16", "int8", "int32"),
    ("int16", "int16", "int64"),
    ("uint8", "int8", "int64"),
    ("int8", "int8", "int16"),
    ("int32", "int32", "int64"),
]
SCHEMES = sorted(fn.schemes)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Integers of the whole range, often the extremes."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    kind = rng.integers(4)
    if kind == 0:
        x[...] = info.min if rng.integers(2) else info.max
    elif kind == 1:
        x = np.where(rng.random(shape) < 0.5, x, rng.choice(np.array([info.min, info.max, 1], dtype), shape))
    return x


def wrapped(values: np.ndarray, dtype: str) -> np.ndarray:
    """Python's integers modulo 2^bits."""
    bits = 8 * np.dtype(dtype).itemsize
    unsigned = np.array([int(x) % 2**bits for x in values.ravel()], f"u{bits // 8}")
    return unsigned.view(dtype).reshape(values.shape)


def product(a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    return wrapped(a.astype(object) @ b.astype(object), dtype)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_layout_scheme_and_dtype(data):
    """alpha·A·B + beta·C against Python's integers; not a byte outside of out is written."""
    M, N, K = (data.draw(st.one_of(st.integers(1, 40), st.sampled_from((65, 97)))) for _ in range(3))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = in_layout(numbers(rng, (M, K), dtype), data.draw(st.sampled_from(LAYOUTS)))
    b = in_layout(numbers(rng, (K, N), dtype), data.draw(st.sampled_from(LAYOUTS)))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (1, 0), (1, 1), (2, -1), (-(2**63), 3), (2**64 - 1, 2**40 + 1)]))
    out, buffer = guarded((M, N), dtype, data.draw(st.sampled_from(OUT_LAYOUTS)), 7)
    out[...] = numbers(rng, (M, N), dtype)
    expected = wrapped(alpha * (a.astype(object) @ b.astype(object)) + beta * out.astype(object), dtype)
    depth = data.draw(st.integers(0, 2))
    options = {
        "executor": "cpu",
        "scheme": data.draw(st.sampled_from(SCHEMES)),
        "depth": depth,
        "threads": data.draw(st.integers(1, 3)),
    }
    with fn.trace() as plans:
        result = fn.gemm(a, b, out if beta else None, alpha=alpha, beta=beta, out=out, **options)
    assert result is out
    if alpha % 2 ** (8 * out.itemsize):  # else there is no product
        (plan,) = plans
        assert plan.executor == "cpu" and plan.error_bound == 0
        assert plan.depth == (0 if options["scheme"] == "classical" else depth)
    np.testing.assert_array_equal(out, expected)
    out[...] = 7
    assert (buffer == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_chunks_and_panels(dtype):
    """More than one chunk of the inner dimension, odd ones, more than one piece of work."""
    rng = np.random.default_rng(1)
    for (M, N, K), depth in (((150, 260, 2049), 0), ((30, 50, 4201), 1), ((300, 210, 515), 2)):
        a, b = numbers(rng, (M, K), dtype), numbers(rng, (K, N), dtype)
        expected = np.matmul(a.astype(f"u{a.itemsize}"), b.astype(f"u{a.itemsize}")).astype(dtype)
        for layout in ("C", "F"):
            x, y = in_layout(a, layout), in_layout(b, layout)
            np.testing.assert_array_equal(fn.gemm(x, y, depth=depth, executor="cpu"), expected)
    stack = np.stack([a, a[::-1]])
    np.testing.assert_array_equal(fn.matmul(stack, b, executor="cpu")[1], expected[::-1])


@pytest.mark.parametrize("dtype", ["int16", *(pytest.param(x, marks=pytest.mark.slow) for x in ("int64", "int32"))])
def test_portable_kernels_give_the_same(dtype):
    rng = np.random.default_rng(2)
    for M, N, K in ((1, 1, 1), (13, 37, 101)):
        a, b, c = numbers(rng, (M, K), dtype), numbers(rng, (K, N), dtype), numbers(rng, (M, N), dtype)
        for depth in (0, 2):
            options = {"executor": "cpu", "leaf": "portable", "depth": depth}
            got = fn.gemm(a, b, c, alpha=-3, beta=5, **options)
            np.testing.assert_array_equal(got, fn.gemm(a, b, c, alpha=-3, beta=5, executor="numpy"))


@pytest.mark.parametrize(("first", "second", "result"), WIDENED)
def test_widened_results_are_exact(first, second, result):
    rng = np.random.default_rng(3)
    for M, N, K in ((1, 1, 1), (5, 33, 70), (64, 40, 1100)):
        for _ in range(4):
            a, b = numbers(rng, (M, K), first), numbers(rng, (K, N), second)
            expected = product(a, b, result)
            for options in ({}, {"executor": "cpu"}):
                got = fn.gemm(a, b, out_dtype=result, **options)
                assert got.dtype == result
                np.testing.assert_array_equal(got, expected)
                np.testing.assert_array_equal(fn.matmul(a, b, dtype=result, **options), expected)
                out = np.empty((M, N), result)
                assert fn.gemm(a, b, out=out, **options) is out
                np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("a", "b"), [(-128, -128), (255, -128), (255, 255), (-32768, -32768), (-32768, 32767)])
def test_extremes_do_not_saturate(a, b):
    K = 1027
    types = [next(x for x in ("int8", "uint8", "int16") if np.iinfo(x).min <= v <= np.iinfo(x).max) for v in (a, b)]
    x, y = np.full((13, K), a, types[0]), np.full((K, 37), b, types[1])
    for result in ("int32", "int64"):
        got = fn.gemm(x, y, out_dtype=result, executor="cpu")
        assert (got == wrapped(np.array([a * b * K], object), result)).all()


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), -1])
def test_extremes_of_64_bits(value):
    x = np.full((33, 47), value)
    for depth in (0, 1, 2):
        got = fn.gemm(x, x.T, depth=depth, executor="cpu")
        assert (got == signed(value * value * 47, np.dtype("int64"))).all()


def test_levels_of_widened_products():
    """Combinations of 8-bit numbers fit into the kernel's 16 bits for some levels, those of 16 bits don't."""
    a, b = np.full((60, 60), -128, "int8"), np.full((60, 60), 255, "uint8")
    for depth in (1, 2, 3):
        with fn.trace() as plans:
            got = fn.gemm(a, b, out_dtype="int32", scheme="winograd", depth=depth)
        assert plans[0].depth == depth and (got == -128 * 255 * 60).all()
    wide = a.astype("int16")
    out = np.zeros((60, 60), "int32")
    with pytest.raises(ValueError, match="leave the range of int16"):
        fn.gemm(wide, wide, out=out, depth=1)
    assert not out.any()
    most = lane_for(b.dtype, b.dtype, out.dtype).headroom
    deepest = max(d for d in range(6) if max(flatten((fn.schemes["winograd"],) * d).largest_sums[:2]) <= most)
    fn.gemm(b, b, out_dtype="int32", scheme="winograd", depth=deepest)
    with pytest.raises(ValueError, match="leave the range"):
        fn.gemm(b, b, out_dtype="int32", scheme="winograd", depth=deepest + 1)
    assert fn.gemm(wide, wide, depth=1, executor="cpu").dtype == "int16"  # which wraps, and may
    made = fn.plan(wide, wide, depth=1, executor="cpu")
    with pytest.raises(ValueError, match="another product"):
        fn.gemm(wide, wide, out=out, plan=made)
    assert (fn.gemm(wide, wide, plan=made) == wrapped(np.array([128 * 128 * 60], object), "int16")).all()


def test_schemes_with_fractions_are_refused():
    s = fn.schemes["strassen"]
    halved = Scheme("halved", s.U, s.V / 2, s.W * 2)
    a = np.arange(36).reshape(6, 6)
    with pytest.raises(ValueError, match="no integers"):
        fn.gemm(a, a, scheme=halved, depth=1)
    doubled = Scheme("doubled", np.kron(s.U, np.ones((1, 1, 1), int)) * 2, s.V, s.W / 2)
    with pytest.raises(ValueError, match="no integers"):
        fn.gemm(a, a, scheme=doubled, depth=1)
    fn.gemm(a.astype(float), a.astype(float), scheme=halved, depth=1)


def test_coefficients_beyond_one_stay_integers():
    """Floats move powers of two from U and V to W; integers can't."""
    u, v, w = np.array([[[2]], [[-2]]]), np.array([[[4]], [[2]]]), np.array([[[1]], [[1]]])
    s = Scheme("large", np.concatenate([u, [[[1]]]]), np.concatenate([v, [[[-3]]]]), np.concatenate([w, [[[1]]]]))
    rng = np.random.default_rng(4)
    for dtype in ("int64", "int8"):
        a, b = numbers(rng, (9, 8), dtype), numbers(rng, (8, 7), dtype)
        for depth in (1, 2):
            with fn.trace() as plans:
                got = fn.gemm(a, b, scheme=s, depth=depth, executor="cpu")
            assert plans[0].depth == depth
            np.testing.assert_array_equal(got, product(a, b, dtype))


def test_promises_of_floats_are_kept_trivially():
    a = np.arange(2500).reshape(50, 50)
    for options in ({"accuracy": "componentwise"}, {"max_error": 1e-300}, {"accuracy": "estimated", "max_error": 1e-9}):
        with fn.trace() as plans:
            got = fn.gemm(a, a, depth=2, **options)
        assert plans[0].depth == 2
        np.testing.assert_array_equal(got, a @ a)


def test_who_computes():
    assert fn.plan_for(2048, 2048, 2048, "int64").executor == "cpu"
    assert fn.plan_for(4096, 4096, 4096, "uint64").depth > 0
    assert fn.plan_for(8, 8, 8, "int8").executor == "numpy"
    assert fn.plan_for(4096, 4096, 4096, "int32", executor="numpy").executor == "numpy"
    assert "exact modulo" in str(fn.plan_for(512, 512, 512, "uint16"))


@pytest.mark.parametrize(("first", "result"), [("int64", "int64"), ("int16", "int16"), ("int8", "int32")])
def test_faults_are_seen(first, result, monkeypatch):
    """check=True; what wraps may leave anything in the bits that are cut off."""
    rng = np.random.default_rng(5)
    a, b = numbers(rng, (70, 50), first), numbers(rng, (50, 60), first)
    options = {"out_dtype": result, "executor": "cpu", "depth": 2, "check": True}
    expected = product(a, b, result)
    before = fn.check_counts().products
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twice = fn.gemm(a, b, expected, beta=1, **options)
    np.testing.assert_array_equal(twice, wrapped(2 * expected.astype(object), result))
    assert fn.check_counts().products == before + 1
    run = launching.Launch.run

    def faulty(self, table, *arguments):
        run(self, table, *arguments)
        results[0].ravel()[[7]] += 1

    results: list[np.ndarray] = []
    execute = dispatch.execute

    def spied(problem, *arguments):
        results[:] = [problem.c]
        return execute(problem, *arguments)

    monkeypatch.setattr(launching.Launch, "run", faulty)
    monkeypatch.setattr(dispatch, "execute", spied)
    with pytest.warns(fn.ProductCheckWarning, match=r"C\[0, 7\] is off by 1"):
        np.testing.assert_array_equal(fn.gemm(a, b, **options), expected)


def test_tuning_and_explanations():
    a = np.arange(120 * 120, dtype="int32").reshape(120, 120)
    np.testing.assert_array_equal(fn.gemm(a, a, tune=True, executor="cpu"), a @ a)
    assert any(row.chosen for row in fn.explain(a, a, top=2))


@pytest.mark.parametrize("result", ["i1", "i2", "i4", "i8", ">i8"])
def test_unsigned_into_signed_never_goes_through_floats(result):
    rng = np.random.default_rng(8)
    a, b = (rng.integers(0, 2**64, (n, 130), np.uint64, endpoint=False) for n in (90, 70))
    b = b.T
    bits = 8 * np.dtype(result).itemsize
    exact = a.astype(object) @ b.astype(object) * 3
    expected = ((exact + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)).astype(result)
    out = np.zeros((90, 70), result)
    for options in ({}, {"executor": "cpu", "depth": 1}):
        np.testing.assert_array_equal(fn.gemm(a, b, alpha=3, out=out, **options), expected)
        got = fn.gemm(a, b, out_dtype=result, **options)
        np.testing.assert_array_equal(got, fn.gemm(a, b, **options).astype(np.dtype(result).newbyteorder("=")))


@pytest.mark.parametrize(("dtype", "value"), [("u8", 1e19), ("u4", 3e9)])
def test_floats_become_unsigned_as_numpy_makes_them(dtype, value):
    a, one = np.full((100, 100), value), np.eye(100)
    expected = np.matmul(a, one, dtype=dtype, casting="unsafe")
    got = fn.matmul(a, one, dtype=dtype, casting="unsafe", executor="cpu")
    np.testing.assert_array_equal(got, expected)
