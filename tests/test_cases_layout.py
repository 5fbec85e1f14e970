"""Faults that users reported against other libraries' matrix products: layouts, shapes, scalars, types.

Each test names the reports. Every case runs as a user would write it and with the CPU engine forced.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from falcon_numba.api import gemm, matmul

pytestmark = pytest.mark.parametrize("engine", [{}, {"executor": "cpu"}], ids=["auto", "cpu"])


def integers(shape, dtype="f8", seed=0):
    """Small integers: their products are exact in any order and with any algorithm."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


class TestFortranOrderAndNegativeStrides:
    """https://github.com/numpy/numpy/issues/29164, https://github.com/rust-ndarray/ndarray/pull/173,
    https://github.com/IntelPython/dpnp/issues/1871"""

    def test_batch_in_fortran_order(self, engine):
        a, b = np.arange(24.0).reshape(4, 2, 3), np.arange(60.0).reshape(4, 3, 5)
        for result in (
            matmul(a, b, order="F", **engine),
            matmul(a, b, out=np.full((4, 2, 5), np.nan, order="F"), **engine),
        ):
            assert result.flags.f_contiguous
            np.testing.assert_array_equal(result[0], [[25, 28, 31, 34, 37], [70, 82, 94, 106, 118]])
            np.testing.assert_array_equal(result, np.einsum("bij,bjk->bik", a, b))

    def test_reversed_views_into_a_reversed_out(self, engine):
        a = np.arange(100.0).reshape(10, 10)[::-2, ::-2]
        frame = np.full((10, 10), -7.0)
        out = frame[::-2, ::-2]
        matmul(a, a, out=out, **engine)
        assert out[0, 0] == 28425
        np.testing.assert_array_equal(out, a.copy() @ a.copy())
        assert (frame == -7).sum() == 75

    def test_reversed_vector_with_itself(self, engine):
        x = np.arange(8.0)[::-1]
        assert matmul(x, x, **engine) == 140


class TestBroadcastOperands:
    """https://github.com/numpy/numpy/pull/12494, https://github.com/huggingface/candle/pull/3960,
    https://github.com/chainer/chainer/pull/972"""

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_one_matrix_for_the_whole_batch(self, engine, dtype):
        one, many = integers((32, 32), dtype, 1), integers((32, 32, 32), dtype, 2)
        wide = np.broadcast_to(one, (32, 32, 32))
        for a, b in ((wide, many), (many, wide), (one, many), (many, one), (wide, wide)):
            np.testing.assert_array_equal(matmul(a, b, **engine), np.matmul(a.copy(), b.copy()))

    def test_one_number_as_vector_or_matrix(self, engine):
        v, m = np.broadcast_to(3.0, (64,)), np.broadcast_to(2.0, (64, 64))
        x = integers((64, 64))
        np.testing.assert_array_equal(matmul(x, v, **engine), 3 * x.sum(1))
        np.testing.assert_array_equal(matmul(v, x, **engine), 3 * x.sum(0))
        np.testing.assert_array_equal(gemm(m, x, **engine), np.tile(2 * x.sum(0), (64, 1)))
        assert matmul(v, v, **engine) == 576

    def test_batch_of_one_against_batch_of_two(self, engine):
        a, b = integers((1, 3, 4)), integers((2, 4, 5))
        np.testing.assert_array_equal(matmul(a, b, **engine), np.einsum("ij,bjk->bik", a[0], b))


class TestByteOrderReadOnlyAndAlignment:
    """https://github.com/numba/numba/issues/2243, https://github.com/numba/numba/issues/2593,
    https://github.com/pydata/sparse/issues/521, https://github.com/numba/numba/issues/4511,
    https://github.com/numpy/numpy/issues/16660, https://github.com/numpy/numpy/issues/13317"""

    @pytest.mark.parametrize("dtypes", [(">f8", ">f8"), (">f4", "<f8"), (">f8", "<f4"), (">f4", ">f4")])
    def test_foreign_byte_order(self, engine, dtypes):
        a, b = (np.ones((3, 3), dtype) for dtype in dtypes)
        for function in (matmul, gemm):
            got = function(a, b, **engine)
            assert (got == 3).all() and got.dtype == np.result_type(*dtypes) and got.dtype.isnative

    def test_read_only_inputs(self, engine):
        a = integers((20, 20))
        a.flags.writeable = False
        before = a.tobytes()
        for function in (matmul, gemm):
            np.testing.assert_array_equal(function(a, a, **engine), a.copy() @ a.copy())
        assert a.tobytes() == before

    @pytest.mark.parametrize("width", ["f4", "f8"])
    def test_field_of_a_packed_structure(self, engine, width):
        z = np.array([(b"a", 1.5)] * 6, dtype=[("p", "S1"), ("v", width)])["v"].reshape(2, 3)
        assert z.strides[1] == np.dtype(width).itemsize + 1 and not z.flags.aligned
        for function in (matmul, gemm):
            np.testing.assert_array_equal(function(z, z.T, **engine), [[6.75, 6.75], [6.75, 6.75]])
        out = np.zeros(4, dtype=[("p", "S1"), ("v", width)])
        for function in (matmul, gemm):
            function(z, z.T, out=out["v"].reshape(2, 2), **engine)
            assert (out["v"] == 6.75).all() and (out["p"] == b"").all()

    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_read_only_out(self, engine, function):
        out = np.full((3, 3), 7.0)
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            function(np.ones((3, 3)), np.ones((3, 3)), out=out, **engine)
        assert (out == 7).all()


