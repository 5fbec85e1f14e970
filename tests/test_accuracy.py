"""The accuracy contract: measured errors against the proven bounds, hostile magnitudes, NaN, Inf and overflow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from families import exact, family, ratio_to_bound
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.numerics.bounds import entry_bounds, error_bound

DTYPES = ("float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["normwise", "balanced"])
@pytest.mark.parametrize("scheme", sorted(fn.schemes))
def test_bounds_hold_for_every_scheme(scheme, accuracy, dtype):
    rng = np.random.default_rng(5)
    for M, N, K in ((130, 97, 111), (64, 64, 257)):
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        for depth in (1, 2):
            ratio, _ = ratio_to_bound(a, b, accuracy, scheme=scheme, depth=depth)
            assert 0 < ratio <= 1


def test_componentwise_is_depth_0_and_its_bound_holds():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((300, 2500)).astype("float32"), rng.standard_normal((2500, 200)).astype("float32")
    ratio, plan = ratio_to_bound(a, b, "componentwise")
    assert plan.depth == 0
    assert 0 < ratio <= 1
    with pytest.raises(ValueError, match="componentwise"):
        fn.gemm(a, b, accuracy="componentwise", depth=1)


def test_units_cost_no_digits():
    """Badly scaled rows and columns: a textbook Strassen loses every digit, the balanced contract loses none."""
    rng = np.random.default_rng(2)
    a, b = family("units", rng, 256, "float64")
    reference = exact(a, b)
    weights = np.abs(a).max(axis=1)[:, None] * np.abs(b).max(axis=0)[None, :]
    error = {
        accuracy: float((np.abs(fn.gemm(a, b, depth=2, accuracy=accuracy) - reference) / weights).max())
        for accuracy in ("balanced", "normwise")
    }
    assert error["balanced"] < 1e-12
    assert error["normwise"] > 1e-2


def test_exact_zeros_of_empty_rows_survive():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 256, 256))
    a[17], b[:, 100] = 0, 0
    c = fn.gemm(a, b, depth=2)
    assert not c[17].any()
    assert not c[:, 100].any()


@pytest.mark.parametrize("scale", [1, 2**-40, 2**40])
def test_scaling_by_powers_of_two_is_invisible(scale):
    """The balanced contract's scaling is exact: scaled units give bit for bit the scaled result."""
    rng = np.random.default_rng(6)
    a, b = rng.uniform(1, 2, (2, 130, 130))
    powers = 2.0 ** rng.integers(-300, 300, 130)
    plain = fn.gemm(a, b, depth=2)
    np.testing.assert_array_equal(fn.gemm(a * powers[:, None] * scale, b, depth=2), plain * powers[:, None] * scale)
    np.testing.assert_array_equal(fn.gemm(a, b * powers * scale, depth=2), plain * powers * scale)


# --- non-finite data and overflow --------------------------------------------------------------------------------


def assert_same_pattern(a, b, **options):
    """NaN and Inf exactly where NumPy's classical product has them."""
    with np.errstate(all="ignore"):
        expected = np.matmul(a, b)
    got = fn.gemm(a, b, executor="cpu", **options)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
    np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 64, 64), (513, 511, 70)])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_one_bad_element_spoils_one_row(shape, depth, dtype):
    """Reported against others: https://github.com/jax-ml/jax/issues/33349 (NaN reaching unrelated outputs)."""
    M, N, K = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
    a[0, 0] = np.nan
    with fn.trace() as plans:
        c = fn.gemm(a, b, executor="cpu", depth=depth)
    assert plans[0].depth == 0
    assert np.isnan(c[0]).all()
    assert np.isfinite(c[1:]).all()
    a[0, 0] = np.inf
    assert_same_pattern(a, b, depth=depth)
    b[3, 5] = -np.inf
    assert_same_pattern(a, b, depth=depth)
    a[1] = 0
    assert_same_pattern(a, b, depth=depth)  # 0·Inf is NaN


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), depth=st.integers(0, 2), dtype=st.sampled_from(DTYPES), order=st.sampled_from("CF"))
def test_non_finite_patterns(seed, depth, dtype, order):
    rng = np.random.default_rng(seed)
    M, N, K = rng.integers(1, 70, 3)
    a, b = (rng.standard_normal(s).astype(dtype, order=order) for s in ((M, K), (K, N)))
    for x in (a, b):
        for _ in range(rng.integers(0, 3)):
            x[tuple(rng.integers(0, x.shape))] = rng.choice([np.nan, np.inf, -np.inf, 0])
    assert_same_pattern(a, b, depth=depth)


