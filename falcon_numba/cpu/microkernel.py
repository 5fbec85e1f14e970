"""The micro-kernel: an MR × NR tile of one block product, and where it goes.

::

    sliver of A (packed)                       panel of B (packed)
    chunk 0        chunk 1                     k = 0   b[0, 0] … b[0, NR-1]
    a[0, 0..VL-1]  a[0, VL..2VL-1]                 1   b[1, 0] … b[1, NR-1]
    a[1, 0..VL-1]  …                               …
    …                                          NR contiguous elements a step, aligned to 64 bytes
    a[MR-1, …]     …
    MR·VL contiguous elements a chunk

A row of a chunk is one vector, so packing a row-major A needs no transposition, and all MR broadcasts of a step lie
at constant offsets from one pointer within MR·VL·itemsize (768) bytes: no L1 set conflicts whatever K is.

The finished tile is not written to C. It is added, times a coefficient, to *packed* accumulators ("targets", one per
block of C that the product contributes to), stored as contiguous tiles: combining H costs no traffic beyond L2 and has
no edge cases. `epilogue` moves them to C.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..decision.constants import ROWS_STEP
from .simd import CACHE_LINE, I64, Vec, c64, inner_of, make_memory, peek_i64, phi
from .spec import KernelSpec

UNROLL = 4  # steps of k in one round of the loop; each round also prefetches a cache line of the next panel of B


def make_microkernel(spec: KernelSpec):
    """The micro-kernel in LLVM vectors.

    Returns
    -------
    microkernel : Numba function (K, rows, a, b, targets, addresses, coefs, accumulate, offset, next_a, step_a, next_b,
        step_b)
        tile = A[MR, K] · B[K, NR], accumulated over k in order in one FMA chain per element; then for t < `targets`
        the tile times coefs[t] is stored at addresses[t] + offset, or added where accumulate[t]. Of a tile at the edge
        only `rows` rows matter; up to `ROWS_STEP` − 1 more are computed, the others left as they are. `a`, `b` are
        addresses of the packed sliver and panel; `addresses` (int64), `coefs` (lane dtype) and `accumulate` (int64)
        are addresses of arrays. Cache lines next_a, next_a + step_a, … are prefetched to L2, and those of b likewise.
    """
    VL, NV, NR, size = spec.VL, spec.NV, spec.NR, spec.itemsize
    unroll = min(UNROLL, VL)
    groups = VL // unroll  # rounds in a chunk

    @intrinsic
    def microkernel(
        typingctx, K, rows, a, b, targets, addresses, coefs, accumulate, offset, next_a, step_a, next_b, step_b
    ):
        def codegen(context, builder, signature, args):
            K, rows, a, b, targets, addresses, coefs, accumulate, offset, next_a, step_a, next_b, step_b = args
            v, add, mul = Vec(builder, spec.dtype, VL), builder.add, builder.mul

            def step(acc, a, b):
                """One k: NV loads of B, a broadcast of A for every row, fused multiply-adds of all pairs."""
                line = [v.load(add(b, c64(j * v.width)), align=v.width) for j in range(NV)]
                out = []
                for i in range(len(acc) // NV):
                    x = v.splat(v.scalar(add(a, c64(i * v.width))))
                    out += [v.fma(x, line[j], acc[i * NV + j]) for j in range(NV)]
                return out

            def loop(name, count, state, steps):
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
                    acc = step(acc, add(a, c64(u * size)), add(b, c64(u * NR * size)))
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

            def target(t):
                """The tile of target t."""
                return add(builder.load(v.pointer(add(addresses, builder.shl(t, c64(3))), I64)), offset)

            def tile(MR):
                """The first MR rows of the tile, from beginning to end."""
                with cgutils.for_range(builder, targets) as each:
                    for x in range(0, MR * NR * size, CACHE_LINE):
                        v.prefetch(add(target(each.index), c64(x)))

                rounds = builder.sdiv(K, c64(unroll))
                state = loop("group", rounds, [a, b, next_a, next_b, *[v.zero] * (MR * NV)], unroll)
                acc = loop("rest", builder.sub(K, mul(rounds, c64(unroll))), state, 1)[4:]

                with cgutils.for_range(builder, targets) as each:
                    word = builder.shl(each.index, c64(3))
                    out = target(each.index)
                    coef = v.splat(v.scalar(add(coefs, mul(each.index, c64(size)))))
                    adding = builder.icmp_signed("!=", builder.load(v.pointer(add(accumulate, word), I64)), c64(0))
                    with builder.if_else(adding) as branches:
                        for branch, accumulates in zip(branches, (True, False), strict=True):
                            with branch:
                                for x, value in enumerate(acc):
                                    at = add(out, c64(x * v.width))
                                    y = (
                                        v.fma(coef, value, v.load(at, v.width))
                                        if accumulates
                                        else builder.fmul(coef, value)
                                    )
                                    v.store(y, at, v.width)

            whole, *edges = sorted({*range(ROWS_STEP, spec.MR, ROWS_STEP), spec.MR}, reverse=True)
            for MR in edges:
                above = builder.icmp_signed(">", rows, c64(MR - ROWS_STEP))
                with builder.if_then(builder.and_(above, builder.icmp_signed("<=", rows, c64(MR)))):
                    tile(MR)
            with builder.if_then(builder.icmp_signed(">", rows, c64(edges[0] if edges else 0)), likely=True):
                tile(whole)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13), codegen

    return microkernel


def make_portable_microkernel(spec: KernelSpec):
    """The same function in plain loops: bit-equal to `make_microkernel`, for reading, testing and odd machines."""
    VL, MR, NR, size = spec.VL, spec.MR, spec.NR, spec.itemsize
    peek, poke, fma = make_memory(spec.dtype)
    zero = np.dtype(spec.dtype).type(0)

    part = inner_of(spec.isa, spec.dtype)

    @part
    def microkernel(K, rows, a, b, targets, addresses, coefs, accumulate, offset, next_a, step_a, next_b, step_b):
        for i in range(rows):
            for j in range(NR):
                acc = zero
                for k in range(K):
                    x = peek(a + ((k // VL) * MR * VL + i * VL + k % VL) * size)
                    acc = fma(x, peek(b + (k * NR + j) * size), acc)
                for t in range(targets):
                    at = peek_i64(addresses + 8 * t) + offset + (i * NR + j) * size
                    coef = peek(coefs + t * size)
                    poke(at, fma(coef, acc, peek(at)) if peek_i64(accumulate + 8 * t) != 0 else coef * acc)

    return microkernel
