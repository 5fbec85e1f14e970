"""Faults that users reported against other libraries' matrix products: values, sizes, repeatability.

Each test names the reports. `test_cases_layout` has those of layouts, shapes, scalars and types.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

import falcon_numba as fn
from falcon_numba.numerics.bounds import error_bound

DTYPES = ("float32", "float64")
ENGINES = [{}, {"executor": "cpu"}, {"executor": "cpu", "depth": 2}]


class TestIntegersWrap:
    """https://github.com/numpy/numpy/issues/6753, https://github.com/numpy/numpy/issues/5435,
    https://github.com/cupy/cupy/issues/3941, https://github.com/cupy/cupy/issues/6566"""

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("function", [fn.matmul, fn.gemm])
    def test_int16(self, function, options):
        a = np.full((2, 3), 3201, np.int16)
        got = function(a.T, a, **options)
        assert got.dtype == np.int16
        assert (got == -19966).all()

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("function", [fn.matmul, fn.gemm])
    def test_int64_does_not_go_through_floats(self, function, options):
        fibonacci = np.array([[1, 1], [1, 0]])
        column = np.array([[7540113804746346429], [4660046610375530309]])
        assert function(fibonacci, column, **options).ravel().tolist() == [-6246583658587674878, 7540113804746346429]

    @pytest.mark.parametrize("options", ENGINES)
    @pytest.mark.parametrize("dtype", [np.uint64, np.int64])
    def test_the_whole_range_of_64_bits(self, dtype, options):
        rng = np.random.default_rng(0)
        info = np.iinfo(dtype)
        a, b = (rng.integers(info.min, info.max, (40, 40), dtype, endpoint=True) for _ in range(2))
        exact = a.astype(object) @ b.astype(object) % 2**64
        for got in (fn.gemm(a, b, **options), fn.matmul(a, b, **options)):
            np.testing.assert_array_equal(got.astype(object) % 2**64, exact)

    @pytest.mark.parametrize("options", ENGINES)
    def test_int8_into_int32(self, options):
        a, b = np.array([[-44, -20], [-126, 6]], np.int8), np.array([[24, -75], [127, -101]], np.int8)
        expected = [[-3596, 5320], [-2262, 8844]]
        assert fn.gemm(a, b, out_dtype=np.int32, **options).tolist() == expected
        assert fn.gemm(a, b, out=np.zeros((2, 2), np.int32), **options).tolist() == expected
        assert fn.matmul(a, b, dtype=np.int32, **options).tolist() == expected
        assert fn.matmul(a, b, **options).dtype == np.int8
        extremes = np.full((3, 1024), -128, np.int8)
        assert (fn.gemm(extremes, extremes, trans_b="T", out_dtype=np.int32, **options) == 16_777_216).all()