@pytest.mark.parametrize("accuracy", ["balanced", "normwise"])
@pytest.mark.parametrize(("dtype", "big"), [("float64", 1.2e308), ("float32", 3e38)])
def test_sums_of_blocks_do_not_overflow(dtype, big, accuracy):
    """Reported for half precision sums: https://github.com/numpy/numpy/issues/22448; Strassen adds A11 + A22."""
    for n in (4, 64):
        a = np.diag(np.full(n, big)).astype(dtype)
        b = (0.5 * np.eye(n)).astype(dtype)
        for depth in (1, 2):
            np.testing.assert_array_equal(fn.gemm(a, b, depth=depth, accuracy=accuracy), a * dtype_of(0.5, dtype))
            np.testing.assert_array_equal(fn.gemm(b, a, depth=depth, accuracy=accuracy), a * dtype_of(0.5, dtype))


def dtype_of(x, dtype):
    return np.dtype(dtype).type(x)


def test_a_combination_that_would_overflow_is_scaled():
    """A near the end of the range, B small: the product is harmless, sums of A's blocks are not."""
    rng = np.random.default_rng(8)
    a, b = rng.uniform(0.5, 1, (2, 128, 128))
    a *= 2.0**1023
    b *= 2.0**-600
    with fn.trace() as plans:
        c = fn.gemm(a, b, depth=2)
    assert plans[0].depth == 2
    assert np.isfinite(c).all()
    np.testing.assert_allclose(c, a @ b, rtol=1e-12)


def test_subnormal_results_are_kept():
    """https://github.com/numpy/numpy/issues/29820 and relatives: tiny data, and no floating-point flags."""
    tiny = np.full((64, 64), 1e-160)
    for depth in (0, 1):
        c = fn.gemm(tiny, tiny, executor="cpu", depth=depth)
        np.testing.assert_allclose(c, 6.39993e-319, rtol=1e-4)


def test_no_floating_point_flags():
    """https://github.com/numpy/numpy/issues/28967"""
    rng = np.random.default_rng(0)
    eye = np.identity(15)
    a, b = rng.random((8, 768)), rng.random((768, 8))
    with np.errstate(all="raise"):
        for depth in (0, 1):
            np.testing.assert_array_equal(fn.matmul(eye, eye, executor="cpu", depth=depth), eye)
            fn.matmul(a, b, executor="cpu", depth=depth)


# --- what the guard says ---------------------------------------------------------------------------------------------


def test_guarded_runs_say_why():
    a = np.full((128, 128), np.nan)
    with fn.trace() as plans:
        fn.gemm(a, a, depth=1)
    assert "not finite" in plans[0].reason


# --- found by fuzzing ------------------------------------------------------------------------------------------------


def test_products_with_a_zero_factor_are_left_out():
    """A valid scheme may carry a product that multiplies nothing; its packed form would never be written."""
    s = fn.schemes["strassen"]
    zero, one = np.zeros((1, 2, 2), np.int64), np.ones((1, 2, 2), np.int64)
    a = np.ones((64, 64), np.float32)
    for u, v, w in ((zero, one, one), (one, zero, one), (one, one, zero)):
        padded = fn.Scheme("padded", *(np.concatenate(x) for x in zip((s.U, s.V, s.W), (u, v, w), strict=True)))
        for leaf in ("simd", "portable"):
            np.testing.assert_array_equal(fn.gemm(a, a, scheme=padded, depth=2, leaf=leaf), a @ a)


@pytest.mark.parametrize("accuracy", ["balanced", "normwise"])
def test_coefficients_of_any_scale(accuracy):
    """Powers of two moved between U, V and W change neither results nor overflow."""
    s = fn.schemes["strassen"]
    rng = np.random.default_rng(0)
    for p, q in ((6, -6), (-100, -100), (200, 3)):
        scaled = fn.Scheme(
            "scaled",
            s.U.astype(object) * Fraction(2) ** p,
            s.V.astype(object) * Fraction(2) ** q,
            s.W.astype(object) * Fraction(2) ** -(p + q),
        )
        a, b = rng.standard_normal((2, 70, 70)).astype(np.float32)
        expected = fn.gemm(a, b, scheme="strassen", depth=1, accuracy=accuracy)
        np.testing.assert_array_equal(fn.gemm(a, b, scheme=scaled, depth=1, accuracy=accuracy), expected)
        big, small = np.full((2, 2), 2.0**121, np.float32), np.full((2, 2), 2.0**-121, np.float32)
        np.testing.assert_array_equal(
            fn.gemm(big, small, scheme=scaled, depth=1, accuracy=accuracy), np.full((2, 2), 2)
        )


