"""The micro-kernel: an MR × NR tile of one block product, and where it goes.

::

    sliver of A (packed)                       panel of B (packed)
    chunk 0        chunk 1                     k = 0   b[0, 0] … b[0, NR-1]
    a[0, 0..VL-1]  a[0, VL..2VL-1]                 1   b[1, 0] … b[1, NR-1]
    a[1, 0..VL-1]  …                               …
    …                                          NR contiguous elements a step, aligned to 64 bytes
    a[MR-1, …]     …
    MR·VL contiguous elements a chunk

Where a lane adds up several products (`KernelSpec.DOT`; int16: two), every element above is so many consecutive ones of
the inner dimension: in A they lie so; of B, whose rows are packed one by one as ever, they are paired in registers.
Zeros stand for what is missing in the last one.

A row of a chunk is one vector, so packing a row-major A needs no transposition, and all MR broadcasts of a step lie
at constant offsets from one pointer within MR·VL·itemsize (768) bytes: no L1 set conflicts whatever K is.

The finished tile is added, times a coefficient, to *packed* accumulators ("targets", one per block of C that the
product contributes to), stored as contiguous tiles: combining H costs no traffic beyond L2 and has no edge cases. The
last contribution to a target can take the sum to C right away, which saves writing and reading it once more;
`epilogue` moves what stays in the targets.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..decision.constants import ROWS_STEP
from ..inlined import inner_of
from .simd import CACHE_LINE, I64, Vec, c64, make_memory, peek_i64, phi
from .spec import KernelSpec

UNROLL = 4  # steps of k in one round of the loop; each round also prefetches a cache line of the next panel of B


def unpack(builder, tuples):
    """The values in each of several tuples."""
    return [cgutils.unpack_tuple(builder, x) for x in tuples]


def make_microkernel(spec: KernelSpec):
    """The micro-kernel in LLVM vectors.

    Returns
    -------
    microkernel : Numba function (K, (rows, columns), (a, b), (targets, addresses, coefs, accumulate), offset,
        (outs, out_offset, out_row), (alpha, beta, reads), (next_a, step_a, next_b, step_b))
        tile = A[MR, K] · B[K, NR], accumulated over k in order in one FMA chain per element (K counts lanes, of `DOT`
        elements each); then for t < `targets`
        x = coefs[t]·tile, plus what is at addresses[t] + offset where accumulate[t]. Where outs[t] is 0, x is stored
        there; else alpha·x, plus beta times what is there with `reads`, is stored in a C at outs[t] + out_offset,
        rows `out_row` bytes apart, columns contiguous. Of a tile at the edge only `rows` rows and `columns` columns
        matter; up to `ROWS_STEP` − 1 rows and VL − 1 columns more are computed, the others left as they are. `a`, `b`
        are addresses of the packed sliver and panel; `addresses`, `outs` (int64), `coefs` (dtype of the sums) and
        `accumulate` (int64) are addresses of arrays. Cache lines next_a, next_a + step_a, … are prefetched to L2, and
        those of b likewise.
    """
    VL, NV, NR, size = spec.VL, spec.NV, spec.NR, spec.sum_size  # a lane of A or B is as wide as a sum
    unroll = min(UNROLL, VL)
    groups = VL // unroll  # rounds in a chunk
    i, scalar = types.int64, getattr(types, spec.sums)
    scales = types.Tuple([scalar, scalar, i])
    signature = types.void(
        i, *(types.UniTuple(i, n) for n in (2, 2, 4)), i, types.UniTuple(i, 3), scales, types.UniTuple(i, 4)
    )

    @intrinsic
    def microkernel(typingctx, K, size_of_tile, packed, sums, offset, out, scales, ahead):
        def codegen(context, builder, signature, args):
            K, offset = args[0], args[4]
            (rows, columns), (a, b), (targets, addresses, coefs, accumulate) = unpack(builder, args[1:4])
            (outs, out_offset, out_row), (alpha, beta, reads), (next_a, step_a, next_b, step_b) = unpack(
                builder, args[5:]
            )
            v, add, mul = Vec(builder, spec.sums, VL), builder.add, builder.mul

            def step(acc, NV, a, b):
                """One k: NV loads of B, a broadcast of A for every row, fused multiply-adds of all pairs."""
                loaded = range(NV if spec.DOT == 1 else spec.NV)
                line = [v.load(add(b, c64(j * v.width)), align=v.width) for j in loaded]
                if spec.DOT == 2:
                    line = list(v.pair(*line))
                out = []
                for i in range(len(acc) // NV):
                    x = v.splat(v.scalar(add(a, c64(i * v.width))))
                    for j in range(NV):
                        y = acc[i * NV + j]
                        out.append(v.fma(x, line[j], y) if spec.DOT == 1 else v.dot(x, line[j], y, spec.isa))
                return out

            def loop(name, count, state, NV, steps):
                """`count` rounds of `steps` k each; leaves the builder after the loop, returns the state there."""
                entry = builder.block
                head, exit_ = builder.append_basic_block(name), builder.append_basic_block(name + ".end")
                builder.cbranch(builder.icmp_signed(">", count, c64(0)), head, exit_)
                builder.position_at_end(head)
                i = phi(builder, I64, (c64(0), entry))
                nodes = [phi(builder, x.type, (x, entry)) for x in state]
                a, b, line_a, line_b, *acc = nodes
                if steps > 1:
                    v.prefetch(line_a)
                    v.prefetch(line_b)
                for u in range(steps):
                    acc = step(acc, NV, add(a, c64(u * size)), add(b, c64(u * NR * size)))
                after = add(i, c64(1))
                a_next = add(a, c64(steps * size))
                if steps > 1:  # after the last round of a chunk (a power of two of them) come its other rows
                    last = builder.icmp_signed("==", builder.and_(i, c64(groups - 1)), c64(groups - 1))
                    a_next = add(a_next, builder.select(last, c64((spec.MR - 1) * v.width), c64(0)))
                new = [a_next, add(b, c64(steps * NR * size)), add(line_a, step_a), add(line_b, step_b), *acc]
                for node, value in zip([i, *nodes], [after, *new], strict=True):
                    node.add_incoming(value, head)
                builder.cbranch(builder.icmp_signed("<", after, count), head, exit_)
                builder.position_at_end(exit_)
                return [phi(builder, x.type, (x, entry), (y, head)) for x, y in zip(state, new, strict=True)]

            def word(array, t):
                """Element t of an array of int64."""
                return builder.load(v.pointer(add(array, builder.shl(t, c64(3))), I64))

            def is_set(x):
                return builder.icmp_signed("!=", x, c64(0))

            def both(condition):
                """The two branches of a condition, each with what the condition is there."""
                with builder.if_else(condition) as branches:
                    for branch, holds in zip(branches, (True, False), strict=True):
                        with branch:
                            yield holds

            def prefetch_sums(MR, NV):
                """What the tile will be added to: it comes while the tile is computed."""
                with cgutils.for_range(builder, targets) as each:
                    out = word(outs, each.index)
                    with builder.if_then(builder.or_(builder.not_(is_set(out)), is_set(word(accumulate, each.index)))):
                        at = add(word(addresses, each.index), offset)
                        for x in range(0, MR * NR * size, CACHE_LINE):
                            v.prefetch(add(at, c64(x)))
                    with builder.if_then(is_set(out)):
                        row = add(out, out_offset)
                        for _ in range(MR):
                            for x in (*range(0, NV * v.width, CACHE_LINE), NV * v.width - 1):
                                v.prefetch(add(row, c64(x)))
                            row = add(row, out_row)

            def between(x, low, high):
                """low < x ≤ high"""
                return builder.and_(builder.icmp_signed(">", x, c64(low)), builder.icmp_signed("<=", x, c64(high)))

            def add_to_sums(acc, NV):
                """The finished tile, to where it belongs."""
                alphas, betas = v.splat(alpha), v.splat(beta)
                with cgutils.for_range(builder, targets) as each:
                    target, out = add(word(addresses, each.index), offset), word(outs, each.index)
                    coef = v.splat(v.scalar(add(coefs, mul(each.index, c64(size)))))

                    def total(x, i, j, accumulates):
                        at = add(target, c64((i * NR + j * VL) * size))
                        return v.fma(coef, x, v.load(at, v.width)) if accumulates else v.mul(coef, x)

                    for accumulates in both(is_set(word(accumulate, each.index))):
                        for leaves in both(is_set(out)):
                            for reading in both(is_set(reads)) if leaves else (False,):
                                row = add(out, out_offset)
                                for x, value in enumerate(acc):
                                    i, j = divmod(x, NV)
                                    y = total(value, i, j, accumulates)
                                    if leaves:
                                        at, y = add(row, c64(j * v.width)), v.mul(alphas, y)
                                        v.store(v.fma(betas, v.load(at), y) if reading else y, at)
                                    else:
                                        v.store(y, add(target, c64((i * NR + j * VL) * size)), v.width)
                                    if j == NV - 1:
                                        row = add(row, out_row)

            def tile(MR, NV):
                """The first MR rows and NV vectors of the tile, from beginning to end."""
                prefetch_sums(MR, NV)
                rounds = builder.sdiv(K, c64(unroll))
                state = loop("group", rounds, [a, b, next_a, next_b, *[v.zero] * (MR * NV)], NV, unroll)
                state = loop("rest", builder.sub(K, mul(rounds, c64(unroll))), state, NV, 1)
                add_to_sums(state[4:], NV)

            # Code for every height and width of tiles: at the edges the kernel computes little more than what is there.
            heights = [*range(ROWS_STEP, spec.MR, ROWS_STEP), spec.MR]
            for low, high in reversed(list(zip([0, *heights], heights, strict=False))):
                for width in range(NV, 0, -1):
                    fits = builder.and_(between(rows, low, high), between(columns, (width - 1) * VL, width * VL))
                    with builder.if_then(fits, likely=(high, width) == (spec.MR, NV)):
                        tile(high, width)
            return context.get_dummy_value()

        return signature, codegen

    return microkernel


def make_portable_microkernel(spec: KernelSpec):
    """The same function in plain loops: bit-equal to `make_microkernel`, for reading, testing and odd machines."""
    MR, NR, DOT, chunk, size, packed_size = spec.MR, spec.NR, spec.DOT, spec.chunk, spec.sum_size, spec.itemsize
    peek, poke, fma = make_memory(spec.sums)
    peek_packed, _, _ = make_memory(spec.dtype)
    zero, lane = np.dtype(spec.sums).type(0), np.dtype(spec.sums).type

    part = inner_of(spec.isa, spec.dtype)

    @part
    def microkernel(K, size_of_tile, packed, sums, offset, out, scales, ahead):
        (rows, columns), (a, b), (targets, addresses, coefs, accumulate) = size_of_tile, packed, sums
        (outs, out_offset, out_row), (alpha, beta, reads) = out, scales
        for i in range(rows):
            for j in range(columns):
                acc = zero
                for k in range(K * DOT):
                    x = peek_packed(a + ((k // chunk) * MR * chunk + i * chunk + k % chunk) * packed_size)
                    acc = fma(lane(x), lane(peek_packed(b + (k * NR + j) * packed_size)), acc)
                for t in range(targets):
                    at = peek_i64(addresses + 8 * t) + offset + (i * NR + j) * size
                    coef = peek(coefs + t * size)
                    y = fma(coef, acc, peek(at)) if peek_i64(accumulate + 8 * t) != 0 else coef * acc
                    if peek_i64(outs + 8 * t) != 0:
                        at = peek_i64(outs + 8 * t) + out_offset + i * out_row + j * size
                        y = alpha * y
                        if reads != 0:
                            y = fma(beta, peek(at), y)
                    poke(at, y)

    return microkernel
