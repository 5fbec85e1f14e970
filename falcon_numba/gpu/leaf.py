"""The seam between plans and leaf kernels: products of one shape, a device table of them, one launch for all.

Every family launches `kernel(table, M, N, K, alpha, beta)` with one block per tile of C and product; a row of the
table is (A, B, C, lda, ldb, ldc), addresses in bytes and strides in elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from . import ptx  # noqa: F401  (makes NumPy fit for the import of numba.cuda)

# isort: split
from cuda.bindings import driver
from numba import cuda, types

_C_TYPES: dict[Any, Any] = {
    types.int64: ctypes.c_int64,
    types.int32: ctypes.c_int32,
    types.float32: ctypes.c_float,
    types.float64: ctypes.c_double,
}


@dataclass(frozen=True)
class Family:
    """What a leaf family needs: dtypes, compute capability, tile (BM, BN, BK), threads, alignment in bytes."""

    name: str
    dtypes: tuple[str, ...]
    least_cc: tuple[int, int]
    tile: tuple[int, int, int]
    threads: int
    alignment: int


@dataclass(frozen=True)
class LeafProduct:
    """C = alpha·A·B + beta·C on row-major device memory: addresses, sizes, leading dimensions in elements."""

    a: int
    b: int
    c: int
    M: int
    N: int
    K: int
    lda: int
    ldb: int
    ldc: int
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True)
class Source:
    """A kernel before compilation."""

    family: Family
    dtype: str
    function: Callable[..., None]
    scalar: Any
    shared_bytes: int
    blocks_per_sm: int

    @property
    def arguments(self) -> list[Any]:
        return [types.int64, types.int32, types.int32, types.int32, self.scalar, self.scalar]


def accepts(source: Source, products: Sequence[LeafProduct]) -> bool:
    """Whether the kernel can run these: one shape and scale, whole tiles, aligned rows."""
    if not products:
        return False
    p, (BM, BN, BK) = products[0], source.family.tile
    if any((q.M, q.N, q.K, q.alpha, q.beta) != (p.M, p.N, p.K, p.alpha, p.beta) for q in products):
        return False
    whole = min(p.M, p.N, p.K) > 0 and p.M % BM == p.N % BN == p.K % BK == 0
    fits = (p.M // BM) * (p.N // BN) * len(products) < 2**31
    size, alignment = np.dtype(source.dtype).itemsize, source.family.alignment
    return (
        whole
        and fits
        and all(x % alignment == 0 for q in products for x in (q.a, q.b, q.c, q.lda * size, q.ldb * size, q.ldc * size))
    )


class Leaf:
    """A kernel compiled and loaded on the current device."""

    def __init__(self, source: Source):
        self.source = source
        self._dispatcher = cuda.jit(
            types.void(*source.arguments), launch_bounds=(source.family.threads, source.blocks_per_sm)
        )(source.function)
        compiled = next(iter(self._dispatcher.overloads.values()))._codelibrary.get_cufunc()
        self.registers, self.local_bytes = compiled.attrs.regs, compiled.attrs.local
        handle = int(compiled.handle)
        self.function = driver.CUfunction(handle)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device = driver.CUdevice(cuda.current_context().device.id)
        _check(driver.cuKernelSetAttribute(attribute, source.shared_bytes, driver.CUkernel(handle), device)[0])

    def accepts(self, products: Sequence[LeafProduct]) -> bool:
        return accepts(self.source, products)

    def prepare(self, products: Sequence[LeafProduct]) -> PreparedLeaf:
        """The device table of these products; ValueError where `accepts` is false."""
        if not self.accepts(products):
            raise ValueError(f"leaf {self.source.family.name} does not take these products: size, stride or alignment")
        return PreparedLeaf(self, products)


class PreparedLeaf:
    """A table on the device and a prepacked launch of all its products."""

    def __init__(self, leaf: Leaf, products: Sequence[LeafProduct]):
        p, family = products[0], leaf.source.family
        rows = [[q.a, q.b, q.c, q.lda, q.ldb, q.ldc] for q in products]
        self._table = cuda.to_device(np.array(rows, dtype=np.int64))
        self._leaf = leaf
        self._blocks = (p.M // family.tile[0]) * (p.N // family.tile[1]) * len(products)
        address = self._table.__cuda_array_interface__["data"][0]
        values = [address, p.M, p.N, p.K, p.alpha, p.beta]
        self._values = [_C_TYPES[t](v) for t, v in zip(leaf.source.arguments, values, strict=True)]
        self._pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in self._values])

    def launch(self, stream: int) -> None:
        """Enqueues the products on a stream (its handle); neither allocates nor waits, so it can be captured."""
        source = self._leaf.source
        shape = (self._blocks, 1, 1, source.family.threads, 1, 1, source.shared_bytes)
        _check(driver.cuLaunchKernel(self._leaf.function, *shape, stream, ctypes.addressof(self._pointers), 0)[0])


def _check(code: Any) -> None:
    if int(code):
        raise RuntimeError(f"CUDA driver: {code}")


_MODULES = {"float32": "ffma"}


@cache
def source_for(dtype: str) -> Source:
    """The kernel for a dtype, not yet compiled; NotImplementedError where no family has it."""
    if dtype not in _MODULES:
        raise NotImplementedError(f"no leaf family for {dtype}")
    return import_module(f".leaves.{_MODULES[dtype]}", __package__).source()
