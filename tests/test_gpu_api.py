"""The rules of `gemm` and `matmul` for device arrays, with host memory in the place of the device's: no GPU needed."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import falcon_numba
from falcon_numba.gpu import api, arrays, tile  # noqa: F401  (loads no CUDA)

DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]


class Pretended:
    """Host memory that says it is on a GPU; NumPy can't convert it."""

    def __init__(self, memory, device=0, stream=None):
        self.memory, self.device, self.stream = memory, device, stream
        self.__array__ = None

    @property
    def __cuda_array_interface__(self):
        x = self.memory
        interface = {**x.__array_interface__, "version": 3, "strides": x.strides, "stream": self.stream}
        return interface


@pytest.fixture
def gpu(monkeypatch):
    """Launches that compute at once by NumPy, and the order of streams as a list."""
    waits, keep, where = [], [], {}

    def launches(spec, device, mnk, batch, operands, alpha, beta):
        M, N, K = mnk
        core = ((M, K), (K, N), (M, N), (M, N))
        names = (spec.a, spec.b, spec.c, spec.out)
        number = np.dtype(spec.accumulator)
        views = [
            arrays._shadow(address, (*batch, *shape), [s * size for s in strides], np.dtype(name))
            for (address, strides, size), shape, name in zip(operands, core, names, strict=True)
        ]

        def launch(stream):
            waits.append(("run", stream))
            flags = (spec.conjugate_a, spec.conjugate_b)
            for i in range(M):  # row by row, so that an `out` that overlaps the inputs is seen
                result = np.zeros((*batch, N), number)
                if K:
                    x, y = (np.conj(v) if flag else v for v, flag in zip(views, flags, strict=False))
                    product = np.matmul(x[..., i : i + 1, :].astype(number), y.astype(number))[..., 0, :]
                    result += number.type(alpha) * product
                if beta:
                    result += number.type(beta) * views[2][..., i, :].astype(number)
                if spec.out == "bool":
                    result = result != 0
                drop = number.kind == "c" and views[3].dtype.kind != "c"
                views[3][..., i, :] = result.real if drop else result

        return [launch]

    def empty(like, shape, dtype, *, column_major=False):
        memory = np.full(shape, 99, dtype, order="F" if column_major else "C")
        keep.append(memory)
        return arrays.as_known(Pretended(memory, stream=like.stream))

    monkeypatch.setattr(tile, "launches", launches)
    monkeypatch.setattr(arrays, "empty", empty)
    monkeypatch.setattr(arrays, "_device_of", lambda address: where.get(address, 0))
    monkeypatch.setattr(arrays, "follow", lambda stream, other, device: waits.append((stream, other)))
    return waits, where


def on_gpu(x):
    return None if x is None else Pretended(x)