def test_coefficients_outside_the_range_are_refused():
    one = np.ones((2, 1, 1), dtype=object)
    huge = np.array([Fraction(2) ** 200, Fraction(1, 2**200)], dtype=object).reshape(2, 1, 1)
    wide = fn.Scheme(
        "wide", one, one, huge - np.array([0, Fraction(2) ** 200 - 1 + Fraction(1, 2**200)]).reshape(2, 1, 1)
    )
    wide.verify()
    with pytest.raises(ValueError, match="range of float32"):
        fn.gemm(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), scheme=wide, depth=1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("alpha", [1e37, 1e38, np.inf, np.nan])
def test_the_fallback_is_the_depth_0_product(alpha, order):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 300)).astype(np.float32), rng.standard_normal((300, 42)).astype(np.float32)
    out = np.empty((40, 42), np.float32, order=order)
    with np.errstate(all="ignore"), fn.trace() as plans:
        classical = fn.gemm(a, b, alpha=alpha, depth=0, executor="cpu")
        got = fn.gemm(a, b, alpha=alpha, depth=1, out=out)
    np.testing.assert_array_equal(got, classical)
    assert plans[1].blocks == plans[0].blocks
    assert plans[1].error_bound == plans[0].error_bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_bound_with_beta_and_many_passes(depth, dtype):
    """C is passed over once for every few chunks of K; each pass may round beta·C."""
    K = 70_000
    tiny = 0.4 * float(np.finfo(dtype).eps) / 8192
    a, b = np.ones((16, K), dtype), np.full((K, 16), tiny, dtype)
    c = np.ones((16, 16), dtype)
    with fn.trace() as plans:
        got = fn.gemm(a, b, c, beta=1, depth=depth, executor="cpu", workspace_limit="1 MiB")
    (plan,) = plans
    assert plan.passes > 4
    bound = error_bound(plan.levels, K, plan.blocks.KC, dtype, "balanced")
    allowed = entry_bounds(bound, a, b, got, beta=1.0, c_in=c, passes=plan.passes)
    error = np.abs(got.astype(allowed.dtype) - (exact(a, b) + 1))
    assert (error <= allowed).all()


@pytest.mark.parametrize(("dtype", "row", "column"), [("float64", -1070, 900), ("float32", -145, 100)])
def test_subnormal_rows_keep_their_digits(dtype, row, column):
    rng = np.random.default_rng(0)
    a = rng.standard_normal((64, 64))
    a[:32] = np.ldexp(a[:32], row)
    a, b = a.astype(dtype), np.ldexp(rng.standard_normal((64, 64)), column).astype(dtype)
    ratio, _ = ratio_to_bound(a, b, depth=1)
    assert ratio <= 1


def test_items_of_a_batch_are_independent():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 200, 200)).astype(np.float32)
    clean = fn.matmul(a, b, depth=2)
    spoilt = a.copy()
    spoilt[0, 0, 0] = np.nan
    with fn.trace() as plans:
        got = fn.matmul(spoilt, b, depth=2)
    assert [p.depth for p in plans] == [0, 2, 2]
    np.testing.assert_array_equal(got[1:], clean[1:])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_is_its_products_one_by_one(threads, order):
    """Each as its own data need: the levels, the levels with its own powers of two, or the classical product."""
    rng = np.random.default_rng(1)
    a, b = rng.uniform(1, 2, (2, 4, 90, 60)), rng.uniform(1, 2, (4, 60, 70))  # b for both halves of the batch
    for index, bits in (((0, 1), 20), ((0, 2), 9), ((1, 2), 30)):
        a[index] = np.ldexp(a[index], rng.integers(-bits, bits, (90, 1)))
    a[0, 3, 2, 5], a[1, 0, 7, 7] = np.inf, np.nan
    out = np.empty((2, 4, 90, 70)) if order == "C" else np.empty((2, 4, 70, 90)).swapaxes(-1, -2)
    options = {"depth": 1, "threads": threads, "executor": "cpu"}
    with fn.trace() as plans:
        fn.matmul(a, b, out=out, **options)
    with fn.trace() as alone:
        for index in np.ndindex(2, 4):
            c = np.empty_like(out[index])
            np.testing.assert_array_equal(out[index], fn.gemm(a[index], b[index[1]], out=c, **options))
    assert [(p.depth, p.reason) for p in plans] == [(p.depth, p.reason) for p in alone]
    assert [p.depth for p in plans] == [1, 1, 1, 0, 0, 1, 1, 1]
    assert ["scaled" in p.reason for p in plans] == [False, True, True, False, False, False, True, False]


