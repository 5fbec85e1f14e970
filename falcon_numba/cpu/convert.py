"""Copies of matrices in the form that an engine computes in, and of its result in the form that was asked for.

A conversion goes line by line: contiguous lines by vectors, others element by element, all threads sharing the lines.
Each kind of conversion is one line in `_KINDS`: what becomes of a vector of elements. They round to nearest, ties to
even, as NumPy does, and once; NaN stays NaN.

Complex numbers are pairs of real ones. With the real pairs of a row of A side by side, and every row of B as two,

    ⎛ Re b  Im b ⎞
    ⎝−Im b  Re b ⎠   for each of its elements b,

A·B is a real product of twice the columns and twice the inner size, and C comes out as pairs (F. G. Van Zee,
"Implementing high-performance complex matrix multiplication via the 1m method", SIAM J. Sci. Comput. 42, 2020). Each
part of an element is the sum of the same products as in complex arithmetic, and nothing else is rounded. That is the
conversion "expand", of rows (as above) or, where B is stored by columns, of columns.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..decision.hardware import isa_family
from ..diskcache import DiskCache
from ..inlined import inner_of, named
from ..problem import batch_offsets
from .simd import I8, I16, I32, I64, c64
from .sync import share
from .threads import pool

SRC, SRC_ROW, SRC_STEP, DST, DST_ROW, DST_STEP, DST_TWIN, LINES, COUNT, EXTRA = range(10)  # columns of the table
COLUMNS = 10
ALONE = 2**23  # bytes that one thread has converted before others are awake and have read their share
TILE_ROWS, TILE = 8, 32  # lines and elements of a tile, where neighbours in memory belong to different lines
VECTOR = {"avx512": 64, "avx2": 32}  # bytes of a vector; 16 elsewhere
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class Kind(NamedTuple):
    """One kind of conversion.

    Attributes
    ----------
    source, target : LLVM types of what is read and written
    unit : int
        Reals that belong together.
    twins : int
        Lines that one line becomes.
    emit : callable (builder, vector, lanes, extra) -> list of vectors, one per twin
    """

    source: ir.Type
    target: ir.Type
    unit: int
    twins: int
    emit: Any


def _splat(type_: ir.Type, value: int, lanes: int):
    return ir.Constant(ir.VectorType(type_, lanes), [value] * lanes)


def _from_half(b, x, lanes, extra):
    return [b.fpext(x, ir.VectorType(FLOAT, lanes))]


def _to_half(b, x, lanes, extra):
    return [b.fptrunc(x, ir.VectorType(HALF, lanes))]


def _from_bfloat(b, x, lanes, extra):
    wide = b.zext(x, ir.VectorType(I32, lanes))
    return [b.bitcast(b.shl(wide, _splat(I32, 16, lanes)), ir.VectorType(FLOAT, lanes))]


def _to_bfloat(b, x, lanes, extra):
    bits = b.bitcast(x, ir.VectorType(I32, lanes))
    high = b.lshr(bits, _splat(I32, 16, lanes))
    odd = b.and_(high, _splat(I32, 1, lanes))
    rounded = b.lshr(b.add(bits, b.add(odd, _splat(I32, 0x7FFF, lanes))), _splat(I32, 16, lanes))
    quiet = b.or_(high, _splat(I32, 0x40, lanes))
    nan = b.fcmp_unordered("uno", x, x)
    return [b.trunc(b.select(nan, quiet, rounded), ir.VectorType(I16, lanes))]


def _look_up(b, x, lanes, extra):
    """Of the 256 values at `extra`."""
    out = ir.Constant(ir.VectorType(FLOAT, lanes), ir.Undefined)
    for i in range(lanes):
        index = b.zext(b.extract_element(x, I32(i)), I64)
        pointer = b.inttoptr(b.add(extra, b.shl(index, c64(2))), FLOAT.as_pointer())
        out = b.insert_element(out, b.load(pointer, align=4), I32(i))
    return [out]


def _same(b, x, lanes, extra):
    return [x]


def _expand(b, x, lanes, extra):
    """Pairs and swapped pairs, with the signs whose bits stand at `extra`, 64 bytes for each of the twins."""
    bits = ir.IntType(32 if x.type.element is FLOAT else 64)
    type_ = ir.VectorType(bits, lanes)
    out = []
    for twin in range(2):
        if twin:
            order = ir.Constant(ir.VectorType(I32, lanes), [i ^ 1 for i in range(lanes)])
            x = b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), order)
        signs = b.load(b.inttoptr(b.add(extra, c64(64 * twin)), type_.as_pointer()), align=8)
        out.append(b.bitcast(b.xor(b.bitcast(x, type_), signs), x.type))
    return out


_KINDS = {
    "from float16": Kind(HALF, FLOAT, 1, 1, _from_half),
    "to float16": Kind(FLOAT, HALF, 1, 1, _to_half),
    "from bfloat16": Kind(I16, FLOAT, 1, 1, _from_bfloat),
    "to bfloat16": Kind(FLOAT, I16, 1, 1, _to_bfloat),
    "from 8 bits": Kind(I8, FLOAT, 1, 1, _look_up),
    "copy complex64": Kind(FLOAT, FLOAT, 2, 1, _same),
    "copy complex128": Kind(DOUBLE, DOUBLE, 2, 1, _same),
    "expand complex64": Kind(FLOAT, FLOAT, 2, 2, _expand),
    "expand complex128": Kind(DOUBLE, DOUBLE, 2, 2, _expand),
}


def _bytes(type_: ir.Type) -> int:
    return type_.width // 8 if isinstance(type_, ir.IntType) else {HALF: 2, FLOAT: 4, DOUBLE: 8}[type_]


def _make_line(kind: Kind, isa: str):
    """line(dst, dst_step, twin, src, src_step, count, extra): `count` elements (of `unit` reals), steps in bytes.

    `twin` is how far the second line lies from the first.
    """
    lanes = VECTOR.get(isa, 16) // max(_bytes(kind.source), _bytes(kind.target))
    source, target = kind.unit * _bytes(kind.source), kind.unit * _bytes(kind.target)

    @intrinsic
    def line(typingctx, dst, dst_step, twin, src, src_step, count, extra):
        def codegen(context, builder, signature, args):
            dst, dst_step, twin, src, src_step, count, extra = args

            def move(at, to, width):
                pointer = builder.inttoptr(at, ir.VectorType(kind.source, width).as_pointer())
                x = builder.load(pointer, align=1)
                for i, value in enumerate(kind.emit(builder, x, width, extra)):
                    address = builder.add(to, twin) if i else to
                    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)

            contiguous = builder.and_(
                builder.icmp_signed("==", src_step, c64(source)), builder.icmp_signed("==", dst_step, c64(target))
            )
            each = lanes // kind.unit
            whole = builder.select(contiguous, builder.sdiv(count, c64(each)), c64(0))
            with cgutils.for_range(builder, whole) as loop:
                move(
                    builder.add(src, builder.mul(loop.index, c64(each * source))),
                    builder.add(dst, builder.mul(loop.index, c64(each * target))),
                    lanes,
                )
            with cgutils.for_range(builder, count, start=builder.mul(whole, c64(each))) as loop:
                move(
                    builder.add(src, builder.mul(loop.index, src_step)),
                    builder.add(dst, builder.mul(loop.index, dst_step)),
                    kind.unit,
                )
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return line


@functools.cache
def _converter(name: str):
    """The compiled conversion of one kind: (tid, threads, table)."""
    isa, kind = isa_family(), _KINDS[name]
    line = _make_line(kind, isa)
    part = inner_of(isa, name)

    @part
    def rows(p, x0, x1):
        if abs(p[SRC_ROW]) >= abs(p[SRC_STEP]):
            for x in range(x0, x1):
                dst, src = p[DST] + x * p[DST_ROW], p[SRC] + x * p[SRC_ROW]
                line(dst, p[DST_STEP], p[DST_TWIN], src, p[SRC_STEP], p[COUNT], p[EXTRA])
            return
        for xt in range(x0, x1, TILE_ROWS):
            for y in range(0, p[COUNT], TILE):
                for x in range(xt, min(xt + TILE_ROWS, x1)):
                    dst = p[DST] + x * p[DST_ROW] + y * p[DST_STEP]
                    src = p[SRC] + x * p[SRC_ROW] + y * p[SRC_STEP]
                    count = min(np.int64(TILE), p[COUNT] - y)
                    line(dst, p[DST_STEP], p[DST_TWIN], src, p[SRC_STEP], count, p[EXTRA])

    def convert(tid, threads, table):
        lines = table[0, LINES]
        first, last = share(lines * len(table), tid, threads)
        for i in range(first // lines, len(table)):
            x0, x1 = max(first - i * lines, 0), min(last - i * lines, lines)
            if x0 >= x1:
                break
            rows(table[i], x0, x1)

    function = njit(named(convert, isa, name), nogil=True, error_model="numpy")
    function._cache = DiskCache(f"convert-{isa}-{name.replace(' ', '-')}")
    signature = types.void(types.int64, types.int64, types.Array(types.int64, 2, "C"))
    function.compile(signature)
    return function.get_overload(signature)


def convert(name: str, src: np.ndarray, dst: np.ndarray, threads: int, twin: int = 0, extra: np.ndarray | None = None):
    """Write what a conversion makes of the matrices `src` into `dst`.

    Parameters
    ----------
    name : str
        A key of `_KINDS`.
    src, dst : ndarray, shapes (..., rows, columns)
        Any strides; batch axes are equal. `dst` may be the first of two twins.
    threads : int
    twin : int
        Bytes from a line of `dst` to its twin.
    extra : ndarray, optional
        What the kind wants to know.
    """
    if src.strides[-1] != src.itemsize and abs(src.strides[-2]) < abs(src.strides[-1]) and not twin:
        src, dst = src.swapaxes(-1, -2), dst.swapaxes(-1, -2)
        if dst.strides[-1] != dst.itemsize and abs(dst.strides[-2]) < abs(dst.strides[-1]):  # lines of both differ
            src, dst = src.swapaxes(-1, -2), dst.swapaxes(-1, -2)
    rows, columns = src.shape[-2:]
    batch = src.shape[:-2]
    row = [0] * COLUMNS
    row[SRC], row[SRC_ROW], row[SRC_STEP] = src.ctypes.data, *src.strides[-2:]
    row[DST], row[DST_ROW], row[DST_STEP], row[DST_TWIN] = dst.ctypes.data, *dst.strides[-2:], twin
    row[LINES], row[COUNT], row[EXTRA] = rows, columns, 0 if extra is None else extra.ctypes.data
    if columns == 1:  # a step that is never taken
        row[SRC_STEP], row[DST_STEP] = src.itemsize, dst.itemsize
    table = np.array(row, np.int64, ndmin=2)
    if batch:
        table = table.repeat(math.prod(batch), axis=0)
        for column, x in ((SRC, src), (DST, dst)):
            table[:, column] += batch_offsets(x)
    function = _converter(name)
    if src.size * max(src.itemsize, dst.itemsize) < ALONE:
        function(0, 1, table)
    else:
        pool.run(threads, lambda tid, threads, sync: function(tid, threads, table))
