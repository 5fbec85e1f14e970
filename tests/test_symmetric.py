"""Products of a matrix with its own transpose, and powers of a matrix."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
from engine_oracle import LAYOUTS, OUT_LAYOUTS, in_layout
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba import config, dispatch, symmetric
from falcon_numba.cpu.mirror import mirror
from falcon_numba.symmetric import blocks

DTYPES = ("float32", "float64", "complex64", "complex128")


def integers(rng, shape, dtype):
    x = rng.integers(-3, 4, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x.imag = rng.integers(-3, 4, shape)
    return x


def random(rng, shape, dtype):
    x = rng.standard_normal(shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        x.imag = rng.standard_normal(shape)
    return x


@pytest.mark.parametrize("size", [1, 95, 96, 97, 192, 193, 511, 1000, 4096])
@pytest.mark.parametrize("halvings", range(6))
def test_blocks_cover_the_lower_triangle_once(size, halvings):
    seen = np.zeros((size, size), np.int8)
    for r0, r1, c0, c1 in blocks(size, halvings):
        seen[r0:r1, c0:c1] += 1
        assert (r0, r1) == (c0, c1) or c1 <= r0
    assert seen.max() == 1 and np.tril(seen).sum() == size * (size + 1) // 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", OUT_LAYOUTS)
def test_mirror(dtype, layout):
    for n in (1, 2, 15, 16, 17, 33, 600):
        x = random(np.random.default_rng(n), (n, n), dtype)
        for conjugates in (False, True):
            c = in_layout(x, layout)
            if layout == "unaligned":
                c = in_layout(x, "C")
            mirror(c, 2, conjugates)
            low = np.tril(x)
            expected = np.where(np.tri(n, dtype=bool), low, low.conj().T if conjugates else low.T)
            if conjugates and x.dtype.kind == "c":
                np.fill_diagonal(expected.imag, 0)
            np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "int8", "bool", "longdouble"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_gram_of_integers_is_exact(dtype, data):
    M, K = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a = integers(rng, (M, K), dtype)
    expected = np.matmul(a, a.conj().T)
    if M:
        a = in_layout(a, data.draw(st.sampled_from([x for x in LAYOUTS if x != "broadcast"])))
    options = data.draw(st.sampled_from(({}, {"executor": "cpu"}, {"executor": "cpu", "depth": 1})))
    options = options if np.dtype(dtype).char in "efdFD" else {}
    got = fn.gram(a, **options)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    out = np.full_like(expected, 1)
    assert fn.gram(a, out=out, **options) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{"depth": 0}, {"depth": 1}, {}], ids=str)
def test_gram_is_symmetric_to_the_last_bit(dtype, options, monkeypatch):
    monkeypatch.setattr(symmetric, "LEAST", 100)
    monkeypatch.setattr(symmetric, "_decide", lambda *_: (2, False))
    rng = np.random.default_rng(1)
    a = random(rng, (413, 100), dtype)
    with fn.trace() as plans:
        got = fn.gram(a, executor="cpu", **options)
    assert sum(plan.M * plan.N for plan in plans) < 0.7 * 413**2
    assert all(plan.executor == "cpu" and plan.depth == options.get("depth", plan.depth) for plan in plans)
    np.testing.assert_array_equal(got, got.conj().T)
    assert (np.diagonal(got).imag == 0).all()
    wide = a.astype("G" if np.dtype(dtype).kind == "c" else "g")
    scale = np.sqrt((abs(wide) ** 2).sum(axis=1))
    assert (abs(got - wide @ wide.conj().T) / np.outer(scale, scale)).max() < 100 * np.finfo(dtype).eps
    np.testing.assert_array_equal(fn.gram(np.stack([a, a]), executor="cpu", **options), np.stack([got, got]))


def test_gram_overlapping_out_and_refusals():
    a = np.arange(16.0).reshape(4, 4)
    expected = a @ a.T
    np.testing.assert_array_equal(fn.gram(a.copy(), out=np.empty((4, 4))), expected)
    assert fn.gram(a, out=a) is a
    np.testing.assert_array_equal(a, expected)
    for bad, error in ((np.empty((4, 5)), ValueError), (np.empty((4, 4), "f4"), TypeError)):
        with pytest.raises(error):
            fn.gram(a, out=bad)
    frozen = np.empty((4, 4))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fn.gram(a, out=frozen)
    with pytest.raises(ValueError, match="two dimensions"):
        fn.gram(np.ones(3))
    with pytest.raises(TypeError, match="unknown option"):
        fn.gram(a, dept=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_sees_its_own_transpose(dtype, monkeypatch):
    """600 rows and their transpose, of the same memory: computed by halves, bitwise symmetric."""
    monkeypatch.setattr(symmetric, "_decide", lambda *_: (2, False))
    a = random(np.random.default_rng(2), (600, 100), dtype)
    for first, second in ((a, a.T), (a.T.copy().T, None), (a[::-1], a[::-1].T)):
        with fn.trace() as plans:
            got = fn.matmul(first, first.T if second is None else second, executor="cpu")
        assert sum(plan.M * plan.N for plan in plans) < 0.8 * 600**2
        np.testing.assert_array_equal(got, got.T)
        np.testing.assert_allclose(got, first @ first.T, rtol=1e-3, atol=1e-3)
    with fn.trace() as plans:
        fn.gemm(a.T, a.T, trans_a="T", alpha=2, executor="cpu")
        different = fn.matmul(a, a.T.copy(), executor="cpu")
    assert [plan.M for plan in plans].count(600) == 1
    np.testing.assert_allclose(different, got[::-1, ::-1], rtol=1e-3, atol=1e-3)
    with fn.trace() as plans:
        fn.gemm(a, a, np.ones((600, 600), dtype), beta=1, trans_b="T", executor="cpu")
        fn.matmul(a, a.T, executor="cpu", depth=1)
    assert [plan.M for plan in plans] == [600, 600]


def test_numpy_or_how_many_halves():
    def decide(rows, inner=4096, **options):
        settings = config.resolve(**options)
        return symmetric._decide(rows, inner, np.dtype("f4"), settings, 2, dispatch.plan_product, symmetric.SYRK)

    assert decide(600, 10)[1]
    halvings, on_numpy = decide(8192)
    assert halvings >= 2 and not on_numpy
    assert not decide(600, 10, executor="cpu")[1] and not decide(600, 10, reproducible=True)[1]
    a = np.ones((600, 10), "f4")
    with fn.trace() as plans:
        fn.matmul(a, a.T)
    assert [plan.executor for plan in plans] == ["numpy"] and "transpose" in plans[0].reason


def test_distances_of_duplicate_rows_are_zero():
    rng = np.random.default_rng(3)
    rows = np.repeat([1.0, 1.001], 64)[:, None] * np.ones((1, 1000))
    order = rng.permutation(128)
    x = rows[order]
    g = fn.gram(x, executor="cpu", depth=1)
    s = np.diagonal(g)
    d2 = s[:, None] + s[None, :] - 2 * g
    same = rows[order, 0][:, None] == rows[order, 0][None, :]
    assert abs(d2[same]).max() <= 1e-9 and abs(d2[~same] - 0.001).max() <= 1e-9


# Powers


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "float32", "float64", "complex128", "longdouble", object])
def test_matrix_power_is_numpys(dtype):
    rng = np.random.default_rng(4)
    a = rng.integers(-1, 2, (5, 5)).astype(dtype)
    for n in (*range(14), 31, 32, np.int64(9)):
        before = a.copy()
        got, expected = fn.matrix_power(a, n), np.linalg.matrix_power(a, n)
        assert got.dtype == expected.dtype and got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(a, before)


def test_matrix_power_of_stacks_inverses_and_subclasses():
    rng = np.random.default_rng(5)
    a = rng.standard_normal((2, 3, 4, 4))
    for n in (-5, -1, 0, 1, 2, 3, 7):
        np.testing.assert_allclose(fn.matrix_power(a, n), np.linalg.matrix_power(a, n), rtol=1e-9, atol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        m = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    assert type(fn.matrix_power(m, 3)) is np.matrix
    half = np.full((2, 2), 0.5, "f2")
    assert fn.matrix_power(half, 6).dtype == np.float16
    assert fn.matrix_power([[1, 1], [1, 0]], 10)[0, 1] == 55
    third = np.array([[Fraction(1, 3)]])
    assert fn.matrix_power(third, 4)[0, 0] == Fraction(1, 81)


def test_matrix_power_on_the_engine():
    rng = np.random.default_rng(6)
    a = rng.integers(-1, 2, (40, 40)).astype("f8")
    with fn.trace() as plans:
        got = fn.matrix_power(a, 6, executor="cpu", depth=1)
    assert [plan.depth for plan in plans] == [1, 1, 1]
    np.testing.assert_array_equal(got, np.linalg.matrix_power(a.astype("i8"), 6))


def test_a_bool_squared_again_and_again_stays_true():
    b = np.array([[1, 0], [1, 1]], bool)
    np.testing.assert_array_equal(fn.matrix_power(b, 2**9), b)


@pytest.mark.parametrize(
    ("a", "n", "error"),
    [
        (np.ones((2, 2)), 1.5, TypeError),
        (np.ones((2, 2)), "2", TypeError),
        (np.ones((2, 3)), 2, np.linalg.LinAlgError),
        (np.ones(2), 2, np.linalg.LinAlgError),
        (np.ones((2, 2)), -1, np.linalg.LinAlgError),
        (np.ones((2, 2), "f2"), -2, TypeError),
        (np.ones((2, 2, 2), object), 2, NotImplementedError),
    ],
)
def test_matrix_power_refuses_what_numpy_refuses(a, n, error):
    with pytest.raises(error):
        np.linalg.matrix_power(a, n)
    with pytest.raises(error):
        fn.matrix_power(a, n)
    with pytest.raises(TypeError, match="unknown option"):
        fn.matrix_power(np.eye(2), 2, dept=1)


def test_short_floats_and_refusals_go_the_common_way():
    a = np.random.default_rng(3).standard_normal((600, 600)).astype(np.float16)
    for options in ({}, {"executor": "cpu"}, {"reproducible": True}):
        np.testing.assert_array_equal(fn.matmul(a, a.T, **options), fn.matmul(a, a.T.copy(), **options))
    x = np.ones((600, 600), np.float32)
    for got in (fn.matmul(x, x.T, workspace_limit=1000), fn.gram(x, workspace_limit=1000)):
        assert (got == 600).all()
    with pytest.raises(ValueError, match="workspace"):
        fn.gram(x, workspace_limit=1000, executor="cpu")


def test_what_is_no_output_and_no_plan_is_refused():
    with pytest.raises(TypeError, match="out must be"):
        fn.gram(np.ones((3, 3)), out=[1])
    with pytest.raises(TypeError, match="plan must be a Plan"):
        fn.gemm(np.ones((3, 3)), np.ones((3, 3)), plan=3)
    with np.errstate(all="raise"):
        assert np.isinf(fn.gram(np.full((300, 300), 60.0, np.float16))).all()
