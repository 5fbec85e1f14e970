"""LCMA plans on the GPU, breadth first: the levels one after the other, every level one launch.

    guard      magnitudes of A and B, verdict                      (top level, on the device)
    Combine A  level 1: 1 matrix → R₁, level 2: R₁ → R₁·R₂ …       one launch a level
    Combine B  likewise
    GEMM       all R = Π R_l leaf products                         one launch
    Combine H  level d: R → R/R_d …, level 1: → C                  one launch a level
    classical  in place of the last Combine H where the verdict says so

Blocks of every level are whole multiples of leaf blocks; only the top level pads, virtually. A launch neither allocates
nor waits, so it can be captured into a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..algorithms import Scheme, flatten
from . import combine, guard
from .access import SIZES, lanes_of
from .compiled import Kernel, Launch, upload, zero_words

ROWS_AT_MOST = 65535  # of a grid in y
ALIGNMENT = 256  # bytes, of every part of the workspace


@dataclass(frozen=True)
class Matrix:
    """A row-major matrix on the device: address, shape and leading dimension in elements."""

    address: int
    rows: int
    columns: int
    ld: int
    dtype: str

    @property
    def is_aligned(self) -> bool:
        """Whether every row starts at a multiple of 16 bytes."""
        return self.address % 16 == 0 and self.ld * SIZES[self.dtype] % 16 == 0


class BatchedLeaf(Protocol):
    """Prepares H_r = Ã_r·B̃_r for `count` contiguous (rows, K) × (K, columns) products."""

    def __call__(
        self, a: int, b: int, h: int, count: int, shape: tuple[int, int, int], dtype: str, products: str
    ) -> Launch: ...


class Layout:
    """Sizes of all blocks and the workspace of a plan.

    Attributes
    ----------
    leaf : tuple of int
        (rows, K, columns) of the leaf products.
    workspace_bytes : int
    """

    def __init__(self, M: int, N: int, K: int, levels: tuple[Scheme, ...], dtype: str):
        if not levels or any(not math.prod(s.grid) for s in levels):
            raise ValueError("a plan of the engine has at least one level")
        m, k, n = flatten(levels).grid
        lanes = lanes_of(dtype)
        self.leaf = -(-M // m), _round_up(-(-K // k), lanes), _round_up(-(-N // n), lanes)
        self.products = "float64" if dtype == "float64" else "float32"  # dtype of H
        self.ranks = flatten(levels).ranks
        self.blocks: list[tuple[int, int, int]] = []  # (rows, K, columns) of the blocks of each level
        shape = self.leaf
        for scheme in reversed(levels):
            self.blocks.insert(0, shape)
            shape = shape[0] * scheme.m, shape[1] * scheme.k, shape[2] * scheme.n
        self.counts = [math.prod(self.ranks[: i + 1]) for i in range(len(levels))]
        self._top = 0
        self.a, self.b, self.h, self.tables = [], [], [], []  # offsets into the workspace
        for count, (rows, inner, columns) in zip(self.counts, self.blocks, strict=True):
            self.a.append(self._take(count * rows * inner * SIZES[dtype]))
            self.b.append(self._take(count * inner * columns * SIZES[dtype]))
            self.h.append(self._take(count * rows * columns * SIZES[self.products]))
            self.tables.append([self._take(count * 8 * combine.INPUT_COLUMNS) for _ in range(3)])
        self.maxima = self._take(4 * (M + N))
        self.verdict = self._take(4)
        self.workspace_bytes = self._top

    def _take(self, size: int) -> int:
        at = self._top
        self._top += _round_up(size, ALIGNMENT)
        return at


def _round_up(x: int, to: int) -> int:
    return -(-x // to) * to


def _grid(kernel: Kernel, rows: int, columns: int, count: int) -> tuple[int, int, int]:
    return -(-columns // kernel.source.columns), max(1, min(rows, ROWS_AT_MOST)), count


def prepare(
    A: Matrix,
    B: Matrix,
    C: Matrix,
    levels: tuple[Scheme, ...],
    leaf: BatchedLeaf,
    allocate: Callable[[int], int],
    alpha: float = 1.0,
    beta: float = 0.0,
    accuracy: str = "balanced",
) -> Launch:
    """A function of a stream that computes C = alpha·A·B + beta·C.

    Parameters
    ----------
    A, B, C : Matrix, shapes (M, K), (K, N), (M, N)
        Of one dtype: float16, bfloat16, float32 or float64. C overlaps neither A nor B.
    levels : tuple of Scheme
        Outermost first, at least one.
    leaf : BatchedLeaf
    allocate : callable
        Gives the address of so many bytes of device memory, aligned to 256, which the caller keeps alive.
    accuracy : {"balanced", "normwise"}

    Raises
    ------
    ValueError
        Shapes or dtypes that do not fit together, an unknown contract, no levels.
    """
    M, K, N = A.rows, A.columns, B.columns
    if B.rows != K or (C.rows, C.columns) != (M, N) or not min(M, N, K):
        raise ValueError(f"shapes {(A.rows, A.columns)}, {(B.rows, B.columns)}, {(C.rows, C.columns)} don't fit")
    if not A.dtype == B.dtype == C.dtype or A.dtype not in SIZES:
        raise ValueError(f"no plan for dtypes {A.dtype}, {B.dtype}, {C.dtype}")
    if accuracy not in ("balanced", "normwise"):
        raise ValueError(f"unknown accuracy {accuracy!r}: a plan with levels is 'balanced' or 'normwise'")
    dtype, layout = A.dtype, Layout(M, N, K, levels, A.dtype)
    if max(layout.counts) > ROWS_AT_MOST:
        raise ValueError(f"{max(layout.counts)} leaf products are more than one launch takes")
    base = allocate(layout.workspace_bytes)
    balanced, products, reads = accuracy == "balanced", layout.products, int(beta != 0)
    verdict, row_exponents = base + layout.verdict, base + layout.maxima
    column_exponents = row_exponents + 4 * M

    steps: list[Launch] = [zero_words(row_exponents, M + N)]
    rows, columns = guard.scan_kernel(dtype, True), guard.scan_kernel(dtype, False)
    steps.append(
        rows.launcher((1, min(M, ROWS_AT_MOST), 1), [A.address, A.ld, M, K, A.is_aligned, row_exponents]),
    )
    lines = -(-K // guard.LINES)
    if lines > ROWS_AT_MOST:
        raise ValueError(f"the inner size {K} is too large")
    steps.append(
        columns.launcher((-(-N // guard.THREADS), lines, 1), [B.address, B.ld, K, N, B.is_aligned, column_exponents]),
    )
    limits = guard.limits_for(dtype, K, flatten(levels).largest_sums, alpha, balanced)
    steps.append(guard.judge_kernel(dtype).launcher((1, 1, 1), [row_exponents, M, N, verdict, *limits]))

    outputs: list[Launch] = []
    for level, scheme in enumerate(levels):
        block = layout.blocks[level]
        top, count = level == 0, layout.counts[level - 1] if level else 1
        size_a, size_b, size_h = block[0] * block[1], block[1] * block[2], block[0] * block[2]
        for side, X, offsets, size, (height, width), scale in (
            ("A", A, layout.a, size_a, block[:2], "row"),
            ("B", B, layout.b, size_b, block[1:], "column"),
        ):
            kernel = combine.input_kernel(scheme, side, dtype, scale if top and balanced else "")
            step = layout.ranks[level] * size * SIZES[dtype]
            out, where = base + offsets[level], base + layout.tables[level][side == "B"]
            grid = (scheme.m, scheme.k) if side == "A" else (scheme.k, scheme.n)
            full = height * grid[0], width * grid[1]  # of a matrix of this level
            if top:
                table = [[X.address, X.ld, X.rows, X.columns, out]]
            else:
                source = base + offsets[level - 1]
                each = full[0] * full[1] * SIZES[dtype]
                table = [[source + i * each, full[1], *full, out + i * step] for i in range(count)]
            upload(where, table)
            exponents = row_exponents if side == "A" else column_exponents
            aligned = X.is_aligned if top else True
            steps.append(
                kernel.launcher(_grid(kernel, height, width, count), [where, height, width, aligned, exponents])
            )
        to = dtype if top else products
        kernel = combine.output_kernel(scheme, products, to, top, top and balanced)
        source, where = base + layout.h[level], base + layout.tables[level][2]
        step = layout.ranks[level] * size_h * SIZES[products]
        if top:
            table = [[source, C.address, C.ld, M, N]]
        else:
            full = block[0] * scheme.m, block[2] * scheme.n
            each, out = full[0] * full[1] * SIZES[products], base + layout.h[level - 1]
            table = [[source + i * step, out + i * each, full[1], *full] for i in range(count)]
        upload(where, table)
        arguments = [where, block[0], block[2], C.is_aligned if top else True, alpha, beta, reads, verdict,
                     guard.RUN_LEVELS, row_exponents, column_exponents]  # fmt: skip
        outputs.insert(0, kernel.launcher(_grid(kernel, block[0], block[2], count), arguments))
    addresses = base + layout.a[-1], base + layout.b[-1], base + layout.h[-1]
    steps.append(leaf(*addresses, layout.counts[-1], layout.leaf, dtype, products))
    steps += outputs
    tiles = -(-N // guard.THREADS), min(-(-M // 4), ROWS_AT_MOST), 1
    arguments = [A.address, A.ld, B.address, B.ld, C.address, C.ld, M, N, K, alpha, beta, reads, verdict]
    steps.append(guard.classical_kernel(dtype).launcher(tiles, arguments))

    def launch(stream: int) -> None:
        for step in steps:
            step(stream)

    return launch
