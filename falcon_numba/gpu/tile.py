"""The portable kernel: C ← alpha·op(A)·op(B) + beta·C₀ for every dtype, layout and size, on any GPU Numba supports.

A block of threads computes a BM×BN tile of C; each thread TM×TN elements of it, BM/TM rows and BN/TN columns apart:

    for every BK columns of A:
        A[i0:i0+BM, k0:k0+BK]  →  shared a[BK][BM+1]      neighbouring threads read what is nearest in memory
        B[k0:k0+BK, j0:j0+BN]  →  shared b[BK][BN+1]
        barrier;  acc[p][q] += a[k][i + p·BM/TM] · b[k][j + q·BN/TN]  for k in BK;  barrier
    C ← alpha·acc + beta·C₀

What sticks out of the matrices reads zero and is not written. Operands become the accumulator's type as they are
loaded, and the result its own as it is stored, so that mixed dtypes need no copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from . import target
from .elements import conversions, memory_type
from .launch import Launch, Source, kernel

cuda: Any = None
GRID_Y = 65535  # blocks of a grid in y at most


class Tile(NamedTuple):
    """BM×BN elements of C to a block, TM×TN to a thread, BK inner steps between barriers."""

    BM: int
    BN: int
    BK: int
    TM: int
    TN: int

    @property
    def threads(self) -> int:
        return (self.BM // self.TM) * (self.BN // self.TN)


# By size of the accumulator: the largest that stay in registers.
TILES = {4: Tile(64, 64, 16, 4, 4), 8: Tile(64, 64, 8, 4, 4), 16: Tile(32, 32, 8, 2, 2)}
SMALL = Tile(4, 6, 3, 2, 2)  # for the simulator


class Spec(NamedTuple):
    """What the code of a kernel depends on: names of dtypes, and whether an operand is conjugated."""

    a: str
    b: str
    c: str  # of C₀
    out: str
    accumulator: str
    conjugate_a: bool = False
    conjugate_b: bool = False

    @property
    def tile(self) -> Tile:
        return SMALL if target.simulated() else TILES[max(4, np.dtype(self.accumulator).itemsize)]


def accumulator_of(dtype: np.dtype) -> np.dtype:
    """The type in which products of a dtype are added: float32 for shorter floats, int32 for shorter integers."""
    if dtype.kind in "biu":
        # Signed or not makes no difference modulo 2^bits, nor for the sign of what is loaded.
        return np.dtype(f"int{8 * max(4, dtype.itemsize)}")
    return np.dtype(np.float32) if dtype.itemsize <= 2 else dtype


@functools.cache
def source(spec: Spec) -> Source:
    """The kernel of a spec."""
    pointers = tuple(f"pointer {memory_type(x)}" for x in (spec.a, spec.b, spec.c, spec.out))
    arguments = (*pointers, *("int64",) * 5, *("int64",) * 16, spec.accumulator, spec.accumulator)
    name = "tile " + " ".join(map(str, (*spec, *spec.tile)))
    blocks = 2 if np.dtype(spec.accumulator).itemsize <= 4 else 1  # more would spill
    return Source(name, lambda: build(spec), arguments, spec.tile.threads, blocks)


def build(spec: Spec) -> Callable[..., None]:
    """The kernel function: (a, b, c, out, M, N, K, batches, inner, 4 × 4 strides, alpha, beta)."""
    global cuda  # the simulator changes what a kernel sees under this name, and looks at globals only
    cuda = target.numba_cuda()
    load_a, _ = conversions(spec.a, spec.accumulator, conjugate=spec.conjugate_a)
    load_b, _ = conversions(spec.b, spec.accumulator, conjugate=spec.conjugate_b)
    load_c, _ = conversions(spec.c, spec.accumulator)
    _, store = conversions(spec.out, spec.accumulator)
    number = np.dtype(spec.accumulator).type if target.simulated() else getattr(cuda.types, spec.accumulator)
    BM, BN, BK, TM, TN = spec.tile
    threads, across = spec.tile.threads, BN // TN
    down = BM // TM
    shape_a, shape_b = (BK, BM + 1), (BK, BN + 1)  # one more, against bank conflicts
    truth = spec.out == "bool"

    def tile_kernel(
        a,
        b,
        c,
        out,
        M,
        N,
        K,
        batches,
        inner,
        a_outer,
        a_inner,
        a_row,
        a_column,
        b_outer,
        b_inner,
        b_row,
        b_column,
        c_outer,
        c_inner,
        c_row,
        c_column,
        out_outer,
        out_inner,
        out_row,
        out_column,
        alpha,
        beta,
    ):
        shared_a = cuda.shared.array(shape_a, number)
        shared_b = cuda.shared.array(shape_b, number)
        acc = cuda.local.array((TM, TN), number)
        zero = number(0)
        thread = cuda.threadIdx.x
        ti, tj = thread // across, thread % across
        columns = (N + BN - 1) // BN
        i0, j0 = cuda.blockIdx.x // columns * BM, cuda.blockIdx.x % columns * BN
        a_by_rows, b_by_rows = abs(a_column) < abs(a_row), abs(b_column) < abs(b_row)

        for batch in range(cuda.blockIdx.y, batches, cuda.gridDim.y):
            outer = batch // inner
            within = batch - outer * inner
            a_start = outer * a_outer + within * a_inner
            b_start = outer * b_outer + within * b_inner
            for p in range(TM):
                for q in range(TN):
                    acc[p, q] = zero
            for k0 in range(0, K, BK):
                for at in range(thread, BM * BK, threads):
                    if a_by_rows:
                        i, k = at // BK, at % BK
                    else:
                        k, i = at // BM, at % BM
                    value = zero
                    if i0 + i < M and k0 + k < K:
                        value = load_a(a[a_start + (i0 + i) * a_row + (k0 + k) * a_column])
                    shared_a[k, i] = value
                for at in range(thread, BN * BK, threads):
                    if b_by_rows:
                        k, j = at // BN, at % BN
                    else:
                        j, k = at // BK, at % BK
                    value = zero
                    if j0 + j < N and k0 + k < K:
                        value = load_b(b[b_start + (k0 + k) * b_row + (j0 + j) * b_column])
                    shared_b[k, j] = value
                cuda.syncthreads()
                for k in range(BK):
                    for p in range(TM):
                        x = shared_a[k, ti + p * down]
                        for q in range(TN):
                            if truth:
                                acc[p, q] = acc[p, q] | (x & shared_b[k, tj + q * across])
                            else:
                                acc[p, q] = number(acc[p, q] + number(x * shared_b[k, tj + q * across]))
                cuda.syncthreads()
            c_start = outer * c_outer + within * c_inner
            out_start = outer * out_outer + within * out_inner
            for p in range(TM):
                i = i0 + ti + p * down
                for q in range(TN):
                    j = j0 + tj + q * across
                    if i < M and j < N:
                        value = acc[p, q]
                        # One times a complex number with an infinite part would be NaN.
                        if alpha != number(1):
                            value = number(alpha * value)
                        if beta != zero:
                            old = load_c(c[c_start + i * c_row + j * c_column])
                            if beta != number(1):
                                old = number(beta * old)
                            value = (value | old) if truth else number(value + old)
                        out[out_start + i * out_row + j * out_column] = store(value)

    return tile_kernel


def grid(spec: Spec, M: int, N: int, batches: int) -> tuple[int, int, int]:
    """Blocks for a product."""
    tile = spec.tile
    return -(-M // tile.BM) * -(-N // tile.BN), min(batches, GRID_Y), 1


def batch_axes(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Batch axes merged where every operand steps evenly over two of them, and without those of length one.

    Parameters
    ----------
    shape : sequence of int
    strides : sequence of sequences of int
        Of each operand, along these axes.

    Returns
    -------
    shape, strides
        At least two axes.
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        own = [x[axis] for x in strides]
        if sizes and all(x[-1] == size * step for x, step in zip(steps, own, strict=True)):
            sizes[-1] *= size
            for x, step in zip(steps, own, strict=True):
                x[-1] = step
        else:
            sizes.append(size)
            for x, step in zip(steps, own, strict=True):
                x.append(step)
    missing = max(0, 2 - len(sizes))
    return [1] * missing + sizes, [[0] * missing + x for x in steps]


def launches(
    spec: Spec,
    device: int,
    mnk: tuple[int, int, int],
    batch: Sequence[int],
    operands: Sequence[tuple[int, Sequence[int], int]],
    alpha: Any,
    beta: Any,
) -> list[Launch]:
    """Prepared launches of a product or a batch; one, unless more than two batch axes don't merge.

    Parameters
    ----------
    spec : Spec
    device : int
    mnk : (M, N, K)
        K = 0 reads neither A nor B.
    batch : sequence of int
        Common batch axes.
    operands : sequence of (address, strides, itemsize)
        A, B, C₀ and the result; strides in elements, along the batch axes, rows and columns.
    alpha, beta : scalar
        Of the accumulator's type.
    """
    M, N, K = mnk
    if not (M and N and prod(batch)):
        return []
    shape, steps = batch_axes(batch, [strides[:-2] for _, strides, _ in operands])
    run = kernel(source(spec), device)
    found = []
    for index in np.ndindex(*shape[:-2]):
        addresses = [
            address + itemsize * sum(i * s for i, s in zip(index, own, strict=False))
            for (address, _, itemsize), own in zip(operands, steps, strict=True)
        ]
        strides = [x for (_, s, _), own in zip(operands, steps, strict=True) for x in (*own[-2:], *s[-2:])]
        count = shape[-2] * shape[-1]
        arguments = (*addresses, M, N, K, count, shape[-1], *strides, alpha, beta)
        found.append(run.launcher(grid(spec, M, N, count), arguments))
    return found
