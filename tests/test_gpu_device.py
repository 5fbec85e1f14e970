"""`gemm` and `matmul` of arrays on a GPU, where there is one: values, streams, graphs, libraries."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from falcon_numba import gemm, matmul
from falcon_numba.gpu import target

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() and target.available()), reason="needs a CUDA GPU"),
]

UNIT = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}
UNIT |= {"complex64": 2**-22, "complex128": 2**-51}  # √8·u a multiplication
DTYPES = [*UNIT, "int8", "uint8", "int16", "int32", "int64", "bool"]
SIZES = [1, 2, 3, 17, 31, 64, 65, 100, 129, 200, 257]


def tensor(shape, name, layout="C"):
    """Random numbers; transposed in memory, or with gaps between its columns."""
    dtype = getattr(torch, name)
    where = {"T": (*shape[:-2], shape[-1], shape[-2]), "gaps": (*shape[:-1], 2 * shape[-1] + 1)}.get(layout, shape)
    if name in UNIT:
        x = torch.randn(where, device="cuda", dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    else:
        low, high = {"bool": (0, 2), "uint8": (0, 200)}.get(name, (-100, 100))
        x = torch.randint(low, high, where, device="cuda").to(dtype)
    return x.transpose(-1, -2) if layout == "T" else x[..., 1 : 2 * shape[-1] : 2] if layout == "gaps" else x


def wide(x):
    """On the host, in the widest type of its kind."""
    kind = torch.complex128 if x.dtype.is_complex else torch.float64 if x.dtype.is_floating_point else torch.int64
    return x.resolve_conj().to(kind).cpu().numpy()


@pytest.mark.parametrize("name", DTYPES)
def test_random_products(name):
    rng = np.random.default_rng(len(name))
    for case in range(40):
        M, N, K = (int(x) for x in rng.choice(SIZES, 3))
        layouts, (ta, tb) = rng.choice(["C", "T", "gaps"], 3), (str(x) for x in rng.choice(["N", "T", "C"], 2))
        a = tensor((M, K) if ta == "N" else (K, M), name, layouts[0])
        b = tensor((K, N) if tb == "N" else (N, K), name, layouts[1])
        a = a.conj() if case % 3 == 0 else a
        choices = [(1, 0), (1, 1), (0, 1)] if name == "bool" else [(1, 0), (2, 1), (-1, 3), (0, 2), (1, -1)]
        alpha, beta = choices[case % len(choices)]
        c = tensor((M, N), name, layouts[2]) if beta else None
        out = [None, tensor((M, N), name, layouts[2]), c][case % 3]
        x, y = wide(a), wide(b)
        x, y = (z if t == "N" else z.T if t == "T" else z.conj().T for z, t in ((x, ta), (y, tb)))
        old = 0 if c is None else beta * wide(c)
        result = gemm(a, b, c, alpha=alpha, beta=beta, trans_a=ta, trans_b=tb, out=out)
        assert out is None or result is out
        assert result.dtype == a.dtype and result.is_cuda and tuple(result.shape) == (M, N)
        expected, got = alpha * (x @ y) + old, wide(result)
        if name == "bool":
            np.testing.assert_array_equal(got != 0, expected != 0)
        elif name not in UNIT:
            np.testing.assert_array_equal(got, expected.astype(name))
        else:
            u_a = UNIT[name] if np.dtype(got.dtype).itemsize and name[-2:] != "16" else 2**-24
            bound = abs(alpha) * (K + 4) * u_a * (abs(x) @ abs(y)) + (UNIT[name] + 3 * u_a) * (abs(expected) + abs(old))
            assert (abs(got - expected) <= 1.01 * bound + (2**-24 if name == "float16" else 0)).all()


def test_batches_and_vectors():
    x, y = tensor((3, 1, 40, 30), "float64"), tensor((5, 30, 20), "float64", "T")
    v, z = tensor((30,), "float64"), tensor((3, 2, 4, 6, 5), "float64").permute(2, 0, 1, 3, 4)
    for a, b in ((x, y), (x, v), (v, y), (v, v), (z, z.transpose(-1, -2))):
        torch.testing.assert_close(matmul(a, b), torch.matmul(a, b))


def test_gradients_are_refused():
    x = torch.ones(3, 3, device="cuda", requires_grad=True)
    with pytest.raises(TypeError, match="no_grad"):
        gemm(x, x)
    with torch.no_grad():
        assert gemm(x, x)[0, 0] == 3


def test_products_run_on_the_current_stream_and_do_not_wait():
    square, side = tensor((1024, 1024), "float32"), torch.cuda.Stream()
    gemm(square, square)
    side.wait_stream(torch.cuda.current_stream())
    for i in range(10):
        with torch.cuda.stream(side):
            torch.cuda._sleep(3_000_000)
            x = torch.full((1024, 1024), float(i), device="cuda", dtype=torch.float32)
            result = gemm(x, square) + 1
        side.synchronize()
        torch.testing.assert_close(result, (i * square.sum(0) + 1).expand(1024, 1024), rtol=1e-3, atol=1e-2 * (i + 1))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    torch.cuda._sleep(1_000_000_000)  # about half a second
    gemm(square, square)
    enqueued = time.perf_counter() - begin
    torch.cuda.synchronize()
    assert enqueued < (time.perf_counter() - begin) / 2


def test_a_captured_graph_replays():
    a, b, c = (
        tensor((300, 200), "float64"),
        tensor((200, 100), "float64"),
        torch.zeros(300, 100, device="cuda").double(),
    )
    gemm(a, b, out=c)
    gemm(a, b, c, beta=1, out=c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=c)
        d = gemm(c, b, trans_b="T")
        gemm(a, b, c, beta=1, out=c)
    for _ in range(3):
        a.normal_()
        b.normal_()
        graph.replay()
        torch.testing.assert_close(c, 2 * (a @ b))
        torch.testing.assert_close(d, a @ b @ b.T)


def test_two_threads_on_two_streams():
    right = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                a, b = tensor((130, 70), "float64"), tensor((70, 90), "float64")
                right.append(torch.allclose(gemm(a, b), a @ b))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 100


def test_other_libraries_get_their_own_arrays():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.random.rand(50, 40), cupy.asfortranarray(cupy.random.rand(40, 30))
    for x, y in ((a, b), (a[::-1], b[:, ::-1])):
        result = gemm(x, y)
        assert isinstance(result, cupy.ndarray)
        cupy.testing.assert_allclose(result, x @ y, rtol=1e-12)
    assert matmul(a, b, order="F").flags.f_contiguous
    tensor_b = torch.as_tensor(b, device="cuda")
    assert isinstance(gemm(a, tensor_b), cupy.ndarray) and isinstance(gemm(tensor_b.T, a.T), torch.Tensor)


def test_numba_arrays():
    cuda = target.numba_cuda()
    host = np.arange(12.0).reshape(3, 4)
    x = cuda.to_device(host)
    np.testing.assert_array_equal(gemm(x, x, trans_b="T").copy_to_host(), host @ host.T)
