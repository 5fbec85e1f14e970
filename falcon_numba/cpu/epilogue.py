"""From the packed accumulators to C: alpha, beta, undoing the scaling, any stride of C.

A target holds the sum over products of one block of C as MR × NR tiles; tile (i, j) stands at (j·tiles + i)·tile_bytes.
`flush` walks C row by row, so that C is touched once, in order, whatever the scheme is.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..inlined import inner_of
from .simd import Vec, c64, make_memory, peek_i32
from .spec import KernelSpec


def exponent_range(dtype: str) -> tuple[int, int]:
    """The exponents of the smallest and largest normal power of two."""
    info = np.finfo(dtype)
    return int(info.minexp), int(info.maxexp) - 1


def make_flush_row(spec: KernelSpec):
    """One row of tiles into a contiguous row of C, in LLVM vectors.

    Returns
    -------
    flush_row : Numba function (c, t, step, tiles, rest, alpha, beta, reads, row_exponent, exponents)
        c[:tiles·NR + rest] = alpha·t + beta·c, where row segments of NR elements of t stand `step` bytes apart. c is
        read only with `reads`. `exponents` is 0, or the address of int32 e_j: t_j is first multiplied by
        2^(row_exponent + e_j), in two exact halves so that only the last step can round or overflow.
    """
    VL, NV = spec.VL, spec.NV
    least, most = (0, 0) if spec.exact else exponent_range(spec.dtype)

    @intrinsic
    def flush_row(typingctx, c, t, step, tiles, rest, alpha, beta, reads, row_exponent, exponents):
        def codegen(context, builder, signature, args):
            c, t, step, tiles, rest, alpha, beta, reads, row_exponent, exponents = args
            v, add, mul = Vec(builder, spec.sums, VL), builder.add, builder.mul
            alpha, beta = v.splat(alpha), v.splat(beta)
            row_exponent = v.splat(builder.trunc(row_exponent, v.int_elem), v.int_type)

            def unscale(x, column, mask):
                where = add(exponents, mul(column, c64(4)))
                narrow = Vec(builder, "float32", VL)
                bits = narrow.load_masked(where, mask) if mask else narrow.load(where)
                e = builder.bitcast(bits, narrow.int_type)
                e = add(e if v.size == 4 else builder.sext(e, v.int_type), row_exponent)
                half = builder.ashr(e, v.splat_int(1))
                for part in (half, builder.sub(e, half)):
                    low, high = v.splat_int(least), v.splat_int(most)
                    part = builder.select(builder.icmp_signed("<", part, low), low, part)
                    part = builder.select(builder.icmp_signed(">", part, high), high, part)
                    x = builder.fmul(x, v.exp2(part))
                return x

            def vector(at, column, source, mask, scaled, accumulates):
                x = v.load(source, v.width)
                if scaled:
                    x = unscale(x, column, mask)
                x = v.mul(alpha, x)
                if accumulates:
                    x = v.fma(beta, v.load_masked(at, mask) if mask else v.load(at), x)
                v.store_masked(x, at, mask) if mask else v.store(x, at)

            def row(scaled, accumulates):
                with cgutils.for_range(builder, tiles) as each:
                    source, column = add(t, mul(each.index, step)), mul(each.index, c64(spec.NR))
                    at = add(c, mul(column, c64(v.size)))
                    for j in range(NV):
                        go = c64(j * v.width)
                        vector(add(at, go), add(column, c64(j * VL)), add(source, go), None, scaled, accumulates)
                with builder.if_then(builder.icmp_signed(">", rest, c64(0))):
                    source, column = add(t, mul(tiles, step)), mul(tiles, c64(spec.NR))
                    at = add(c, mul(column, c64(v.size)))
                    for j in range(NV):
                        mask, go = v.lanes_below(builder.sub(rest, c64(j * VL))), c64(j * v.width)
                        vector(add(at, go), add(column, c64(j * VL)), add(source, go), mask, scaled, accumulates)

            is_scaled = builder.icmp_signed("!=", exponents, c64(0))
            is_read = builder.icmp_signed("!=", reads, c64(0))
            for scaled in (False,) if spec.exact else (False, True):  # integers are never scaled
                as_asked = is_scaled if scaled else builder.not_(is_scaled)
                with builder.if_then(as_asked), builder.if_else(is_read) as readings:
                    for reading, accumulates in zip(readings, (True, False), strict=True):
                        with reading:
                            row(scaled, accumulates)
            return context.get_dummy_value()

        scalar, i = getattr(types, spec.sums), types.int64
        return types.void(i, i, i, i, i, scalar, scalar, i, i, i), codegen

    return flush_row


def make_portable_flush_row(spec: KernelSpec):
    """`make_flush_row` in plain loops, bit-equal."""
    NR, size, exact = spec.NR, spec.sum_size, spec.exact
    least, most = (0, 0) if exact else exponent_range(spec.dtype)
    peek, poke, fma = make_memory(spec.sums)
    number = np.dtype(spec.sums).type
    two, half_of_one = number(2), number(0.5)

    part = inner_of(spec.isa, spec.dtype)

    @part
    def power_of_two(exponent):
        factor = number(1)
        for _ in range(abs(min(max(exponent, least), most))):
            factor *= two if exponent > 0 else half_of_one
        return factor

    @part
    def flush_row(c, t, step, tiles, rest, alpha, beta, reads, row_exponent, exponents):
        for j in range(tiles * NR + rest):
            x = peek(t + j // NR * step + j % NR * size)
            if not exact and exponents != 0:
                e = peek_i32(exponents + 4 * j) + row_exponent
                half = e >> 1
                x = x * power_of_two(half) * power_of_two(e - half)
            x = alpha * x
            if reads != 0:
                x = fma(beta, peek(c + j * size), x)
            poke(c + j * size, x)

    return flush_row


def make_flush(spec: KernelSpec, portable: bool):
    """All rows of one block of C that an MC × N2 piece of a target covers.

    Returns
    -------
    flush : Numba function (c, (row_step, column_step), (rows, columns, tiles), target, alpha, beta, reads,
        (row_exponents, exponents), buffer)
        `c` is the address of the first element, `tiles` the tiles in a column of the target. A C whose columns are
        not contiguous goes through `buffer`, a contiguous row.
    """
    MR, NR, size = spec.MR, spec.NR, spec.sum_size
    flush_row = make_portable_flush_row(spec) if portable else make_flush_row(spec)
    peek, poke, _ = make_memory(spec.sums)

    part = inner_of(spec.isa, spec.dtype, portable)

    @part
    def flush(c, steps, sizes, target, alpha, beta, reads, exponents_of, buffer):
        (row_step, column_step), (rows, columns, tiles), (row_exponents, exponents) = steps, sizes, exponents_of
        tile_bytes = MR * NR * size
        for i in range(rows):
            line = c + i * row_step
            t = target + i // MR * tile_bytes + i % MR * NR * size
            e = peek_i32(row_exponents + 4 * i) if row_exponents != 0 else 0
            if column_step == size:
                flush_row(line, t, tiles * tile_bytes, columns // NR, columns % NR, alpha, beta, reads, e, exponents)
            else:
                if reads != 0:
                    for j in range(columns):
                        poke(buffer + j * size, peek(line + j * column_step))
                flush_row(buffer, t, tiles * tile_bytes, columns // NR, columns % NR, alpha, beta, reads, e, exponents)
                for j in range(columns):
                    poke(line + j * column_step, peek(buffer + j * size))

    return flush


def make_add(spec: KernelSpec, portable: bool):
    """Packed accumulators of inner levels into those of outer ones.

    Returns
    -------
    add : Numba function (target, source, nbytes, coef, accumulates)
        target = coef·source (+ target, in one fused multiply-add, with `accumulates`); `nbytes` is a whole number of
        tiles.
    """
    peek, poke, fma = make_memory(spec.sums)
    size = spec.sum_size

    @intrinsic
    def add(typingctx, target, source, nbytes, coef, accumulates):
        def codegen(context, builder, signature, args):
            target, source, nbytes, coef, accumulates = args
            v = Vec(builder, spec.sums, spec.VL)
            coef = v.splat(coef)
            with builder.if_else(accumulates) as branches:
                for branch, adding in zip(branches, (True, False), strict=True):
                    with branch, cgutils.for_range(builder, builder.sdiv(nbytes, c64(spec.NV * v.width))) as each:
                        here = builder.mul(each.index, c64(spec.NV * v.width))
                        for j in range(spec.NV):
                            go = builder.add(here, c64(j * v.width))
                            at, x = builder.add(target, go), v.load(builder.add(source, go), v.width)
                            y = v.fma(coef, x, v.load(at, v.width)) if adding else v.mul(coef, x)
                            v.store(y, at, v.width)
            return context.get_dummy_value()

        i, scalar = types.int64, getattr(types, spec.sums)
        return types.void(i, i, i, scalar, types.boolean), codegen

    @inner_of(spec.isa, spec.dtype)
    def portable_add(target, source, nbytes, coef, accumulates):
        for at in range(0, nbytes, size):
            x = peek(source + at)
            poke(target + at, fma(coef, x, peek(target + at)) if accumulates else coef * x)

    return portable_add if portable else add
