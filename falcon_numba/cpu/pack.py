"""Combine and pack: Ã_r = Σ U[r]·A_block (and B̃_r likewise) straight into the micro-kernel's layout.

`pack` serves both operands: it sees a matrix as *rows* and *lanes*, lanes being the direction that becomes vector
lanes (the inner dimension of A, the columns of B), cut into a grid of equal blocks. For each row of a block it takes a
strip of lanes from every block of the grid, short enough to stay in L1, and writes all R combinations of it: every
element of the operand is read from memory once (group combine; FalconGEMM, section III-B).

Where the strips come from is the *load* step:

- direct: lanes contiguous in memory and the strip inside every block or outside of it: the combination reads the
  operand itself. A block, or a row of one, outside the matrix reads a strip of zeros (virtual padding: no copies).
- staged: anything else (lanes strided or transposed, scaled operands, the few vectors that straddle an edge): the
  strips are first brought into a small buffer, those of VL rows at once where the elements of a column lie closer
  together than those of a row, transposed in registers where they are contiguous or every other one.

Of schemes in two parts (the first levels, and the others) the combination of the first part is written to a buffer in
L1, block by block, and those of the second part read it from there: fewer additions than in one step, and blocks that
lie a power of two apart in memory don't drive each other out of L1 again and again.

Scaling by exact powers of two, per row or per lane, belongs to staging and so costs nothing when it is off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from ..inlined import inner, inner_of
from .simd import CACHE_LINE, I64, Vec, c64, make_memory, peek_i64, poke_i64, prefetch
from .spec import KernelSpec

STRIP_BYTES = 16 * 1024  # strips of all blocks together: half of L1
STRIP_MOST = 4096  # bytes of one strip at most; also the length of the strip of zeros
AHEAD = 2  # tiles that a transposition prefetches
UNROLLED_TERMS = 4  # combinations of up to so many blocks keep their addresses and coefficients in registers


class Terms(NamedTuple):
    """Combinations in compressed rows: product r adds coef[t]·block[t] for ptr[r] ≤ t < ptr[r + 1]."""

    ptr: object
    block: object
    coef: object


class Operand(NamedTuple):
    """A matrix cut into a grid of blocks; integers are int64, steps in bytes."""

    address: int
    row_step: int
    lane_step: int
    rows: int
    lanes: int
    grid_rows: int
    grid_lanes: int
    first_rows: int  # grid of the first levels; 1 where there are none
    first_lanes: int
    block_rows: int
    block_lanes: int
    row_scale: int  # address of one factor per row, or 0
    lane_scale: int  # address of one factor per lane, or 0
    first: Terms  # combinations of the first levels; one of one block where there are none


class Layout(NamedTuple):
    """Where row x, group g of `vectors` vectors of a packed block lies: x // period·tile + x % period·row + g·group."""

    vectors: int  # of a row in a chunk of A, or in a panel of B
    period: int
    tile_step: int
    row_step: int
    group_step: int


