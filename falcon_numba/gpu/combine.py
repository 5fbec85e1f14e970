"""The combine kernels of one level, generated per scheme and dtype: memory bound, every block read once.

A matrix is a grid of blocks of rows × cols; element (y, x) of all blocks is a *group*. A thread owns the groups of V
neighbouring x: it reads 16 bytes (V elements) of every block, runs the straight-line program in registers, and writes
16 bytes of every result. Where the matrix ends inside a block, or its addresses are no multiples of 16 bytes, it goes
element by element under predicates: blocks that stick out read zeros and are not written (virtual padding). grid.z
counts the matrices, all in one launch, from a device table of int64 rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llvmlite import ir
from numba import types

from ..algorithms import Scheme
from .access import (
    I32,
    SIZES,
    c64,
    lanes_of,
    load_lanes,
    load_one,
    operation,
    power,
    read_i32,
    read_i64,
    register,
    store_lanes,
    store_one,
)
from .compiled import Kernel, Source, cuda
from .linear import Program, programs

THREADS = 256
MOST_VALUES = 160  # registers that loaded lanes may take before a thread owns fewer of them
INPUT_COLUMNS = 5  # of the table: address, leading dimension, rows and columns of the matrix; address of the results
OUTPUT_COLUMNS = 5  # address of the products; address, leading dimension, rows and columns of the result


def _combine(b: Any, dtype: str) -> Any:
    kind = register(dtype)

    def combine(terms: list[tuple[Any, float]]) -> Any:
        total = None
        for value, coef in terms:
            if total is None:
                total = value if coef == 1 else b.fmul(ir.Constant(kind, coef), value)
            elif coef in (1, -1):
                total = b.fadd(total, value) if coef == 1 else b.fsub(total, value)
            else:
                total = b.fma(ir.Constant(kind, coef), value, total)
        return ir.Constant(kind, 0.0) if total is None else total

    return combine


def _lanes(dtypes: tuple[str, ...], values: int) -> int:
    lanes = max(lanes_of(dtype) for dtype in dtypes)
    least = 4 // min(SIZES[d] for d in dtypes) or 1
    while lanes > least and lanes * values > MOST_VALUES:
        lanes //= 2
    return lanes


def input_source(program: Program, grid: tuple[int, int], dtype: str, scale: str = "") -> Source:
    """Kernel (table, rows, cols, aligned, exponents): all sums of blocks of the matrices of a table.

    Parameters
    ----------
    program : Program
        Of U or V.
    grid : tuple of int
        Rows and columns of the grid of blocks.
    dtype : str
    scale : {"", "row", "column"}
        With "row" element (i, j) of the matrix is first multiplied by 2^−e_i, with "column" by 2^−e_j, of int32
        ``exponents``; exactly, but for underflow.
    """
    V, size = _lanes((dtype,), program.inputs), SIZES[dtype]
    blocks = [divmod(i, grid[1]) for i in range(program.inputs)]
    last_row, last_column = grid[0] - 1, grid[1] - 1

    def run(b: Any, columns: list[list[Any]], lanes: int) -> list[list[Any]]:
        """Lanes of every result, of lanes of every block."""
        combine = _combine(b, dtype)
        by_lane = [program.run([block[v] for block in columns], combine) for v in range(lanes)]
        return [[lane[r] for lane in by_lane] for r in range(len(program.outputs))]

    def generate(vector: bool) -> Any:
        lanes = V if vector else 1

        def body(b: Any, args: Any) -> None:
            matrix, ld, height, width, out, rows, cols, y, x, exponents = args
            plane = b.mul(b.mul(rows, cols), c64(size))
            read = []
            for i, j in blocks:
                row, column = b.add(b.mul(rows, c64(i)), y), b.add(b.mul(cols, c64(j)), x)
                at = b.add(matrix, b.mul(b.add(b.mul(row, ld), column), c64(size)))
                if vector:
                    values, inside = load_lanes(b, at, dtype, V), None
                else:
                    inside = b.and_(b.icmp_signed("<", row, height), b.icmp_signed("<", column, width))
                    values = [load_one(b, at, dtype, inside)]
                if scale:
                    index = row if scale == "row" else column
                    for v in range(lanes):
                        if v == 0 or scale == "column":
                            where = b.add(exponents, b.mul(b.add(index, c64(v)), c64(4)))
                            factor = power(b, b.neg(load_i32(b, where, inside)), dtype)
                        values[v] = b.fmul(values[v], factor)
                read.append(values)
            at = b.add(out, b.mul(b.add(b.mul(y, cols), x), c64(size)))
            for result in run(b, read, lanes):
                if vector:
                    store_lanes(b, at, result, dtype)
                else:
                    store_one(b, at, result[0], dtype, ir.Constant(ir.IntType(1), 1))
                at = b.add(at, plane)

        return operation([types.int64] * 10, body)

    whole, single = generate(True), generate(False)

    def kernel(table, rows, cols, aligned, exponents):
        row = table + cuda.blockIdx.z * (8 * INPUT_COLUMNS)
        matrix, ld, height, width = read_i64(row), read_i64(row + 8), read_i64(row + 16), read_i64(row + 24)
        out = read_i64(row + 32)
        first = types.int64(cuda.blockIdx.x) * (THREADS * V)
        here = first + cuda.threadIdx.x * V
        for y in range(types.int64(cuda.blockIdx.y), rows, types.int64(cuda.gridDim.y)):
            if aligned and last_column * cols + here + V <= width and last_row * rows + y < height and here + V <= cols:
                whole(matrix, ld, height, width, out, rows, cols, y, here, exponents)
            else:  # neighbouring threads take neighbouring elements where no thread takes 16 bytes
                x, step = (here, 1) if aligned else (first + cuda.threadIdx.x, THREADS)
                for _ in range(V):
                    if x < cols:
                        single(matrix, ld, height, width, out, rows, cols, y, x, exponents)
                    x += step

    return Source(kernel, [types.int64] * 5, THREADS, THREADS * V, f"combine_in_{dtype}_{scale}")


def load_i32(b: Any, address: Any, when: Any) -> Any:
    """An exponent; 0 outside the matrix."""
    value = load_one(b, address, "float32", ir.Constant(ir.IntType(1), 1) if when is None else when)
    return b.bitcast(value, I32)


def output_source(
    program: Program, grid: tuple[int, int], products: str, dtype: str, final: bool, scaled: bool = False
) -> Source:
    """Kernel (table, rows, cols, aligned, alpha, beta, reads, verdict, own, row_exponents, column_exponents).

    C_block = Σ W·H, and where `final` C = alpha·C_block + beta·C instead, unless the int32 at `verdict` differs from
    `own`; C is read only with `reads`. `scaled` multiplies C_block by 2^(e_i + e_j) first, in two exact halves, so that
    only the last step can round or overflow.

    Parameters
    ----------
    program : Program
        Of the transposed W.
    grid : tuple of int
        Rows and columns of the grid of C.
    products, dtype : str
        Dtypes of H and C.
    """
    V, size, from_size = _lanes((products, dtype), program.inputs), SIZES[dtype], SIZES[products]
    blocks = [divmod(i, grid[1]) for i in range(len(program.outputs))]
    last_row, last_column = grid[0] - 1, grid[1] - 1
    scalar = types.float64 if products == "float64" else types.float32
    low, high = (-1022, 1023) if products == "float64" else (-126, 127)

    def clamp(b: Any, e: Any) -> Any:
        least, most = ir.Constant(I32, low), ir.Constant(I32, high)
        e = b.select(b.icmp_signed("<", e, least), least, e)
        return b.select(b.icmp_signed(">", e, most), most, e)

    def generate(vector: bool) -> Any:
        lanes = V if vector else 1

        def body(b: Any, args: Any) -> None:
            source, out, ld, height, width, rows, cols, y, x, alpha, beta, reads, row_exponents, column_exponents = args
            true = ir.Constant(ir.IntType(1), 1)
            plane = b.mul(b.mul(rows, cols), c64(from_size))
            at = b.add(source, b.mul(b.add(b.mul(y, cols), x), c64(from_size)))
            read = []
            for _ in range(program.inputs):
                read.append(load_lanes(b, at, products, V) if vector else [load_one(b, at, products, true)])
                at = b.add(at, plane)
            combine = _combine(b, products)
            by_lane = [program.run([block[v] for block in read], combine) for v in range(lanes)]
            reads = b.icmp_signed("!=", reads, c64(0))
            for q, (i, j) in enumerate(blocks):
                row, column = b.add(b.mul(rows, c64(i)), y), b.add(b.mul(cols, c64(j)), x)
                inside = true
                if not vector:
                    inside = b.and_(b.icmp_signed("<", row, height), b.icmp_signed("<", column, width))
                values = [lane[q] for lane in by_lane]
                place = b.add(out, b.mul(b.add(b.mul(row, ld), column), c64(size)))
                if scaled:
                    e_row = load_i32(b, b.add(row_exponents, b.mul(row, c64(4))), inside)
                    for v in range(lanes):
                        where = b.add(column_exponents, b.mul(b.add(column, c64(v)), c64(4)))
                        e = b.add(e_row, load_i32(b, where, inside))
                        half = b.ashr(e, ir.Constant(I32, 1))
                        for part in (half, b.sub(e, half)):
                            values[v] = b.fmul(values[v], power(b, clamp(b, part), products))
                if final:
                    when = b.and_(inside, reads)
                    old = load_lanes(b, place, dtype, V, reads) if vector else [load_one(b, place, dtype, when)]
                    values = [b.fma(beta, o, b.fmul(alpha, v)) for o, v in zip(old, values, strict=True)]
                if vector:
                    store_lanes(b, place, values, dtype)
                else:
                    store_one(b, place, values[0], dtype, inside)

        return operation([types.int64] * 9 + [scalar] * 2 + [types.int64] * 3, body)

    whole, single = generate(True), generate(False)

    def kernel(table, rows, cols, aligned, alpha, beta, reads, verdict, own, row_exponents, column_exponents):
        if final and verdict != 0 and read_i32(verdict) != own:
            return
        row = table + cuda.blockIdx.z * (8 * OUTPUT_COLUMNS)
        source, out, ld, height = read_i64(row), read_i64(row + 8), read_i64(row + 16), read_i64(row + 24)
        width = read_i64(row + 32)
        first = types.int64(cuda.blockIdx.x) * (THREADS * V)
        here = first + cuda.threadIdx.x * V
        for y in range(types.int64(cuda.blockIdx.y), rows, types.int64(cuda.gridDim.y)):
            if aligned and last_column * cols + here + V <= width and last_row * rows + y < height and here + V <= cols:
                whole(source, out, ld, height, width, rows, cols, y, here, alpha, beta, reads, row_exponents,
                      column_exponents)  # fmt: skip
            else:
                x, step = (here, 1) if aligned else (first + cuda.threadIdx.x, THREADS)
                for _ in range(V):
                    if x < cols:
                        single(source, out, ld, height, width, rows, cols, y, x, alpha, beta, reads, row_exponents,
                               column_exponents)  # fmt: skip
                    x += step

    arguments = [types.int64] * 4 + [scalar] * 2 + [types.int64] * 5
    return Source(kernel, arguments, THREADS, THREADS * V, f"combine_out_{products}_{dtype}_{final}_{scaled}")


@lru_cache(maxsize=256)
def input_kernel(scheme: Scheme, side: str, dtype: str, scale: str = "") -> Kernel:
    """Combine A (`side` "A") or B of one level, compiled for the current device."""
    U, V, _ = programs(scheme)
    m, k, n = scheme.grid
    return Kernel(input_source(*((U, (m, k)) if side == "A" else (V, (k, n))), dtype, scale))


@lru_cache(maxsize=256)
def output_kernel(scheme: Scheme, products: str, dtype: str, final: bool, scaled: bool = False) -> Kernel:
    """Combine H of one level, compiled for the current device."""
    return Kernel(output_source(programs(scheme)[2], (scheme.m, scheme.n), products, dtype, final, scaled))
