"""gemm against the definition: alpha·op(A)·op(B) + beta·C in exact arithmetic; contracts of BLAS; bad input."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import layouts

from falcon_numba import config, dispatch, gemm, plan, plan_for

ml_dtypes = pytest.importorskip("ml_dtypes")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
examples = settings(max_examples=200)
CPU = {"executor": "cpu"}


def exact(a, b, c=None, alpha=1, beta=0):
    """In Python's integers (or complex numbers of small integers)."""
    kind = complex if a.dtype.kind == "c" or b.dtype.kind == "c" else int
    a, b = (np.array([[kind(x) for x in row] for row in m.tolist()], object).reshape(m.shape) for m in (a, b))
    result = np.zeros((a.shape[0], b.shape[1]), object)
    for k in range(a.shape[1]):
        result = result + a[:, k : k + 1] * b[k : k + 1]
    result = alpha * result
    return result + beta * c.astype(object) if beta else result


def wrapped(exact_result, dtype):
    """Modulo 2^bits for integers."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        return exact_result.astype(dtype)
    return np.array(exact_result % 2 ** (8 * dtype.itemsize), f"u{dtype.itemsize}").astype(dtype)


@pytest.mark.parametrize("dtypes", ["f4", "f8", "f4 f8", "i2", "u1", "i8", "i4 u1", "c8", "c16 f4", "g", "f2"])
@pytest.mark.parametrize("trans", [("N", "N"), ("T", "N"), ("N", "T"), ("C", "C"), ("n", True), (False, "C")], ids=str)
@settings(max_examples=15)
@given(
    st.data(), st.tuples(*[st.integers(0, 7)] * 3), st.sampled_from([(1, 0), (0, 0), (0, 2), (1, 1), (2, -1), (-1, 3)])
)
def test_definition(dtypes, trans, data, sizes, scalars):
    M, N, K = sizes
    types = (dtypes.split() * 2)[:2]
    flip_a, flip_b = (t in ("T", "C", True) for t in trans)
    a = data.draw(layouts((K, M) if flip_a else (M, K), types[0]))
    b = data.draw(layouts((N, K) if flip_b else (K, N), types[1]))
    alpha, beta = scalars
    dtype = np.result_type(*types)
    c = data.draw(layouts((M, N), types[0])) if beta or data.draw(st.booleans()) else None
    op_a, op_b = (
        np.conj(x.T) if t == "C" else x.T if t in ("T", True) else x for x, t in zip((a, b), trans, strict=True)
    )
    expected = wrapped(exact(op_a, op_b, c, alpha, beta), dtype)
    keywords = {"alpha": alpha, "beta": beta, "trans_a": trans[0], "trans_b": trans[1]}
    on_engine = dtype.char in "efdFD"
    for options in ({}, CPU) if on_engine else ({},):
        got = gemm(a, b, c, **keywords, **options)
        assert type(got) is np.ndarray and got.dtype == dtype and got.flags.c_contiguous
        np.testing.assert_array_equal(got, expected)
        out = data.draw(layouts((M, N), dtype, writeable=True))
        out[...] = 3
        if c is None:
            assert gemm(a, b, out=out, **keywords, **options) is out
            np.testing.assert_array_equal(out, expected)
            continue
        before = c.copy()
        assert gemm(a, b, c, out=out, **keywords, **options) is out
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(c, before)
        out[...] = c
        assert gemm(a, b, out, out=out, **keywords, **options) is out
        np.testing.assert_array_equal(out, expected)


@examples
@given(st.data(), st.sampled_from(("f4", "f8", "i4")), st.sampled_from([(1, 0), (2, 1), (0, 3), (1, -1)]))
def test_overlap_reads_as_if_copied_first(data, dtype, scalars):
    """Any of a, b, c and out on the same memory, transposed or reversed."""
    memory = np.arange(64).reshape(8, 8).astype(dtype) % 5

    def window():
        i, j = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        x = memory[i : i + 4, j : j + 4][:: data.draw(st.sampled_from((1, -1)))]
        return x.T if data.draw(st.booleans()) else x

    a, b, c, out = window(), window(), window(), window()
    if data.draw(st.booleans()):
        c = out
    alpha, beta = scalars
    expected = memory.copy()
    result = wrapped(exact(a.copy(), b.copy(), c.copy(), alpha, beta), dtype)
    at = out.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    np.ndarray(out.shape, out.dtype, expected, at, out.strides)[...] = result
    gemm(a, b, c, alpha=alpha, beta=beta, out=out, **(CPU if dtype != "i4" else {}))
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("options", [{}, CPU], ids=["auto", "cpu"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "c16", "g"])
def test_beta_zero_never_reads_c_and_alpha_zero_neither_a_nor_b(dtype, options):
    options = options if dtype != "g" else {}
    nan = np.full((5, 5), np.nan, dtype)
    one = np.ones((5, 5), dtype)
    for c in (nan, nan.copy()):
        np.testing.assert_array_equal(gemm(one, one, c, out=c if c is not nan else None, **options), 5 * one)
    np.testing.assert_array_equal(gemm(nan, nan, one, alpha=0, beta=2, **options), 2 * one)
    np.testing.assert_array_equal(gemm(nan, nan, alpha=0, **options), 0 * one)
    np.testing.assert_array_equal(gemm(nan, nan, nan, alpha=0, beta=0, out=nan.copy(), **options), 0 * one)
    assert np.isnan(gemm(one, one, nan, beta=1, **options)).all()


def test_update_in_place_makes_no_copy_of_c(monkeypatch):
    problems = []
    monkeypatch.setattr(dispatch, "execute", lambda problem, *rest: problems.append(problem))
    a, c, big = np.ones((6, 6)), np.ones((6, 6)), np.ones((12, 12))
    gemm(a, a, c, beta=1, out=c, **CPU)
    gemm(a, a, big[::2, ::-2], beta=1, out=big[::2, ::-2], **CPU)
    gemm(a, a, out=c, **CPU)
    assert problems[0].c is c and problems[2].c is c
    assert np.shares_memory(problems[1].c, big)
    for problem in problems:
        assert problem.a is a and problem.b is a


WIDENING = [
    ("i1", "i1", "i4", [[-44, -20], [-126, 6]], [[24, -75], [127, -101]], [[-3596, 5320], [-2262, 8844]]),
    ("u1", "u1", "u4", [[255, 255]], [[255], [255]], [[2 * 255 * 255]]),
    ("u1", "i1", "i4", [[255, 255]], [[-128], [-128]], [[-2 * 255 * 128]]),
    ("?", "?", "i8", [[1, 1, 1]], [[1], [1], [1]], [[3]]),
    ("f4", "f4", "f8", [[1, 2**-30]], [[1], [1]], [[1 + 2**-30]]),
    ("i1", "i1", "f8", [[100, 100]], [[100], [100]], [[20000]]),
]


@pytest.mark.parametrize(("first", "second", "wide", "a", "b", "expected"), WIDENING)
def test_out_dtype_widens_the_whole_computation(first, second, wide, a, b, expected):
    a, b = np.array(a, first), np.array(b, second)
    got = gemm(a, b, out_dtype=wide)
    assert got.dtype == wide
    np.testing.assert_array_equal(got, expected)
    out = np.zeros(got.shape, wide)
    np.testing.assert_array_equal(gemm(a, b, out=out), expected)
    np.testing.assert_array_equal(gemm(a, b, out, beta=1, out=out), 2 * got)
    big_endian = np.zeros(got.shape, np.dtype(wide).newbyteorder(">"))
    np.testing.assert_array_equal(gemm(a, b, out=big_endian, out_dtype=wide), expected)


def test_out_dtype_narrows_once():
    a = np.full((1, 2), 300, "i4")
    np.testing.assert_array_equal(gemm(a, a.T, out_dtype="i2"), np.array([[180000]]).astype("i2"))
    half = gemm(np.array([[1.0, 2.0**-11]]), np.array([[1.0], [1.0]]), out_dtype="f2")
    assert half.dtype == np.float16 and half == 1
    assert gemm(np.ones((2, 2)), np.ones((2, 2)), out_dtype="f4").dtype == np.float32


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BFLOAT16, np.dtype(ml_dtypes.float8_e5m2)])
def test_short_floats_accumulate_in_float32_and_round_once(dtype):
    ones = np.ones((2, 4096), dtype)
    got = gemm(ones, ones, trans_b="T", alpha=0.5, **CPU)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype("f4"), np.full((2, 2), 2048))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((9, 9)).astype(dtype) for _ in range(2))
    once = gemm(a, b, **CPU).astype("f4")
    wide = gemm(a, b, out_dtype="f4", **CPU)
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(once, wide.astype(dtype).astype("f4"))
    out = np.zeros((9, 9), dtype)
    assert gemm(a, b, out=out, **CPU) is out
    np.testing.assert_array_equal(out.astype("f4"), once)
    assert plan(a, b).dtype == "float32"
    np.testing.assert_allclose(wide, a.astype("f8") @ b.astype("f8"), rtol=1e-5, atol=1e-5)


def test_bfloat16_mixes_as_numpy_promotes_it():
    a = np.ones((2, 2), BFLOAT16)
    assert gemm(a, a.astype("f4")).dtype == np.float32
    try:
        common = np.promote_types(BFLOAT16, np.float16)
    except TypeError:  # before ml_dtypes 0.6
        with pytest.raises(TypeError):
            gemm(a, a.astype("f2"))
    else:
        assert gemm(a, a.astype("f2")).dtype == common
    with pytest.raises(TypeError):
        gemm(a, np.zeros((2, 2), "M8[s]"))


def test_bool_is_or_of_ands():
    rng = np.random.default_rng(3)
    a, b, c = (rng.random((7, 7)) < 0.2 for _ in range(3))
    got = gemm(a, b, c, beta=1)
    assert got.dtype == bool
    np.testing.assert_array_equal(got, ((a.astype(int) @ b.astype(int)) > 0) | c)
    np.testing.assert_array_equal(gemm(a, b, c, alpha=False, beta=True), c)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u4", "i8", "u8"])
def test_integers_are_exact_modulo_their_size(dtype):
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype)
    a, b, c = (rng.integers(info.min, info.max, (5, 5), dtype, endpoint=True) for _ in range(3))
    for alpha, beta in ((1, 0), (-3, 2**70 + 5), (np.int64(-1), np.uint8(200)), (True, False)):
        expected = wrapped(exact(a, b, c, int(alpha), int(beta)), dtype)
        got = gemm(a, b, c, alpha=alpha, beta=beta)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, expected)


def test_objects_stay_exact():
    a = np.array([[Fraction(2, 3), Fraction(5, 7)]])
    assert gemm(a, a.T)[0, 0] == Fraction(421, 441)
    assert gemm(a, a.T, np.array([[Fraction(1, 2)]]), alpha=Fraction(1, 2), beta=2)[0, 0] == Fraction(421, 882) + 1


@pytest.mark.parametrize("beta", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "?", "c16"])
def test_inner_size_zero_gives_beta_c(beta, dtype):
    a, b = np.ones((3, 0), dtype), np.ones((0, 4), dtype)
    c = np.full((3, 4), 1, dtype)
    if dtype == "?" and beta == 2:
        with pytest.raises(ValueError, match="0 or 1"):
            gemm(a, b, c, beta=beta)
        return
    expected = beta * c
    np.testing.assert_array_equal(gemm(a, b, c, beta=beta), expected)
    assert gemm(a, b, c, beta=beta, out=c) is c
    np.testing.assert_array_equal(c, expected)


ONE = np.ones((3, 3))
BAD_CALLS = [
    ((np.ones((3, 4)), np.ones((3, 4))), {}, ValueError, r"inner sizes differ.*\(3, 4\)"),
    ((np.ones(3), ONE), {}, ValueError, r"a must have two dimensions.*\(3,\)"),
    ((ONE, np.ones((1, 3, 3))), {}, ValueError, r"b must have two dimensions"),
    ((ONE, ONE, np.ones((3, 1))), {"beta": 1}, ValueError, r"c has shape \(3, 1\)"),
    ((ONE, ONE, np.ones((1, 3))), {}, ValueError, r"c has shape \(1, 3\)"),
    ((ONE, ONE), {"out": np.full((3, 4), 7.0)}, ValueError, r"out has shape \(3, 4\)"),
    ((ONE, ONE), {"out": np.broadcast_to(7.0, (3, 3))}, ValueError, "out is read-only"),
    ((ONE, ONE), {"out": np.full((3, 3), 7)}, TypeError, "float64 does not cast to int64"),
    ((ONE, ONE), {"out": [[1.0]]}, TypeError, "out must be a numpy.ndarray, not list"),
    ((ONE, ONE), {"out": np.full((3, 3), 7.0), "out_dtype": "f4"}, TypeError, "out_dtype=float32 but out"),
    ((ONE, ONE), {"out_dtype": "i4"}, TypeError, "does not cast to int32"),
    ((ONE, ONE), {"out_dtype": "nonsense"}, TypeError, "nonsense"),
    ((ONE, ONE), {"beta": 1}, ValueError, "beta=1.0 needs c"),
    ((ONE, ONE), {"beta": 1, "out": np.full((3, 3), 7.0)}, ValueError, "needs c"),
    ((ONE, ONE), {"alpha": 1j}, TypeError, "alpha=1j does not cast to float64"),
    ((ONE, ONE), {"alpha": "2"}, TypeError, "alpha='2'"),
    ((ONE, ONE), {"alpha": None}, TypeError, "alpha=None"),
    ((ONE, ONE), {"alpha": np.ones(2)}, TypeError, "alpha must be a scalar"),
    ((ONE.astype("f4"), ONE.astype("f4")), {"alpha": 1e60}, ValueError, "alpha=1e[+]60 overflows float32"),
    ((ONE, ONE), {"alpha": 10**400}, ValueError, "overflows float64"),
    ((ONE.astype(int), ONE.astype(int)), {"alpha": 1.0}, TypeError, "alpha=1.0 does not cast to int64"),
    ((ONE, ONE), {"trans_a": "X"}, ValueError, "trans_a='X'"),
    ((ONE, ONE), {"trans_b": 2}, ValueError, "trans_b=2"),
    ((ONE, ONE), {"trans_b": None}, ValueError, "trans_b=None"),
    ((ONE, ONE), {"dept": 1}, TypeError, "did you mean 'depth'"),
    ((ONE, ONE), {"depth": -1}, ValueError, "depth=-1"),
    ((ONE, np.array([["a"] * 3] * 3)), {}, TypeError, None),
    ((ONE.astype("M8[s]"), ONE.astype("M8[s]")), {}, TypeError, "no matrix product of dtype datetime64"),
]


@pytest.mark.parametrize("case", range(len(BAD_CALLS)))
def test_bad_input_raises_before_any_work(case, monkeypatch):
    monkeypatch.setattr(dispatch, "execute", None)
    operands, keywords, error, message = BAD_CALLS[case]
    if "out_dtype" not in keywords and operands[0].dtype.kind in "fi":
        keywords = {"out": np.full((3, 3), 7, operands[0].dtype), **keywords}
    with pytest.raises(error, match=message):
        gemm(*operands, **keywords)
    out = keywords.get("out")
    assert not isinstance(out, np.ndarray) or (out == 7).all()


def test_out_is_untouched_when_the_engine_refuses(monkeypatch):
    """A plan or a limit that cannot be honoured is found out late; C must not have been written to out by then."""

    def refuse(*_):
        raise ValueError("no")

    monkeypatch.setattr(dispatch, "execute", refuse)
    out = np.full((3, 3), 7.0)
    with pytest.raises(ValueError, match="no"):
        gemm(ONE, ONE, ONE, beta=1, out=out, **CPU)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "option", [{"depth": 1}, {"scheme": "strassen"}, {"executor": "cpu"}, {"accuracy": "normwise"}, {"threads": 1}]
)
def test_a_plan_and_options_that_decide_one_exclude_each_other(option):
    made = plan(ONE, ONE)
    with pytest.raises(TypeError, match=f"already decided {next(iter(option))}"):
        gemm(ONE, ONE, plan=made, **option)
    np.testing.assert_array_equal(gemm(ONE, ONE, plan=made), 3 * ONE)
    with pytest.raises(TypeError, match="the plan is for float64"):
        gemm(ONE.astype(int), ONE.astype(int), plan=made)


@pytest.mark.parametrize("dtype", ["G", "g"])
def test_dtypes_without_engine_refuse_to_pretend(dtype):
    with pytest.raises(TypeError, match="executor='cpu' cannot be honoured for dtype"):
        gemm(ONE.astype(dtype), ONE.astype(dtype), **CPU)
    with config.config_context(executor="cpu"), pytest.raises(TypeError, match="executor='cpu'"):
        gemm(ONE.astype(dtype), ONE.astype(dtype))


def test_plan_describes_the_product():
    a, b = np.ones((30, 20), "f4"), np.ones((20, 40), "f4")
    for made in (plan(a, b), plan(a.T, b.T, trans_a="T", trans_b=True), plan_for(30, 40, 20, "f4")):
        assert (made.M, made.N, made.K, made.batch, np.dtype(made.dtype)) == (30, 40, 20, 1, np.float32)
    batched = plan(np.broadcast_to(a, (2, 1, 30, 20)), np.broadcast_to(b, (3, 20, 40)), **CPU)
    assert (batched.M, batched.N, batched.K, batched.batch, batched.executor) == (30, 40, 20, 6, "cpu")
    column = plan(a, np.ones(20), **CPU)
    assert (column.M, column.N, column.K, column.dtype) == (30, 1, 20, "float64")
    assert plan(np.ones((4, 4), "f2"), np.ones((4, 4), "f2")).dtype == "float32"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plan_for(0, 1, 1), ValueError, "M=0"),
        (lambda: plan_for(1, 1, 1, batch=0), ValueError, "batch=0"),
        (lambda: plan_for(1, 2.5, 1), TypeError, None),
        (lambda: plan_for(1, 1, 1, "g", executor="cpu"), TypeError, "executor='cpu' cannot"),
        (lambda: plan_for(1, 1, 1, depht=1), TypeError, "did you mean 'depth'"),
        (lambda: plan(ONE, np.ones((4, 4))), ValueError, "inner sizes differ"),
        (lambda: plan(np.ones((2, 3, 3)), ONE, trans_a="T"), ValueError, "two matrices"),
        (lambda: plan(np.ma.ones((3, 3)), ONE), TypeError, "masked"),
    ],
)
def test_bad_plans(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_every_combination_of_layout_and_transposition():
    rng = np.random.default_rng(7)
    a0, b0 = rng.integers(-3, 4, (2, 20, 20)).astype("f8")[:, :13, :17], rng.integers(-3, 4, (20, 20))[:17, :11]
    a0 = a0[0]
    expected = (a0.astype(int) @ b0).astype("f8")
    orders = (
        np.ascontiguousarray,
        np.asfortranarray,
        lambda x: np.repeat(x, 2, 0)[::2],
        lambda x: x[::-1].copy()[::-1],
    )
    for make_a, make_b, ta, tb in itertools.product(orders, orders, "NT", "NT"):
        a = make_a(a0 if ta == "N" else a0.T)
        b = make_b((b0 if tb == "N" else b0.T).astype("f8"))
        np.testing.assert_array_equal(gemm(a, b, trans_a=ta, trans_b=tb, **CPU), expected)
