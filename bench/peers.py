"""The libraries to compare with: NumPy's BLAS, MKL through ctypes, PyTorch; each a function that writes A·B into C."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], object]


class Peer(NamedTuple):
    name: str
    label: str
    product: Product
    set_threads: Callable[[int], None]


def available(wanted: tuple[str, ...] | None = None) -> list[Peer]:
    """Every peer that this installation has; with `wanted` these or an error."""
    makers = {"numpy": _numpy, "mkl": _mkl, "torch": _torch}
    peers = []
    for name in wanted or tuple(makers):
        peer = makers[name]()
        if peer is not None:
            peers.append(peer)
        elif wanted:
            raise SystemExit(f"{name} is not installed here")
    return peers


def _numpy() -> Peer:
    np.ones((2, 2)) @ np.ones((2, 2))
    blas = [x for x in threadpool_info() if x["user_api"] == "blas"]
    words = " and ".join(f"{x['internal_api']} {x['version']} ({x.get('architecture', '?')})" for x in blas[:1])

    def set_threads(threads: int) -> None:
        threadpool_limits(threads, user_api="blas")
        for found in threadpool_info():
            if found["user_api"] == "blas" and found["num_threads"] != threads:
                raise SystemExit(
                    f"{found['internal_api']} runs {found['num_threads']} threads and not {threads}: "
                    "unset OPENBLAS_NUM_THREADS, OMP_NUM_THREADS and MKL_NUM_THREADS, or use fewer threads"
                )

    return Peer("numpy", f"NumPy {np.__version__}, {words or 'unknown BLAS'}", _multiply, set_threads)


def _multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> object:
    return np.matmul(a, b, out=c)


def _mkl() -> Peer | None:
    """libmkl_rt of the package "mkl", with its own OpenMP threads and its 32-bit integer interface."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next((str(f.locate()) for f in files if f.name.startswith(("libmkl_rt", "mkl_rt"))), None)
    if path is None:
        return None
    # Workers of Intel's OpenMP spin for 200 ms after a call, longer than the pause between two measurements.
    os.environ.setdefault("KMP_BLOCKTIME", "100")
    lib = ctypes.CDLL(path)
    text = ctypes.create_string_buffer(256)
    lib.MKL_Get_Version_String(text, len(text))
    row_major, no_transpose = 101, 111
    single = {"float32": (lib.cblas_sgemm, ctypes.c_float), "float64": (lib.cblas_dgemm, ctypes.c_double)}
    many = {
        "float32": (lib.cblas_sgemm_batch_strided, ctypes.c_float),
        "float64": (lib.cblas_dgemm_batch_strided, ctypes.c_double),
    }
    for function, _ in (*single.values(), *many.values()):
        function.restype = None

    def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        (M, K), N = a.shape[-2:], b.shape[-1]
        function, scalar = (single if a.ndim == 2 else many)[a.dtype.name]
        steps = [(M * K,), (K * N,), (M * N,)] if a.ndim == 3 else [(), (), ()]
        args: list[Any] = [row_major, no_transpose, no_transpose, M, N, K, scalar(1)]
        args += [ctypes.c_void_p(a.ctypes.data), K, *steps[0], ctypes.c_void_p(b.ctypes.data), N, *steps[1], scalar(0)]
        args += [ctypes.c_void_p(c.ctypes.data), N, *steps[2], *((len(a),) if a.ndim == 3 else ())]
        function(*args)

    def set_threads(threads: int) -> None:
        lib.MKL_Set_Num_Threads(threads)
        if lib.MKL_Get_Max_Threads() != threads:
            raise SystemExit(f"MKL refuses to run {threads} threads")

    version = text.value.decode().removeprefix("Intel(R) oneAPI Math Kernel Library Version ").split(" ")[0]
    label = f"MKL {version}, KMP_BLOCKTIME={os.environ['KMP_BLOCKTIME']}"
    return Peer("mkl", label, product, set_threads)


def _torch() -> Peer | None:
    with contextlib.suppress(ImportError):
        import torch

        def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> object:
            return torch.matmul(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(c))

        return Peer("torch", f"PyTorch {torch.__version__}", product, torch.set_num_threads)
    return None
