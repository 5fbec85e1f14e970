"""The lower triangle of a square matrix copied to the upper one: what makes A·Aᵀ symmetric to the last bit."""

from __future__ import annotations

import functools

import numpy as np
from numba import config, njit, types

from ..decision.hardware import isa_family
from ..diskcache import DiskCache
from ..inlined import inner_of, named
from .simd import make_memory
from .threads import pool

TILE = 16  # rows and columns
ALONE = 2**20  # bytes that one thread has copied before others are awake


@functools.cache
def _mirror(dtype: str):
    """(tid, threads, address, row_step, column_step, n, parts, sign) for matrices of elements of real `dtype`.

    An element has one part or two, of which the second is copied times `sign`.
    """
    size = np.dtype(dtype).itemsize
    one = np.dtype(dtype).type(1)
    peek, poke, _ = make_memory(dtype)
    part = inner_of("mirror", dtype)

    @part
    def tile(address, row_step, column_step, i0, i1, j0, j1, parts, sign):
        for j in range(j0, j1):
            for i in range(max(i0, j + 1), i1):
                low, high = address + i * row_step + j * column_step, address + j * row_step + i * column_step
                poke(high, peek(low))
                if parts == 2:
                    poke(high + size, peek(low + size) * sign)

    def mirror(tid, threads, address, row_step, column_step, n, parts, conjugates):
        sign = -one if conjugates else one
        for i0 in range(tid * TILE, n, threads * TILE):
            i1 = min(i0 + TILE, n)
            for j0 in range(0, i1, TILE):
                tile(address, row_step, column_step, i0, i1, j0, min(j0 + TILE, n), parts, sign)

    function = njit(named(mirror, dtype), nogil=True, error_model="numpy")
    function._cache = DiskCache(f"mirror-{isa_family()}-{dtype}")
    signature = types.void(*[types.int64] * 8)
    function.compile(signature)
    return function.get_overload(signature)


def mirror(c: np.ndarray, threads: int, conjugates: bool = False) -> None:
    """Copy below the diagonal of `c`, shape (n, n), to above it; `conjugates` complex numbers, with a real diagonal."""
    if config.DISABLE_JIT:
        low = np.tril_indices(len(c), -1)
        c.T[low] = c[low].conj() if conjugates else c[low]
        if conjugates and c.dtype.kind == "c":
            np.einsum("ii->i", c).imag[...] = 0
        return
    parts = 2 if c.dtype.kind == "c" else 1
    function = _mirror(f"float{8 * c.itemsize // parts}")
    conjugates = conjugates and parts == 2
    arguments = c.ctypes.data, *c.strides, len(c), parts, int(conjugates)
    if c.nbytes < ALONE:
        function(0, 1, *arguments)
    else:
        pool.run(threads, lambda tid, threads, sync: function(tid, threads, *arguments))
    if conjugates:
        np.einsum("ii->i", c).imag[...] = 0
