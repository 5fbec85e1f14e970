"""Products of short floats and of complex numbers as real ones that an engine computes."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from numba import config

from ..decision.predict import Product
from ..lanes import lane_of
from ..problem import Problem
from .blocking import up
from .convert import convert
from .workspace import ALIGN, CONVERTED, borrow

_Fill = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
MOST_OPENED = 2**28  # bytes of copies at once, as far as a batch can be divided

# Signs of the reals of a line and of its twin, which has them swapped; see `convert`.
_BY_ROWS, _BY_COLUMNS = ((1, 1), (-1, 1)), ((1, -1), (1, 1))


def is_open(problem: Problem) -> bool:
    """Whether an engine takes the operands as they are."""
    dtype = problem.c.dtype
    if dtype.kind in "biu":
        return True
    return problem.a.dtype == problem.b.dtype == dtype and lane_of(dtype).dtype == dtype.name


def opened_bytes(product: Product) -> int:
    """Bytes of the copies of a complex product, for any order of its operands; 0 for others."""
    M, N, K, batch, dtype = product
    if lane_of(dtype).parts == 1:
        return 0
    itemsize = np.dtype(dtype).itemsize
    one = (M * K + 2 * K * N + M * N) * itemsize + 3 * ALIGN
    return min(batch * one, max(one, MOST_OPENED))


def pieces(problem: Problem) -> Iterator[Problem]:
    """The problem, or parts of its batch whose copies are not too large."""
    a, b, c = _distinct(problem.a), _distinct(problem.b), problem.c
    if math.prod(c.shape[:-2]) == 1 or 3 * (a.nbytes + b.nbytes + c.nbytes) <= MOST_OPENED:
        yield problem
        return
    axis = next(i for i, size in enumerate(c.shape) if size > 1)
    half = c.shape[axis] // 2
    for part in (slice(None, half), slice(half, None)):
        yield from pieces(problem.at((slice(None),) * axis + (part,)))


@contextlib.contextmanager
def opened(problem: Problem, threads: int, only_reads: bool = False) -> Iterator[Problem]:
    """The real product whose result, when the context ends, has become that of the problem, unless that `only_reads`.

    Operands that have to be converted are copied, each element of a broadcast one once.
    """
    dtype, parts = lane_of(problem.c.dtype)
    real, pairs = np.dtype(dtype), parts == 2
    operands = _distinct(problem.a), _distinct(problem.b), problem.c
    fill: tuple[_Fill, ...] = (_pairs, _expanded, _pairs) if pairs else (_widened,) * 3
    # What has contiguous rows is real pairs already.
    open_ = [x.strides[-1] == x.itemsize and i != 1 if pairs else x.dtype == real for i, x in enumerate(operands)]
    shapes = [(*x.shape[:-1], parts * x.shape[-1]) for x in operands]
    shapes[1] = (*shapes[1][:-2], parts * shapes[1][-2], shapes[1][-1])
    sizes = [0 if there else up(math.prod(x) * real.itemsize, ALIGN) for x, there in zip(shapes, open_, strict=True)]
    with (loan := borrow(sum(sizes), CONVERTED)):
        ready = []
        for i, x in enumerate(operands):
            to = x.view(real) if open_[i] else loan.buffer.array(sum(sizes[:i]), shapes[i], real)
            reads = not open_[i] and (i < 2 or problem.beta != 0)
            ready.append(fill[i](x, to, threads) if reads else to)
        a, b, c = ready
        batch = c.shape[:-2]
        a, b = (np.broadcast_to(x, batch + x.shape[-2:]) for x in (a, b))
        yield Problem(a, b, c, problem.alpha, problem.beta, lower=parts * problem.lower)
        if not (open_[2] or only_reads):
            (_unpaired if pairs else narrow)(c, problem.c, threads)


def _distinct(x: np.ndarray) -> np.ndarray:
    """Every matrix of a batch once: axes along which an operand is broadcast have one element."""
    if 0 not in x.strides[:-2]:
        return x
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.strides[:-2])]


def _pairs(x: np.ndarray, out: np.ndarray, threads: int) -> np.ndarray:
    convert(f"copy {x.dtype.name}", x, out.view(x.dtype), threads)
    return out


def _unpaired(x: np.ndarray, out: np.ndarray, threads: int) -> None:
    convert(f"copy {out.dtype.name}", x.view(out.dtype), out, threads)


def _expanded(b: np.ndarray, out: np.ndarray, threads: int) -> np.ndarray:
    """Of complex B (..., K, N) the real matrix (..., 2K, 2N) that A's pairs multiply."""
    by_columns = b.strides[-1] != b.itemsize and abs(b.strides[-2]) < abs(b.strides[-1])
    if by_columns:
        b = b.swapaxes(-1, -2)
        out = out.reshape(*out.shape[:-2], *out.shape[:-3:-1])
    first = out[..., ::2, :].view(b.dtype)
    signs = _signs(b.dtype.name, by_columns)
    convert(f"expand {b.dtype.name}", b, first, threads, twin=out.strides[-2], extra=signs)
    return out.swapaxes(-1, -2) if by_columns else out


@functools.cache
def _signs(dtype: str, by_columns: bool) -> np.ndarray:
    """Sign bits for vectors of the conversion "expand"."""
    bits = 4 * np.dtype(dtype).itemsize
    word = np.dtype(f"u{bits // 8}").type
    rows = _BY_COLUMNS if by_columns else _BY_ROWS
    return np.array([[word(1 << (bits - 1)) * (x < 0) for x in row] * (256 // bits) for row in rows], word)


def _widened(x: np.ndarray, out: np.ndarray, threads: int) -> np.ndarray:
    """Short floats as float32."""
    if x.dtype.name in ("float16", "bfloat16"):
        if _has_half(x.dtype):
            convert(f"from {x.dtype.name}", x if x.dtype.kind == "f" else x.view(np.uint16), out, threads)
            return out
    elif x.dtype.itemsize == 1 and not config.DISABLE_JIT:
        convert("from 8 bits", x.view(np.uint8), out, threads, extra=_values(x.dtype))
        return out
    np.copyto(out, x, casting="unsafe")
    return out


def narrow(x: np.ndarray, out: np.ndarray, threads: int) -> None:
    """Write float32 `x` to `out`, rounded to its short type."""
    if out.dtype.name in ("float16", "bfloat16") and _has_half(out.dtype):
        convert(f"to {out.dtype.name}", x, out if out.dtype.kind == "f" else out.view(np.uint16), threads)
    else:
        with np.errstate(all="ignore"):
            np.copyto(out, x, casting="unsafe")


@functools.cache
def _values(dtype: np.dtype) -> np.ndarray:
    """Of all 256 numbers of 8 bits."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


@functools.cache
def _has_half(dtype: np.dtype) -> bool:
    """Whether the CPU converts float16; bfloat16 is the upper half of float32, which any CPU can cut off."""
    if config.DISABLE_JIT:
        return False
    from ..decision.hardware import isa_family

    return dtype.name == "bfloat16" or isa_family() != "generic"
