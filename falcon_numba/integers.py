"""Exact products on the engine: which kernel computes those of integers, in the ring of integers modulo 2^bits.

Sums and products of integers modulo 2^bits don't depend on their sign being read, so signed and unsigned integers share
a kernel, and operands are looked at as signed ones. What is exact modulo 2^16 is exact modulo 2^8. Whatever a scheme
adds up and multiplies on the way, only the ring of the result matters: with integer coefficients every scheme is exact.

A result wider than what the kernel multiplies (int8 into int32) is a different matter: combinations of blocks must not
leave the kernel's operands, which is what `Lane.headroom` tells. Truth values are in no ring, and have a kernel of
their own (`cpu.boolean`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np


class Lane(NamedTuple):
    """What the engine computes a product in.

    Attributes
    ----------
    operands, result : dtype
        The kernel's (`cpu.spec`).
    headroom : float
        Factor by which combinations of blocks of A or of B may exceed the operands.
    """

    operands: np.dtype
    result: np.dtype
    headroom: float = math.inf

    @property
    def exact(self) -> bool:
        return self.operands.kind in "ib"


INT16, INT32, INT64 = (np.dtype(x) for x in ("int16", "int32", "int64"))
_OTHERS = {
    np.dtype(x): Lane(np.dtype(x), np.dtype(x))
    for x in ("float32", "float64", "complex64", "complex128", "float16", "bool")  # see `lanes` for some of them
}
_WRAPPING = {8: Lane(INT64, INT64), 4: Lane(INT32, INT32), 2: Lane(INT16, INT32), 1: Lane(INT16, INT32)}  # by itemsize
NAMES = "real and complex numbers of single and double precision, short floats, integers and (without schemes) bool"


@functools.cache
def lane_for(a: np.dtype, b: np.dtype, result: np.dtype) -> Lane | None:
    """The lane of a product of these operands, which cast safely to `result`; None where the engine has none."""
    if result.kind not in "iu":
        return _OTHERS.get(result)
    if result.itemsize == 4 and all(np.can_cast(x, INT16) for x in (a, b)):
        return Lane(INT16, INT32, min(32767 / _largest(x) for x in (a, b)))
    return _WRAPPING[result.itemsize]


def _largest(dtype: np.dtype) -> int:
    """Magnitude of the largest number."""
    return 1 if dtype.kind == "b" else max(int(np.iinfo(dtype).max), -int(np.iinfo(dtype).min))


def same_bits(dtype: np.dtype, other: np.dtype) -> bool:
    """Whether integers of two dtypes are the same ring."""
    return dtype.kind in "iu" and other.kind in "iu" and dtype.itemsize == other.itemsize and dtype.isnative


def signed(value: Any, dtype: np.dtype) -> int:
    """An integer as the number of a signed `dtype` that is equal to it modulo 2^bits."""
    half = 1 << (8 * dtype.itemsize - 1)
    return (int(value) + half) % (2 * half) - half
