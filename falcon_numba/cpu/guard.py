"""The guard: one streaming read of an operand that tells how large each row or column is.

An LCMA adds blocks that a classical product never adds, so before one runs the engine must know that the data are
finite, that no sum overflows, and which rows and columns live in units of their own. Magnitudes are compared as
integers: clearing the sign bit of IEEE numbers leaves bit patterns in the order of the absolute values, with infinities
and NaN above every finite number, so that one unsigned maximum answers all three questions and no comparison can be
optimised away.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..diskcache import DiskCache
from ..inlined import inner_of, named
from . import worker as w
from .simd import Vec, c64
from .spec import KernelSpec
from .sync import share
from .threads import pool

ZERO_EXPONENT = -100_000  # of a row of zeros: multiplies any finite number to zero


class Magnitudes(NamedTuple):
    """What the guard found for the rows of A or the columns of B.

    exponents : integer array, floor(log2(max |row|)), `ZERO_EXPONENT` for a row of zeros; only with finite data
    finite : bool
    highest, lowest, least : int, of the exponents; `lowest` is of the rows that are not zero, where there are any
    """

    exponents: np.ndarray
    finite: bool
    highest: int
    lowest: int
    least: int

    @property
    def spread(self) -> int:
        """Powers of two between the largest and the smallest row; rows of zeros count as infinitely small."""
        return self.highest - self.least


FOLD = 8  # vectors of running maxima over a contiguous row: hides the latency of load, maximum, store
ALONE = 16 * 2**20  # bytes that one thread has read before others are awake and have read their share


def make_guard(spec: KernelSpec):
    """Exponents of the rows of A and columns of B of equal products.

    Returns
    -------
    guard : Numba function (tid, threads, products, exponents, found)
        `products` is a table as the worker reads it. Thread `tid` fills its part of ``exponents[i]``, the M rows of A
        and then the N columns of B of product i, integers as wide as the dtype, and ``found[tid, i]``, int64 (2, 3):
        for A and for B the highest exponent, minus the lowest that is not of zeros, minus the least.
    """
    VL, size = spec.VL, spec.itemsize
    word = types.int32 if size == 4 else types.int64
    word_dtype = np.dtype(f"int{8 * size}")
    lanes_of_fold = FOLD * VL
    mantissa, bias = (23, 127) if size == 4 else (52, 1023)

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

    part = inner_of(spec.isa, spec.dtype)

    @part
    def row_maxima(address, row_step, lane_step, rows, lanes, out):
        """out[i] = max over j of the bits of |x[i, j]|, rows and lanes `row_step` and `lane_step` bytes apart."""
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
        elif abs(lane_step) <= abs(row_step):
            for i in range(rows):
                for j in range(lanes):
                    out[i] = max(out[i], magnitude_at(address + i * row_step + j * lane_step))
        else:
            for j in range(lanes):
                for i in range(rows):
                    out[i] = max(out[i], magnitude_at(address + i * row_step + j * lane_step))

    @part
    def to_exponents(bits, found):
        """floor(log2) of magnitudes given as bit patterns, in place, and what `found` wants to know of them."""
        found[0], found[1], found[2] = ZERO_EXPONENT, ZERO_EXPONENT, ZERO_EXPONENT
        for i in range(len(bits)):
            x = np.int64(bits[i])
            exponent = np.int64(ZERO_EXPONENT)
            if x != 0:
                exponent = (x >> mantissa) - bias
                if x >> mantissa == 0:  # subnormal
                    exponent += 1
                    while x >> mantissa == 0:
                        x <<= 1
                        exponent -= 1
                found[1] = max(found[1], -exponent)
            bits[i] = exponent
            found[0] = max(found[0], exponent)
            found[2] = max(found[2], -exponent)

    @part
    def rows_of(tid, threads, address, row_step, lane_step, rows, lanes, out, found):
        """This thread's share of the rows of one matrix."""
        first, last = share(rows, tid, threads)
        mine = out[first:last]
        row_maxima(address + first * row_step, row_step, lane_step, last - first, lanes, mine)
        to_exponents(mine, found)

    def guard(tid, threads, products, exponents, found):
        for i in range(len(products)):
            p, out, of = products[i], exponents[i], found[tid, i]
            M, N, K = p[w.SIZE_M], p[w.SIZE_N], p[w.SIZE_K]
            rows_of(tid, threads, p[w.A], p[w.A_ROW], p[w.A_COL], M, K, out[:M], of[0])
            rows_of(tid, threads, p[w.B], p[w.B_COL], p[w.B_ROW], N, K, out[M:], of[1])

    return njit(named(guard, spec.isa, spec.dtype), nogil=True)


@functools.cache
def _guard(spec: KernelSpec):
    function = make_guard(spec)
    function._cache = DiskCache(f"guard-{spec.isa}-{spec.dtype}")
    i, word = types.int64, types.int32 if spec.itemsize == 4 else types.int64
    tables = types.Array(i, 2, "C"), types.Array(word, 2, "C"), types.Array(i, 4, "C")
    signature = types.void(i, i, *tables)
    function.compile(signature)
    return function.get_overload(signature)  # the machine code, which spares every call the search for it


def magnitudes(products: np.ndarray, spec: KernelSpec, threads: int = 1) -> list[tuple[Magnitudes, Magnitudes]]:
    """Rows of A and columns of B of equal products, each operand read once, the threads sharing its rows.

    Parameters
    ----------
    products : ndarray of int64, shape (products, worker.COLUMNS)
        From `engine.table_of`.
    """
    guard = _guard(spec)
    count, (M, N, K) = len(products), products[0, w.SIZE_M : w.SIZE_K + 1].tolist()
    if count * (M + N) * K * spec.itemsize <= ALONE:
        threads = 1
    exponents = np.empty((count, M + N), np.int32 if spec.itemsize == 4 else np.int64)
    found = np.empty((threads, count, 2, 3), np.int64)
    used = pool.run(threads, lambda tid, threads, sync: guard(tid, threads, products, exponents, found))
    together = found[0] if used == 1 else found[:used].max(axis=0)
    return [
        (_magnitudes(x[:M], a, spec), _magnitudes(x[M:], b, spec))
        for x, (a, b) in zip(exponents, together.tolist(), strict=True)
    ]


def _magnitudes(exponents: np.ndarray, found: list[int], spec: KernelSpec) -> Magnitudes:
    highest, lowest, least = found[0], -found[1], -found[2]
    infinite = 128 if spec.itemsize == 4 else 1024  # the exponent that stands for infinity and NaN
    return Magnitudes(exponents, highest < infinite, highest, min(highest, lowest), least)
