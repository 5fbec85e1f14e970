"""The five loops around the micro-kernel, as every thread of a run executes them.

One product, sizes being those of one block (⌈M/m⌉ × ⌈K/k⌉ × ⌈N/n⌉)::

    5th loop  jc   NC columns of a block of B
    4th loop  pc     CHUNKS·KC of the inner dimension
              r0       PRODUCTS of the R products (all of them, where their packed forms fit into the workspace):
                         combine and pack their B̃_r                                               [threads share]
    3rd loop  ic         MC rows of a block of A: combine and pack their Ã_r                        [one thread]
              jn           N2 columns: the targets T_q (one per block of C) of MC × N2 live in L2/L3
              s              KC of the inner dimension
              r                product: T_q += W[q, r]·Ã_r·B̃_r
    2nd loop  jr                 NR columns
    1st loop  ir                   MR rows:               micro-kernel
                           T_q → C, row by row

H_r never exists: a finished tile goes straight into the targets (fused GEMM + Combine H). The inner dimension is never
split between threads and every element sees the same operations in the same order for any number of them, so the
result has the same bits.

Threads form a grid over the tiles of a block (`thread_grid`); each packs the rows of A that it needs. In a run of many
small products each thread takes whole products instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from .epilogue import make_flush
from .microkernel import make_microkernel, make_portable_microkernel
from .pack import STRIP_MOST, Layout, Operand, Scratch, Terms, make_pack
from .phases import BARRIER, FLUSH, KERNEL, OTHER, PACK_A, PACK_B, lap
from .simd import inner, inner_of, make_memory, named
from .spec import KernelSpec
from .sync import barrier

# Columns of the table of products, one row of int64 each. Addresses; steps in bytes; sizes of the whole matrices;
# scale factors and exponents (addresses, 0 where there are none); where all of B lies packed already (0: pack it on
# the way; with A = 0: pack it there and do no more); block sizes.
A, A_ROW, A_COL, B, B_ROW, B_COL, C, C_ROW, C_COL = range(9)
SIZE_M, SIZE_N, SIZE_K, A_SCALE, B_SCALE, A_EXPONENT, B_EXPONENT = range(9, 16)
B_PACKED, BLOCK_KC, BLOCK_CHUNKS, BLOCK_MC, BLOCK_NC, BLOCK_N2, BLOCK_PRODUCTS = range(16, 23)
COLUMNS = 23

STREAM_BYTES = 2**20  # packed operands larger than this bypass the caches


@inner
def thread_grid(tiles, panels, threads):
    """Threads along the rows and along the columns of tiles: the grid whose busiest thread has least to do."""
    best, best_columns = np.int64(2**62), 1
    for columns in range(1, threads + 1):
        if threads % columns == 0:
            rows = threads // columns
            most = ((tiles + rows - 1) // rows) * ((panels + columns - 1) // columns)
            if most < best:
                best, best_columns = most, columns
    return threads // best_columns, best_columns


class Tables(NamedTuple):
    """The flattened scheme: its grid, the combinations of A and B, and the targets of each product."""

    grid: object  # int64 (m, k, n)
    U: Terms
    V: Terms
    W: Terms


class Buffers(NamedTuple):
    """Workspace addresses. `a`, `targets`, `scratch` and `clock` have one part per thread, `b` one per team.

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


