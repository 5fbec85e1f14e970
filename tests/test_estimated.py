"""accuracy="estimated": the estimate is not below the real error, and decides what runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from families import FAMILIES, family

import falcon_numba as fn
from falcon_numba import dispatch
from falcon_numba.numerics.estimate import _places, _residual, estimate_error

LEVELS = ((), ("strassen",), ("strassen", "hk332"), ("laderman",), ("strassen",) * 3)


def options_for(levels):
    return {"executor": "cpu", "accuracy": "estimated", **({"scheme": levels} if levels else {"depth": 0})}


def relative_error(a, b, c):
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    error = np.abs(c - a.astype(wide) @ b.astype(wide)).max()
    return float(error / a.shape[1] / np.abs(a).max() / np.abs(b).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_error_is_underestimated(name, dtype):
    for seed in range(2 if dtype == "float32" else 1):
        a, b = family(name, np.random.default_rng(seed), 330 if dtype == "float32" else 200, dtype)
        for levels in LEVELS:
            with fn.trace() as plans:
                c = fn.gemm(a, b, max_error=1e6, **options_for(levels))
            (plan,) = plans
            if plan.levels or not levels:  # not sent elsewhere by the guard
                assert 0 < plan.error_estimate <= plan.error_bound
                assert relative_error(a, b, c) <= plan.error_estimate, (seed, levels)
            else:
                assert math.isnan(plan.error_estimate)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_estimates_are_far_below_the_bounds_and_not_far_above_the_errors(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 400, 400)).astype(dtype)
    for levels in LEVELS[1:]:
        plan = fn.plan(a, b, max_error=1, **options_for(levels))
        error = relative_error(a, b, fn.gemm(a, b, plan=plan))
        assert error <= plan.error_estimate <= 60 * error
        assert plan.error_estimate < plan.error_bound / 100


def test_the_estimate_decides():
    """Columns of A and rows of B in different units: a classical product does not mix them, an LCMA does."""
    a, b = family("inside", np.random.default_rng(1), 1100, "float32")
    options = {"accuracy": "estimated", "executor": "cpu"}
    free = fn.plan(a, b, max_error=1.0, **options)
    assert free.depth == 1
    classical = fn.plan(a, b, max_error=1.0, **options, depth=0)
    assert classical.error_estimate < free.error_estimate / 100
    between = math.sqrt(classical.error_estimate * free.error_estimate)
    strict = fn.plan(a, b, max_error=between, **options)
    assert strict.depth == 0 and strict.error_estimate == classical.error_estimate < between < strict.error_bound
    assert "would be faster, but its estimated error" in strict.reason and "above max_error" in strict.reason
    numpy = fn.plan(a, b, accuracy="estimated", max_error=between)
    assert numpy.depth == 0 and numpy.error_estimate < between

    out = np.full((1100, 1100), 7, np.float32)
    for forced in ({}, {"depth": 1}):
        with pytest.raises(ValueError, match=r"the smallest error estimated on these data, .* exceeds max_error=1e-30"):
            fn.gemm(a, b, out=out, max_error=1e-30, **options, **forced)
    assert (out == 7).all()
    with fn.trace() as plans:
        fn.gemm(a, b, out=out, max_error=between, **options)
    assert plans == [strict] and plans[0].error_estimate == strict.error_estimate
    assert f"{strict.error_estimate:.2g}" in str(plans[0])
    assert relative_error(a, b, out) <= strict.error_estimate


def test_without_data_the_plan_says_so():
    plan = fn.plan_for(1100, 1100, 1100, "float32", accuracy="estimated", max_error=1e-6)
    assert math.isnan(plan.error_estimate)
    assert "nothing was estimated" in plan.reason and "nothing without data" in str(plan)
    with pytest.raises(ValueError, match="accuracy='estimated' needs max_error"):
        fn.plan_for(1100, 1100, 1100, accuracy="estimated")
    with pytest.raises(ValueError, match="forbids tune=True"):
        fn.plan_for(1100, 1100, 1100, accuracy="estimated", max_error=1, tune=True)


def test_data_that_are_not_finite():
    a = np.ones((200, 200))
    a[3, 4] = np.nan
    with fn.trace() as plans:
        c = fn.gemm(a, a, accuracy="estimated", max_error=1e-20, executor="cpu", depth=1)
    assert plans[0].depth == 0 and math.isnan(plans[0].error_estimate)
    assert np.isnan(c[3]).all() and np.isfinite(c[4, 5])


def test_batches_layouts_and_numpy():
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((12, 150, 140)), rng.standard_normal((140, 160))
    a[11] *= np.exp(rng.uniform(-9, 9, (150, 140)))
    options = {"accuracy": "estimated", "max_error": 1e-10, "depth": 1, "executor": "cpu"}
    plan = fn.plan(a, b, **options)
    assert plan.error_estimate >= fn.plan(a[11], b, **options).error_estimate > 0
    out = np.empty((160, 150)).T
    with fn.trace() as plans:
        got = fn.gemm(a[0][::-1], np.asfortranarray(b), out=out, **options)
    assert relative_error(a[0][::-1], b, got) <= plans[0].error_estimate
    numpy = fn.plan(a, b, accuracy="estimated", max_error=1e-10, executor="numpy")
    assert numpy.executor == "numpy" and 1e-20 < numpy.error_estimate < numpy.error_bound
    assert fn.plan(a[0].astype(int), b.astype(int), accuracy="estimated").error_bound == 0


def test_the_sample_is_the_product():
    """At the places of the sample the product of the sample has the very bits of the product."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((330, 700)).astype(np.float32), rng.standard_normal((700, 290)).astype(np.float32)
    plan = fn.plan_for(330, 290, 700, "float32", scheme=("strassen", "hk332"), executor="cpu", accuracy="normwise")
    c = fn.gemm(a, b, plan=plan)
    seen = []

    def run(x, y):
        z = dispatch._run_sample(plan, x, y)
        seen.append(z)
        return z

    zero = np.zeros(330, int)
    estimate_error(a, b, zero, zero[:290], plan.grid, 1.0, run)
    rows, columns = _places(zero, plan.grid[0], 48)[0].ravel(), _places(zero[:290], plan.grid[2], 16)[0].ravel()
    assert (rows >= 0).all() and len(set(rows)) == len(rows)
    inside = columns >= 0
    np.testing.assert_array_equal(seen[0][:, inside], c[np.ix_(rows, columns[inside])])


