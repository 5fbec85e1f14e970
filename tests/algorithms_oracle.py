"""Slow and simple references for the scheme tests: loops over Python numbers, no code of the package."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np


def brent_sum(U, V, W, equation):
    """The left side of one Brent equation, (i, l, l', j, i', j')."""
    i, l1, l2, j, i2, j2 = equation
    return sum(
        Fraction(u[i][l1]) * Fraction(v[l2][j]) * Fraction(w[i2][j2])
        for u, v, w in zip(U.tolist(), V.tolist(), W.tolist(), strict=True)
    )


def brent_delta(equation):
    """The right side of that equation."""
    i, l1, l2, j, i2, j2 = equation
    return int(i == i2 and l1 == l2 and j == j2)


def brent_equations(m, k, n):
    return itertools.product(range(m), range(k), range(k), range(n), range(m), range(n))


def multiply(scheme, a, b, block=None):
    """Run a scheme on matrices of objects; `block` multiplies two blocks (another level, or the definition)."""
    m, k, n = scheme.grid
    blocks_a = [np.split(row, k, axis=1) for row in np.split(a, m)]
    blocks_b = [np.split(row, n, axis=1) for row in np.split(b, k)]
    c = np.zeros((a.shape[0], b.shape[1]), dtype=object)
    blocks_c = [np.split(row, n, axis=1) for row in np.split(c, m)]
    for u, v, w in zip(scheme.U, scheme.V, scheme.W, strict=True):
        left = sum(u[i, l1] * blocks_a[i][l1] for i, l1 in np.ndindex(m, k))
        right = sum(v[l1, j] * blocks_b[l1][j] for l1, j in np.ndindex(k, n))
        h = (block or np.dot)(left, right)
        for i, j in np.ndindex(m, n):
            blocks_c[i][j] += w[i, j] * h
    return c


def random_integers(rng, shape):
    return rng.integers(-1000, 1000, shape).astype(object)
