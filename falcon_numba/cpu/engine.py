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

from ..diskcache import DiskCache
from ..problem import Problem, batch_offsets
from . import worker as w
from .blocking import Blocks
from .epilogue import exponent_range
from .guard import ZERO_EXPONENT, Magnitudes
from .pack import Terms
from .spec import KernelSpec
from .threads import pool
from .workspace import ALIGN, borrow

if TYPE_CHECKING:
    from ..algorithms.flatten import FlatScheme
    from ..algorithms.flatten import Terms as SparseTerms


BLOCK_SIZES = slice(w.BLOCK_KC, w.BLOCK_N2 + 1)  # columns of the table


class Scaling(NamedTuple):
    """Exact powers of two: rows of A times `rows`, columns of B times `columns`, undone by the exponents in C."""

    rows: np.ndarray  # lane dtype (M,)
    columns: np.ndarray  # lane dtype (N,)
    row_exponents: np.ndarray  # int32 (M,), of C
    column_exponents: np.ndarray  # int32 (N,)


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
        self.clock: np.ndarray | None = None
        self._worker = w.make_worker(spec, portable)
        leaf = "portable" if portable else spec.isa
        announcement = f"falcon_numba: compiling the {leaf} kernels for {spec.dtype} (some ten seconds, once)"
        self._worker._cache = DiskCache(f"{leaf}-{spec.dtype}", announcement)
        self._worker.compile(w.worker_signature(spec))
        # The machine code, which spares every run the search for it by the types of all arguments.
        self._run = self._worker.get_overload(w.worker_signature(spec))

    def run(
        self,
        problems: Sequence[Problem],
        scheme: FlatScheme,
        blocks: Blocks,
        threads: int,
        *,
        whole_products: bool = False,
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
        packed : PackedB, optional
            From `pack_b`, for a single product: read instead of the problem's `b`.
        """
        table = table_of(problems, blocks)
        if packed is not None:
            if packed.blocks.form_of_b != blocks.form_of_b or packed.scheme is not scheme:
                raise ValueError("B was packed for another scheme or other block sizes")
            table[:, w.B_PACKED] = packed.address
        alpha, beta = problems[0].alpha, problems[0].beta
        return self.run_table(table, alpha, beta, scheme, blocks, threads, whole_products)

    def pack_b(self, b: np.ndarray, scheme: FlatScheme, blocks: Blocks, threads: int) -> PackedB:
        """Combine and pack all of `b`, shape (K, N), for `run`; an LCMA's form is R/(k·n) times as large as `b`."""
        K, N = b.shape
        _, k, n = scheme.grid
        panels = math.ceil(math.ceil(N / n) / self.spec.NR)
        row_bytes = scheme.rank * panels * self.spec.NR * self.spec.itemsize
        data = np.empty((math.ceil(K / k) + self.spec.DOT) * row_bytes + ALIGN, np.uint8)
        packed = PackedB(data, (K, N), scheme, blocks)
        nothing = np.empty((1, K), b.dtype)
        table = table_of([Problem(nothing, b, np.empty((1, N), self.spec.sums))], blocks)
        table[:, w.A], table[:, w.B_PACKED] = 0, packed.address
        self.run_table(table, 1, 0, scheme, blocks, threads)
        return packed

    def run_table(
        self,
        table: np.ndarray,
        alpha: float,
        beta: float,
        scheme: FlatScheme,
        blocks: Blocks,
        threads: int,
        whole: bool = False,
    ) -> int:
        """`run` for products that `table_of` has written down with these `blocks`; the arrays must outlive the run."""
        tables = _tables(scheme, blocks.FIRST, blocks.OUTER, self.spec.dtype, self.spec.sums)
        clock = self.clock  # kept alive here until the run is over
        if clock is not None and len(clock) < threads:
            raise ValueError(f"the clock has rows for {len(clock)} threads, the run has {threads}")
        teams = threads if whole else 1
        with borrow(blocks.workspace(threads, teams)) as base:
            b = base + teams * blocks.a_bytes
            targets = b + teams * blocks.b_bytes
            buffers = w.Buffers(
                a=base,
                a_step=blocks.a_bytes,
                b=b,
                b_step=blocks.b_bytes,
                targets=targets,
                targets_step=blocks.target_bytes,
                target_bytes=blocks.MC * blocks.N2 * self.spec.sum_size,
                scratch=targets + threads * blocks.target_bytes,
                scratch_step=blocks.scratch_bytes,
                clock=0 if clock is None else clock.ctypes.data,
                clock_step=0 if clock is None else clock.strides[0],
            )

            def work(tid: int, threads: int, sync: int) -> None:
                team = 1 if whole else threads
                self._run(tid, threads, team, sync, table, alpha, beta, tables, buffers)

            return pool.run(threads, work)


def table_of(problems: Sequence[Problem], blocks: Blocks) -> np.ndarray:
    """The worker's table of products: a row for each, or for every product of a batch."""
    if len(problems) > 1:
        return np.concatenate([table_of([p], blocks) for p in problems])
    (problem,) = problems
    operands = problem.a, problem.b, problem.c
    row = [0] * w.COLUMNS
    for first, x in zip((w.A, w.B, w.C), operands, strict=True):
        rows, columns = x.shape[-2:]
        # The step along an axis of one element is never taken; as "contiguous" it spares the general path.
        row[first] = x.ctypes.data
        row[first + 1] = x.strides[-2] if rows > 1 else x.itemsize
        row[first + 2] = x.strides[-1] if columns > 1 else x.itemsize
    row[w.SIZE_M], row[w.SIZE_N], row[w.SIZE_K] = problem.mnk
    row[w.LOWER] = problem.lower
    row[BLOCK_SIZES] = _block_sizes(blocks)
    table = np.array(row, np.int64, ndmin=2)
    shape = problem.c.shape[:-2]
    if shape:
        table = table.repeat(math.prod(shape), axis=0)
        for first, x in zip((w.A, w.B, w.C), operands, strict=True):
            table[:, first] += batch_offsets(x)
    return table


def _block_sizes(blocks: Blocks) -> tuple[int, ...]:
    return blocks.KC, blocks.CHUNKS, blocks.MA, blocks.MC, blocks.NC, blocks.N2


def change_blocks(products: np.ndarray, blocks: Blocks) -> None:
    """Give a table other block sizes."""
    products[:, BLOCK_SIZES] = _block_sizes(blocks)


def scale(products: np.ndarray, scalings: Sequence[Scaling]) -> None:
    """Let a table scale the rows and columns of each of its products; the scalings must outlive the run."""
    columns = [w.A_SCALE, w.B_SCALE, w.A_EXPONENT, w.B_EXPONENT]
    products[:, columns] = [[x.ctypes.data for x in scaling] for scaling in scalings]


@functools.lru_cache(maxsize=16)
def _tables(scheme: FlatScheme, first: int, outer: int, dtype: str, sums: str) -> w.Tables:
    """The scheme as the worker wants it: writable contiguous arrays, coefficients in the dtypes of the kernel."""
    before, others = scheme.split(first)
    outside, inside = others.split(outer)
    combined, added = (before.U, before.V, others.U, others.V), (before.W, outside.W, inside.W)
    before_U, before_V, U, V = (_terms(x, dtype) for x in combined)
    before_W, outside_W, inside_W = (_terms(x, sums) for x in added)
    terms = before_U, before_V, before_W, U, V, outside_W, inside_W
    grid, first_grid, inner_grid = (np.array(x.grid, np.int64) for x in (scheme, before, inside))
    return w.Tables(grid, first_grid, inner_grid, *terms)


def _terms(terms: SparseTerms, dtype: str) -> Terms:
    coef = terms.coef if np.dtype(dtype).kind == "f" else terms.coef.astype(np.int64)  # which wraps, unlike floats
    return Terms(terms.ptr.copy(), terms.block.copy(), coef.astype(dtype))


@functools.cache
def engine_for(spec: KernelSpec, portable: bool) -> Engine:
    """The engine of a kernel spec; the first call in a process loads or compiles it."""
    return Engine(spec, portable)