def test_a_scheme_registered_anew_is_used(monkeypatch):
    monkeypatch.setattr(fn.schemes, "_registered", {})
    s, other = fn.schemes["strassen"], fn.schemes["winograd"]
    fn.schemes.register((s.U, s.V, s.W), name="again", source="test", replace=True)
    first = fn.plan_for(100, 100, 100, scheme="again", depth=1)
    fn.schemes.register((other.U, other.V, other.W), name="again", source="test", replace=True)
    second = fn.plan_for(100, 100, 100, scheme="again", depth=1)
    assert (first.levels[0].W == s.W).all()
    assert (second.levels[0].W == other.W).all()


def test_options_that_can_not_be_kept_together():
    a = np.ones((50, 50))
    for options in ({"reproducible": True}, {"leaf": "portable"}, {"depth": 1}):
        with pytest.raises(ValueError, match="executor='numpy'"):
            fn.gemm(a, a, executor="numpy", **options)
    with pytest.raises(TypeError, match="already decided threads"):
        fn.gemm(a, a, plan=fn.plan(a, a), threads=1)


def test_numpy_steps_in_where_the_engine_may_not_run_and_the_other_way_round():
    assert fn.plan_for(1100, 1100, 1100, workspace_limit=1000).executor == "numpy"
    with pytest.raises(ValueError, match="workspace_limit"):
        fn.plan_for(1100, 1100, 1100, workspace_limit=1000, executor="cpu")
    strict = fn.plan_for(500, 500, 20_000, "float32", max_error=5e-4)
    assert (strict.executor, strict.depth) == ("cpu", 0)
    assert strict.error_bound <= 5e-4


@pytest.mark.parametrize("limit", [100_000, 260_000, 400_000])
def test_admitted_plans_run_for_any_order_of_out(limit):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (16, 64)).astype(np.float32), rng.integers(-3, 4, (64, 4000)).astype(np.float32)
    try:
        plan = fn.plan(a, b, depth=1, workspace_limit=limit, executor="cpu")
    except ValueError:
        return
    for order in "CF":
        out = np.empty((16, 4000), np.float32, order=order)
        np.testing.assert_array_equal(fn.gemm(a, b, out=out, plan=plan), a @ b)


def test_bits_do_not_depend_on_the_order_of_out_under_a_limit():
    rng = np.random.default_rng(1)
    for _ in range(40):
        M, N, K = rng.integers(1, 300, 3)
        a, b = rng.standard_normal((M, K)).astype(np.float32), rng.standard_normal((K, N)).astype(np.float32)
        options = {"scheme": ("hk223", "strassen", "winograd"), "workspace_limit": "3 MiB", "threads": 1}
        c, f = (fn.gemm(a, b, out=np.empty((M, N), np.float32, order=o), **options) for o in "CF")
        np.testing.assert_array_equal(c, f)


def test_depths_that_make_no_sense():
    """Bounded by products, by blocks and by growth, not by the size of the matrices: tiny ones run at depth 3."""
    one = np.ones((1, 1), np.float32)
    assert fn.gemm(one, one, scheme="laderman", depth=3) == 1
    for options in (
        {"depth": 6},
        {"depth": 10**9},
        {"scheme": "laderman", "depth": 4},
        {"depth": 11, "scheme": "2x2x3"},
    ):
        with pytest.raises(ValueError, match="no sense"):
            fn.gemm(one, one, **options)
    s = fn.schemes["strassen"]
    twice = fn.Scheme(
        "wasteful",
        np.concatenate([s.U, *[s.U[:1]] * 2]),
        np.concatenate([s.V, *[s.V[:1]] * 2]),
        np.concatenate([s.W, 10**8 * s.W[:1], -(10**8) * s.W[:1]]),
    )
    with pytest.raises(ValueError, match="growth factor"):
        fn.gemm(one, one, scheme=twice, depth=1)


@pytest.mark.parametrize("accuracy", ["balanced", "normwise"])
def test_operands_of_zeros_are_no_reason_for_the_classical_product(accuracy):
    x, zeros = np.ones((70, 70), np.float32), np.zeros((70, 70), np.float32)
    for a, b in ((x, zeros), (zeros, x), (zeros, zeros)):
        with fn.trace() as plans:
            assert not fn.gemm(a, b, depth=1, accuracy=accuracy).any()
        assert [plan.depth for plan in plans] == [1]
