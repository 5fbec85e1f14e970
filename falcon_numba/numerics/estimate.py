"""The rounding error of a product on these data, estimated from a sample of its elements.

Every proven bound is one for the worst data; errors on given data are thousands to millions of times smaller. What the
engine computes at place (p, c) of all blocks of C depends on the rows of A at place p of their blocks and the columns
of B at place c of theirs only. So the product of a few such sets of rows and columns *is* a sample of the whole
product: m·k and k·n grids of blocks with a few rows or columns each, run by the same scheme with the same inner size,
for the cost of that many rows. Its errors, measured in higher precision, are errors of the product itself.

*From the sample to all elements.* Errors are proportional to the magnitudes of the rows and columns that meet in them,
so they are measured in units of the largest ones at their places, and the largest such quotient ρ is applied to the
largest rows and columns of all, which are in the sample as far as they are few. Sums of many independent roundings are
close to normal (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci.
Comput. 41 (2019)); the largest of s of them is about √(2·ln s) standard deviations. With the 10³ of the sample and the
10⁹ of a large product that is 3.7 and 6.4, a factor of 1.7. `SAFETY` is larger than that by another factor of four or
five, for data that are not alike everywhere, sparse ones above all, and for roundings that are not independent. (Where
these all point the same way, as with constant matrices, all elements have about the same error, and a sample tells it.)

*Where the sample sees nothing*, since its operands are zeros or its sums happen to be exact, the estimate is what one
product of the largest elements suffers that a scheme has spread: u·(e/k) of it.

It is an estimate, not a bound: single rows that are much denser than others of the same magnitude may escape it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .bounds import unit_roundoff

SAFETY = 8.0
ROWS, COLUMNS = 48, 16  # of a sample: columns cost a cache miss for every element
FEWEST_PLACES = 4  # rows, or columns, of every block
ONE_THREAD = 2**17  # multiplications for which no BLAS takes more than one thread
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]


def estimate_error(
    a: np.ndarray,
    b: np.ndarray,
    row_exponents: np.ndarray,
    column_exponents: np.ndarray,
    grid: tuple[int, int, int],
    growth: float,
    run: Run,
) -> float:
    """The largest error in A·B to be expected, relative to K·max|A|·max|B|.

    Parameters
    ----------
    a, b : ndarray, shapes (M, K) and (K, N)
        float32 or float64, finite.
    row_exponents, column_exponents : ndarray of int, shapes (M,) and (N,)
        floor(log2) of the largest magnitude in every row of A and column of B, very negative for zeros.
    grid : (m, k, n)
        Blocks of the scheme.
    growth : float
        e/k of the scheme.
    run : callable (a, b) -> c
        The product of smaller operands, as the scheme in question computes it.
    """
    dtype, K = a.dtype, a.shape[1]
    rows, of_rows = _places(row_exponents, grid[0], ROWS)
    columns, of_columns = _places(column_exponents, grid[2], COLUMNS)
    left, right = _lines(a, rows), _lines(b.T, columns).T
    top = np.abs(left).max(), np.abs(right).max()
    if 0 in top:
        return 0.0  # a row or column of the largest magnitude is zero, so all are
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        c = run(left, right)
        p, q = (int(np.frexp(x)[1]) for x in top)  # units in which nothing overflows
        left, right, c = (np.ldexp(x.astype(float), -y) for x, y in ((left, p), (right, q), (c, p + q)))
        largest = float(np.ldexp(float(top[0]), -p) * np.ldexp(float(top[1]), -q))
        error = np.abs(_residual(left, right, c, dtype == np.float32))
        # Rows and columns lie block after block.
        error = error.reshape(grid[0], len(of_rows), grid[2], len(of_columns)).max(axis=(0, 2))
        units = np.ldexp(1.0, np.minimum(of_rows.max() + of_columns.max() - np.add.outer(of_rows, of_columns), 1000))
        quotient = float(np.where(error == 0, 0, error * units).max())
    estimate = (SAFETY * quotient / largest or unit_roundoff(dtype) * growth) / K
    return estimate if np.isfinite(estimate) else np.inf


def _places(exponents: np.ndarray, blocks: int, lines: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (blocks, places) of the lines at some places in all blocks, -1 in the padding, and the places' exponents.

    Half of the places are those of the largest lines, the others any; always the same for the same exponents.
    """
    height = -(-len(exponents) // blocks)
    index = np.arange(blocks * height).reshape(blocks, height)
    padded = np.full(blocks * height, exponents.min())
    padded[: len(exponents)] = exponents
    largest = padded.reshape(blocks, height).max(axis=0)
    places = max(FEWEST_PLACES, lines // blocks)
    if height > places:
        half, chance = places // 2, np.random.default_rng(0).random(height)
        order = np.argsort(-(largest + chance))
        others = np.random.default_rng(1).permutation(order[half:])[: places - half]
        chosen = np.sort(np.concatenate([order[:half], others]))
        index, largest = index[:, chosen], largest[chosen]
    return np.where(index < len(exponents), index, -1), largest.astype(np.int64)


def _lines(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    flat = index.ravel()
    lines = x[np.maximum(flat, 0)]
    lines[flat < 0] = 0
    return lines


def _residual(a: np.ndarray, b: np.ndarray, c: np.ndarray, single: bool) -> np.ndarray:
    """A·B − C of float64 arrays, with at least ten more bits than float64 has, or than float32 has if `single`."""
    if single:
        return _product(a, b) - c
    bits = (53 - int(np.ceil(np.log2(a.shape[1])))) // 2
    left, right = _slices(a, 1, bits), _slices(b, 0, bits)
    residual = -c
    for order in range(len(left)):
        for i in range(order + 1):
            residual += _product(left[i], right[order - i])
    return residual


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·B by the calling thread alone: a BLAS would wait longer for its other threads than it computes."""
    K = a.shape[1]
    step = max(1, ONE_THREAD // (len(a) * b.shape[1]))
    whole = K // step * step
    left = a[:, :whole].reshape(len(a), -1, step).swapaxes(0, 1)
    product = np.matmul(left, b[:whole].reshape(-1, step, b.shape[1])).sum(axis=0)
    if whole < K:
        product += a[:, whole:] @ b[whole:]
    return product


def _slices(x: np.ndarray, axis: int, bits: int) -> list[np.ndarray]:
    """Matrices that sum up to `x`, of so few bits each that products of them are exact (Ozaki et al. 2012)."""
    exponents = np.frexp(np.abs(x).max(axis=axis, keepdims=True))[1]
    parts = []
    for number in range(1, -(-60 // bits) + 1):
        shift = np.ldexp(1.5, exponents + 52 - number * bits)
        part = (x + shift) - shift
        parts.append(part)
        x = x - part
    return parts
