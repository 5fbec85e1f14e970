"""NaN and infinities stand exactly where NumPy's product has them, wherever they came from."""

from __future__ import annotations

import numpy as np
import pytest
from engine_oracle import LAYOUTS, in_layout
from fuzzing import pattern, spoil

import falcon_numba as fn

SHAPES = ((64, 64, 64), (33, 47, 29), (1, 40, 17), (50, 1, 12), (13, 16, 140), (2, 2, 2))
LEVELS = ((), ("strassen",), ("winograd", "strassen"), ("hk233",), ("laderman",))


def draw(rng, case):
    """Operands of one placement, whose shape, dtype, layouts and levels follow from its number."""
    M, N, K = SHAPES[case % len(SHAPES)]
    dtype = ("float32", "float64")[case // len(SHAPES) % 2]
    a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
    return a, b, LEVELS[case // 12 % len(LEVELS)]


def placements(first, last):
    for case in range(first, last):
        rng = np.random.default_rng([7, case])
        a, b, levels = draw(rng, case)
        spoil(rng, a, 3)
        spoil(rng, b, 3)
        a = in_layout(a, LAYOUTS[rng.integers(len(LAYOUTS))])
        b = in_layout(b, LAYOUTS[rng.integers(len(LAYOUTS))])
        options = {"scheme": levels, "depth": len(levels)} if levels else {"depth": 0}
        threads, accuracy = 1 + case % 3, ("balanced", "normwise")[case % 2]
        got = fn.gemm(a, b, executor="cpu", threads=threads, accuracy=accuracy, **options)
        np.testing.assert_array_equal(pattern(got), pattern(np.matmul(a, b)), err_msg=f"placement {case}")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_placements():
    placements(0, 2_000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value")
def test_ten_thousand_placements():
    placements(0, 10_000)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_items_of_batches(dtype):
    """Clean and spoilt products side by side: each has its own pattern, and the bits that it has alone."""
    for case in range(60):
        rng = np.random.default_rng([8, case])
        M, N, K = SHAPES[case % len(SHAPES)]
        a, b = rng.standard_normal((8, M, K)).astype(dtype), rng.standard_normal((8, K, N)).astype(dtype)
        options = {"executor": "cpu", "depth": case % 3, "threads": 1 + case % 3}
        for i in range(0, 8, 1 + case % 4):
            spoil(rng, a[i], 2)
            spoil(rng, b[i], 2)
        got = fn.matmul(a, b, **options)
        np.testing.assert_array_equal(pattern(got), pattern(np.matmul(a, b)))
        for i in range(8):
            np.testing.assert_array_equal(got[i], fn.gemm(a[i], b[i], **options))


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_in_c_only(depth, value):
    """Of C they reach their own element and, with beta = 0, none."""
    rng = np.random.default_rng(9)
    a, b, c = (rng.standard_normal((70, 70)).astype(np.float32) for _ in range(3))
    c[3, 68] = value
    for beta, bad in ((0, 0), (0.5, 1)):
        got = fn.gemm(a, b, c, beta=beta, executor="cpu", depth=depth)
        assert (~np.isfinite(got)).sum() == bad
        assert not bad or not np.isfinite(got[3, 68])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", [(0, 0), (63, 63), (31, 32), (64, 0), (0, 64), (64, 64)])
def test_guard_sees_every_place(place, dtype):
    """The first and the last element of vectors, blocks and edges."""
    rng = np.random.default_rng(10)
    for layout in ("C", "F", "gaps"):
        for operand in range(2):
            x = [rng.standard_normal((65, 65)).astype(dtype) for _ in range(2)]
            x[operand][place] = np.nan
            a, b = (in_layout(y, "strided" if layout == "gaps" else layout) for y in x)
            with fn.trace() as plans:
                got = fn.gemm(a, b, depth=1)
            assert plans[0].depth == 0
            bad = np.isnan(got)
            assert bad.sum() == 65
            assert bad[place[0]].all() if operand == 0 else bad[:, place[1]].all()


def test_sums_that_overflow_before_they_meet_an_infinity_are_right():
    """NaN and Inf are as right as each other where the finite part of a sum leaves the range."""
    a, b = np.ones((4, 4)), np.ones((4, 4))
    a[0, 3], a[0, 1], b[1, 2] = np.inf, 1e300, -1e300
    with np.errstate(all="ignore"):
        c = a @ b
    assert fn.verify_product(a, b, c)
    c[0, 0] = 1.0
    assert not fn.verify_product(a, b, c)
    eye, large, before = np.eye(4), np.full((4, 4), 1e308), np.full((4, 4), -np.inf)
    with np.errstate(all="ignore"):
        c = 10 * large + before
    assert fn.verify_product(eye, large, c, alpha=10, beta=1, c_in=before)
