"""float32 products on the FMA units.

    global A, B --cp.async 16 B--> 3 stages in shared memory --ld.shared.v4--> registers --8x8 FMA a thread--> C

A block of 256 threads owns 128x128 of C; its 2x4 warps own 64x32 each, the 8x4 lanes of a warp 8x8 each. A stage is
32 deep: A as 128 rows of 36 floats (the 4 unused ones spread rows over the banks), B as 32 rows of 128.

    rows of a lane:    y, y+8, ... y+56          y = bits 1-3 of the lane
    columns of a lane: 4x..4x+3, 16+4x..16+4x+3  x = bits 4 and 0

While one k-step's FMAs run, the next step's fragments are loaded; copies are two stages ahead.
"""

from __future__ import annotations

from typing import Any

from .. import ptx
from ..leaf import Family, Source, types

BM, BN, BK, STAGES, GROUP = 128, 128, 32, 3, 8
TM = TN = 8
THREADS = 256
PITCH = (BK + 4) * 4  # bytes of a row of A in shared memory
A_BYTES = BM * PITCH
STAGE = A_BYTES + BK * BN * 4
FAMILY = Family("ffma", ("float32",), (8, 0), (BM, BN, BK), THREADS, 16)


def _load4(b: Any, address: Any, offset: int) -> list[Any]:
    return ptx.emit(b, f"ld.shared.v4.f32 {{$0,$1,$2,$3}}, [$4+{offset}];", "ffff", [address], "r")


def _multiply(b: Any, args: list[Any]) -> Any:
    """One stage: 32 rank-one updates of the accumulators."""
    acc = ptx.unpack(b, args[0], TM * TN)

    def rows(k: int) -> list[Any]:
        return [x for i in range(TM) for x in _load4(b, args[1], i * 8 * PITCH + k * 4)]

    def columns(k: int) -> list[Any]:
        return [x for j in range(TN // 4) for x in _load4(b, args[2], (k * BN + j * 16) * 4)]

    left, right = rows(0), columns(0)
    for k in range(BK):
        next_left, next_right = left, right
        if k + 1 < BK:
            next_right = columns(k + 1)
            if k % 4 == 3:
                next_left = rows(k + 1)
        for i in range(TM):
            for j in range(TN) if i % 2 == 0 else reversed(range(TN)):  # to and fro: one operand stays in the cache
                acc[i * TN + j] = b.fma(left[i * 4 + k % 4], right[j], acc[i * TN + j])
        left, right = next_left, next_right
    return ptx.pack(b, acc)


def _copy(b: Any, args: list[Any]) -> None:
    shared_a, shared_b, a, b_, lda, ldb = args
    ptx.copy_rows(b, shared_a, a, lda, BM * BK // 4 // THREADS, THREADS // (BK // 4), THREADS // (BK // 4) * PITCH)
    ptx.copy_rows(b, shared_b, b_, ldb, BK * BN // 4 // THREADS, THREADS // (BN // 4), THREADS // (BN // 4) * BN * 4)


def _store(read: bool) -> Any:
    def generate(b: Any, args: list[Any]) -> None:
        acc, c, ldc, alpha, beta = args
        values = ptx.unpack(b, acc, TM * TN)
        for i in range(TM):
            row = b.add(c, b.mul(ldc, ptx.c64(8 * i)))
            for j in range(TN // 4):
                out = [b.fmul(x, alpha) for x in values[i * TN + j * 4 : i * TN + j * 4 + 4]]
                if read:
                    old = ptx.emit(b, f"ld.global.v4.f32 {{$0,$1,$2,$3}}, [$4+{j * 64}];", "ffff", [row], "l")
                    out = [b.fma(beta, x, y) for x, y in zip(old, out, strict=True)]
                ptx.emit(b, f"st.global.v4.f32 [$0+{j * 64}], {{$1,$2,$3,$4}};", "", [row, *out], "lffff")

    return ptx.make("store", [_ACC, "l", "l", "f", "f"], None, generate)


_ACC = ptx.registers("f", TM * TN)


def source() -> Source:
    zeros = ptx.make("zeros", [], _ACC, lambda b, _: ptx.pack(b, [ptx.ir.Constant(ptx.F32, 0.0)] * (TM * TN)))
    multiply = ptx.make("multiply", [_ACC, "r", "r"], _ACC, _multiply)
    copy = ptx.make("copy", ["r", "r", "l", "l", "l", "l"], None, _copy)
    store, update = _store(False), _store(True)
    wait = ptx.copy_wait(STAGES - 2)
    thread, block, base, commit = ptx.thread, ptx.block, ptx.shared_base, ptx.copy_commit
    barrier, word = ptx.barrier, ptx.load_word

    def kernel(table, M, N, K, alpha, beta):
        t = thread()
        gm, gn = M // BM, N // BN
        bid = block()
        product = bid // (gm * gn)
        bid -= product * (gm * gn)
        entry = table + product * 48
        lda, ldb, ldc = word(entry + 24) * 4, word(entry + 32) * 4, word(entry + 40) * 4
        group = bid // (GROUP * gn)  # GROUP rows of tiles side by side share B in the L2 cache
        rest = bid - group * GROUP * gn
        rows = min(GROUP, gm - group * GROUP)
        m0, n0 = (group * GROUP + rest % rows) * BM, rest // rows * BN
        s0 = base()
        ra, ca, rb, cb = t >> 3, t & 7, t >> 5, t & 31
        a = word(entry) + (m0 + ra) * lda + ca * 16
        b = word(entry + 8) + rb * ldb + (n0 + cb * 4) * 4
        to_a, to_b = s0 + ra * PITCH + ca * 16, s0 + A_BYTES + rb * (BN * 4) + cb * 16
        warp, lane = t >> 5, t & 31
        y, x = (lane >> 1) & 7, ((lane >> 4) << 1) | (lane & 1)
        m, n = (warp % 2) * 64 + y, (warp // 2) * 32 + x * 4
        from_a, from_b = s0 + m * PITCH, s0 + A_BYTES + n * 4
        depth = K // BK
        for s in range(STAGES - 1):
            if s < depth:
                copy(to_a + s * STAGE, to_b + s * STAGE, a, b, lda, ldb)
                a += BK * 4
                b += BK * ldb
            commit()
        acc = zeros()
        read, write = 0, (STAGES - 1) * STAGE
        for k in range(depth):
            wait()
            barrier()
            if k + STAGES - 1 < depth:
                copy(to_a + write, to_b + write, a, b, lda, ldb)
                a += BK * 4
                b += BK * ldb
            commit()
            write += STAGE
            if write == STAGES * STAGE:
                write = 0
            acc = multiply(acc, from_a + read, from_b + read)
            read += STAGE
            if read == STAGES * STAGE:
                read = 0
        c = word(entry + 16) + (m0 + m) * ldc + (n0 + n) * 4
        if beta == 0:
            store(acc, c, ldc, alpha, beta)
        else:
            update(acc, c, ldc, alpha, beta)

    return Source(FAMILY, "float32", kernel, types.float32, STAGES * STAGE, 2)