class TestOutOverlapsAnInput:
    """https://github.com/cupy/cupy/issues/6214, https://github.com/numpy/numpy/issues/8440,
    https://github.com/numpy/numpy/pull/11286"""

    def test_out_is_an_input(self, engine):
        a = np.ones((2, 99, 99))
        assert matmul(a, a, out=a, **engine) is a
        assert (a == 99).all()

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_partly_and_transposed(self, engine, function, dtype):
        def fresh():
            buffer = integers((131, 130), dtype, 3)
            return buffer, buffer[:130]

        for take_out in (lambda buffer, a: buffer[1:], lambda buffer, a: a.T, lambda buffer, a: a[::-1]):
            buffer, a = fresh()
            b = integers((130, 130), dtype, 4)
            expected = a.copy() @ b
            function(a, b, out=take_out(buffer, a), **engine)
            np.testing.assert_array_equal(take_out(buffer, a), expected)

    def test_c_is_a(self, engine):
        a, b = integers((65, 65), seed=5), integers((65, 65), seed=6)
        expected = a @ b + 2 * a
        gemm(a, b, a, beta=2, out=a, **engine)
        np.testing.assert_array_equal(a, expected)


class TestEmpty:
    """https://github.com/apache/tvm/pull/19578, https://github.com/pytorch/pytorch/issues/31421,
    https://github.com/flame/blis/issues/97, https://github.com/microsoft/onnxruntime/issues/21483,
    https://github.com/cupy/cupy/pull/1231"""

    @pytest.mark.parametrize(
        ("first", "second", "shape"),
        [
            ((0, 3), (3, 2), (0, 2)),
            ((2, 0), (0, 3), (2, 3)),
            ((5, 0, 7), (5, 7, 9), (5, 0, 9)),
            ((3, 0, 0), (0, 0), (3, 0, 0)),
            ((0, 5, 5), (0, 5, 5), (0, 5, 5)),
            ((16, 0), (0, 16), (16, 16)),
            ((0,), (0,), ()),
            ((0,), (0, 4), (4,)),
        ],
    )
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_zero_sizes(self, engine, first, second, shape, dtype):
        a, b = np.ones(first, dtype), np.ones(second, dtype)
        got = matmul(a, b, **engine)
        assert got.shape == shape and got.dtype == dtype and got.sum() == 0
        dirty = np.full(shape, np.nan, dtype)
        matmul(a, b, out=dirty, **engine)
        assert not dirty.any()
        if a.ndim == b.ndim == 2:
            dirty = np.full(shape, np.nan, dtype)
            assert not gemm(a, b, out=dirty, **engine).any() and gemm(a, b, **engine).shape == shape

    def test_mismatch_of_a_zero_size(self, engine):
        for function in (matmul, gemm):
            with pytest.raises(ValueError):
                function(np.ones((16, 0)), np.ones((1, 16)), **engine)


class TestShapeRules:
    """https://github.com/nv-legate/cupynumeric/issues/778, https://github.com/dask/dask/issues/8948,
    https://github.com/numpy/numpy/issues/15641, https://github.com/IntelPython/dpnp/issues/2264"""

    @pytest.mark.parametrize(
        ("first", "second"), [((4, 1), (3,)), ((3,), (1, 4)), ((3,), (1,)), ((), (3,)), ((3,), ()), ((2, 3), (2, 3))]
    )
    def test_no_broadcast_of_the_inner_size(self, engine, first, second):
        with pytest.raises(ValueError, match="matmul"):
            matmul(np.ones(first), np.ones(second), **engine)

    def test_vectors(self, engine):
        assert matmul(np.ones((2, 1, 2)), np.ones(2), **engine).tolist() == [[2.0], [2.0]]
        assert matmul(np.ones(2), np.ones((3, 2, 1)), **engine).tolist() == [[2.0]] * 3
        dot = matmul(np.ones(3), np.ones(3), **engine)
        assert dot == 3 and type(dot) is np.float64


