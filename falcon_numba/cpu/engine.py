"""Runs products on the CPU: from views of A, B and C to the compiled worker.

One engine serves one dtype: `Engine.run` takes a list of equal or different products (a batch is a list), one scheme
and one set of block sizes, writes them down as a table of integers, and starts the threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..problem import Problem
from . import worker as w
from .blocking import Blocks
from .cache import DiskCache
from .epilogue import exponent_range
from .guard import ZERO_EXPONENT, Magnitudes
from .pack import Terms
from .spec import KernelSpec
from .threads import pool
from .workspace import ALIGN, borrow

if TYPE_CHECKING:
    from ..algorithms.flatten import FlatScheme


class Scaling(NamedTuple):
    """Exact powers of two: rows of A times `rows`, columns of B times `columns`, undone by the exponents in C."""

    rows: np.ndarray  # lane dtype (M,)
    columns: np.ndarray  # lane dtype (N,)
    row_exponents: np.ndarray  # int32 (M,), of C
    column_exponents: np.ndarray  # int32 (N,)

    @property
    def transposed(self) -> Scaling:
        return Scaling(self.columns, self.rows, self.column_exponents, self.row_exponents)


def scaling_for(rows: Magnitudes, columns: Magnitudes, spec: KernelSpec) -> Scaling:
    """Powers of two that bring every row of A and column of B to a magnitude in [1, 2), as far as the range allows."""
    least, most = exponent_range(spec.dtype)
    parts = []
    for found in (rows, columns):
        shift = np.where(found.exponents == ZERO_EXPONENT, 0, np.clip(found.exponents, least, most))
        back = np.where(found.exponents == ZERO_EXPONENT, ZERO_EXPONENT, shift)
        parts.append((np.ldexp(np.ones(len(shift), spec.dtype), -shift), back.astype(np.int32)))
    return Scaling(parts[0][0], parts[1][0], parts[0][1], parts[1][1])


@dataclass(frozen=True, slots=True, eq=False)
class PackedB:
    """B combined and packed once for many products with the same scheme and block sizes: the engine's other B source.

    Attributes
    ----------
    data : ndarray of uint8
        All B̃_r, in the order in which the loops read them.
    shape : (K, N)
    scheme : FlatScheme
    blocks : Blocks
        Of which `form_of_b` shaped `data`.
    """

    data: np.ndarray
    shape: tuple[int, int]
    scheme: FlatScheme
    blocks: Blocks

    @property
    def address(self) -> int:
        return -(-self.data.ctypes.data // ALIGN) * ALIGN


class Engine:
    """The compiled worker of one kernel spec, with SIMD kernels or their portable twins.

    Attributes
    ----------
    clock : ndarray of int64, shape (threads or more, phases.COLUMNS), or None
        Where runs leave the time that each thread spent in each phase, added to what is there. For measurements of one
        run at a time; None reads no clock.
    """

    def __init__(self, spec: KernelSpec, portable: bool = False):
        self.spec = spec
        self.portable = portable
        self.clock: np.ndarray | None = None
        self._worker = w.make_worker(spec, portable)
        self._worker._cache = DiskCache(f"{'portable' if portable else spec.isa}-{spec.dtype}")
        self._worker.compile(w.worker_signature(spec))

    def run(
        self,
        problems: Sequence[Problem],
        scheme: FlatScheme,
        blocks: Blocks,
        threads: int,
        *,
        whole_products: bool = False,
        scaling: Scaling | None = None,
        packed: PackedB | None = None,
    ) -> int:
        """Compute every product in place and return the number of threads that did.

        Parameters
        ----------
        problems : sequence of Problem
            Single products or batches, of the engine's dtype, alpha and beta equal in all of them. `blocks` must suit
            the largest. A column-major C works, but is better transposed first, together with the scheme.
        whole_products : bool
            Each thread takes whole products (many small ones) instead of sharing each (few large ones).
        scaling : Scaling, optional
            For a single product.
        packed : PackedB, optional
            From `pack_b`, for a single product: read instead of the problem's `b`.
        """
        table = self._table(problems, blocks, scaling)
        if packed is not None:
            if packed.blocks.form_of_b != blocks.form_of_b or packed.scheme is not scheme:
                raise ValueError("B was packed for another scheme or other block sizes")
            table[:, w.B_PACKED] = packed.address
        alpha, beta = problems[0].alpha, problems[0].beta
        return self._start(table, alpha, beta, scheme, blocks, threads, whole_products)

    def pack_b(self, b: np.ndarray, scheme: FlatScheme, blocks: Blocks, threads: int) -> PackedB:
        """Combine and pack all of `b`, shape (K, N), for `run`; an LCMA's form is R/(k·n) times as large as `b`."""
        K, N = b.shape
        _, k, n = scheme.grid
        panels = math.ceil(math.ceil(N / n) / self.spec.NR)
        row_bytes = scheme.rank * panels * self.spec.NR * self.spec.itemsize
        data = np.empty(math.ceil(K / k) * row_bytes + ALIGN, np.uint8)
        packed = PackedB(data, (K, N), scheme, blocks)
        nothing = np.empty((1, K), b.dtype)
        table = self._table([Problem(nothing, b, np.empty((1, N), b.dtype))], blocks, None)
        table[:, w.A], table[:, w.B_PACKED] = 0, packed.address
        self._start(table, 1, 0, scheme, blocks, threads, False)
        return packed

    def _start(
        self,
        table: np.ndarray,
        alpha: float,
        beta: float,
        scheme: FlatScheme,
        blocks: Blocks,
        threads: int,
        whole: bool,
    ) -> int:
        tables = _tables(scheme, blocks.OUTER, self.spec.dtype)
        dtype = np.dtype(self.spec.dtype).type
        factors = dtype(alpha), dtype(beta)
        clock = self.clock  # kept alive here until the run is over
        if clock is not None and len(clock) < threads:
            raise ValueError(f"the clock has rows for {len(clock)} threads, the run has {threads}")
        teams = threads if whole else 1
        with borrow(blocks.workspace(threads, teams)) as base:
            b = base + threads * blocks.a_bytes
            targets = b + teams * blocks.b_bytes
            buffers = w.Buffers(
                a=base,
                a_step=blocks.a_bytes,
                b=b,
                b_step=blocks.b_bytes,
                targets=targets,
                targets_step=blocks.target_bytes,
                target_bytes=blocks.MC * blocks.N2 * self.spec.itemsize,
                scratch=targets + threads * blocks.target_bytes,
                scratch_step=blocks.scratch_bytes,
                clock=0 if clock is None else clock.ctypes.data,
                clock_step=0 if clock is None else clock.strides[0],
            )

            def work(tid: int, threads: int, sync: int) -> None:
                team = 1 if whole else threads
                self._worker(tid, threads, team, sync, table, *factors, tables, buffers)

            return pool.run(threads, work)

    def _table(self, problems: Sequence[Problem], blocks: Blocks, scaling: Scaling | None) -> np.ndarray:
        table = np.concatenate([_rows(p) for p in problems])
        sizes = [w.BLOCK_KC, w.BLOCK_CHUNKS, w.BLOCK_MC, w.BLOCK_NC, w.BLOCK_N2, w.BLOCK_PRODUCTS]
        table[:, sizes] = [blocks.KC, blocks.CHUNKS, blocks.MC, blocks.NC, blocks.N2, blocks.PRODUCTS]
        if scaling is not None:
            fields = [w.A_SCALE, w.B_SCALE, w.A_EXPONENT, w.B_EXPONENT]
            table[:, fields] = [x.ctypes.data for x in scaling]
        return table


