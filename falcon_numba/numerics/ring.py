"""Freivalds' test in the ring of integers modulo 2^bits."""

from __future__ import annotations

import numpy as np

CHUNK = 2**18  # elements converted at a time
_RING = np.uint64  # what is exact modulo 2^64 is exact modulo any smaller power of two


def _of(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64).astype(_RING) if x.dtype.kind != "u" else x.astype(_RING)


def ring_test(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: int,
    beta: int,
    c_in: np.ndarray | None,
    rounds: int,
    rng: np.random.Generator,
) -> tuple[int, int, int] | None:
    """Whether C = α·A·B + β·C₀ modulo 2^bits of C: None, or the (row, column, error) of a wrong element.

    The first vector has odd components, which are no divisors of zero: an error that is alone in its row is always
    seen. Those of the others are uniform. Let 2^s be the largest power of two that divides all errors of a row. What
    one of them, less divisible than the others, adds to the residual is uniform among the multiples of 2^s, of which
    there are at least two: each of these vectors misses the row with probability ≤ 1/2.
    """
    N = b.shape[1]
    bits = 8 * c.itemsize
    mask = _RING(2**bits - 1)
    scale_a, scale_b = _RING(alpha % 2**bits), _RING(beta % 2**bits)
    x = rng.integers(0, 2**64, (N, rounds), dtype=_RING)
    x[:, 0] |= _RING(1)

    def times(y: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        out = np.empty((len(y), vectors.shape[1]), _RING)
        step = max(1, CHUNK // y.shape[1])
        for first in range(0, len(y), step):
            out[first : first + step] = _of(y[first : first + step]) @ vectors
        return out

    residual = times(c, x) - scale_a * times(a, times(b, x))
    if c_in is not None:
        residual -= scale_b * times(c_in, x)
    wrong = np.flatnonzero((residual & mask).any(axis=1))
    if not len(wrong):
        return None
    i = int(wrong[0])
    error = _of(c[i]) - scale_a * times(b.T, _of(a[i])[:, np.newaxis])[:, 0]
    if c_in is not None:
        error -= scale_b * _of(c_in[i])
    error &= mask
    j = int(np.flatnonzero(error)[0])
    value = int(error[j])
    return i, j, value - 2**bits if value >= 2 ** (bits - 1) else value
