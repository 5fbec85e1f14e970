"""The guard on the device: magnitudes of rows of A and columns of B, and the verdict, without ever waiting.

`scan` writes the largest magnitude of every row or column as the upper 32 bits of an IEEE number, whose order as
integers is that of the numbers, infinities and NaN above all. `judge` turns them into exponents to scale by and writes
the verdict that the last combine and the classical product in its place look at.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ..numerics.bounds import SPREAD
from .access import (
    F32,
    I32,
    I64,
    SIZES,
    atomic_max,
    c64,
    lanes_of,
    load_lanes,
    load_one,
    operation,
    read_i32,
    store_one,
    warp_max,
    write_i32,
)
from .compiled import Kernel, Source, cuda

THREADS = 256
LINES = 128  # rows that a thread folds before it reports the columns' maxima
RUN_LEVELS, RUN_CLASSICAL = 0, 1  # verdicts
NO_EXPONENT = 100_000


class Limits(NamedTuple):
    """What the data may be for the levels to run; binary exponents.

    Attributes
    ----------
    least : int
        Of the smallest normal number: a row below it can't be scaled into the normal range.
    product : int
        Rows and columns whose exponents add up to this or more could overflow in a product.
    sums_a, sums_b : int
        Rows (columns) from this exponent on could overflow in a combination of blocks.
    balanced : bool
        Whether scaling is allowed.
    """

    least: int
    product: int
    sums_a: int
    sums_b: int
    balanced: bool


def limits_for(dtype: str, K: int, sums: tuple[float, float, float], alpha: float, balanced: bool) -> Limits:
    """Limits of levels whose largest sums are `sums` (see `FlatScheme.largest_sums`)."""
    lowest, highest = {"float16": (-14, 16), "float64": (-1022, 1024)}.get(dtype, (-126, 128))
    product = 1024 if dtype == "float64" else 128  # of the type of H
    growth = math.ceil(math.log2(2 * sums[2] * K * max(abs(alpha), 1.0))) if math.isfinite(alpha) else 2 * product
    a, b = (highest - 2 - math.ceil(math.log2(x)) for x in sums[:2])
    return Limits(lowest, product - 2 - growth, a, b, balanced)


def _magnitude(b: Any, value: Any) -> Any:
    """Upper 32 bits of |value|, 1 where they are zero and the value is not."""
    if value.type == F32:
        return b.and_(b.bitcast(value, I32), ir.Constant(I32, 0x7FFFFFFF))
    bits = b.and_(b.bitcast(value, I64), c64(2**63 - 1))
    high, low = b.trunc(b.lshr(bits, c64(32)), I32), b.trunc(bits, I32)
    tiny = b.and_(b.icmp_signed("==", high, ir.Constant(I32, 0)), b.icmp_signed("!=", low, ir.Constant(I32, 0)))
    return b.or_(high, b.zext(tiny, I32))


def scan_source(dtype: str, rows_wanted: bool) -> Source:
    """Kernel (matrix, ld, rows, cols, aligned, maxima): raises maxima[i] (or [j]) to the magnitudes of the elements."""
    V, size = lanes_of(dtype), SIZES[dtype]

    def largest(b: Any, args: Any) -> Any:
        out = ir.Constant(I32, 0)
        for value in load_lanes(b, args[0], dtype, V):
            x = _magnitude(b, value)
            out = b.select(b.icmp_unsigned(">", x, out), x, out)
        return out

    def one(b: Any, args: Any) -> Any:
        return _magnitude(b, load_one(b, args[0], dtype, ir.Constant(ir.IntType(1), 1)))

    vector, single = (operation([types.int64], f, types.int32) for f in (largest, one))

    def rows_kernel(matrix, ld, rows, cols, aligned, maxima):
        for y in range(types.int64(cuda.blockIdx.y), rows, types.int64(cuda.gridDim.y)):
            most, line = types.int32(0), matrix + y * ld * size
            whole = cols // V if aligned else types.int64(0)
            for x in range(types.int64(cuda.threadIdx.x), whole, THREADS):
                most = max(most, vector(line + x * 16))
            for x in range(whole * V + cuda.threadIdx.x, cols, THREADS):
                most = max(most, single(line + x * size))
            most = warp_max(most)
            if cuda.threadIdx.x % 32 == 0:
                atomic_max(maxima + y * 4, most)

    def columns_kernel(matrix, ld, rows, cols, aligned, maxima):
        x = types.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        first = types.int64(cuda.blockIdx.y) * LINES
        if x < cols:
            most = types.int32(0)
            for y in range(first, min(first + LINES, rows)):
                most = max(most, single(matrix + (y * ld + x) * size))
            atomic_max(maxima + x * 4, most)

    kernel = rows_kernel if rows_wanted else columns_kernel
    return Source(kernel, [types.int64] * 6, THREADS, THREADS, f"scan_{dtype}_{'rows' if rows_wanted else 'columns'}")


def judge_source(dtype: str) -> Source:
    """Kernel (maxima, M, N, verdict, least, product, sums_a, sums_b, balanced).

    Replaces the M + N maxima (of rows of A, then columns of B) by the exponents to scale by, int32, all 0 where nothing
    is to be scaled, and writes the verdict. One block.
    """
    shift, bias = (20, 1023) if dtype == "float64" else (23, 127)
    top = 1022 if dtype == "float64" else 126  # 2^-e must be normal

    def kernel(maxima, M, N, verdict, least, product, sums_a, sums_b, balanced):
        found = cuda.shared.array(6, types.int32)  # of A and of B: highest, minus lowest, zeros seen
        t = types.int64(cuda.threadIdx.x)
        if t < 6:
            found[t] = 0 if t % 3 == 2 else -NO_EXPONENT
        cuda.syncthreads()
        for i in range(t, M + N, 1024):
            bits = read_i32(maxima + 4 * i)
            at = 0 if i < M else 3
            if bits == 0:
                cuda.atomic.max(found, at + 2, 1)
            else:
                e = (bits >> shift) - bias
                cuda.atomic.max(found, at, e)
                cuda.atomic.max(found, at + 1, -e)
        cuda.syncthreads()
        danger = scaled = False
        for side in range(2):
            high, low, zeros = found[3 * side], -found[3 * side + 1], found[3 * side + 2]
            if high != -NO_EXPONENT:
                danger = danger or high > bias or (low if balanced else high) < least
                over = high >= (sums_a if side == 0 else sums_b)
                danger = danger or (over and not balanced)
                scaled = scaled or over or zeros > 0 or high - low > SPREAD
        if found[0] != -NO_EXPONENT and found[3] != -NO_EXPONENT:
            danger = danger or found[0] + found[3] >= product
        scaled = scaled and balanced and not danger
        if t == 0:
            write_i32(verdict, types.int32(RUN_CLASSICAL if danger else RUN_LEVELS))
        for i in range(t, M + N, 1024):
            bits = read_i32(maxima + 4 * i)
            e = types.int32(0)
            if scaled and bits != 0:
                e = types.int32(min((bits >> shift) - bias, top))
            write_i32(maxima + 4 * i, e)

    return Source(kernel, [types.int64] * 9, 1024, 1024, f"judge_{dtype}")


def classical_source(dtype: str) -> Source:
    """Kernel (A, lda, B, ldb, C, ldc, M, N, K, alpha, beta, reads, verdict): the product where the levels must not run.

    One interleaved chain of fused multiply-adds for every element, four rows a thread: simple and slow, for data that
    no plan expects. Leaves at once unless the int32 at `verdict` says `RUN_CLASSICAL`.
    """
    size, true = SIZES[dtype], ir.Constant(ir.IntType(1), 1)
    scalar = types.float64 if dtype == "float64" else types.float32
    load = operation([types.int64], lambda b, a: load_one(b, a[0], dtype, true), scalar)
    store = operation([types.int64, scalar], lambda b, a: store_one(b, a[0], a[1], dtype, true))
    fma = operation([scalar] * 3, lambda b, a: b.fma(*a), scalar)

    def kernel(A, lda, B, ldb, C, ldc, M, N, K, alpha, beta, reads, verdict):
        if read_i32(verdict) != RUN_CLASSICAL:
            return
        x = types.int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if x >= N:
            return
        for y in range(types.int64(cuda.blockIdx.y) * 4, M, types.int64(cuda.gridDim.y) * 4):
            y1, y2, y3 = min(y + 1, M - 1), min(y + 2, M - 1), min(y + 3, M - 1)
            s0 = s1 = s2 = s3 = scalar(0)
            for k in range(K):
                b = load(B + (k * ldb + x) * size)
                s0 = fma(load(A + (y * lda + k) * size), b, s0)
                s1 = fma(load(A + (y1 * lda + k) * size), b, s1)
                s2 = fma(load(A + (y2 * lda + k) * size), b, s2)
                s3 = fma(load(A + (y3 * lda + k) * size), b, s3)
            for i in range(min(types.int64(4), M - y)):
                s = s0 if i == 0 else s1 if i == 1 else s2 if i == 2 else s3
                at = C + ((y + i) * ldc + x) * size
                s *= alpha
                if reads:
                    s = fma(beta, load(at), s)
                store(at, s)

    arguments = [types.int64] * 9 + [scalar] * 2 + [types.int64] * 2
    return Source(kernel, arguments, THREADS, THREADS, f"classical_{dtype}")


@lru_cache(maxsize=64)
def scan_kernel(dtype: str, rows_wanted: bool) -> Kernel:
    return Kernel(scan_source(dtype, rows_wanted))


@lru_cache(maxsize=16)
def judge_kernel(dtype: str) -> Kernel:
    return Kernel(judge_source(dtype))


@lru_cache(maxsize=16)
def classical_kernel(dtype: str) -> Kernel:
    return Kernel(classical_source(dtype))