def matrix(draw, shape, dtype):
    """Small integers in some layout."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = np.dtype(dtype)
    x = rng.integers(0 if dtype.kind in "bu" else -3, 2 if dtype.kind == "b" else 4, shape)
    x = (x + 1j * rng.integers(-3, 4, shape) if dtype.kind == "c" else x).astype(dtype)
    layout = draw(st.sampled_from(["C", "F", "gaps", "reversed"]))
    if layout == "F":
        return np.asfortranarray(x)
    if layout == "gaps":
        memory = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        memory[..., ::2] = x
        return memory[..., ::2]
    return x[..., ::-1] if layout == "reversed" else x


same_result = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@same_result
@given(st.data())
def test_gemm_is_that_of_numpy_arrays(gpu, data):
    draw = data.draw
    M, N, K = (draw(st.integers(0, 5)) for _ in "MNK")
    trans_a, trans_b = (draw(st.sampled_from(["N", "T", "C", True])) for _ in "AB")
    dtypes = [draw(st.sampled_from(DTYPES)) for _ in range(3)]
    a = matrix(draw, (M, K) if trans_a == "N" else (K, M), dtypes[0])
    b = matrix(draw, (K, N) if trans_b == "N" else (N, K), dtypes[1])
    c = draw(st.sampled_from([None, matrix(draw, (M, N), dtypes[2])]))
    alpha, beta = draw(st.sampled_from([0, 1, 2, -1])), draw(st.sampled_from([0, 1, 3]))
    out = draw(st.sampled_from([None, matrix(draw, (M, N), draw(st.sampled_from(DTYPES))), c]))
    host_out = c if out is c else None if out is None else out.copy()
    if out is c and c is not None:
        c = out = c.copy()
    keywords = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b}
    wrapped = None if out is None else Pretended(out)
    pretended_c = wrapped if c is out else on_gpu(c)
    try:
        expected = falcon_numba.gemm(a, b, host_out if c is out else c, out=host_out, **keywords)
    except (TypeError, ValueError) as error:
        before = None if out is None else out.copy()
        with pytest.raises(type(error)):
            falcon_numba.gemm(on_gpu(a), on_gpu(b), pretended_c, out=wrapped, **keywords)
        assert out is None or np.array_equal(out, before)
        return
    result = falcon_numba.gemm(on_gpu(a), on_gpu(b), pretended_c, out=wrapped, **keywords)
    assert wrapped is None or result is wrapped
    assert result.memory.dtype == expected.dtype
    np.testing.assert_array_equal(result.memory, expected)


@same_result
@given(st.data())
def test_matmul_is_that_of_numpy_arrays(gpu, data):
    draw = data.draw
    M, N, K = (draw(st.integers(0, 4)) for _ in "MNK")
    left, right = (draw(st.sampled_from([(), (2,), (1,), (3, 1), (2, 1, 2), None])) for _ in "AB")
    a = matrix(draw, (K,) if left is None else (*left, M, K), draw(st.sampled_from(DTYPES)))
    b = matrix(draw, (K,) if right is None else (*right, K, N), draw(st.sampled_from(DTYPES)))
    keywords = draw(st.sampled_from([{}, {"order": "F"}, {"casting": "no"}, {"dtype": "float64"}]))
    try:
        expected = np.matmul(a, b, **keywords)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error).__mro__[-4 if isinstance(error, TypeError) else 0]):
            falcon_numba.matmul(on_gpu(a), on_gpu(b), **keywords)
        return
    result = falcon_numba.matmul(on_gpu(a), on_gpu(b), **keywords)
    assert result.memory.dtype == expected.dtype and result.memory.shape == expected.shape
    np.testing.assert_array_equal(result.memory, expected)
    out = np.full(expected.shape, 7, expected.dtype)[..., ::-1] if expected.ndim else np.full((), 7, expected.dtype)
    wrapped = Pretended(out)
    assert falcon_numba.matmul(on_gpu(a), on_gpu(b), out=wrapped, **keywords) is wrapped
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("function", [falcon_numba.gemm, falcon_numba.matmul])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x.T, lambda x: x[::-1]])
def test_out_may_overlap_the_inputs(gpu, function, view):
    memory = np.arange(25.0).reshape(5, 5)
    expected = memory @ memory.T
    function(Pretended(memory), Pretended(memory.T), out=Pretended(view(memory)))
    np.testing.assert_array_equal(view(memory), expected)


def test_c_may_overlap_out(gpu):
    a, memory = np.eye(4), np.arange(16.0).reshape(4, 4)
    expected = a + 2 * memory.T
    falcon_numba.gemm(Pretended(a), Pretended(a), Pretended(memory.T), beta=2, out=Pretended(memory))
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("function", [falcon_numba.gemm, falcon_numba.matmul])
def test_host_and_device_do_not_mix(gpu, function):
    x = np.eye(3)
    for operands, out in (((Pretended(x), x), None), ((x, Pretended(x)), None), ((Pretended(x), [[1]]), None)):
        with pytest.raises(TypeError, match="is in GPU memory but"):
            function(*operands, out=out)
    target = np.zeros((3, 3))
    with pytest.raises(TypeError, match=r"a is in GPU memory but out \(numpy.ndarray\) is not"):
        function(Pretended(x), Pretended(x), out=target)
    assert not target.any()


@pytest.mark.parametrize("function", [falcon_numba.gemm, falcon_numba.matmul])
def test_devices_and_outputs_are_checked(gpu, function):
    _, where = gpu
    x, elsewhere = np.eye(3), np.zeros((3, 3))
    where[elsewhere.ctypes.data] = 1
    with pytest.raises(ValueError, match="different GPUs: a on 0, b on 0, out on 1"):
        function(Pretended(x), Pretended(x), out=Pretended(elsewhere))
    repeated = np.lib.stride_tricks.as_strided(np.zeros(3), (3, 3), (0, 8))
    with pytest.raises(ValueError, match="more than once"):
        function(Pretended(x), Pretended(x), out=Pretended(repeated))
    locked = np.zeros((3, 3))
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        function(Pretended(x), Pretended(x), out=Pretended(locked))
    misaligned = np.zeros(25, np.uint8)[1:9].view(np.float64).reshape(1, 1)
    with pytest.raises(ValueError, match="misaligned"):
        function(Pretended(misaligned), Pretended(np.ones((1, 1))))
    for option in ({"depth": 1}, {"scheme": "strassen"}, {"executor": "cpu"}, {"max_error": 1e-3}):
        with pytest.raises(TypeError, match="cannot be honoured for arrays in GPU memory"):
            function(Pretended(x), Pretended(x), **option)
    with pytest.raises(TypeError, match="no matrix product of dtype"):
        function(Pretended(x.astype("M8[s]")), Pretended(x))
    with contextlib.suppress(TypeError):
        function(Pretended(x), Pretended(x), dept=0)
        pytest.fail("an unknown option was accepted")


def test_the_product_waits_for_producers_and_they_for_it(gpu):
    waits, _ = gpu
    x, out = np.eye(3), np.zeros((3, 3))
    falcon_numba.gemm(Pretended(x, stream=5), Pretended(x, stream=5), out=Pretended(out, stream=9))
    assert waits == [(9, 5), ("run", 9), (5, 9)]


def test_scalars_of_zero_read_nothing(gpu):
    nan, c = np.full((2, 2), np.nan), np.eye(2)
    result = falcon_numba.gemm(Pretended(nan), Pretended(nan), Pretended(c), alpha=0, beta=2)
    np.testing.assert_array_equal(result.memory, 2 * c)
    result = falcon_numba.gemm(Pretended(c), Pretended(c), Pretended(nan), beta=0)
    np.testing.assert_array_equal(result.memory, c)


def test_matmul_rounds_to_the_type_of_the_inputs_before_it_casts(gpu):
    x, out = np.full((2, 2), 100, np.int8), np.zeros((2, 2), np.int32)
    falcon_numba.matmul(Pretended(x), Pretended(x), out=Pretended(out))
    np.testing.assert_array_equal(out, np.matmul(x, x))
