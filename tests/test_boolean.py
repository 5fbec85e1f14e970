"""OR of ANDs on the engine: any shape, layout, density and number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from engine_oracle import LAYOUTS, OUT_LAYOUTS, guarded, in_layout
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.cpu import boolean

SIDE = st.one_of(st.integers(1, 70), st.sampled_from((63, 64, 65, 127, 128, 129, 200)))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64)) > 0


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_shape_layout_and_density(data):
    M, N, K = (data.draw(SIDE) for _ in range(3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    densities = st.sampled_from((0, 0.01, 0.1, 0.5, 0.99, 1))
    a, b = (rng.random(shape) < data.draw(densities) for shape in ((M, K), (K, N)))
    a, b = (in_layout(x, data.draw(st.sampled_from(LAYOUTS))) for x in (a, b))
    out, buffer = guarded((M, N), "bool", data.draw(st.sampled_from(OUT_LAYOUTS)), False)
    beta = data.draw(st.integers(0, 1))
    out[...] = rng.random((M, N)) < 0.3
    expected = product(a, b) | out if beta else product(a, b)
    with fn.trace() as plans:
        result = fn.gemm(
            a, b, out if beta else None, beta=beta, out=out, executor="cpu", threads=data.draw(st.integers(1, 3))
        )
    assert result is out and plans[0].executor == "cpu" and plans[0].error_bound == 0
    np.testing.assert_array_equal(out, expected)
    assert set(out.view(np.uint8).ravel().tolist()) <= {0, 1}
    out[...] = False
    assert not buffer.any()


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon"])
def test_several_panels_and_threads(isa, monkeypatch):
    """More columns than a panel has; vectors of other instruction sets; so much that threads share it."""
    monkeypatch.setattr(boolean, "isa_family", lambda: isa)
    monkeypatch.setattr(boolean, "ALONE", 0)
    rng = np.random.default_rng(1)
    for (M, N, K), density in (((70, 4301, 130), 0.02), ((33, 2048, 640), 0.3), ((5, 2049, 65), 1)):
        a, b = rng.random((M, K)) < density, rng.random((K, N)) < density
        for threads in (1, 3):
            np.testing.assert_array_equal(fn.matmul(a, b, executor="cpu", threads=threads), product(a, b))


def test_true_is_whatever_is_not_zero():
    """Bytes of other values can only come from views."""
    rng = np.random.default_rng(2)
    a, b = (rng.choice(np.array([0, 0, 2, 128, 255], np.uint8), (70, 70)).view(bool) for _ in range(2))
    got = fn.matmul(a, b, executor="cpu")
    np.testing.assert_array_equal(got, product(a.view(np.uint8) != 0, b.view(np.uint8) != 0))
    assert set(got.view(np.uint8).ravel().tolist()) <= {0, 1}


def test_batches_vectors_and_broadcasting():
    rng = np.random.default_rng(3)
    a, b = rng.random((3, 1, 40, 70)) < 0.1, rng.random((2, 70, 90)) < 0.1
    np.testing.assert_array_equal(fn.matmul(a, b, executor="cpu"), np.matmul(a, b))
    np.testing.assert_array_equal(fn.matmul(a[0, 0, 0], b, executor="cpu"), np.matmul(a[0, 0, 0], b))
    np.testing.assert_array_equal(fn.matmul(a, b[0, :, 0], executor="cpu"), np.matmul(a, b[0, :, 0]))


def test_there_are_no_levels():
    a = np.ones((80, 80), bool)
    for options in ({"depth": 1}, {"scheme": "strassen"}, {"leaf": "portable"}):
        with pytest.raises(TypeError, match="cannot be honoured for dtype bool"):
            fn.gemm(a, a, **options)
        with pytest.raises(TypeError, match="cannot be honoured for dtype bool"):
            fn.matmul(a, a, **options)
    assert fn.plan_for(500, 500, 500, "bool").executor == "cpu"
    assert fn.plan_for(8, 8, 8, "bool").executor == "numpy"
    assert fn.plan_for(500, 500, 500, "bool", workspace_limit=100).executor == "numpy"
    with pytest.raises(ValueError, match="workspace_limit"):
        fn.gemm(a, a, workspace_limit=100, executor="cpu")
    assert fn.gemm(a, a, check=True, executor="cpu").all()
    made = fn.plan(a, a, executor="cpu")
    assert made.executor == "cpu" and fn.gemm(a, a, plan=made).all()
