"""The Brent equations, checked in exact integer arithmetic.

R. P. Brent, "Algorithms for matrix multiplication", Stanford CS-TR-157 (1970): (U, V, W) multiplies an m×k by a k×n
matrix over any ring exactly when for every i, l, l', j, i', j'

    Σ_r U[r,i,l]·V[r,l',j]·W[r,i',j'] = δ(i,i')·δ(l,l')·δ(j,j').
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np

# Entries of the work array U⊗V held at a time: 32 MiB of int64.
_CHUNK = 1 << 22


class Violation(NamedTuple):
    """One Brent equation that does not hold.

    Attributes
    ----------
    equation : tuple of int
        (i, l, l', j, i', j'), zero-based.
    got, expected : int or Fraction
    """

    equation: tuple[int, int, int, int, int, int]
    got: int | Fraction
    expected: int

    def __str__(self) -> str:
        i, l1, l2, j, i2, j2 = self.equation
        return (
            f"Σ_r U[r,{i},{l1}]·V[r,{l2},{j}]·W[r,{i2},{j2}] = {self.got}, expected {self.expected} "
            f"(the coefficient of a[{i},{l1}]·b[{l2},{j}] in c[{i2},{j2}])"
        )


def first_violation(U: np.ndarray, V: np.ndarray, W: np.ndarray) -> Violation | None:
    """The first Brent equation, in the order of (i, l, l', j, i', j'), that (U, V, W) violates.

    Parameters
    ----------
    U, V, W : ndarray, shapes (R, m, k), (R, k, n), (R, m, n)
        int64, or objects that are `int` or `fractions.Fraction`.

    Returns
    -------
    Violation or None
        None when all (m·k)·(k·n)·(m·n) equations hold.
    """
    R, m, k = U.shape
    n = V.shape[2]
    (u, du), (v, dv), (w, dw) = (_over_common_denominator(x.reshape(R, -1)) for x in (U, V, W))
    one = du * dv * dw
    if max(one, _largest_sum(u, v, w)) < 2**63:
        u, v, w = (x.astype(np.int64) for x in (u, v, w))
    else:  # Python integers never overflow
        u, v, w = (x.astype(object) for x in (u, v, w))

    wt = np.ascontiguousarray(w.T)
    step = max(1, _CHUNK // max(1, R * k * n))
    for start in range(0, m * k, step):
        il = np.arange(start, min(start + step, m * k))
        uv = u[:, il, None] * v[:, None, :]
        total = (wt @ uv.reshape(R, -1)).reshape(m, n, len(il), k, n)
        total = total.transpose(2, 3, 4, 0, 1)  # (il, l', j, i', j')
        i, l1 = np.divmod(il, k)
        delta = (
            (l1[:, None] == np.arange(k))[:, :, None, None, None]
            & np.eye(n, dtype=bool)[:, None, :]
            & (i[:, None] == np.arange(m))[:, None, None, :, None]
        )
        wrong = total != delta.astype(total.dtype) * one
        if wrong.any():
            first = np.unravel_index(np.argmax(wrong), wrong.shape)
            p, l2, j, i2, j2 = (int(x) for x in first)
            got = Fraction(int(total[first]), one)
            return Violation(
                (int(i[p]), int(l1[p]), l2, j, i2, j2),
                got.numerator if got.denominator == 1 else got,
                int(delta[first]),
            )
    return None


def _over_common_denominator(x: np.ndarray) -> tuple[np.ndarray, int]:
    """Integers and the denominator d with x = integers / d."""
    if x.dtype != object:
        return x, 1
    d = lcm(*(Fraction(c).denominator for c in x.flat))
    return np.array([int(c * d) for c in x.flat], dtype=object).reshape(x.shape), d


def _largest_sum(u: np.ndarray, v: np.ndarray, w: np.ndarray) -> int:
    """A bound on every coefficient, product and partial sum of the left sides: Σ_r max|U_r|·max|V_r|·max|W_r|."""
    peaks = (
        [max(1, *(abs(int(c)) for c in row)) for row in x] for x in (u, v, w)
    )  # 1: a zero must not hide the others
    return sum(a * b * c for a, b, c in zip(*peaks, strict=True))