class TestScalars:
    """https://github.com/JuliaLinearAlgebra/Octavian.jl/issues/121, https://github.com/robertknight/rten/pull/81,
    https://github.com/OpenMathLib/OpenBLAS/issues/2914, https://github.com/explosion/thinc/pull/521,
    https://github.com/Reference-LAPACK/lapack/issues/1077"""

    SCALARS = pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (0, 0), (0, 1), (0, 2), (1, 1), (2, -1)])

    @SCALARS
    @pytest.mark.parametrize("sizes", [(65, 63, 17), (2, 2, 2), (3, 5, 0)])
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_alpha_and_beta(self, engine, alpha, beta, sizes, dtype):
        M, N, K = sizes
        a, b, c = integers((M, K), dtype, 1), integers((K, N), dtype, 2), integers((M, N), dtype, 3)
        expected = alpha * (a @ b) + beta * c
        got = gemm(a, b, c, alpha=alpha, beta=beta, **engine)
        np.testing.assert_array_equal(got, expected)
        got = gemm(a, b, c, alpha=alpha, beta=beta, out=c, **engine)
        assert got is c
        np.testing.assert_array_equal(c, expected)

    @SCALARS
    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_what_is_not_read_may_hold_nan(self, engine, alpha, beta, dtype):
        a, b, c = integers((65, 17), dtype, 1), integers((17, 63), dtype, 2), integers((65, 63), dtype, 3)
        expected = alpha * (a @ b) + beta * c
        if not alpha:
            a[...] = b[...] = np.nan
        if not beta:
            c[...] = np.nan
        np.testing.assert_array_equal(gemm(a, b, c, alpha=alpha, beta=beta, **engine), expected)
        np.testing.assert_array_equal(gemm(a, b, c, alpha=alpha, beta=beta, out=c, **engine), expected)

    def test_out_alone_is_not_added_to(self, engine):
        out = np.full((2, 2), 7.0)
        np.testing.assert_array_equal(gemm(np.eye(2), np.eye(2), out=out, **engine), np.eye(2))


class TestPromotion:
    """https://github.com/numpy/numpy/issues/14439, https://github.com/numba/numba/issues/5331,
    https://github.com/numpy/numpy/issues/8333, https://github.com/numpy/numpy/issues/5745"""

    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_squaring_a_bool_matrix(self, engine, function):
        x = np.array([[True, False], [True, True]])
        options = {name: value for name, value in engine.items() if name == "executor"}  # there are no levels
        for _ in range(9):
            x = function(x, x, **options)
        assert x.dtype == bool and x.tolist() == [[True, False], [True, True]]

    @pytest.mark.parametrize(
        ("first", "second", "result"),
        [
            ("u8", "i8", "f8"),
            ("i1", "u1", "i2"),
            ("f2", "i4", "f8"),
            ("i1", "f4", "f4"),
            ("i8", "f4", "f8"),
            ("f4", "f8", "f8"),
            ("f2", "f4", "f4"),
            ("?", "f4", "f4"),
        ],
    )
    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_mixed_types(self, engine, function, first, second, result):
        options = engine if np.dtype(result).kind == "f" else {}
        for pair in ((first, second), (second, first)):
            a, b = (np.array([[1, 0], [1, 1]], dtype) for dtype in pair)
            got = function(a, b, **options)
            assert got.dtype == result and got.tolist() == [[1, 0], [2, 1]]


class TestNonFinite:
    """https://github.com/jax-ml/jax/issues/33349, https://github.com/Reference-LAPACK/lapack/issues/1075,
    https://github.com/numba/numba/issues/2919, https://github.com/numba/numba/issues/8708"""

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("size", [(64, 64, 64), (513, 511, 512)])
    @pytest.mark.filterwarnings("ignore:invalid value")
    def test_no_spread(self, engine, dtype, size):
        M, N, K = size
        rng = np.random.default_rng(11)

        def matrices():
            return rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)

        a, b = matrices()
        a[0, 0] = np.nan
        for function in (matmul, gemm):
            bad = ~np.isfinite(function(a, b, **engine))
            assert bad[0].all() and bad.sum() == N

        a, b = matrices()
        a[0, 0], b[3, 5] = np.inf, -np.inf
        a[7] = 0
        expected = np.matmul(a, b)
        for function in (matmul, gemm):
            got = function(a, b, **engine)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
            np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
            np.testing.assert_array_equal(np.isneginf(got), np.isneginf(expected))
        assert np.isnan(expected[7, 5]) and not np.isnan(expected[7, :5]).any()


