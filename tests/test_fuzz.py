"""Random products, one after the other, in one process: what they share must not show."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fuzzing import DTYPES, MOST, SCALARS, draw_and_check, levels_for, pattern
from guards import OUT_LAYOUTS, Output
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, multiple, rule

import falcon_numba as fn

SIDE = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 97, 127, 130)))


def test_sample_of_the_long_run():
    for i in range(400):
        draw_and_check(np.random.default_rng([2, i]))


def test_seeds_are_reproducible():
    first, again = (draw_and_check(np.random.default_rng([3, 1])) for _ in range(2))
    assert first == again


class Products(RuleBasedStateMachine):
    """Matrices that live on and change places: views of one another, results as operands, in place, under options.

    All hold small integers, so every product is exact in int64 and with any scheme.
    """

    matrices = Bundle("matrices")

    @initialize(target=matrices, dtype=st.sampled_from(DTYPES))
    def begin(self, dtype):
        fn.set_config(reset=True)
        fn.set_config(executor="cpu")
        self.count = 0
        first = np.random.default_rng(0).integers(-MOST, MOST + 1, (70, 70)).astype(dtype)
        return multiple(first, first.T, first[::-1, ::2])

    def teardown(self):
        fn.set_config(reset=True)

    # --- operands

    @rule(target=matrices, rows=SIDE, columns=SIDE, dtype=st.sampled_from(DTYPES), layout=st.sampled_from(OUT_LAYOUTS))
    def make(self, rows, columns, dtype, layout):
        self.count += 1
        x = Output((rows, columns), dtype, layout).array
        x[...] = np.random.default_rng(self.count).integers(-MOST, MOST + 1, x.shape)
        return x

    @rule(target=matrices, x=matrices, transposed=st.booleans(), reversed_=st.booleans(), step=st.sampled_from((1, 2)))
    def view(self, x, transposed, reversed_, step):
        x = x[::step, ::-1] if reversed_ else x[:, ::step]
        return x.T if transposed else x

    @rule(target=matrices, x=matrices)
    def repeat_first_row(self, x):
        return np.broadcast_to(x[0], x.shape)

    # --- what is shared

    @rule(
        threads=st.sampled_from((None, 1, 2, 5)),
        accuracy=st.sampled_from(("balanced", "normwise")),
        leaf=st.sampled_from(("auto", "auto", "portable")),
        limit=st.sampled_from((None, None, "64 MiB", "2 MiB")),
        reproducible=st.booleans(),
        check=st.booleans(),
    )
    def configure(self, threads, accuracy, leaf, limit, reproducible, check):
        given = {"workspace_limit": limit, "reproducible": reproducible, "check": check}
        fn.set_config(threads=threads, accuracy=accuracy, leaf=leaf, **given)

    @rule()
    def release(self):
        fn.release_workspace()

    # --- products

    def operands(self, a, b):
        """Parts of two matrices that can be multiplied, in one dtype."""
        K = min(a.shape[1], b.shape[0])
        dtype = np.result_type(a, b).name
        return a[:, :K], b[:K], K, dtype

    @rule(
        target=matrices,
        a=matrices,
        b=matrices,
        scalars=st.sampled_from(SCALARS),
        layout=st.sampled_from(OUT_LAYOUTS),
        aliased=st.booleans(),
        seed=st.integers(0, 2**16),
    )
    def product(self, a, b, scalars, layout, aliased, seed):
        a, b, K, dtype = self.operands(a, b)
        alpha, beta = scalars
        levels = levels_for(np.random.default_rng(seed), K, dtype, exact=True)
        out = Output((a.shape[0], b.shape[1]), dtype, layout)
        c = np.random.default_rng(seed).integers(-MOST, MOST + 1, out.array.shape).astype(dtype)
        out.array[...] = c if aliased else np.nan
        options = {"depth": 0} if not levels else {"scheme": levels}
        given = out.array if aliased else c
        with fn.trace() as plans:
            fn.gemm(a, b, given, alpha=alpha, beta=beta, out=out.array, **options)
        assert plans[0].depth == len([name for name in levels if name != "classical"])
        expected = alpha * (a.astype("f8") @ b.astype("f8")) + (beta * c.astype("f8") if beta else 0)
        result = out.array.copy()
        np.testing.assert_array_equal(result, expected)
        out.check()
        return np.remainder(result, MOST)

    @rule(a=matrices, b=matrices, beta=st.sampled_from((0, 2)), depth=st.integers(0, 2), flip=st.booleans())
    def into_an_operand(self, a, b, beta, depth, flip):
        """`out` is part of A, or its mirror image; the product is as if A had been copied first."""
        a, b, K, dtype = self.operands(a, b)
        size = min(a.shape[0], b.shape[1], K)
        a, b = a[:size], b[:, :size]
        out = (a[::-1] if flip else a)[:, :size]
        assume(out.flags.writeable and out.dtype == dtype)
        expected = a.astype("f8") @ b.astype("f8") + beta * out.astype("f8")
        fn.gemm(a, b, out, beta=beta, out=out, depth=depth)
        np.testing.assert_array_equal(out, expected)
        out[...] = np.remainder(out.copy(), MOST)

    @rule(a=matrices, b=matrices, count=st.integers(1, 4), depth=st.integers(0, 2), vector=st.booleans())
    def batch(self, a, b, count, depth, vector):
        a, b, _, _ = self.operands(a, b)
        if vector:
            b = b[:, 0]
        many = np.stack([a + i for i in range(count)])
        got = fn.matmul(many, b, depth=depth)
        np.testing.assert_array_equal(got, np.matmul(many.astype("f8"), b.astype("f8")))

    @rule(a=matrices, b=matrices, depth=st.integers(0, 2), value=st.sampled_from((np.nan, np.inf, -np.inf)))
    def spoilt(self, a, b, depth, value):
        a, b, _, _ = self.operands(a, b)
        a = a.copy()
        a[-1, -1] = value
        with np.errstate(all="ignore"):
            expected = np.matmul(a, b)
        np.testing.assert_array_equal(pattern(fn.gemm(a, b, depth=depth)), pattern(expected))

    @rule(a=matrices, b=matrices, depth=st.integers(0, 2))
    def from_another_thread_meanwhile(self, a, b, depth):
        a, b, _, _ = self.operands(a, b)
        results = []
        other = threading.Thread(target=lambda: results.append(fn.gemm(a, b, depth=depth)))
        other.start()
        results.append(fn.gemm(a, b, depth=depth))
        other.join()
        for got in results:
            np.testing.assert_array_equal(got, a.astype("f8") @ b.astype("f8"))

    @rule(bad=st.sampled_from(({"depth": 9}, {"scheme": "no such"}, {"workspace_limit": 10}, {"max_error": 1e-30})))
    def refused(self, bad):
        out = np.full((20, 20), 7.0)
        with pytest.raises(ValueError):
            fn.gemm(np.ones((20, 20)), np.ones((20, 20)), out=out, **bad)
        assert (out == 7).all()


Products.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestProducts = pytest.mark.filterwarnings("error::falcon_numba.ProductCheckWarning")(Products.TestCase)
