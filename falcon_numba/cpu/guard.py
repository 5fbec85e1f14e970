"""The guard: one streaming read of an operand that tells how large each row or column is.

An LCMA adds blocks that a classical product never adds, so before one runs the engine must know that the data are
finite, that no sum overflows, and which rows and columns live in units of their own. Magnitudes are compared as
integers: clearing the sign bit of IEEE numbers leaves bit patterns in the order of the absolute values, with infinities
and NaN above every finite number, so that one unsigned maximum answers all three questions and no comparison can be
optimised away.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .cache import DiskCache
from .simd import Vec, c64, named
from .spec import KernelSpec
from .threads import pool

ZERO_EXPONENT = -100_000  # of a row of zeros: multiplies any finite number to zero


class Magnitudes(NamedTuple):
    """What the guard found for the rows of A or the columns of B.

    exponents : int32 array, floor(log2(max |row|)), `ZERO_EXPONENT` for a row of zeros
    finite : bool
    """

    exponents: np.ndarray
    finite: bool

    @property
    def highest(self) -> int:
        return int(self.exponents.max(initial=ZERO_EXPONENT))

    @property
    def lowest(self) -> int:
        """Of the rows that are not zero."""
        return int(self.exponents.min(initial=self.highest, where=self.exponents != ZERO_EXPONENT))

    @property
    def spread(self) -> int:
        """Powers of two between the largest and the smallest row; rows of zeros count as infinitely small."""
        return self.highest - int(self.exponents.min(initial=self.highest))


FOLD = 8  # vectors of running maxima over a contiguous row: hides the latency of load, maximum, store


def make_row_maxima(spec: KernelSpec):
    """Largest magnitude of every row, as bit patterns.

    Returns
    -------
    row_maxima : Numba function (address, row_step, lane_step, rows, lanes, out)
        out[i] = max over j of the bits of |x[i, j]|, rows and lanes `row_step` and `lane_step` bytes apart; `out` is
        an integer array as wide as the dtype.
    """
    VL, size = spec.VL, spec.itemsize
    word = types.int32 if size == 4 else types.int64
    word_dtype = np.dtype(f"int{8 * size}")
    lanes_of_fold = FOLD * VL

    def magnitude(v, bits, splat):
        return v.b.and_(bits, splat((1 << (8 * size - 1)) - 1))

    @intrinsic
    def update(typingctx, out, wrap, address, vectors):
        """out[v] = max(out[v], |x[v]|) for `vectors` contiguous vectors; `wrap` masks the byte offsets into `out`."""

        def codegen(context, builder, signature, args):
            out, wrap, address, vectors = args
            v = Vec(builder, spec.dtype, VL)
            with cgutils.for_range(builder, vectors) as each:
                here = builder.mul(each.index, c64(v.width))
                x = magnitude(v, v.load(builder.add(address, here), type_=v.int_type), v.splat_int)
                at = builder.add(out, builder.and_(here, wrap))
                old = v.load(at, type_=v.int_type)
                v.store(builder.select(builder.icmp_signed(">", x, old), x, old), at)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    @intrinsic
    def magnitude_at(typingctx, address):
        def codegen(context, builder, signature, args):
            v = Vec(builder, spec.dtype, VL)
            bits = builder.load(v.pointer(args[0], v.int_elem), align=1)
            return magnitude(v, bits, v.int_elem)

        return word(types.int64), codegen

    def row_maxima(address, row_step, lane_step, rows, lanes, out):
        fold = np.empty(lanes_of_fold, word_dtype)
        out[:] = 0
        if lane_step == size:
            whole = lanes // VL
            for i in range(rows):
                line = address + i * row_step
                fold[:] = 0
                update(fold.ctypes.data, lanes_of_fold * size - 1, line, whole)
                most = fold.max()
                for j in range(whole * VL, lanes):
                    most = max(most, magnitude_at(line + j * size))
                out[i] = most
        elif row_step == size:
            whole = rows // VL
            for j in range(lanes):
                line = address + j * lane_step
                update(out.ctypes.data, -1, line, whole)
                for i in range(whole * VL, rows):
                    out[i] = max(out[i], magnitude_at(line + i * size))
        else:
            for i in range(rows):
                for j in range(lanes):
                    out[i] = max(out[i], magnitude_at(address + i * row_step + j * lane_step))

    return njit(named(row_maxima, spec.isa, spec.dtype), nogil=True)


@functools.cache
def _row_maxima(spec: KernelSpec):
    function = make_row_maxima(spec)
    function._cache = DiskCache(f"guard-{spec.isa}-{spec.dtype}")
    word = types.int32 if spec.itemsize == 4 else types.int64
    i = types.int64
    function.compile(types.void(i, i, i, i, i, types.Array(word, 1, "C")))
    return function


def magnitudes(matrices: Sequence[np.ndarray], spec: KernelSpec, threads: int = 1) -> list[Magnitudes]:
    """Read each matrix (rows × lanes, any layout, dtype of `spec`) once, the threads sharing its rows."""
    row_maxima = _row_maxima(spec)
    word = np.dtype(f"int{8 * spec.itemsize}")
    bits = [np.empty(x.shape[0], word) for x in matrices]

    def work(tid: int, threads: int, sync: int) -> None:
        for x, out in zip(matrices, bits, strict=True):
            rows, lanes = x.shape
            first, last = rows * tid // threads, rows * (tid + 1) // threads
            address = x.ctypes.data + first * x.strides[0]
            row_maxima(address, *x.strides, last - first, lanes, out[first:last])

    pool.run(threads, work)
    return [_magnitudes(x, spec.dtype) for x in bits]


def _magnitudes(bits: np.ndarray, dtype: str) -> Magnitudes:
    finite = bool(bits.max(initial=0) < np.array(np.inf, dtype).view(bits.dtype))
    with np.errstate(all="ignore"):
        _, exponents = np.frexp(bits.view(dtype))
    exponents -= 1
    exponents[bits == 0] = ZERO_EXPONENT
    return Magnitudes(exponents, finite)
