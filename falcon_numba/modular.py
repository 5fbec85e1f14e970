"""Exact products modulo p: products of integers of this package, reduced as late as their sums allow.

Residues are balanced, |x| ≤ ⌊p/2⌋ = h, so that K products sum up to at most K·h². While that fits into the sums of a
kernel one product of integers is exact, and schemes only need the final sum to fit: what leaves the range on the way
comes back, modulo 2^bits. Else the inner dimension is cut into chunks, or, where these would be short, one operand into
its high and low halves, and the sums are reduced in between.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .problem import Inadmissible

MOST = 2**31  # moduli lie below
HALF = 15  # bits of the low half of a residue
SHORTEST = 512  # chunk of the inner dimension that is worth while

Multiply = Callable[[np.ndarray, np.ndarray, str], np.ndarray]  # (a, b, dtype of the result)


def checked_modulus(modulus: Any, operands: tuple[Any, ...], dtype: np.dtype) -> int:
    """The modulus as an int.

    Raises
    ------
    TypeError
        It is no integer, or an operand or the result is not of integers.
    ValueError
        It is not from 1 to 2^31 − 1, or the result's dtype has no room for its residues.
    """
    p = operator.index(modulus)
    if not 1 <= p < MOST:
        raise ValueError(f"modulus={p}: must be from 1 to 2^31 - 1")
    for x in (*(x.dtype for x in operands if x is not None), dtype):
        if x.kind not in "biu":
            raise TypeError(f"modulus needs integers, not {x}")
    if dtype.kind == "b" or p - 1 > np.iinfo(dtype).max:
        raise ValueError(f"the residues of modulus={p} don't fit into {dtype}: pass a wider out_dtype")
    return p


def residue_dtype(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray | None, out_dtype: Any
) -> np.dtype:
    """The type of the result: the one asked for, else what NumPy's promotion gives, int64 where that is a float."""
    wanted = None if out_dtype is None else np.dtype(out_dtype)
    if out is not None:
        if wanted is not None and wanted != out.dtype:
            raise TypeError(f"out_dtype={wanted} but out has dtype {out.dtype}")
        return out.dtype
    if wanted is not None:
        return wanted.newbyteorder("=")
    operands = [x.dtype for x in (a, b, c) if x is not None]
    natural = np.result_type(*operands)
    return np.dtype(np.int64) if natural.kind == "f" and all(x.kind in "biu" for x in operands) else natural


def scalar(name: str, value: Any, p: int) -> int:
    """alpha or beta modulo p."""
    if np.ndim(value) or np.asarray(value).dtype.kind not in "biuO":
        raise TypeError(f"{name}={value!r}: must be an integer, since modulus is given")
    return operator.index(value) % p


def reduced(x: np.ndarray, p: int) -> np.ndarray:
    """x modulo p, from 0 to p − 1, as int64. (NumPy divides by a number far faster than it takes remainders.)"""
    if x.dtype.kind == "u" and x.dtype.itemsize == 8:
        return (x - x // np.uint64(p) * np.uint64(p)).astype(np.int64)
    x = x.astype(np.int64)
    quotient = x // p
    quotient *= p
    x -= quotient
    return x


def balanced(x: np.ndarray, p: int) -> np.ndarray:
    """x modulo p, from −⌊(p − 1)/2⌋ to ⌊p/2⌋."""
    x = reduced(x, p)
    x[x > p // 2] -= p
    return x


def product(a: np.ndarray, b: np.ndarray, p: int, multiply: Multiply) -> np.ndarray:
    """A·B modulo p, from 0 to p − 1, as int64.

    Parameters
    ----------
    a, b : ndarray of integers, shapes (M, K) and (K, N)
    p : int
    multiply : callable (a, b, dtype) -> ndarray
        The exact product of integers in a dtype that holds its sums. Raises Inadmissible where it can't.
    """
    half, K = p // 2, a.shape[1]
    a, b = balanced(a, p), balanced(b, p)
    narrow = "int8" if half <= 127 else "int16"
    if half < 2**15 and K * half * half < 2**31:
        try:
            return reduced(multiply(a.astype(narrow), b.astype(narrow), "int32"), p)
        except Inadmissible:  # levels whose sums of blocks are too large: 64 bits will do
            pass
    if _chunk(half, half) >= min(K, SHORTEST):
        return _in_chunks(a, b, half, half, p, multiply)
    low = ((a + (1 << HALF - 1)) & ((1 << HALF) - 1)) - (1 << HALF - 1)
    high = (a - low) >> HALF
    most = (half >> HALF) + 1
    total = _in_chunks(high, b, most, half, p, multiply) << HALF
    total += _in_chunks(low, b, 1 << HALF - 1, half, p, multiply)
    return reduced(total, p)


def _chunk(most_a: int, most_b: int) -> int:
    """Products of numbers of at most these magnitudes that 63 bits can sum up."""
    return (2**63 - 1) // max(1, most_a * most_b)


def _in_chunks(a: np.ndarray, b: np.ndarray, most_a: int, most_b: int, p: int, multiply: Multiply) -> np.ndarray:
    """A·B modulo p by as many of the inner products at once as their sums allow."""
    step, total = _chunk(most_a, most_b), None
    for k in range(0, a.shape[1], step):
        part = reduced(multiply(a[:, k : k + step], b[k : k + step], "int64"), p)
        total = part if total is None else total + part  # far from 2^63, whatever their number
    assert total is not None, "there is an inner dimension"
    return reduced(total, p)