def test_residuals_have_more_digits_than_float64():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((20, 3000)), rng.standard_normal((3000, 10))
    c = a @ b
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble) - c
    np.testing.assert_allclose(_residual(a, b, c, False), exact.astype(float), rtol=0, atol=np.abs(exact).max() / 100)


@pytest.mark.parametrize(("exponents", "blocks"), [([0] * 7, 3), ([5, -3, 9, 0, 0, 1, 2, 3] * 20, 2), ([1], 4)])
def test_places(exponents, blocks):
    exponents = np.array(exponents)
    index, of = _places(exponents, blocks, 12)
    height = -(-len(exponents) // blocks)
    for column, exponent in zip(index.T, of, strict=True):
        at = column[column >= 0]
        assert set(at % height) == {at[0] % height} and exponents[at].max() == exponent
    assert of.max() == exponents.max()


def test_rows_and_columns_in_units_of_their_own_keep_their_digits():
    """The estimate is relative to the largest elements; small rows and columns must not pay for that."""
    rng = np.random.default_rng(12)
    x = rng.standard_normal((400, 300)) * np.logspace(-3, 3, 300)
    x = x.astype(np.float32)
    a, b = np.ascontiguousarray(x.T), x
    with fn.trace() as plans:
        c = fn.gemm(a, b, accuracy="estimated", max_error=1e-6, executor="cpu", depth=2)
    assert plans[0].depth == 2
    exact = a.astype(np.float64) @ b
    sizes = np.sqrt(np.diag(exact))
    assert np.abs((c - exact) / np.outer(sizes, sizes)).max() < 1e-4