def _rows(problem: Problem) -> np.ndarray:
    """The rows of the table for one product, or for every product of a batch."""
    shape = problem.c.shape[:-2]
    table = np.zeros((math.prod(shape), w.COLUMNS), np.int64)
    for first, x in ((w.A, problem.a), (w.B, problem.b), (w.C, problem.c)):
        address = np.int64(x.__array_interface__["data"][0])
        for count, step in zip(shape, x.strides, strict=False):
            address = np.add.outer(address, np.arange(count) * step)
        # The step along an axis of one element is never taken; as "contiguous" it spares the general path.
        steps = [s if n > 1 else x.itemsize for s, n in zip(x.strides[-2:], x.shape[-2:], strict=True)]
        table[:, first] = address.ravel()
        table[:, first + 1 : first + 3] = steps
    table[:, [w.SIZE_M, w.SIZE_N, w.SIZE_K]] = problem.mnk
    return table


@functools.lru_cache(maxsize=16)
def _tables(scheme: FlatScheme, outer: int, dtype: str) -> w.Tables:
    """The scheme as the worker wants it: writable contiguous arrays, coefficients in the lane dtype."""
    outside, inside = scheme.split(outer)
    parts = scheme.U, scheme.V, outside.W, inside.W
    terms = (Terms(t.ptr.copy(), t.block.copy(), t.coef.astype(dtype)) for t in parts)
    return w.Tables(np.array(scheme.grid, np.int64), np.array(inside.grid, np.int64), *terms)


@functools.cache
def engine_for(spec: KernelSpec, portable: bool = False) -> Engine:
    """The engine of a kernel spec; the first call in a process loads or compiles it."""
    return Engine(spec, portable)
