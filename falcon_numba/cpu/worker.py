"""The five loops around the micro-kernel, as every thread of a run executes them.

One product, sizes being those of one block (⌈M/m⌉ × ⌈K/k⌉ × ⌈N/n⌉)::

    5th loop  jc   NC columns of a block of B
    4th loop  pc     CHUNKS·KC of the inner dimension
              f        product of the first levels: combine and pack its B̃_r                       [threads share]
    3rd loop  i0         MA rows of a block of A: combine and pack its Ã_r                          [threads share]
              ic, jn       at most MC rows and N2 columns: a piece of work                          [one thread]
              s              KC of the inner dimension
              o                product of the outer levels
              r                  product of the inner level: H_q += W[q, r]·Ã_(o,r)·B̃_(o,r), all H in L2
    2nd loop  jr                   NR columns
    1st loop  ir                     MR rows:               micro-kernel
                               T_(p,q) += W_outer[p, o]·H_q, all T in L3
                           C_(g,p,q) += W_first[g, f]·T_(p,q), row by row, or in the micro-kernel already

The product of two blocks never exists: a finished tile goes straight into the sums H, one per block of C of the inner
level (fused GEMM + Combine H). With several levels these go into T, one per block of C of the outer and the inner
levels, once for every product of the outer ones: an inner sum is touched often and near, an outer one far away and
seldom. With one level or none H goes to C directly: the last product that adds to a tile has the micro-kernel do it.
There are first levels only where the packed forms of all products don't fit into the workspace: their products are
computed one after the other, each adding to C.

The inner dimension is never split between threads and every element sees the same operations in the same order for any
number of them, so the result has the same bits.

Threads draw pieces of work until there are none, so that equal threads get equal work and a thread that loses its CPU
for a while gets less. In a run of many small products each thread takes whole products instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from ..inlined import inner, inner_of, named
from .epilogue import make_add, make_flush
from .microkernel import make_microkernel, make_portable_microkernel
from .pack import STRIP_MOST, Layout, Operand, Terms, make_pack, scratch_at
from .phases import BARRIER, FLUSH, KERNEL, OTHER, PACK_A, PACK_B, TARGETS, lap
from .simd import make_memory
from .spec import KernelSpec
from .sync import barrier, next_ticket, reset_tickets, share

# Columns of the table of products, one row of int64 each. Addresses; steps in bytes; sizes of the whole matrices;
# scale factors and exponents (addresses, 0 where there are none); where all of B lies packed already (0: pack it on
# the way; with A = 0: pack it there and do no more); block sizes; of a classical product of which only the lower
# triangle is wanted the columns to a row (0: everything is).
A, A_ROW, A_COL, B, B_ROW, B_COL, C, C_ROW, C_COL = range(9)
SIZE_M, SIZE_N, SIZE_K, A_SCALE, B_SCALE, A_EXPONENT, B_EXPONENT = range(9, 16)
B_PACKED, BLOCK_KC, BLOCK_CHUNKS, BLOCK_MA, BLOCK_MC, BLOCK_NC, BLOCK_N2 = range(16, 23)
LOWER = 23
COLUMNS = 24

STREAM_BYTES = 2**20  # packed operands larger than this bypass the caches
MOST_PIECES = 8  # for each thread, where blocks don't ask for more


@inner
def smaller(panels):
    """Small pieces, which are drawn last, to a piece of so many panels; equal ones, since they end together."""
    for parts in (4, 5, 3):
        if panels % parts == 0:
            return parts
    return min(panels, 4)


@inner
def cut(tiles, panels, most_tiles, most_panels, threads):
    """Parts into which the rows and the columns of tiles are cut, such that they are pieces of work for `threads`.

    A piece has at most `most_tiles` × `most_panels` tiles. Several threads want equal numbers of pieces, which are few
    and large, since every piece reads its rows and columns anew.
    """
    rows, columns = (tiles + most_tiles - 1) // most_tiles, (panels + most_panels - 1) // most_panels
    if threads == 1:
        return rows, columns
    best, best_rows, best_columns = np.int64(2**62), rows, columns
    for i in range(rows, tiles + 1):
        if i > rows and i * columns > MOST_PIECES * threads:
            break
        for j in range(columns, panels + 1):
            rounds = (i * j + threads - 1) // threads
            high, wide = (tiles + i - 1) // i, (panels + j - 1) // j
            # A piece reads its slivers and panels from L3, or from farther away; at last the threads wait for one of
            # them to finish a small piece.
            cost = rounds * (high * wide + high + wide) + high * wide // (2 * smaller(wide))
            if cost < best:
                best, best_rows, best_columns = cost, i, j
            if i * j > MOST_PIECES * threads:
                break
    return best_rows, best_columns


@inner
def piece(ticket, tiles, panels, rows, columns, threads):
    """First and last tile and panel of the piece of work that goes with a ticket: all zero where there is none.

    Towards the end come small ones, as many as `threads` pieces make.
    """
    small = threads if threads > 1 else 0
    whole = max(rows * columns - small, 0)
    part, parts = 0, 1
    if ticket >= whole:
        parts = smaller((panels + columns - 1) // columns)
        part = (ticket - whole) % parts
        ticket = whole + (ticket - whole) // parts
    if ticket >= rows * columns:
        return 0, 0, 0, 0
    x0, x1 = share(tiles, ticket // columns, rows)
    j0, j1 = share(panels, ticket % columns * parts + part, columns * parts)
    return x0, x1, j0, j1


class Matrix(NamedTuple):
    """Rows of `line` contiguous bytes, `step` bytes apart, in `size` bytes without the gaps."""

    address: int
    line: int
    step: int
    size: int


@inner
def matrix_at(address, row_step, column_step, rows, columns, itemsize):
    """An operand as a Matrix; an empty one where its rows are not contiguous."""
    line = columns * itemsize
    return Matrix(address, line, row_step, rows * line if column_step == itemsize else 0)


@inner
def address_in(matrices, x):
    """Address of byte `x` of two matrices, one after the other."""
    matrix = matrices[0]
    if x >= matrix.size:
        matrix, x = matrices[1], x - matrix.size
    return matrix.address + x // matrix.line * matrix.step + x % matrix.line


class Tables(NamedTuple):
    """The scheme, as that of the first levels and that of the others, whose W is split into outer and inner levels.

    Where there are no levels of a kind, their terms are one product of one block.
    """

    grid: object  # int64 (m, k, n) of all levels
    first: object  # int64 (m, k, n) of the first levels
    inner: object  # int64 (m, k, n) of the inner level
    FIRST_U: Terms
    FIRST_V: Terms
    FIRST_W: Terms
    U: Terms  # of all but the first levels
    V: Terms
    OUTER_W: Terms
    INNER_W: Terms


class Buffers(NamedTuple):
    """Workspace addresses. `a` and `b` have one part per team, `targets`, `scratch` and `clock` one per thread.

    `clock` (see `phases`) is 0 where nobody asked for the time.
    """

    a: int
    a_step: int
    b: int
    b_step: int
    targets: int
    targets_step: int
    target_bytes: int
    scratch: int
    scratch_step: int
    clock: int
    clock_step: int


class Out(NamedTuple):
    """What of a piece goes from the micro-kernel to C: whole tiles in its first rows and columns."""

    rows: int
    columns: int
    row_step: int  # of C
    nowhere: int  # address of zeros, instead of addresses in C


def make_worker(spec: KernelSpec, portable: bool):
    """Compile-ready worker for one kernel spec; `worker_signature` is its only signature."""
    MR, NR, DOT, chunk = spec.MR, spec.NR, spec.DOT, spec.chunk
    size, sum_size = spec.itemsize, spec.sum_size
    tile_bytes, lanes_bytes = MR * NR * sum_size, chunk * size
    vectors_a, vectors_b, group_bytes = chunk // spec.pack_VL, NR // spec.pack_VL, spec.widest_group
    microkernel = make_portable_microkernel(spec) if portable else make_microkernel(spec)
    pack = make_pack(spec, portable)
    flush = make_flush(spec, portable)
    add = make_add(spec, portable)
    _, poke, _ = make_memory(spec.dtype)
    zero, one = np.dtype(spec.dtype).type(0), np.dtype(spec.sums).type(1)

    part = inner_of(spec.isa, spec.dtype, portable)

    @part
    def steps_of(kb):
        """Steps of the micro-kernel, each of `DOT` rows of B."""
        return (kb + DOT - 1) // DOT

    @part
    def panel_of(kb):
        """Bytes of a packed panel of B, kb rows high."""
        return steps_of(kb) * DOT * NR * size

    @part
    def sliver_of(kb):
        """Bytes of a packed sliver of A, kb columns wide."""
        return MR * ((kb + chunk - 1) // chunk) * lanes_bytes

    @part
    def macrokernel(sizes, a, b, next_a, next_b, unpacked, span, sums, ends, out, scales):
        """2nd and 1st loop: all tiles of Ã_r · B̃_r for one chunk of K, or those not above the diagonal of C.

        Whole tiles end in C where `ends` says so, the others in the sums. Prefetches what of packed A and B comes next
        and, on the way, bytes span[0] … span[1] of a pair of `unpacked` matrices.
        """
        rows, columns, kb, lower, row, column = sizes
        tiles, panels = (rows + MR - 1) // MR, (columns + NR - 1) // NR
        panel, sliver, steps = panel_of(kb), sliver_of(kb), steps_of(kb)
        prefetched = max(1, kb // (4 * DOT)) * 64  # bytes that one tile prefetches
        start = panels * tiles - (tiles * sliver + prefetched - 1) // prefetched  # first tile that prefetches A
        for jr in range(panels):
            here, broad = b + jr * panel, min(NR, columns - jr * NR)
            ahead = here + panel if jr + 1 < panels else next_b
            done = 0
            above = ((column + jr * NR) // lower - row) // MR if lower else 0  # tiles that lie above the diagonal
            for ir in range(max(above, 0), tiles):
                index, high = jr * tiles + ir, min(MR, rows - ir * MR)
                line_a, step_a, x = next_a, 0, span[0] + index * prefetched
                if index >= start:
                    line_a, step_a = next_a + (index - start) * prefetched, 64
                elif x < span[1]:
                    line_a, step_a = address_in(unpacked, x), 64
                line_b, step_b = (ahead + done, 64) if done < panel else (ahead, 0)
                whole = (ir + 1) * MR <= out.rows and (jr + 1) * NR <= out.columns
                at = ends if whole else out.nowhere, ir * MR * out.row_step + jr * NR * sum_size, out.row_step
                packed, next_lines = (a + ir * sliver, here), (line_a, step_a, line_b, step_b)
                microkernel(steps, (high, broad), packed, sums, index * tile_bytes, at, scales, next_lines)
                done += prefetched

    @part
    def pack_b(view, terms, first, pc, depth, KC, jc, nb, tid, threads, out, scratch):
        """This thread's share of rows pc … pc + depth and columns jc … jc + nb of all B̃_r of a product, by chunks."""
        width = (len(terms.ptr) - 1) * ((nb + NR - 1) // NR) * NR * size  # bytes of one row of all these B̃_r
        for s in range(0, depth, KC):
            kb = min(KC, depth - s)
            x0, x1 = share((kb + chunk - 1) // chunk, tid, threads)
            x0, x1 = x0 * chunk, min(kb, x1 * chunk)
            x_end = steps_of(kb) * DOT if x1 == kb and x0 < x1 else x1
            panel = panel_of(kb)
            layout = Layout(vectors_b, 1, NR * size, 0, panel)
            step = (nb + NR - 1) // NR * panel
            streamed = width * kb > STREAM_BYTES
            y0, y1, at = jc, jc + nb, pc + s
            x0, x1, x_end = at + x0, at + x1, at + x_end
            pack(view, layout, terms, first, x0, x1, x_end, y0, y1, at, out + s * width, step, scratch, streamed)

    @part
    def pack_a(view, terms, first, i0, x0, x1, x_end, pc, depth, KC, out, step, scratch):
        """This thread's rows x0 … x1 and columns pc … pc + depth of all Ã_r of a product, by chunks, `step` apart.

        Row i0 is the first one packed by any thread; zeros follow up to row x_end.
        """
        bytes_ = (len(terms.ptr) - 1) * step
        for s in range(0, depth, KC):
            kb = min(KC, depth - s)
            y0, y1 = pc + s, pc + s + kb
            layout = Layout(vectors_a, MR, sliver_of(kb), lanes_bytes, MR * lanes_bytes)
            streamed = bytes_ > STREAM_BYTES
            pack(view, layout, terms, first, x0, x1, x_end, y0, y1, i0, out, step, scratch, streamed)
            out += bytes_

    @part
    def reached(terms, blocks, later):
        """Whether an earlier, or a later, product reaches the block of each term of a W: int64, one per term."""
        count = len(terms.block)
        out, seen = np.zeros(count, np.int64), np.zeros(blocks, np.int64)
        for i in range(count):
            t = count - 1 - i if later else i
            out[t] = seen[terms.block[t]]
            seen[terms.block[t]] = 1
        return out

    @part
    def flush_piece(p, tables, f, reached_before, pc, scales, sums, start, y, x, buffer):
        """Rows y[0] … y[1] and columns x[0] … x[1] of a piece, whole tiles before them, from the sums to blocks of C.

        The piece starts at row start[0] and column start[1] of every block.
        """
        (alpha, beta), (source, target_bytes, tiles), (row, column), (y0, y1), (x0, x1) = scales, sums, start, y, x
        if y0 >= y1 or x0 >= x1:
            return
        source += (x0 // NR * tiles + y0 // MR) * tile_bytes
        FIRST, inner_m, inner_n = tables.FIRST_W, tables.inner[0], tables.inner[2]
        m, n = tables.grid[0], tables.grid[2]
        h, w = (p[SIZE_M] + m - 1) // m, (p[SIZE_N] + n - 1) // n
        first_n, target_m, target_n = tables.first[2], m // tables.first[0], n // tables.first[2]
        outer_n = target_n // inner_n
        for q in range(target_m * target_n):
            qo, qi = q // (inner_m * inner_n), q % (inner_m * inner_n)
            block_m, block_n = qo // outer_n * inner_m + qi // inner_n, qo % outer_n * inner_n + qi % inner_n
            for t in range(FIRST.ptr[f], FIRST.ptr[f + 1]):
                g = FIRST.block[t]
                i = (g // first_n * target_m + block_m) * h + row + y0
                j = (g % first_n * target_n + block_n) * w + column + x0
                rows, columns = min(y1 - y0, p[SIZE_M] - i), min(x1 - x0, p[SIZE_N] - j)
                if rows > 0 and columns > 0:
                    again = pc > 0 or reached_before[t] != 0
                    old, reads, new = one if again else beta, again or beta != 0, alpha * FIRST.coef[t]
                    e_row = p[A_EXPONENT] + 4 * i if p[A_EXPONENT] != 0 else 0
                    e_col = p[B_EXPONENT] + 4 * j if p[B_EXPONENT] != 0 else 0
                    c, steps = p[C] + i * p[C_ROW] + j * p[C_COL], (p[C_ROW], p[C_COL])
                    sizes, exponents = (rows, columns, tiles), (e_row, e_col)
                    flush(c, steps, sizes, source + q * target_bytes, new, old, reads, exponents, buffer)

    @part
    def product(tid, threads, sync, passed, p, after, alpha, beta, tables, buffers, target_bytes, scratch, clock):
        """One product by a team of `threads`. Returns the barriers passed, or −1 when the run was called off."""
        m, k, n = tables.grid[0], tables.grid[1], tables.grid[2]
        buf_a, buf_b, buf_t = buffers
        FIRST, OUTER, INNER = tables.FIRST_W, tables.OUTER_W, tables.INNER_W
        first_R, inner_R = len(FIRST.ptr) - 1, len(INNER.ptr) - 1
        R = (len(OUTER.ptr) - 1) * inner_R  # of all but the first levels
        first_m, first_k, first_n = tables.first[0], tables.first[1], tables.first[2]
        inner_n = tables.inner[2]
        target_m, target_n = m // first_m, n // first_n
        inner_blocks = tables.inner[0] * inner_n
        blocks = target_m * target_n
        nested = inner_R != R or inner_blocks != blocks
        h, d, w = (p[SIZE_M] + m - 1) // m, (p[SIZE_K] + k - 1) // k, (p[SIZE_N] + n - 1) // n  # of one block
        KC, MA, MC, NC, N2 = p[BLOCK_KC], p[BLOCK_MA], p[BLOCK_MC], p[BLOCK_NC], p[BLOCK_N2]
        a_view = Operand(
            p[A], p[A_ROW], p[A_COL], p[SIZE_M], p[SIZE_K], m, k, first_m, first_k, h, d, p[A_SCALE], 0, tables.FIRST_U
        )
        b_view = Operand(
            p[B], p[B_ROW], p[B_COL], p[SIZE_K], p[SIZE_N], k, n, first_k, first_n, d, w, 0, p[B_SCALE], tables.FIRST_V
        )
        b_block, packed_ahead, packs_only = buf_b, p[B_PACKED] != 0, p[A] == 0
        if packed_ahead:
            b_block = p[B_PACKED]

        inner_reached = reached(INNER, inner_blocks, False)
        outer_reached = reached(OUTER, blocks // inner_blocks, False)
        first_reached = reached(FIRST, m * n // blocks, False)
        # Without outer and first levels the last product that reaches a sum takes it to C, if rows of C are contiguous
        # and there is no scaling to undo.
        direct = first_R == 1 and not nested and p[C_COL] == sum_size and p[A_EXPONENT] == 0
        goes_on = reached(INNER, inner_blocks, True)
        ends, nowhere = np.zeros(len(INNER.block), np.int64), np.zeros(len(INNER.block), np.int64)
        buf_h, ones = buf_t, np.ones(len(INNER.block), np.int64)
        if nested:
            buf_t += inner_blocks * target_bytes
        addresses = np.empty(len(INNER.block), np.int64)
        for t in range(len(addresses)):
            addresses[t] = buf_h + INNER.block[t] * target_bytes

        # Of a thread's own products the next one's operands are prefetched in the first pass over A: they come from
        # memory, while this one works in its caches. Larger products don't gain from it.
        unpacked = (
            matrix_at(after[A], after[A_ROW], after[A_COL], p[SIZE_M], p[SIZE_K], size),
            matrix_at(after[B], after[B_ROW], after[B_COL], p[SIZE_K], p[SIZE_N], size),
        )
        ahead = unpacked[0].size + unpacked[1].size if after[C] != p[C] else 0

        for jc in range(0, w, NC):  # 5th loop
            nb = min(NC, w - jc)
            panels = (nb + NR - 1) // NR
            for pc in range(0, d, KC * p[BLOCK_CHUNKS]):  # 4th loop
                kf = min(KC * p[BLOCK_CHUNKS], d - pc)
                out_scales = (alpha, one if pc > 0 else beta, 1 if pc > 0 or beta != 0 else 0)
                for f in range(first_R):
                    b_row = R * panels * NR * size  # bytes of one row of all these B̃_r
                    for i0 in range(0, h, MA):  # 3rd loop
                        lap(clock, OTHER)
                        passed = barrier(sync, passed, threads)  # nobody reads the old A and B any more
                        if passed < 0:
                            return passed
                        lap(clock, BARRIER)
                        if i0 == 0 and (packs_only or not packed_ahead):
                            pack_b(b_view, tables.V, f, pc, kf, KC, jc, nb, tid, threads, b_block, scratch)
                            lap(clock, PACK_B)
                        if packs_only:
                            break
                        tiles = (min(MA, h - i0) + MR - 1) // MR
                        a_step = tiles * sliver_of(KC)  # bytes of one packed Ã_r
                        x0, x1 = share(tiles, tid, threads)
                        x0, x1 = i0 + x0 * MR, i0 + x1 * MR
                        pack_a(a_view, tables.U, f, i0, x0, min(x1, h), x1, pc, kf, KC, buf_a, a_step, scratch)
                        lap(clock, PACK_A)
                        reset_tickets(sync, tid, threads)
                        rows_cut, columns_cut = cut(tiles, panels, MC // MR, N2 // NR, threads)
                        passed = barrier(sync, passed, threads)
                        if passed < 0:
                            return passed
                        lap(clock, BARRIER)
                        calls = rows_cut * columns_cut * ((kf + KC - 1) // KC) * R  # of the macrokernel
                        call, (ahead_0, ahead_1) = 0, share(ahead, i0 // MA, (h + MA - 1) // MA)
                        ticket = next_ticket(sync, np.int64(-1), threads)
                        while True:
                            x0, x1, j0, j1 = piece(ticket, tiles, panels, rows_cut, columns_cut, threads)
                            if x1 == 0:
                                break
                            high, ic, jn = x1 - x0, i0 + x0 * MR, jc + j0 * NR
                            rows, columns = min(high * MR, h - ic), min((j1 - j0) * NR, w - jn)
                            # What is there in all blocks, of which the last ones are the smallest.
                            out_rows = max(0, min(rows, p[SIZE_M] - (m - 1) * h - ic)) // MR * MR if direct else 0
                            out_columns = max(0, min(columns, p[SIZE_N] - (n - 1) * w - jn)) // NR * NR
                            out = Out(out_rows, out_columns, p[C_ROW], nowhere.ctypes.data)
                            for t in range(len(ends)):
                                block_m, block_n = INNER.block[t] // inner_n, INNER.block[t] % inner_n
                                c = p[C] + (block_m * h + ic) * p[C_ROW] + (block_n * w + jn) * p[C_COL]
                                ends[t] = c if goes_on[t] == 0 else 0
                            a = buf_a
                            for s in range(0, kf, KC):
                                kb = min(KC, kf - s)
                                sliver, panel = sliver_of(kb), panel_of(kb)
                                for r in range(R):
                                    here = a + x0 * sliver
                                    b = b_block + s * b_row + (r * panels + j0) * panel
                                    # What is read after the last panel of this: next product, next chunk, or anything.
                                    next_a, next_b = buf_a, b_block
                                    if r + 1 < R:
                                        next_a, next_b = here + a_step, b + panels * panel
                                    elif s + kb < kf:
                                        next_a = here + a_step
                                        next_b = b_block + (s + kb) * b_row + j0 * panel_of(min(KC, kf - s - kb))
                                    ri = r % inner_R
                                    t, count = INNER.ptr[ri], INNER.ptr[ri + 1] - INNER.ptr[ri]
                                    where, coefs = addresses.ctypes.data + 8 * t, INNER.coef.ctypes.data + sum_size * t
                                    adds = (inner_reached if nested or s == 0 else ones).ctypes.data + 8 * t
                                    to = (ends if s + kb == kf else nowhere).ctypes.data + 8 * t
                                    y0, y1 = share(ahead_1 - ahead_0, call, calls)
                                    span = ahead_0 + y0, ahead_0 + y1
                                    sizes = rows, columns, kb, p[LOWER], ic, jn
                                    sums = (count, where, coefs, adds)
                                    macrokernel(
                                        sizes, here, b, next_a, next_b, unpacked, span, sums, to, out, out_scales
                                    )
                                    call += 1
                                    a += a_step
                                    if nested and ri + 1 == inner_R:
                                        lap(clock, KERNEL)
                                        ro = r // inner_R
                                        for t in range(OUTER.ptr[ro], OUTER.ptr[ro + 1]):
                                            to = buf_t + OUTER.block[t] * inner_blocks * target_bytes
                                            again, coef = outer_reached[t] != 0 or s > 0, OUTER.coef[t]
                                            for q in range(inner_blocks):
                                                at, nbytes = q * target_bytes, high * (j1 - j0) * tile_bytes
                                                add(to + at, buf_h + at, nbytes, coef, again)
                                        lap(clock, TARGETS)
                            lap(clock, KERNEL)
                            source, start, scales = (buf_t, target_bytes, high), (ic, jn), (alpha, beta)
                            y, x = (out_rows, rows), (0, columns)
                            flush_piece(p, tables, f, first_reached, pc, scales, source, start, y, x, scratch.stage)
                            y, x = (0, out_rows), (out_columns, columns)
                            flush_piece(p, tables, f, first_reached, pc, scales, source, start, y, x, scratch.stage)
                            lap(clock, FLUSH)
                            ticket = next_ticket(sync, ticket, threads)
                    ahead = 0
                    if packed_ahead:
                        b_block += steps_of(kf) * DOT * b_row
        # Numba frees an array after its last use as an array; these are read through their addresses until here.
        return passed + 0 * (len(addresses) + len(inner_reached) + len(ones) + len(ends) + len(nowhere))

    def worker(tid, threads, team, sync, products, alpha, beta, tables, buffers):
        blocks = max(tables.grid[0] * tables.grid[1], tables.grid[1] * tables.grid[2])
        clock = buffers.clock + tid * buffers.clock_step
        lap(clock, OTHER)
        base = buffers.scratch + tid * buffers.scratch_step
        scratch = scratch_at(base, blocks, blocks * group_bytes)
        for i in range(STRIP_MOST // size):
            poke(scratch.zeros + i * size, zero)
        passed = np.int64(0)  # as a literal it would ask for a second version of `product`
        buf_a = buffers.a + tid // team * buffers.a_step
        buf_b = buffers.b + tid // team * buffers.b_step
        buf_t = buffers.targets + tid * buffers.targets_step
        mine, each = (buf_a, buf_b, buf_t), buffers.target_bytes
        for index in range(tid // team, len(products), threads // team):
            p = products[index]
            after = products[min(index + threads // team, len(products) - 1)] if team == 1 else p
            passed = product(tid % team, team, sync, passed, p, after, alpha, beta, tables, mine, each, scratch, clock)
            if passed < 0:
                break
        lap(clock, OTHER)

    return njit(named(worker, spec.isa, spec.dtype, portable), nogil=True)


def worker_signature(spec: KernelSpec):
    """The one signature of a worker of this dtype."""
    i, scalar = types.int64, getattr(types, spec.sums)
    ints = types.Array(i, 1, "C")
    packed, summed = (
        types.NamedTuple([ints, ints, types.Array(getattr(types, x), 1, "C")], Terms) for x in (spec.dtype, spec.sums)
    )
    tables = types.NamedTuple([ints] * 3 + [packed, packed, summed, packed, packed, summed, summed], Tables)
    buffers = types.NamedUniTuple(i, len(Buffers._fields), Buffers)
    return types.void(i, i, i, i, types.Array(i, 2, "C"), scalar, scalar, tables, buffers)