@inner
def strip_lanes(blocks, unit, itemsize):
    """Lanes of a strip: whole groups, one row of the strips of all blocks in half of L1 (several, staged, in L2)."""
    lanes = min(STRIP_MOST, STRIP_BYTES // blocks) // itemsize
    return max(unit, lanes // unit * unit)


class Scratch(NamedTuple):
    """Addresses private to one thread.

    Attributes
    ----------
    sources, combined_sources : int
        Where the strip of each block starts, and that of each block of the levels after the first.
    zeros : int
        A strip of zeros.
    combined : int
        Strips combined by the first levels.
    stage : int
        Staged strips.
    """

    sources: int
    combined_sources: int
    zeros: int
    combined: int
    stage: int


@register_jitable
def scratch_at(base, blocks, group):
    """Scratch from `base` on, for grids of `blocks` blocks whose shortest strips take `group` bytes together."""
    words = (8 * blocks + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    zeros = base + 2 * words
    combined = zeros + STRIP_MOST
    stage = combined + (max(STRIP_BYTES, group) + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE
    return Scratch(base, base + words, zeros, combined, stage)


def scratch_bytes(blocks: int, spec: KernelSpec) -> int:
    """Bytes one thread needs for `Scratch`, `blocks` being the larger of the two operands' grids."""
    group = blocks * spec.widest_group  # the shortest strips of all blocks
    return scratch_at(0, blocks, group).stage + spec.pack_VL * max(STRIP_BYTES, group) + CACHE_LINE


def make_combine(spec: KernelSpec, vectors: int, nontemporal: bool):
    """Combination of strips in LLVM vectors.

    Returns
    -------
    combine : Numba function (out, step, groups, terms, blocks, coefs, sources)
        Group g, `vectors` vectors at out + g·step, becomes Σ_t coefs[t]·strip(blocks[t]), the strip of block q being
        contiguous at sources[q]. The first term is a product, the others fused multiply-adds in order. `out` is
        aligned to a vector; with `nontemporal` the stores bypass the caches.
    """
    VL = spec.pack_VL

    @intrinsic
    def combine(typingctx, out, step, groups, terms, blocks, coefs, sources):
        def codegen(context, builder, signature, args):
            out, step, groups, terms, blocks, coefs, sources = args
            v, add, mul = Vec(builder, spec.dtype, VL), builder.add, builder.mul
            word = lambda base, i: builder.load(v.pointer(add(base, builder.shl(i, c64(3))), I64))  # noqa: E731
            source = lambda t: word(sources, word(blocks, t))  # noqa: E731
            coef = lambda t: v.splat(v.scalar(add(coefs, mul(t, c64(spec.itemsize)))))  # noqa: E731

            def sweep(total):
                with cgutils.for_range(builder, groups) as each:
                    start = mul(each.index, c64(vectors * v.width))
                    to = add(out, mul(each.index, step))
                    for j in range(vectors):
                        here = add(start, c64(j * v.width))
                        v.store(total(here), add(to, c64(j * v.width)), v.width, nontemporal)

            for n in range(1, UNROLLED_TERMS + 1):
                with builder.if_then(builder.icmp_signed("==", terms, c64(n))):
                    fixed = [(source(c64(t)), coef(c64(t))) for t in range(n)]

                    def total(here, fixed=fixed):
                        acc = v.mul(v.load(add(fixed[0][0], here)), fixed[0][1])
                        for src, c in fixed[1:]:
                            acc = v.fma(v.load(add(src, here)), c, acc)
                        return acc

                    sweep(total)
            with builder.if_then(builder.icmp_signed(">", terms, c64(UNROLLED_TERMS))):
                slot = cgutils.alloca_once(builder, v.type)

                def total_loop(here):
                    builder.store(v.mul(v.load(add(source(c64(0)), here)), coef(c64(0))), slot)
                    with cgutils.for_range(builder, terms, start=c64(1)) as each:
                        x = v.load(add(source(each.index), here))
                        builder.store(v.fma(x, coef(each.index), builder.load(slot)), slot)
                    return builder.load(slot)

                sweep(total_loop)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return combine


def make_portable_combine(spec: KernelSpec, vectors: int):
    """`make_combine` in plain loops, bit-equal."""
    size, lanes = spec.itemsize, vectors * spec.pack_VL
    peek, poke, fma = make_memory(spec.dtype)

    part = inner_of(spec.isa, spec.dtype, vectors)

    @part
    def combine(out, step, groups, terms, blocks, coefs, sources):
        for g in range(groups):
            for i in range(lanes):
                here = (g * lanes + i) * size
                acc = peek(peek_i64(sources + 8 * peek_i64(blocks)) + here) * peek(coefs)
                for t in range(1, terms):
                    x = peek(peek_i64(sources + 8 * peek_i64(blocks + 8 * t)) + here)
                    acc = fma(x, peek(coefs + t * size), acc)
                poke(out + g * step + i * size, acc)

    return combine


def make_scaled_copy(spec: KernelSpec):
    """out[v] = src[v] · factor for `vectors` contiguous vectors; factors advance by `step` vectors (0: one scalar)."""

    @intrinsic
    def scaled_copy(typingctx, out, src, vectors, factors, per_lane):
        def codegen(context, builder, signature, args):
            out, src, vectors, factors, per_lane = args
            v = Vec(builder, spec.dtype, spec.pack_VL)
            lanes = builder.icmp_signed("!=", per_lane, c64(0))
            scalar = v.splat(v.scalar(factors))
            with builder.if_else(lanes) as branches:
                for branch, many in zip(branches, (True, False), strict=True):
                    with branch, cgutils.for_range(builder, vectors) as each:
                        here = builder.mul(each.index, c64(v.width))
                        factor = v.load(builder.add(factors, here)) if many else scalar
                        v.store(v.mul(v.load(builder.add(src, here)), factor), builder.add(out, here))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return scaled_copy


def make_transpose(spec: KernelSpec, stride: int):
    """A VL × VL tile transposed in registers: row i of `out` is element i·stride (1 or 2) of each source line.

    Prefetches the lines `ahead` bytes further on.
    """
    VL = spec.pack_VL

    @intrinsic
    def transpose(typingctx, out, out_step, src, src_step, ahead):
        def codegen(context, builder, signature, args):
            out, out_step, src, src_step, ahead = args
            v, add = Vec(builder, spec.dtype, VL), builder.add
            at = lambda base, step, i: add(base, builder.mul(step, c64(i)))  # noqa: E731

            def line(address):
                if stride == 1:
                    return v.load(address)
                # Not a byte beyond the last element: the second vector begins one element early.
                return v.even(v.load(address), v.load(add(address, c64((VL - 1) * v.size))))

            lines = [line(at(src, src_step, i)) for i in range(VL)]
            for i in range(VL):
                for byte in range(0, stride * v.width, CACHE_LINE):
                    v.prefetch(add(at(src, src_step, i), add(ahead, c64(byte))))
            for i, row in enumerate(v.transpose(lines)):
                v.store(row, at(out, out_step, i))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return transpose


def make_portable_transpose(spec: KernelSpec, stride: int):
    """`make_transpose` in plain loops."""
    VL, size = spec.pack_VL, spec.itemsize
    peek, poke, _ = make_memory(spec.dtype)

    part = inner_of(spec.isa, spec.dtype, stride)

    @part
    def transpose(out, out_step, src, src_step, ahead):
        for i in range(VL):
            for j in range(VL):
                poke(out + i * out_step + j * size, peek(src + j * src_step + i * stride * size))

    return transpose


def make_portable_scaled_copy(spec: KernelSpec):
    """`make_scaled_copy` in plain loops."""
    VL, size = spec.pack_VL, spec.itemsize
    peek, poke, _ = make_memory(spec.dtype)

    part = inner_of(spec.isa, spec.dtype)

    @part
    def scaled_copy(out, src, vectors, factors, per_lane):
        for i in range(vectors * VL):
            factor = peek(factors + i * size) if per_lane != 0 else peek(factors)
            poke(out + i * size, peek(src + i * size) * factor)

    return scaled_copy


def make_pack(spec: KernelSpec, portable: bool):
    """The packing routine of one kernel spec.

    Returns
    -------
    pack : Numba function (operand, layout, terms, first, x0, x1, x_end, y0, y1, xb, out, product_step, scratch,
        nontemporal)
        Packs rows x0 ≤ x < x1 and lanes y0 ≤ y < y1 (coordinates within a block) of all combinations `terms` of what
        combination `first` of the first levels makes; rows x1 ≤ x < x_end and lanes up to a whole group become zero.
        Row x goes where `layout` says for x − xb, combination r to out + r·product_step.
    """
    VL, size = spec.pack_VL, spec.itemsize
    # Vectors in a row of a panel of B, or of a chunk of A; in one of the other there is one.
    several = max(spec.NR, spec.chunk) // VL
    if portable:
        one = one_streamed = make_portable_combine(spec, 1)
        many = many_streamed = make_portable_combine(spec, several)
        transpose, transpose_even = make_portable_transpose(spec, 1), make_portable_transpose(spec, 2)
        scaled_copy = make_portable_scaled_copy(spec)
    else:
        one, one_streamed = make_combine(spec, 1, False), make_combine(spec, 1, True)
        many, many_streamed = one, one_streamed
        if several > 1:
            many, many_streamed = make_combine(spec, several, False), make_combine(spec, several, True)
        transpose, transpose_even = make_transpose(spec, 1), make_transpose(spec, 2)
        scaled_copy = make_scaled_copy(spec)
    peek, poke, _ = make_memory(spec.dtype)
    zero = np.dtype(spec.dtype).type(0)

    part = inner_of(spec.isa, spec.dtype, portable)

    @part
    def prefetch_line(address, count, step):
        """The cache lines of `count` elements `step` apart."""
        for i in range(0, count, max(1, CACHE_LINE // max(1, abs(step)))):
            prefetch(address + i * step)

    @part
    def stage_block(out, width, src, row_step, lane_step, rows, valid_rows, lanes):
        """`rows` × `width` contiguous elements from `src`; zeros from row `valid_rows` and from lane `lanes` on."""
        y0 = 0
        if valid_rows == VL and (row_step == size or row_step == 2 * size):
            y0 = lanes // VL * VL
            for y in range(0, y0, VL):
                to, start, ahead = out + y * size, src + y * lane_step, AHEAD * VL * lane_step
                if row_step == size:
                    transpose(to, width * size, start, lane_step, ahead)
                else:
                    transpose_even(to, width * size, start, lane_step, ahead)
        elif rows > 1:  # elements of a column are the ones that share cache lines
            y0 = lanes
            for y in range(lanes):
                prefetch_line(src + (y + width) * lane_step, valid_rows, row_step)
                for x in range(valid_rows):
                    poke(out + (x * width + y) * size, peek(src + x * row_step + y * lane_step))
        else:
            prefetch_line(src + row_step, lanes, lane_step)
        for x in range(rows):
            valid = lanes if x < valid_rows else 0
            for y in range(y0, valid):
                poke(out + (x * width + y) * size, peek(src + x * row_step + y * lane_step))
            for y in range(valid, width):
                poke(out + (x * width + y) * size, zero)

    @part
    def scale_rows(operand, out, width, row, lane, rows, lanes):
        """Multiply staged rows by their row and lane factors."""
        whole = lanes // VL
        for x in range(rows):
            line = out + x * width * size
            if operand.row_scale != 0:
                scaled_copy(line, line, width // VL, operand.row_scale + (row + x) * size, 0)
            if operand.lane_scale != 0:
                factors = operand.lane_scale + lane * size
                scaled_copy(line, line, whole, factors, 1)
                for y in range(whole * VL, lanes):
                    poke(line + y * size, peek(line + y * size) * peek(factors + y * size))

    @part
    def stage(operand, first, blocks, xt, rows, x1, s, lanes, width, tile, scratch):
        """Bring `rows` rows × `lanes` lanes of every block that combination `first` needs into the staging buffer."""
        high, wide = operand.grid_rows // operand.first_rows, operand.grid_lanes // operand.first_lanes
        for t in range(operand.first.ptr[first], operand.first.ptr[first + 1]):
            f = operand.first.block[t]
            q, top, left = f * blocks, f // operand.first_lanes * high, f % operand.first_lanes * wide
            for bi in range(top, top + high):
                row = bi * operand.block_rows + xt
                valid_rows = max(0, min(rows, x1 - xt, operand.rows - row))
                for bl in range(left, left + wide):
                    lane = bl * operand.block_lanes + s
                    valid = max(0, min(lanes, operand.lanes - lane))
                    here = valid_rows if valid > 0 else 0
                    out = scratch.stage + q * tile * width * size
                    src = operand.address + row * operand.row_step + lane * operand.lane_step
                    stage_block(out, width, src, operand.row_step, operand.lane_step, rows, here, valid)
                    if operand.row_scale != 0 or operand.lane_scale != 0:
                        scale_rows(operand, out, width, row, lane, here, valid)
                    q += 1

    @part
    def locate(operand, first, blocks, x, xt, x1, s, width, tile, staged, scratch, prefetches):
        """Write down where row x of every block's strip starts; prefetch the strips of the next row, if asked to."""
        high, wide = operand.grid_rows // operand.first_rows, operand.grid_lanes // operand.first_lanes
        step = 8 * operand.first_rows * operand.first_lanes
        for t in range(operand.first.ptr[first], operand.first.ptr[first + 1]):
            f = operand.first.block[t]
            q, top, left = f * blocks, f // operand.first_lanes * high, f % operand.first_lanes * wide
            word = scratch.sources + 8 * f
            for bi in range(top, top + high):
                row = bi * operand.block_rows + x
                inside = x < x1 and row < operand.rows
                for bl in range(left, left + wide):
                    lane = bl * operand.block_lanes + s
                    if staged:
                        at = scratch.stage + (q * tile + x - xt) * width * size
                    elif inside and lane < operand.lanes:
                        at = operand.address + row * operand.row_step + lane * operand.lane_step
                        if prefetches and row + 1 < operand.rows:
                            for byte in range(0, width * size, CACHE_LINE):
                                prefetch(at + operand.row_step + byte)
                    else:
                        at = scratch.zeros
                    poke_i64(word, at)
                    word += step
                    q += 1

    @part
    def combine(vectors, nontemporal, out, step, groups, terms, blocks, coefs, sources):
        if vectors == 1:
            if nontemporal:
                one_streamed(out, step, groups, terms, blocks, coefs, sources)
            else:
                one(out, step, groups, terms, blocks, coefs, sources)
        elif nontemporal:
            many_streamed(out, step, groups, terms, blocks, coefs, sources)
        else:
            many(out, step, groups, terms, blocks, coefs, sources)

    @part
    def combine_first(operand, first, blocks, width, scratch):
        """Combine the located strips by the first levels; where the results start goes to `combined_sources`."""
        t, count = operand.first.ptr[first], operand.first_rows * operand.first_lanes
        terms, members = operand.first.ptr[first + 1] - t, operand.first.block.ctypes.data + 8 * t
        coefs, nbytes = operand.first.coef.ctypes.data + size * t, width * size
        for q in range(blocks):
            out, sources = scratch.combined + q * nbytes, scratch.sources + 8 * q * count
            one(out, VL * size, width // VL, terms, members, coefs, sources)
            poke_i64(scratch.combined_sources + 8 * q, out)

    @part
    def pack(operand, layout, terms, first, x0, x1, x_end, y0, y1, xb, out, product_step, scratch, nontemporal):
        unit = layout.vectors * VL
        always_staged = operand.lane_step != size or operand.row_scale != 0 or operand.lane_scale != 0
        tile = VL if always_staged and abs(operand.row_step) < abs(operand.lane_step) else 1
        line = (y1 - y0) * size
        # The hardware doesn't follow rows that are too short to be a stream, or that don't go on where one ends.
        scattered = line <= 2 * STRIP_MOST or line * operand.grid_lanes < abs(operand.row_step)
        firsts = operand.first_rows * operand.first_lanes
        blocks = operand.grid_rows * operand.grid_lanes // firsts
        strip = strip_lanes(blocks * firsts if always_staged else blocks, unit, size)
        edge = operand.lanes % operand.block_lanes  # lane (within a block) where the one partial block ends
        members, coefs = terms.block.ctypes.data, terms.coef.ctypes.data
        for xt in range(x0, x_end, tile):
            rows = min(tile, x_end - xt)
            s = y0
            while s < y1:
                e = min(s + strip, y1)
                staged = always_staged
                if not always_staged:
                    # A direct strip is whole groups and lies on one side of the edge; what straddles is staged.
                    if s < edge < e:
                        e = s + (edge - s) // unit * unit
                    e = s + (e - s) // unit * unit
                    if e == s:
                        e = min(s + unit, y1)
                        staged = e - s < unit or s < edge < e
                groups = (e - s + unit - 1) // unit
                width = groups * unit
                if staged:
                    stage(operand, first, blocks, xt, rows, x1, s, e - s, width, tile, scratch)
                for x in range(xt, xt + rows):
                    locate(operand, first, blocks, x, xt, x1, s, width, tile, staged, scratch, scattered)
                    sources = scratch.sources
                    if firsts > 1:
                        combine_first(operand, first, blocks, width, scratch)
                        sources = scratch.combined_sources
                    to = out + (x - xb) // layout.period * layout.tile_step + (x - xb) % layout.period * layout.row_step
                    to += (s - y0) // unit * layout.group_step
                    for r in range(len(terms.ptr) - 1):
                        t = terms.ptr[r]
                        count, block, coef = terms.ptr[r + 1] - t, members + 8 * t, coefs + size * t
                        combine(layout.vectors, nontemporal, to, layout.group_step, groups, count, block, coef, sources)
                        to += product_step
                s = e

    return pack
