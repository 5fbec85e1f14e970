"""The CPU engine against exact products: every scheme, depth, shape and layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engine_oracle import LAYOUTS, OUT_LAYOUTS, SIZES, exact_limit, guarded, in_layout, integers
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.algorithms import flatten, growth_factor

SCHEMES = sorted(fn.schemes)
DTYPES = ("float32", "float64")


def check_exact(a, b, *, out=None, **options):
    """Integer data: the engine's product equals the integer product; asserts that the engine ran as forced."""
    with fn.trace() as plans:
        got = fn.gemm(a, b, out=out, executor="cpu", **options)
    (plan,) = plans
    assert plan.executor == "cpu"
    expected = a.astype(np.float64) @ b.astype(np.float64)  # exact: far below 2^53, and BLAS is fast
    np.testing.assert_array_equal(got, expected)
    return plan


def stays_exact(scheme: str, depth: int, K: int, dtype: str, most: int = 3) -> bool:
    """Whether no intermediate of integer data in [−most, most] can leave the dtype's exact integers."""
    levels = (fn.schemes[scheme],) * depth
    e = np.prod([float(growth_factor(s)) for s in levels])
    return e * -(-K // flatten(levels).grid[1]) * most * most < exact_limit(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_small_shapes_sampled(scheme, dtype):
    """A sample of all (M, N, K) from SIZES at forced depth 0 to 3."""
    rng = np.random.default_rng([SCHEMES.index(scheme), DTYPES.index(dtype)])
    for depth in range(4):
        if fn.schemes[scheme].rank ** depth > 4000 and dtype == "float64":
            continue
        for _ in range(12 if depth < 3 else 3):
            M, N, K = (int(x) for x in rng.choice(SIZES, 3))
            a, b = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype)
            if stays_exact(scheme, depth, K, dtype):
                plan = check_exact(a, b, scheme=scheme, depth=depth, accuracy="normwise")
                assert plan.depth == (0 if scheme == "classical" else depth)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("scheme", SCHEMES)
def test_small_shapes_all(scheme, depth, dtype):
    rng = np.random.default_rng(7)
    for M, N, K in itertools.product(SIZES, repeat=3):
        if stays_exact(scheme, depth, K, dtype):
            a, b = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype)
            check_exact(a, b, scheme=scheme, depth=depth, accuracy="normwise")


@pytest.mark.parametrize("n", [513, 769, 1021])
@pytest.mark.parametrize(("scheme", "depth"), [("strassen", 1), ("winograd", 2), ("laderman", 1), ("hk233", 1)])
def test_odd_squares(scheme, depth, n):
    rng = np.random.default_rng(n)
    a, b = integers(rng, (n, n), "float32"), integers(rng, (n, n), "float32")
    check_exact(a, b, scheme=scheme, depth=depth)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("n", [513, 769, 1021, 2047])
def test_odd_squares_all(scheme, depth, n, dtype):
    rng = np.random.default_rng(n)
    a, b = integers(rng, (n, n), dtype, 1), integers(rng, (n, n), dtype, 1)
    if stays_exact(scheme, depth, n, dtype, 1):
        check_exact(a, b, scheme=scheme, depth=depth, accuracy="normwise")


@settings(max_examples=150)
@given(data=st.data())
def test_layouts(data):
    """Any layout of A, B and out, any alpha and beta: exact, and not a byte outside of out is written."""
    M, N, K = (data.draw(st.integers(1, 90)) for _ in range(3))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = in_layout(integers(rng, (M, K), dtype), data.draw(st.sampled_from(LAYOUTS)))
    b = in_layout(integers(rng, (K, N), dtype), data.draw(st.sampled_from(LAYOUTS)))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (1, 1), (2, -1), (-1, 0.5), (3, 2)]))
    out, buffer = guarded((M, N), dtype, data.draw(st.sampled_from(OUT_LAYOUTS)), 7)
    before = np.float64(out).copy() if beta else np.zeros((M, N))
    if beta == 0:
        out[...] = np.nan
    result = fn.gemm(
        a,
        b,
        out if beta else None,
        alpha=alpha,
        beta=beta,
        out=out,
        executor="cpu",
        scheme=data.draw(st.sampled_from(SCHEMES)),
        depth=data.draw(st.integers(0, 2)),
        threads=data.draw(st.integers(1, 3)),
        leaf=data.draw(st.sampled_from(["simd", "simd", "portable"])),
    )
    assert result is out
    expected = alpha * (a.astype(np.int64) @ b.astype(np.int64)) + beta * before
    np.testing.assert_array_equal(out, expected)
    out[...] = 7
    assert (buffer == 7).all()