class TestLowPrecision:
    """https://github.com/numpy/numpy/issues/22208, https://github.com/pytorch/pytorch/issues/83863,
    https://github.com/numpy/numpy/issues/7930, https://github.com/jax-ml/ml_dtypes/issues/235,
    https://github.com/chainer/chainer/pull/5369"""

    def test_ones_in_half_precision(self):
        assert (fn.gemm(np.ones((3, 4096), "f2"), np.ones((4096, 5), "f2"), executor="cpu") == 4096).all()

    def test_ones_in_bfloat16(self):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        one = np.ones((300, 1024), ml_dtypes.bfloat16)
        got = fn.gemm(one, one.T)
        assert got.dtype == one.dtype
        assert (got == 1024).all()
        assert fn.gemm(one, one.T, out_dtype=np.float32).dtype == np.float32

    @pytest.mark.parametrize("layout", ["C", "F", "strided"])
    def test_half_precision_layouts(self, layout):
        from engine_oracle import in_layout

        rng = np.random.default_rng(1)
        a, b = rng.integers(-3, 4, (60, 70)).astype("f2"), rng.integers(-3, 4, (70, 50)).astype("f2")
        for depth in (0, 1, 2):
            got = fn.gemm(in_layout(a, layout), in_layout(b, layout), executor="cpu", depth=depth)
            assert got.dtype == np.float16
            np.testing.assert_array_equal(got, a.astype("f8") @ b.astype("f8"))

    @pytest.mark.parametrize("depth", [0, 1])
    def test_sums_of_half_precision_that_leave_its_range_on_the_way(self, depth):
        a = np.diag(np.full(64, 60000, np.float16))
        np.testing.assert_array_equal(fn.gemm(a, np.eye(64, dtype=np.float16), executor="cpu", depth=depth), a)
        up_and_down = np.array([[60000, 60000, -60000, 0]], np.float16)
        assert fn.gemm(up_and_down, np.ones((4, 1), np.float16), executor="cpu", depth=depth) == 60000

    @pytest.mark.parametrize("K", [2**18 + 3, pytest.param(2**25, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("depth", [0, 1])
    def test_a_very_long_sum_of_ones(self, depth, K):
        """https://github.com/OpenMathLib/OpenBLAS/issues/1326: float32 loops stop at 2²⁴."""
        one = np.broadcast_to(np.float32(1), (1, K))
        assert fn.gemm(one, one.T, executor="cpu", depth=depth) == K


class TestSymmetry:
    """https://github.com/scikit-learn/scikit-learn/issues/9354, https://github.com/SheffieldML/GPy/issues/461,
    https://github.com/pytorch/pytorch/issues/27944"""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("depth", ["auto", 0, 1, 2])
    def test_gram_matrix(self, depth, dtype):
        x = np.random.default_rng(2).standard_normal((513, 100)).astype(dtype)
        with fn.trace() as plans:
            gram = fn.gemm(x, x, trans_b="T", depth=depth)
        if plans[0].depth == 0:
            np.testing.assert_array_equal(gram, gram.T)
        else:
            allowed = 2 * plans[0].error_bound * 100 * float(np.abs(x).max()) ** 2
            assert np.abs(gram - gram.T).max() <= allowed
            assert np.abs(gram - gram.T).max() <= 2e3 * np.finfo(dtype).eps  # and far from that bound

    @pytest.mark.parametrize("depth", ["auto", 0, 1])
    def test_distances_of_duplicates(self, depth):
        rows = np.repeat([[1.000], [1.001]], 64, axis=0) * np.ones(1000)
        x = rows[np.random.default_rng(3).permutation(128)]
        s = np.einsum("ij,ij->i", x, x)
        distances = s[:, None] + s - 2 * fn.gemm(x, x, trans_b="T", depth=depth)
        alike = x[:, :1] == x[:, 0]
        assert np.abs(distances[alike]).max() <= 1e-9
        assert np.abs(distances[~alike] - 0.001).max() <= 1e-9


class TestRepeatability:
    """https://github.com/pytorch/pytorch/issues/65919, https://github.com/numpy/numpy/issues/11655,
    https://github.com/deepseek-ai/FlashMLA/issues/212"""

    @pytest.mark.parametrize("depth", ["auto", 0, 1, 2])
    def test_twice_the_same_bits(self, depth):
        rng = np.random.default_rng(4)
        a, b = rng.standard_normal((700, 300), dtype="f4"), rng.standard_normal((300, 640), dtype="f4")
        levels = {threads: fn.plan(a, b, executor="cpu", depth=depth, threads=threads).levels for threads in (1, 2, 5)}
        results = {}
        for threads in (1, 2, 5, 1, 2, 5):  # the number of threads may change what is chosen, but never a plan's bits
            fn.gemm(b.T, a.T, executor="cpu", depth=2)  # something else in the workspace
            got = fn.gemm(a, b, executor="cpu", depth=depth, threads=threads)
            np.testing.assert_array_equal(got, results.setdefault(levels[threads], got))
        assert len(results) == 1 or depth == "auto"

    def test_rows_alone_have_their_bits_at_depth_0(self):
        rng = np.random.default_rng(5)
        a, c = rng.random((64, 300), dtype="f4"), rng.random((300, 300), dtype="f4")
        whole = fn.gemm(a, c, executor="cpu", depth=0)
        for rows in (slice(0, 1), slice(1, 64), slice(5, 20)):
            np.testing.assert_array_equal(fn.gemm(a[rows], c, executor="cpu", depth=0), whole[rows])
        x = np.random.default_rng(42).standard_normal((4, 10_000)).astype("f4")
        corner = fn.gemm(x[:2], x[:2].T, executor="cpu", depth=0)
        np.testing.assert_array_equal(fn.gemm(x, x.T, executor="cpu", depth=0)[:2, :2], corner)

    def test_no_cliff_where_levels_begin(self):
        """Sizes on both sides of a depth's beginning: errors differ by the growth of one level, not by more."""
        rng = np.random.default_rng(6)
        errors = {}
        for n in (511, 512, 513):
            a, b = rng.standard_normal((n, n)).astype("f4"), rng.standard_normal((n, n)).astype("f4")
            reference = a.astype("f8") @ b.astype("f8")
            for depth in (0, 1):
                c = fn.gemm(a, b, executor="cpu", depth=depth)
                errors[n, depth] = np.abs(c - reference).max() / (np.abs(a).max() * np.abs(b).max())
        for depth in (0, 1):
            of_depth = [errors[n, depth] for n in (511, 512, 513)]
            assert max(of_depth) <= 4 * min(of_depth)
        assert errors[513, 1] <= 4 * errors[512, 0]


class TestSizes:
    """https://github.com/mljs/matrix/issues/114, https://github.com/clMathLibraries/clBLAS/issues/246,
    https://github.com/OpenMathLib/OpenBLAS/issues/5429"""

    @pytest.mark.parametrize("depth", range(4))
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_row_times_square_and_identity(self, depth, dtype):
        options = {"executor": "cpu", "depth": depth}
        row, square = np.array([[1, 2]], dtype), np.array([[1, 2], [3, 4]], dtype)
        assert fn.gemm(row, square, **options).tolist() == [[7, 10]]
        assert fn.gemm(np.ones((3, 2), dtype), np.ones((2, 4), dtype), **options).tolist() == [[2] * 4] * 3
        a = np.arange(45 * 33).reshape(45, 33).astype(dtype)
        np.testing.assert_array_equal(fn.gemm(a, np.eye(33, dtype=dtype), **options), a)
        np.testing.assert_array_equal(fn.gemm(np.eye(45, dtype=dtype), a, **options), a)

    @pytest.mark.parametrize("n", [600, 1025])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_squares_beyond_powers_of_two(self, n, depth):
        rng = np.random.default_rng(n)
        a, b = rng.integers(-1, 2, (n, n)).astype("f4"), rng.integers(-1, 2, (n, n)).astype("f4")
        np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth), a @ b)


def test_bad_scaling_within_a_block_stays_within_the_bound():
    """One block of A is 10¹⁰ times the others: what a plain Strassen loses there is what the contract allows."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 256, 256))
    a[:128, :128] *= 1e10
    with fn.trace() as plans:
        c = fn.gemm(a, b, depth=1)
    (plan,) = plans
    factor = error_bound(plan.levels, 256, plan.blocks.KC, "float64", "balanced").factor
    error = np.abs(c - (a.astype(np.longdouble) @ b.astype(np.longdouble)))
    assert (error <= factor * np.outer(np.abs(a).max(1), np.abs(b).max(0))).all()
    assert error[128:].max() < 1e-11  # the rows that are not large keep their own digits


def test_subnormal_data_are_not_slow():
    """https://github.com/numpy/numpy/issues/29820: within 20 times of ordinary data, where they are computed at all."""
    ordinary, tiny = np.full((400, 400), 1e-3), np.full((400, 400), 1e-160)

    def seconds(x):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            fn.gemm(x, x, executor="cpu", depth=1, threads=1)
            times.append(time.perf_counter() - start)
        return min(times)

    seconds(ordinary)
    assert seconds(tiny) <= 20 * seconds(ordinary)
