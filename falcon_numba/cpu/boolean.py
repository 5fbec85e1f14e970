"""Products of truth values, C[i, j] = OR over k of A[i, k] AND B[k, j], with a bit for each of them.

OR and AND are no ring: no scheme applies, but a row of C is the OR of those rows of B where A is true, and a register
holds hundreds of its bits::

    B as bits, by panels of columns                  A as bits, row by row
    panel 0          panel 1                         word 0: a[i, 0] … a[i, 63]   word 1 …
    b[0, 0..255]     b[0, 256..511]   …
    b[1, 0..255]     …

Rows of B are visited where a bit of A is set, and no more of them once all of C's row is true: dense matrices cost
little more than reading them, as sparse ones do.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..decision.hardware import isa_family
from ..diskcache import DiskCache
from ..inlined import inner_of, named
from ..problem import Problem
from .simd import I8, I64, c64, peek_i64, poke_i64
from .sync import barrier, next_ticket, reset_tickets, share
from .threads import pool
from .workspace import borrow

WORD = 64  # bits, and truth values, that are read and written at once
LANES, VECTORS = {"avx512": 8, "avx2": 4}, 4  # words in a vector (elsewhere 2), and vectors in a row of a panel
ROWS = 16  # of C that a thread takes at once
ALONE = 2**21  # bytes of operands and result that one thread has gone through before others are awake


def panel_words(isa: str) -> int:
    """Words in a row of a panel of B."""
    return LANES.get(isa, 2) * VECTORS


@intrinsic
def bits_of(typingctx, address):
    """The truth of 64 bytes as bits."""

    def codegen(context, builder, signature, args):
        type_ = ir.VectorType(I8, WORD)
        x = builder.load(builder.inttoptr(args[0], type_.as_pointer()), align=1)
        return builder.bitcast(builder.icmp_unsigned("!=", x, ir.Constant(type_, [0] * WORD)), I64)

    return types.int64(types.int64), codegen


@intrinsic
def bytes_of(typingctx, address, bits):
    """Store 64 bits as truth values."""

    def codegen(context, builder, signature, args):
        type_ = ir.VectorType(I8, WORD)
        x = builder.zext(builder.bitcast(args[1], ir.VectorType(ir.IntType(1), WORD)), type_)
        builder.store(x, builder.inttoptr(args[0], type_.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def truth_at(typingctx, address):
    """The truth of a byte, 0 or 1."""

    def codegen(context, builder, signature, args):
        x = builder.load(builder.inttoptr(args[0], I8.as_pointer()))
        return builder.zext(builder.icmp_unsigned("!=", x, I8(0)), I64)

    return types.int64(types.int64), codegen


@intrinsic
def put_truth(typingctx, address, bit):
    def codegen(context, builder, signature, args):
        builder.store(builder.trunc(args[1], I8), builder.inttoptr(args[0], I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def make_row(isa: str):
    """One row of C, as bits of one panel of columns.

    Returns
    -------
    row : Numba function (out, panel, bits, words)
        out |= those rows of `panel` whose bits are set in the `words` words at `bits`, until all of out is set; all are
        addresses.
    """
    lanes = LANES.get(isa, 2)
    type_ = ir.VectorType(I64, lanes)
    width = 8 * lanes

    @intrinsic
    def row(typingctx, out, panel, bits, words):
        def codegen(context, builder, signature, args):
            out, panel, bits, words = args
            at = lambda base, j: builder.inttoptr(builder.add(base, c64(j * width)), type_.as_pointer())  # noqa: E731
            sums = [cgutils.alloca_once_value(builder, builder.load(at(out, j), align=8)) for j in range(VECTORS)]
            rest = cgutils.alloca_once(builder, I64)
            count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I64, [I64]), "llvm.ctpop.i64")
            first = ir.FunctionType(I64, [I64, ir.IntType(1)])
            first = cgutils.get_or_insert_function(builder.module, first, "llvm.cttz.i64")
            all_of = ir.FunctionType(I64, [type_])
            all_of = cgutils.get_or_insert_function(builder.module, all_of, f"llvm.vector.reduce.and.v{lanes}i64")
            with cgutils.for_range(builder, words) as each:
                word = builder.inttoptr(builder.add(bits, builder.shl(each.index, c64(3))), I64.as_pointer())
                mask = builder.load(word, align=8)
                builder.store(mask, rest)
                with builder.if_then(builder.icmp_signed("!=", mask, c64(0))):
                    block = builder.add(panel, builder.mul(each.index, c64(WORD * VECTORS * width)))
                    with cgutils.for_range(builder, builder.call(count, [mask])):
                        mask = builder.load(rest)
                        k = builder.call(first, [mask, ir.IntType(1)(1)])
                        builder.store(builder.and_(mask, builder.sub(mask, c64(1))), rest)
                        line = builder.add(block, builder.mul(k, c64(VECTORS * width)))
                        for j, total in enumerate(sums):
                            x = builder.load(at(line, j), align=8)
                            builder.store(builder.or_(builder.load(total), x), total)
                    together = builder.load(sums[0])
                    for total in sums[1:]:
                        together = builder.and_(together, builder.load(total))
                    full = builder.icmp_signed("==", builder.call(all_of, [together]), c64(-1))
                    with builder.if_then(full):
                        each.do_break()
            for j, total in enumerate(sums):
                builder.store(builder.load(total), at(out, j), align=8)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return row


def make_worker(isa: str):
    """Compile-ready worker (tid, threads, sync, (M, N, K), (a, a_row), (b, b_row), (c, c_row), bits_b, bits_a).

    Rows of A, B and C are contiguous, `a_row`, `b_row` and `c_row` bytes apart. `bits_b` has room for K rows, rounded
    up to whole words, of every panel, `bits_a` for a row of A and one of a panel.
    """
    row, wide = make_row(isa), panel_words(isa)
    part = inner_of("bool", isa)

    @part
    def to_bits(out, row_, count):
        """A row of `count` truth values as whole words."""
        whole = count // WORD
        for w in range(whole):
            poke_i64(out + 8 * w, bits_of(row_ + WORD * w))
        if whole * WORD < count:
            word = np.int64(0)
            for j in range(whole * WORD, count):
                word |= truth_at(row_ + j) << (j - whole * WORD)
            poke_i64(out + 8 * whole, word)

    @part
    def pack(k, N, K, b, b_row, bits, buffer):
        """Row k of B to every panel; zeros beyond the last row and column."""
        words = (N + WORD - 1) // WORD
        panels, depth = (words + wide - 1) // wide, (K + WORD - 1) // WORD * WORD
        if k < K:
            to_bits(buffer, b + k * b_row, N)
        for w in range(panels * wide):
            word = peek_i64(buffer + 8 * w) if k < K and w < words else np.int64(0)
            poke_i64(bits + 8 * (w // wide * depth * wide + k * wide + w % wide), word)

    @part
    def finish(c, bits, columns):
        """Bits as truth values."""
        whole = columns // WORD
        for w in range(whole):
            bytes_of(c + WORD * w, peek_i64(bits + 8 * w))
        for j in range(whole * WORD, columns):
            put_truth(c + j, peek_i64(bits + 8 * whole) >> (j - whole * WORD) & 1)

    def worker(tid, threads, sync, size, a_view, b_view, c_view, bits_b, bits_a):
        M, N, K = size
        a, a_row = a_view
        b, b_row = b_view
        c, c_row = c_view
        depth, words = (K + WORD - 1) // WORD * WORD, (K + WORD - 1) // WORD
        first, last = share(depth, tid, threads)
        for k in range(first, last):
            pack(k, N, K, b, b_row, bits_b, bits_a)
        reset_tickets(sync, tid, threads)
        if barrier(sync, np.int64(0), threads) < 0:
            return
        sums = bits_a + 8 * words
        ticket = next_ticket(sync, np.int64(-1), threads)
        while ticket * ROWS < M:
            for i in range(ticket * ROWS, min(M, (ticket + 1) * ROWS)):
                to_bits(bits_a, a + i * a_row, K)
                for j in range(0, N, wide * WORD):
                    columns = min(wide * WORD, N - j)
                    for w in range(wide):  # what lies beyond the last column counts as full
                        missing = (w + 1) * WORD - columns
                        word = np.int64(0)
                        if missing >= WORD:
                            word = np.int64(-1)
                        elif missing > 0:
                            word = np.int64(-1) << (WORD - missing)
                        poke_i64(sums + 8 * w, word)
                    row(sums, bits_b + j // WORD * depth * 8, bits_a, words)
                    finish(c + i * c_row + j, sums, columns)
            ticket = next_ticket(sync, ticket, threads)

    return njit(named(worker, "bool", isa), nogil=True)


@functools.cache
def _worker(isa: str) -> Any:
    function = make_worker(isa)
    function._cache = DiskCache(f"bool-{isa}")
    i = types.int64
    pair = types.UniTuple(i, 2)
    signature = types.void(i, i, i, types.UniTuple(i, 3), pair, pair, pair, i, i)
    function.compile(signature)
    return function.get_overload(signature)


def workspace_bytes(M: int, N: int, K: int) -> tuple[int, int]:
    """Bytes for B as bits, and for each thread."""
    wide = panel_words(isa_family())
    depth, words = math.ceil(K / WORD) * WORD, math.ceil(N / WORD)
    each = 8 * (max(math.ceil(K / WORD), math.ceil(words / wide) * wide) + wide)
    return depth * math.ceil(words / wide) * wide * 8, math.ceil(each / 64) * 64


def run(problem: Problem, threads: int) -> None:
    """C ← A·B, or C ← C OR A·B where beta is not 0, for every product of a problem of dtype bool."""
    M, N, K = problem.mnk
    worker = _worker(isa_family())
    if M * N + N * K + K * M <= ALONE:
        threads = 1
    of_b, each = workspace_bytes(M, N, K)
    with borrow(of_b + threads * each) as base:
        for index in np.ndindex(problem.c.shape[:-2]):
            a, b = (_by_rows(x[index]) for x in (problem.a, problem.b))
            target = problem.c[index]
            c = target if problem.beta == 0 and _has_rows(target) else np.empty((M, N), bool)
            a_view, b_view, c_view = ((x.ctypes.data, x.strides[0]) for x in (a, b, c))

            def work(tid: int, threads: int, sync: int) -> None:
                mine = base + of_b + tid * each
                worker(tid, threads, sync, (M, N, K), a_view, b_view, c_view, base, mine)  # noqa: B023

            pool.run(threads, work)
            if problem.beta != 0:
                np.logical_or(target, c, out=target)
            elif c is not target:
                np.copyto(target, c)


def _has_rows(x: np.ndarray) -> bool:
    """Whether rows are contiguous."""
    return x.strides[1] == 1 or x.shape[1] == 1


def _by_rows(x: np.ndarray) -> np.ndarray:
    return x if _has_rows(x) else np.ascontiguousarray(x)
