"""The five loops around the micro-kernel, as every thread of a run executes them.

One product, sizes being those of one block (⌈M/m⌉ × ⌈K/k⌉ × ⌈N/n⌉)::

    5th loop  jc   NC columns of a block of B
    4th loop  pc     CHUNKS·KC of the inner dimension:  combine and pack B, all R products       [threads share]
    3rd loop  ic       MC rows of a block of A:         combine and pack A, all R products       [one thread]
              jn         N2 columns: the targets T_q (one per block of C) of MC × N2 live in L2/L3
              s            KC of the inner dimension
              r              product: B̃_r, Ã_r → T_q += W[q, r]·Ã_r·B̃_r
    2nd loop  jr               NR columns
    1st loop  ir                 MR rows:               micro-kernel
                         T_q → C, once, row by row

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
from .simd import inner, make_memory
from .spec import KernelSpec
from .sync import barrier

# Columns of the table of products, one row of int64 each. Addresses; steps in bytes; sizes of the whole matrices;
# scale factors and exponents (addresses, 0 where there are none); block sizes.
A, A_ROW, A_COL, B, B_ROW, B_COL, C, C_ROW, C_COL = range(9)
SIZE_M, SIZE_N, SIZE_K, A_SCALE, B_SCALE, A_EXPONENT, B_EXPONENT = range(9, 16)
BLOCK_KC, BLOCK_CHUNKS, BLOCK_MC, BLOCK_NC, BLOCK_N2 = range(16, 21)
COLUMNS = 21


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
    """Workspace addresses. `a`, `targets` and `scratch` have one part per thread, `b` one per team."""

    a: int
    a_step: int
    b: int
    b_step: int
    targets: int
    targets_step: int
    target_bytes: int
    scratch: int
    scratch_step: int


def make_worker(spec: KernelSpec, portable: bool):
    """Compile-ready worker for one kernel spec; `worker_signature` is its only signature."""
    MR, NV, NR, VL, size = spec.MR, spec.NV, spec.NR, spec.VL, spec.itemsize
    tile_bytes, lanes_bytes = MR * NR * size, VL * size
    microkernel = make_portable_microkernel(spec) if portable else make_microkernel(spec)
    pack = make_pack(spec, portable)
    flush = make_flush(spec, portable)
    _, poke, _ = make_memory(spec.dtype)
    zero, one = np.dtype(spec.dtype).type(0), np.dtype(spec.dtype).type(1)

    @inner
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
                microkernel(
                    kb,
                    a + ir * sliver,
                    here,
                    targets,
                    addresses,
                    coefs,
                    accumulate,
                    (jr * tiles + ir) * tile_bytes,
                    ahead + done if step else ahead,
                    step,
                )
                done += prefetched

    @inner
    def share(count, part, parts):
        """First and last of the `count` things that belong to `part` of `parts`."""
        return count * part // parts, count * (part + 1) // parts

    @inner
    def product(tid, threads, sync, passed, p, alpha, beta, tables, buf_a, buf_b, buf_t, target_bytes, scratch):
        """One product by a team of `threads`. Returns the barriers passed, or −1 when the run was called off."""
        m, k, n = tables.grid[0], tables.grid[1], tables.grid[2]
        R = len(tables.U.ptr) - 1
        M, N, K = (p[SIZE_M] + m - 1) // m, (p[SIZE_N] + n - 1) // n, (p[SIZE_K] + k - 1) // k
        KC, MC, NC, N2 = p[BLOCK_KC], p[BLOCK_MC], p[BLOCK_NC], p[BLOCK_N2]
        a_view = Operand(p[A], p[A_ROW], p[A_COL], p[SIZE_M], p[SIZE_K], m, k, M, K, p[A_SCALE], 0)
        b_view = Operand(p[B], p[B_ROW], p[B_COL], p[SIZE_K], p[SIZE_N], k, n, K, N, 0, p[B_SCALE])
        chunks_vl = (KC + VL - 1) // VL
        a_step = (MC + MR - 1) // MR * MR * chunks_vl * lanes_bytes  # bytes of one packed Ã_r

        # Target addresses and, for the first chunk of K, whether a product is the first to reach its target.
        hits = len(tables.W.block)
        addresses, fresh, later = np.empty(hits, np.int64), np.empty(hits, np.int64), np.ones(hits, np.int64)
        seen = np.zeros(m * n, np.int64)
        for t in range(hits):
            q = tables.W.block[t]
            addresses[t] = buf_t + q * target_bytes
            fresh[t] = seen[q]
            seen[q] = 1

        rows_of_threads, columns_of_threads = thread_grid((M + MR - 1) // MR, (min(N, NC) + NR - 1) // NR, threads)
        first_tile, last_tile = share((M + MR - 1) // MR, tid // columns_of_threads, rows_of_threads)
        i0, i1 = first_tile * MR, min(M, last_tile * MR)
        if i1 > i0:  # equal blocks of A
            parts = (i1 - i0 + MC - 1) // MC
            MC = ((i1 - i0 + parts - 1) // parts + MR - 1) // MR * MR
        for jc in range(0, N, NC):  # 5th loop
            nb = min(NC, N - jc)
            panels = (nb + NR - 1) // NR
            first_panel, last_panel = share(panels, tid % columns_of_threads, columns_of_threads)
            for pc in range(0, K, KC * p[BLOCK_CHUNKS]):  # 4th loop
                depth = min(KC * p[BLOCK_CHUNKS], K - pc)
                chunks = (depth + KC - 1) // KC
                chunk_bytes = R * panels * NR * KC * size  # bytes of a full chunk of B, all products
                passed = barrier(sync, passed, threads)  # nobody reads the old B any more
                if passed < 0:
                    return passed
                for s in range(chunks):
                    kb = min(KC, depth - s * KC)
                    x0, x1 = share((kb + VL - 1) // VL, tid, threads)
                    layout = Layout(NV, 1, NR * size, 0, kb * NR * size)
                    x0, x1, xb = pc + s * KC + x0 * VL, pc + s * KC + min(kb, x1 * VL), pc + s * KC
                    pack(
                        b_view,
                        layout,
                        tables.V,
                        x0,
                        x1,
                        x1,
                        jc,
                        jc + nb,
                        xb,
                        buf_b + s * chunk_bytes,
                        panels * NR * kb * size,
                        scratch,
                        R * panels * kb * NR * size > 2**20,
                    )
                passed = barrier(sync, passed, threads)
                if passed < 0:
                    return passed
                for ic in range(i0, i1, MC):  # 3rd loop
                    mb = min(MC, i1 - ic)
                    tiles = (mb + MR - 1) // MR
                    for s in range(chunks):
                        kb = min(KC, depth - s * KC)
                        layout = Layout(1, MR, MR * ((kb + VL - 1) // VL) * lanes_bytes, lanes_bytes, MR * lanes_bytes)
                        y0 = pc + s * KC
                        pack(
                            a_view,
                            layout,
                            tables.U,
                            ic,
                            ic + mb,
                            ic + tiles * MR,
                            y0,
                            y0 + kb,
                            ic,
                            buf_a + s * R * a_step,
                            a_step,
                            scratch,
                            R * a_step > 2**20,
                        )
                    for jn in range(first_panel, last_panel, N2 // NR):
                        wide = min(N2 // NR, last_panel - jn)
                        for s in range(chunks):
                            kb = min(KC, depth - s * KC)
                            b_chunk, b_step = buf_b + s * chunk_bytes, panels * NR * kb * size
                            for r in range(R):
                                b = b_chunk + r * b_step + jn * NR * kb * size
                                if r + 1 < R:
                                    next_b = b + b_step
                                elif s + 1 < chunks:
                                    next_b = b_chunk + chunk_bytes + jn * NR * min(KC, depth - (s + 1) * KC) * size
                                else:
                                    next_b = buf_b + (jn + wide) * NR * min(KC, depth) * size
                                first = tables.W.ptr[r]
                                macrokernel(
                                    tiles,
                                    wide,
                                    kb,
                                    buf_a + (s * R + r) * a_step,
                                    b,
                                    next_b,
                                    tables.W.ptr[r + 1] - first,
                                    addresses.ctypes.data + 8 * first,
                                    tables.W.coef.ctypes.data + size * first,
                                    (fresh if s == 0 else later).ctypes.data + 8 * first,
                                )
                        for q in range(m * n):
                            i, j = q // n * M + ic, q % n * N + jc + jn * NR
                            rows, columns = min(mb, p[SIZE_M] - i), min(wide * NR, N - jc - jn * NR, p[SIZE_N] - j)
                            if rows > 0 and columns > 0:
                                flush(
                                    p[C] + i * p[C_ROW] + j * p[C_COL],
                                    p[C_ROW],
                                    p[C_COL],
                                    rows,
                                    columns,
                                    buf_t + q * target_bytes,
                                    tiles,
                                    alpha,
                                    beta if pc == 0 else one,
                                    pc > 0 or beta != 0,
                                    p[A_EXPONENT] + 4 * i if p[A_EXPONENT] != 0 else 0,
                                    p[B_EXPONENT] + 4 * j if p[B_EXPONENT] != 0 else 0,
                                    scratch.stage,
                                )
        # The arrays above are used through their addresses only; touching them here keeps them alive until now.
        return passed + 0 * (len(addresses) + len(fresh) + len(later))

    @njit(nogil=True)
    def worker(tid, threads, team, sync, products, alpha, beta, tables, buffers):
        blocks = max(tables.grid[0] * tables.grid[1], tables.grid[1] * tables.grid[2])
        base = buffers.scratch + tid * buffers.scratch_step
        sources = (8 * blocks + 63) // 64 * 64
        scratch = Scratch(base, base + sources, base + sources + STRIP_MOST)
        for i in range(STRIP_MOST // size):
            poke(scratch.zeros + i * size, zero)
        passed = 0
        for index in range(tid // team, len(products), threads // team):
            passed = product(
                tid % team,
                team,
                sync,
                passed,
                products[index],
                alpha,
                beta,
                tables,
                buffers.a + tid * buffers.a_step,
                buffers.b + tid // team * buffers.b_step,
                buffers.targets + tid * buffers.targets_step,
                buffers.target_bytes,
                scratch,
            )
            if passed < 0:
                break

    return worker


def worker_signature(spec: KernelSpec):
    """The one signature of a worker of this dtype."""
    i, scalar = types.int64, types.float32 if spec.itemsize == 4 else types.float64
    ints, reals = types.Array(i, 1, "C"), types.Array(scalar, 1, "C")
    terms = types.NamedTuple([ints, ints, reals], Terms)
    tables = types.NamedTuple([ints, terms, terms, terms], Tables)
    buffers = types.NamedUniTuple(i, len(Buffers._fields), Buffers)
    return types.void(i, i, i, i, types.Array(i, 2, "C"), scalar, scalar, tables, buffers)