class TestFloatingPointState:
    """https://github.com/numpy/numpy/issues/29820, https://github.com/numpy/numpy/issues/28967,
    https://github.com/pytorch/pytorch/issues/4737, https://github.com/OpenMathLib/OpenBLAS/issues/1237"""

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    def test_nothing_is_raised(self, engine, dtype):
        rng = np.random.default_rng(12)
        a, b = rng.random((8, 768)).astype(dtype), rng.random((768, 8)).astype(dtype)
        one = np.eye(15, dtype=dtype)
        with np.errstate(all="raise"):
            for function in (matmul, gemm):
                np.testing.assert_array_equal(function(one, one, **engine), one)
                np.testing.assert_allclose(function(a, b, **engine), a.astype("f8") @ b, rtol=1e-4)

    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_subnormal_results_are_kept(self, engine, function):
        x = np.full((64, 64), 1e-160)
        np.testing.assert_allclose(function(x, x, **engine), 6.39993e-319, rtol=1e-5)


class TestStridesBeyond32Bits:
    """https://github.com/numpy/numpy/issues/5533, https://github.com/ml-explore/mlx/issues/1051,
    https://github.com/pytorch/pytorch/issues/24016, https://github.com/numpy/numpy/pull/17243"""

    @pytest.mark.parametrize("dtype", ["i1", "f4"])
    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_rows_far_apart(self, engine, function, dtype):
        if engine and dtype == "i1":
            engine = {}
        try:
            far = np.zeros((3, 2**31 // np.dtype(dtype).itemsize + 8), dtype)  # only the pages used get memory
        except MemoryError:
            pytest.skip("the address space is limited to less than 8 GiB")
        a, b = far[:, :64], np.ones((64, 5), dtype)
        a[...] = np.arange(3 * 64).reshape(3, 64) % 7
        np.testing.assert_array_equal(function(a, b, **engine), a.copy() @ b)
        np.testing.assert_array_equal(function(b.T, a.T, **engine), b.T @ a.T.copy())
        out = far[:, 128:133]
        function(a, b, out=out, **engine)
        np.testing.assert_array_equal(out, a.copy() @ b)
        assert not far[:, 133:200].any() and not far[:, 64:128].any()


class TestSubclassesAndObjects:
    """https://github.com/numpy/numpy/issues/14992, https://github.com/numpy/numpy/issues/10764,
    https://github.com/numpy/numpy/pull/13503, https://github.com/numpy/numpy/issues/15200"""

    @pytest.mark.parametrize("function", [matmul, gemm])
    def test_hidden_data_is_never_used(self, engine, function):
        m = np.ma.masked_array(np.arange(12.0).reshape(3, 4), mask=False)
        m[:, 1] = np.ma.masked
        for pair in ((m.T, m), (m, np.ones((4, 2))), (np.ones((2, 3)), m)):
            with pytest.raises(TypeError, match="masked"):
                function(*pair, **engine)

    @pytest.mark.filterwarnings("ignore:the matrix subclass")
    @pytest.mark.parametrize("dtype", ["i8", "f8"])
    def test_matrix(self, engine, dtype):
        options = engine if dtype == "f8" else {}
        m = np.matrix([[1, 2], [3, 4]], dtype=dtype)
        got = matmul(m, m, **options)
        assert type(got) is np.matrix and got.dtype == dtype and got.tolist() == [[7, 10], [15, 22]]
        assert type(gemm(m, m, **options)) is np.ndarray

    def test_fractions_and_lists(self, engine):
        f = np.array([Fraction(2, 3), Fraction(5, 7)])
        if engine:
            with pytest.raises(TypeError, match="object"):
                matmul(f, f, **engine)
        else:
            assert matmul(f, f) == Fraction(421, 441)
        for function in (matmul, gemm):
            assert function([[1.0, 2.0]], [[1, 2], [3, 4]], **engine).tolist() == [[7.0, 10.0]]


def test_layout_of_every_operand(engine):
    """All of the above together: each operand and out in each layout, transposed or not."""
    makers = {
        "C": np.ascontiguousarray,
        "F": np.asfortranarray,
        "gaps": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
        "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, x.size, 1).reshape(x.shape),
    }
    a0, b0 = integers((13, 17), "f4", 1), integers((17, 11), "f4", 2)
    expected = a0 @ b0
    for make_a, make_b, make_out in itertools.product(makers, repeat=3):
        a, b = makers[make_a](a0), makers[make_b](b0)
        out = makers[make_out](np.zeros_like(expected))
        if not out.flags.writeable:  # np.frombuffer of bytes
            out = np.frombuffer(bytearray(4 * out.size + 1), "f4", out.size, 1).reshape(out.shape)
        for function in (matmul, gemm):
            out[...] = 5
            function(a, b, out=out, **engine)
            np.testing.assert_array_equal(out, expected, err_msg=f"{make_a} {make_b} {make_out}")