def make_worker(spec: KernelSpec, portable: bool):
    """Compile-ready worker for one kernel spec; `worker_signature` is its only signature."""
    MR, NV, NR, VL, size = spec.MR, spec.NV, spec.NR, spec.VL, spec.itemsize
    tile_bytes, lanes_bytes = MR * NR * size, VL * size
    microkernel = make_portable_microkernel(spec) if portable else make_microkernel(spec)
    pack = make_pack(spec, portable)
    flush = make_flush(spec, portable)
    _, poke, _ = make_memory(spec.dtype)
    zero, one = np.dtype(spec.dtype).type(0), np.dtype(spec.dtype).type(1)

    part = inner_of(spec.isa, spec.dtype, portable)

    @part
    def macrokernel(tiles, panels, kb, a, b, next_b, targets, addresses, coefs, accumulate):
        """2nd and 1st loop: all tiles of Ã_r · B̃_r for one chunk of K; prefetches the panel of B that comes next."""
        panel = kb * NR * size
        sliver = MR * ((kb + VL - 1) // VL) * lanes_bytes
        prefetched = max(1, kb // 4) * 64  # bytes that one tile prefetches
        for jr in range(panels):
            here = b + jr * panel
            ahead = here + panel if jr + 1 < panels else next_b
            done = 0
            for ir in range(tiles):
                step = 64 if done < panel else 0
                line = ahead + done if step else ahead
                offset = (jr * tiles + ir) * tile_bytes
                microkernel(kb, a + ir * sliver, here, targets, addresses, coefs, accumulate, offset, line, step)
                done += prefetched

    @part
    def share(count, part, parts):
        """First and last of the `count` things that belong to `part` of `parts`."""
        return count * part // parts, count * (part + 1) // parts

    @part
    def pack_b(view, terms, r0, r1, pc, depth, KC, jc, nb, tid, threads, out, scratch):
        """This thread's share of rows pc … pc + depth and columns jc … jc + nb of B̃_r for r0 ≤ r < r1, by chunks."""
        width = (r1 - r0) * ((nb + NR - 1) // NR) * NR * size  # bytes of one row of all these B̃_r
        for s in range(0, depth, KC):
            kb, first = min(KC, depth - s), pc + s
            x0, x1 = share((kb + VL - 1) // VL, tid, threads)
            x0, x1 = first + x0 * VL, first + min(kb, x1 * VL)
            layout = Layout(NV, 1, NR * size, 0, kb * NR * size)
            step = (nb + NR - 1) // NR * NR * kb * size
            streamed = width * kb > STREAM_BYTES
            pack(view, layout, terms, r0, r1, x0, x1, x1, jc, jc + nb, first, out + s * width, step, scratch, streamed)

    @part
    def pack_a(view, terms, r0, r1, ic, mb, pc, depth, KC, out, step, scratch):
        """Rows ic … ic + mb and columns pc … pc + depth of Ã_r for r0 ≤ r < r1, by chunks, `step` bytes apart."""
        x_end = ic + (mb + MR - 1) // MR * MR
        bytes_ = (r1 - r0) * step
        for s in range(0, depth, KC):
            kb = min(KC, depth - s)
            y0, y1 = pc + s, pc + s + kb
            layout = Layout(1, MR, MR * ((kb + VL - 1) // VL) * lanes_bytes, lanes_bytes, MR * lanes_bytes)
            streamed = bytes_ > STREAM_BYTES
            pack(view, layout, terms, r0, r1, ic, ic + mb, x_end, y0, y1, ic, out, step, scratch, streamed)
            out += bytes_

    @part
    def targets_of(terms, products, blocks, buf_t, target_bytes):
        """How the terms of W meet their targets, when `products` products at a time are added before a flush to C.

        Returns
        -------
        addresses, reached : one per term: of its target; whether an earlier product of the pass has reached it
        ones : as many ones, for the later chunks of K
        visits : int64 (blocks, passes + 1): how many passes before pass i reached the block
        """
        hits, R = len(terms.block), len(terms.ptr) - 1
        addresses, reached = np.empty(hits, np.int64), np.empty(hits, np.int64)
        visits = np.zeros((blocks, (R + products - 1) // products + 1), np.int64)
        for r in range(R):
            i = r // products
            for t in range(terms.ptr[r], terms.ptr[r + 1]):
                q = terms.block[t]
                addresses[t] = buf_t + q * target_bytes
                reached[t] = visits[q, i + 1] > 0
                visits[q, i + 1] = 1
        for q in range(blocks):
            for i in range(visits.shape[1] - 1):
                visits[q, i + 1] += visits[q, i]
        return addresses, reached, np.ones(hits, np.int64), visits

    @part
    def product(tid, threads, sync, passed, p, alpha, beta, tables, buf_a, buf_b, buf_t, target_bytes, scratch, clock):
        """One product by a team of `threads`. Returns the barriers passed, or −1 when the run was called off."""
        m, k, n = tables.grid[0], tables.grid[1], tables.grid[2]
        R, W = len(tables.W.ptr) - 1, tables.W
        h, d, w = (p[SIZE_M] + m - 1) // m, (p[SIZE_K] + k - 1) // k, (p[SIZE_N] + n - 1) // n  # of one block
        KC, MC, NC, N2, PRODUCTS = p[BLOCK_KC], p[BLOCK_MC], p[BLOCK_NC], p[BLOCK_N2], p[BLOCK_PRODUCTS]
        a_view = Operand(p[A], p[A_ROW], p[A_COL], p[SIZE_M], p[SIZE_K], m, k, h, d, p[A_SCALE], 0)
        b_view = Operand(p[B], p[B_ROW], p[B_COL], p[SIZE_K], p[SIZE_N], k, n, d, w, 0, p[B_SCALE])
        b_block, packed_ahead, packs_only = buf_b, p[B_PACKED] != 0, p[A] == 0
        if packed_ahead:
            b_block = p[B_PACKED]
        addresses, reached, ones, visits = targets_of(W, PRODUCTS, m * n, buf_t, target_bytes)

        rows_of_threads, columns_of_threads = thread_grid((h + MR - 1) // MR, (min(w, NC) + NR - 1) // NR, threads)
        first_tile, last_tile = share((h + MR - 1) // MR, tid // columns_of_threads, rows_of_threads)
        i0, i1 = first_tile * MR, min(h, last_tile * MR)
        if i1 > i0:  # equal blocks of A
            parts = (i1 - i0 + MC - 1) // MC
            MC = ((i1 - i0 + parts - 1) // parts + MR - 1) // MR * MR
        a_step = (MC + MR - 1) // MR * MR * ((KC + VL - 1) // VL) * lanes_bytes  # bytes of one packed Ã_r

        for jc in range(0, w, NC):  # 5th loop
            nb = min(NC, w - jc)
            panels = (nb + NR - 1) // NR
            first_panel, last_panel = share(panels, tid % columns_of_threads, columns_of_threads)
            for pc in range(0, d, KC * p[BLOCK_CHUNKS]):  # 4th loop
                kf = min(KC * p[BLOCK_CHUNKS], d - pc)
                for r0 in range(0, R, PRODUCTS):
                    r1 = min(R, r0 + PRODUCTS)
                    b_row = (r1 - r0) * panels * NR * size  # bytes of one row of all these B̃_r
                    if packs_only or not packed_ahead:
                        lap(clock, OTHER)
                        passed = barrier(sync, passed, threads)  # nobody reads the old B any more
                        if passed < 0:
                            return passed
                        lap(clock, BARRIER)
                        pack_b(b_view, tables.V, r0, r1, pc, kf, KC, jc, nb, tid, threads, b_block, scratch)
                        lap(clock, PACK_B)
                        passed = barrier(sync, passed, threads)
                        if passed < 0:
                            return passed
                        lap(clock, BARRIER)
                    for ic in range(i0, i1, MC):  # 3rd loop
                        if packs_only:
                            break
                        mb = min(MC, i1 - ic)
                        tiles = (mb + MR - 1) // MR
                        pack_a(a_view, tables.U, r0, r1, ic, mb, pc, kf, KC, buf_a, a_step, scratch)
                        lap(clock, PACK_A)
                        for jn in range(first_panel, last_panel, N2 // NR):
                            wide = min(N2 // NR, last_panel - jn)
                            a = buf_a
                            for s in range(0, kf, KC):
                                kb = min(KC, kf - s)
                                accumulate = reached if s == 0 else ones
                                for r in range(r0, r1):
                                    b = b_block + s * b_row + ((r - r0) * panels + jn) * NR * kb * size
                                    # The panel that is read after the last of this one: next product, chunk, columns.
                                    if r + 1 < r1:
                                        next_b = b + panels * NR * kb * size
                                    elif s + kb < kf:
                                        next_b = b_block + (s + kb) * b_row + jn * NR * min(KC, kf - s - kb) * size
                                    else:
                                        next_b = b_block + (jn + wide) * NR * min(KC, kf) * size
                                    t, count = W.ptr[r], W.ptr[r + 1] - W.ptr[r]
                                    where, coefs = addresses.ctypes.data + 8 * t, W.coef.ctypes.data + size * t
                                    adds = accumulate.ctypes.data + 8 * t
                                    macrokernel(tiles, wide, kb, a, b, next_b, count, where, coefs, adds)
                                    a += a_step
                            lap(clock, KERNEL)
                            for q in range(m * n):
                                earlier = visits[q, r0 // PRODUCTS]
                                i, j = q // n * h + ic, q % n * w + jc + jn * NR
                                rows, columns = min(mb, p[SIZE_M] - i), min(wide * NR, w - jc - jn * NR, p[SIZE_N] - j)
                                if rows > 0 and columns > 0 and visits[q, r0 // PRODUCTS + 1] > earlier:
                                    c, t = p[C] + i * p[C_ROW] + j * p[C_COL], buf_t + q * target_bytes
                                    again = pc > 0 or earlier > 0
                                    factor, reads = one if again else beta, again or beta != 0
                                    e_row = p[A_EXPONENT] + 4 * i if p[A_EXPONENT] != 0 else 0
                                    e_col = p[B_EXPONENT] + 4 * j if p[B_EXPONENT] != 0 else 0
                                    steps, line = (p[C_ROW], p[C_COL]), scratch.stage
                                    flush(c, steps, rows, columns, t, tiles, alpha, factor, reads, e_row, e_col, line)
                            lap(clock, FLUSH)
                    if packed_ahead:
                        b_block += kf * b_row
        # Numba frees an array after its last use as an array; these are read through their addresses until here.
        return passed + 0 * (len(addresses) + len(reached) + len(ones))

    def worker(tid, threads, team, sync, products, alpha, beta, tables, buffers):
        blocks = max(tables.grid[0] * tables.grid[1], tables.grid[1] * tables.grid[2])
        clock = buffers.clock + tid * buffers.clock_step
        lap(clock, OTHER)
        base = buffers.scratch + tid * buffers.scratch_step
        sources = (8 * blocks + 63) // 64 * 64
        scratch = Scratch(base, base + sources, base + sources + STRIP_MOST)
        for i in range(STRIP_MOST // size):
            poke(scratch.zeros + i * size, zero)
        passed = 0
        buf_a = buffers.a + tid * buffers.a_step
        buf_b = buffers.b + tid // team * buffers.b_step
        buf_t = buffers.targets + tid * buffers.targets_step
        for index in range(tid // team, len(products), threads // team):
            p, each = products[index], buffers.target_bytes
            passed = product(
                tid % team, team, sync, passed, p, alpha, beta, tables, buf_a, buf_b, buf_t, each, scratch, clock
            )
            if passed < 0:
                break
        lap(clock, OTHER)

    return njit(named(worker, spec.isa, spec.dtype, portable), nogil=True)


def worker_signature(spec: KernelSpec):
    """The one signature of a worker of this dtype."""
    i, scalar = types.int64, types.float32 if spec.itemsize == 4 else types.float64
    ints, reals = types.Array(i, 1, "C"), types.Array(scalar, 1, "C")
    terms = types.NamedTuple([ints, ints, reals], Terms)
    tables = types.NamedTuple([ints, terms, terms, terms], Tables)
    buffers = types.NamedUniTuple(i, len(Buffers._fields), Buffers)
    return types.void(i, i, i, i, types.Array(i, 2, "C"), scalar, scalar, tables, buffers)
