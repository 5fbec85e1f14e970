"""Proven bounds against exact products, for every family of inputs; and which plans a largest error admits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from families import FAMILIES, exact, family, ratio_to_bound
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.numerics.bounds import entry_bounds, error_bound

DTYPES = ("float32", "float64")
CASES = (("strassen", 0), ("strassen", 1), ("strassen", 2), ("strassen", 3), ("winograd", 2), ("laderman", 1))


def check_family(name, dtype, n, cases):
    rng = np.random.default_rng(3)
    a, b = family(name, rng, n, dtype)
    reference = exact(a, b)
    for accuracy in ("balanced", "normwise"):
        for scheme, depth in cases:
            ratio, plan = ratio_to_bound(a, b, accuracy, reference, scheme=scheme, depth=depth)
            print(f"{name}, {dtype}, {n}, {accuracy}, {scheme} {depth} (ran: {plan.depth}): {ratio:.2e} of the bound")
            assert ratio <= 1, (accuracy, scheme, depth)
            if accuracy == "balanced":
                assert plan.depth == depth


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_bounds_hold_for_every_family(name, dtype):
    check_family(name, dtype, 256, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("n", [513, 1024, 2048])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_bounds_hold_for_every_family_and_size(name, dtype, n):
    check_family(name, dtype, n, [("strassen", depth) for depth in (1, 2, 3)])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    depth=st.integers(0, 2),
    dtype=st.sampled_from(DTYPES),
    accuracy=st.sampled_from(("balanced", "normwise")),
    scheme=st.sampled_from(("strassen", "winograd", "hk233")),
)
def test_bounds_hold_against_rational_arithmetic(seed, depth, dtype, accuracy, scheme):
    rng = np.random.default_rng(seed)
    M, N, K = rng.integers(1, 14, 3)
    a = (rng.standard_normal((M, K)) * 10 ** rng.uniform(-8, 8, (M, 1))).astype(dtype)
    b = (rng.standard_normal((K, N)) * 10 ** rng.uniform(-8, 8, (1, N))).astype(dtype)
    with fn.trace() as plans:
        c = fn.gemm(a, b, executor="cpu", accuracy=accuracy, scheme=scheme, depth=depth)
    (plan,) = plans
    allowed = entry_bounds(error_bound(plan.levels, K, plan.blocks.KC, dtype, accuracy), a, b, c, accuracy=accuracy)
    for i, j in np.ndindex(M, N):
        true = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[i], b[:, j], strict=True))
        assert abs(Fraction(float(c[i, j])) - true) <= Fraction(float(allowed[i, j]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["balanced", "normwise", "componentwise"])
def test_max_error_admits_what_is_proven_and_nothing_else(accuracy, dtype):
    shape = (1500, 1400, 1600, dtype)
    free = fn.plan_for(*shape, accuracy=accuracy)
    bounds = {}
    for entry in free.ranking.entries():
        bounds[entry.levels] = entry.error_bound
        if entry.levels is not None:
            plan = fn.plan_for(*shape, accuracy=accuracy, **entry.options)
            proven = error_bound(entry.levels, 1600, plan.blocks.KC, dtype, accuracy).relative
            assert plan.error_bound == proven == entry.error_bound
    assert (len(bounds) > 5) == (accuracy != "componentwise")
    for limit in sorted(bounds.values()):
        for max_error in (limit, math.nextafter(limit, 0)):
            admitted = [levels for levels, bound in bounds.items() if bound <= max_error]
            if not admitted:
                with pytest.raises(ValueError, match="proven error bound"):
                    fn.plan_for(*shape, accuracy=accuracy, max_error=max_error)
                continue
            plan = fn.plan_for(*shape, accuracy=accuracy, max_error=max_error)
            chosen = plan.levels if plan.executor == "cpu" else None
            assert plan.error_bound == bounds[chosen] <= max_error
            running = [x for x in plan.ranking.entries() if x.runs]
            assert sorted(map(str, admitted)) == sorted(str(x.levels) for x in running)
            assert chosen == running[0].levels


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_admitted_keeps_max_error(dtype):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 700, 700)).astype(dtype)
    reference, unit = exact(a, b), 700 * float(np.abs(a).max()) * float(np.abs(b).max())
    for depth in (0, 1, 2):
        bound = fn.plan_for(700, 700, 700, dtype, executor="cpu", depth=depth).error_bound
        with fn.trace() as plans:
            c = fn.gemm(a, b, executor="cpu", max_error=bound)
        assert plans[0].error_bound <= bound
        u = float(np.finfo(dtype).eps) / 2
        assert (np.abs(c - reference) <= bound * unit + u * np.abs(c)).all()


def test_max_error_gives_the_deepest_plan_within_it():
    plans = [fn.plan_for(4096, 4096, 4096, "float32", depth=d, executor="cpu") for d in range(3)]
    bounds = [p.error_bound for p in plans]
    assert bounds == sorted(bounds)
    assert fn.plan_for(4096, 4096, 4096, "float32", max_error=bounds[1] * 1.01).depth == 1
    assert fn.plan_for(4096, 4096, 4096, "float32", max_error=bounds[0] * 1.01).depth == 0
    with pytest.raises(ValueError, match="max_error"):
        fn.plan_for(4096, 4096, 4096, "float32", max_error=bounds[0] / 1e6)
    with pytest.raises(ValueError, match="max_error"):
        fn.plan_for(4096, 4096, 4096, "float32", depth=2, max_error=bounds[1])
