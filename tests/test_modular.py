"""gemm(modulus=p) against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba import modular

# Kernels and their ends: 8-bit and 16-bit residues, 64 bits at once, in chunks, in halves.
MODULI = (1, 2, 3, 255, 256, 257, 997, 4099, 65537, 65536, 2**24 + 43, 2**29 - 3, 2**31 - 1, 2**31 - 19)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_against_python(data):
    p = data.draw(st.one_of(st.sampled_from(MODULI), st.integers(1, 2**31 - 1)))
    M, N, K = (data.draw(st.integers(1, 40)) for _ in range(3))
    dtypes = st.sampled_from(("int64", "uint64", "int32", "uint8", "int8", "bool"))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def matrix(shape, dtype):
        low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return rng.integers(low, high, shape, "u8" if dtype == "uint64" else "i8", endpoint=True).astype(dtype)

    a, b, c = (matrix(x, data.draw(dtypes)) for x in ((M, K), (K, N), (M, N)))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (1, 1), (-1, 5), (0, 3), (2**40, -(2**70))]))
    expected = (alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)) % p
    options = data.draw(st.sampled_from([{}, {"executor": "cpu"}, {"depth": 1}, {"scheme": "winograd", "depth": 2}]))
    got = fn.gemm(a, b, c if beta else None, alpha=alpha, beta=beta, modulus=p, out_dtype="int64", **options)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, expected.astype(np.int64))


@pytest.mark.parametrize("p", MODULI)
def test_extremes_and_long_sums(p, monkeypatch):
    """Residues as large as they get; sums that just fit, in chunks and in halves."""
    for K in (1, 513, 1500):
        for value in (p // 2, p - p // 2, p - 1):
            a, b = np.full((3, K), value), np.full((K, 5), value)
            expected = value * value * K % p
            assert (fn.gemm(a, b, modulus=p) == expected).all()
            for shortest in (1, 10**9):
                monkeypatch.setattr(modular, "SHORTEST", shortest)
                assert (fn.gemm(a, b, modulus=p) == expected).all()
                monkeypatch.undo()


def test_the_engine_computes_them():
    a = np.arange(150 * 150).reshape(150, 150)
    for p, dtypes in ((251, ["int16"]), (65537, ["int64"]), (2**31 - 1, ["int64", "int64"])):
        with fn.trace() as plans:
            fn.gemm(a, a, modulus=p, depth=1)
        assert [x.dtype for x in plans] == dtypes
        assert all(x.executor == "cpu" and x.depth == 1 for x in plans)
    with fn.trace() as plans:
        fn.gemm(a, a, modulus=1009, executor="cpu")
    assert [(x.dtype, x.depth) for x in plans] == [("int16", 0)]


def test_transposed_in_place_and_overlapping():
    rng = np.random.default_rng(1)
    a = rng.integers(0, 1009, (30, 30))
    expected = (a.T.astype(object) @ a.astype(object) + 2 * a.astype(object)) % 1009
    out = a.copy()
    assert fn.gemm(out, out, out, beta=2, trans_a="T", out=out, modulus=1009) is out
    np.testing.assert_array_equal(out, expected.astype(np.int64))
    small = np.empty((30, 30), np.uint8)
    fn.gemm(a, a, modulus=251, out=small.view(np.uint8).T, out_dtype="uint8")
    np.testing.assert_array_equal(small.T, (a @ a) % 251)


BAD = [
    ({"modulus": 0}, ValueError, "modulus=0"),
    ({"modulus": 2**31}, ValueError, "must be from 1"),
    ({"modulus": 2.5}, TypeError, None),
    ({"modulus": 300, "out_dtype": "int8"}, ValueError, "don't fit into int8"),
    ({"modulus": 7, "alpha": 0.5}, TypeError, "alpha=0.5"),
    ({"modulus": 7, "beta": 1}, ValueError, "needs c"),
    ({"modulus": 7, "depth": -1}, ValueError, "depth"),
    ({"modulus": 7, "plan": fn.plan_for(3, 3, 3, "int64")}, TypeError, "plan or modulus"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_bad_arguments(options, error, message):
    a = np.ones((3, 3), "int8")
    with pytest.raises(error, match=message):
        fn.gemm(a, a, **options)


def test_floats_are_refused():
    a = np.ones((3, 3), int)
    for operands in ((a.astype(float), a), (a, a.astype(float))):
        with pytest.raises(TypeError, match="modulus needs integers"):
            fn.gemm(*operands, modulus=7)
