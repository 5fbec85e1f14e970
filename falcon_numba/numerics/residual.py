"""The residual test of one floating-point product: is C = α·A·B + β·C₀ to within a given rounding error?

*Freivalds' test.* For a random vector x both sides of C·x = α·A·(B·x) + β·C₀·x cost O(n²) (R. Freivalds, "Probabilistic
machines can use less running time", IFIP 1977). The components of x are random signs times magnitudes in [1, 2). If E
is the error of C, row i of the residual is E_i·x. Fix all but the sign of the component that meets the largest element
of E_i: one of its two values makes |E_i·x| at least as large as that element. So one wrong element is always seen, and
a vector misses a row with several wrong ones with probability ≤ 1/2, independently of other vectors.

*Tolerance.* Let t_ij be the rounding error that the contract allows C_ij. Then |E_i·x| ≤ Σ_j t_ij·|x_j| whatever the
signs of the errors: the tolerance of row i. It is

- for a classical product, summed in any order, L·u·(|A|(|B||x|))_i, with L roundings on the way of one elementary
  product (N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., §3.1);
- for an LCMA L·u·Σ_r |W[r]|·(|U[r]|·|A|)(|V[r]|·|B|)·|x| (`numerics.bounds`). By Cauchy and Schwarz each of the sums
  over the inner index that this consists of is at most ã_p·b̃_c, the largest 2-norms of a segment of a row of A, of all
  rows that share place p in their blocks, and of a column of B. So it is at most e·L·u·ã_p·Σ_j b̃_j·|x_j|: about as the
  bound in the contract, where the magnitudes a_i·√K_leaf stand for ã_p, but as large as these data make it;

plus the last rounding u·(|C| + P·|βC₀|)|x|, underflow, and what the test itself rounds: it computes in float64, and
its sums of K and N terms cost at most (K + N)·2⁻⁵³·(|A||B||x|)_i more, which matters for float64 products only.

*Units.* Rows of A and columns of B are taken in units of their own, powers of two, so that neither badly scaled
columns hide an error in others, nor does anything overflow.

*Rows in doubt.* The tolerance of a row is that of N elements together. So the rows whose residuals are largest,
compared to their tolerances, are computed again, and compared element by element with t_ij. A faulty product is refused
by either; a right one by neither, whatever x is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .bounds import FIRST_ORDER, SPREAD
from .nonfinite import first_wrong_pattern

CHUNK = 2**15  # elements converted at a time: they stay in L2, and in memory that needs no new pages
LARGEST_UNIT = 600  # exponents of units: products of two operands and a result in them stay within float64
MOST_IRREGULAR = 16  # rows with NaN or Inf of their own that are computed again


class Allowance(NamedTuple):
    """How large the error of an element may be.

    Attributes
    ----------
    roundings : float
        L·u of the accumulation.
    last : float
        u of the result.
    underflow : float
        Absolute, times |α|.
    largest : float
        Finite number of the result's type.
    passes : int
        Over C: roundings of β·C₀.
    grid : (m, k, n)
        Blocks of an LCMA.
    growth : float
        Its e; 0 for a classical product.
    balanced : bool
        Whether rows and columns may have been scaled by powers of two.
    max_error : float or None
        Instead of all that: the largest error relative to |α|·K·max|A|·max|B|.
    """

    roundings: float
    last: float
    underflow: float
    largest: float
    passes: int = 1
    grid: tuple[int, int, int] = (1, 1, 1)
    growth: float = 0.0
    balanced: bool = False
    max_error: float | None = None


class Finding(NamedTuple):
    """What a test found: the worst element or row.

    Attributes
    ----------
    ratio : float
        The measured error, or residual, as a part of what is allowed. Above 1 the product is wrong.
    row, column : int
        `column` is -1 for the residual of a whole row, `row` for nothing at all.
    error, allowed : float
        In the units of C.
    skipped : int
        Rows that could not be tested.
    what : str
        What is wrong with a NaN or an Inf.
    """

    ratio: float = 0.0
    row: int = -1
    column: int = -1
    error: float = 0.0
    allowed: float = 0.0
    skipped: int = 0
    what: str = ""


def residual_test(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: Any,
    beta: Any,
    c_in: np.ndarray | None,
    allowance: Allowance,
    rounds: int,
    rows: int,
    rng: np.random.Generator,
) -> Finding:
    """Test one product of real or complex floating-point numbers.

    Parameters
    ----------
    a, b, c : ndarray, shapes (M, K), (K, N), (M, N)
        None of the sizes 0; `a` and `b` may be integers.
    alpha, beta, c_in : finite scalars and ndarray (M, N)
        `c_in` is what C was before, None where beta is 0.
    allowance : Allowance
    rounds : int
        Random vectors.
    rows : int
        To compute again.
    rng : numpy.random.Generator
    """
    with np.errstate(all="ignore"):
        left, right = _lines(a, 1), _lines(b, 0)
        wrong = first_wrong_pattern(a, b, c, alpha, beta, c_in, left.bad, right.bad)
        if wrong is not None:
            return Finding(math.inf, wrong[0], wrong[1], math.nan, math.nan, 0, wrong[2])
        return _Test(a, b, c, alpha, beta, c_in, allowance, left, right).run(rounds, rows, rng)


class _Lines(NamedTuple):
    """Rows of A or columns of B: their largest magnitudes, exponents of their units, and which hold NaN or Inf."""

    most: np.ndarray
    exponents: np.ndarray
    bad: np.ndarray

    @property
    def units(self) -> np.ndarray:
        """What turns elements into multiples of the units."""
        return np.ldexp(1.0, -self.exponents)


def _lines(x: np.ndarray, axis: int) -> _Lines:
    most = np.zeros(x.shape[1 - axis])
    for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
        most = np.maximum(most, np.maximum(part.max(axis=axis), -part.min(axis=axis).astype(float)))
    bad = ~np.isfinite(most)
    most = np.where(bad, 0.0, most)
    exponents = np.frexp(most)[1].astype(np.int64) - 1
    zeros = most == 0
    if not zeros.all():  # a product with zeros is looked at more closely than with the smallest numbers there are
        exponents[zeros] = exponents[~zeros].min() - 64
    return _Lines(most, np.clip(exponents, -LARGEST_UNIT, LARGEST_UNIT), bad)


def _pieces(rows: int, columns: int, inner_ends: range = range(0)) -> Iterator[slice]:
    """Slices of rows, as many as `CHUNK` elements, none of them across one of the ends."""
    step, first = max(1, CHUNK // columns), 0
    for end in (*inner_ends, rows):
        while first < end:
            last = min(first + step, end)
            yield slice(first, last)
            first = last


class _Test:
    """One product, the units of its rows and columns, and the sizes that its errors are compared with."""

    def __init__(self, a, b, c, alpha, beta, c_in, allowance: Allowance, left: _Lines, right: _Lines):
        self.arrays, self.alpha, self.beta, self.allowance = (a, b, c, c_in), alpha, beta, allowance
        self.left, self.right, self.row_units, self.column_units = left, right, left.units, right.units
        self.wide = np.result_type(a, b, c, np.float64)
        self.u = FIRST_ORDER * float(np.finfo(self.wide).eps) / 2 * (4 if self.wide.kind == "c" else 1)
        self.huge = np.where(left.exponents > 500, 2.0**-64, 1.0) if left.exponents.max() > 500 else None
        self.drop = right.bad if right.bad.any() else None
        self.underflow = np.minimum(allowance.underflow * abs(alpha) * self.row_units, 1e300)

    def of_a(self, rows: slice | np.ndarray) -> np.ndarray:
        x = self.arrays[0][rows].astype(self.wide)
        x *= self.row_units[rows, np.newaxis]
        return x

    def of_b(self, rows: slice) -> np.ndarray:
        x = self.arrays[1][rows].astype(self.wide)
        x *= self.column_units
        return self._drop(x)

    def of_c(self, which: int, rows: slice | np.ndarray) -> np.ndarray:
        """Rows of C (2) or C₀ (3)."""
        x = self.arrays[which][rows].astype(self.wide)
        units = self.row_units[rows, np.newaxis]
        if self.huge is not None:  # lest C in units of the columns overflows
            x *= self.huge[rows, np.newaxis]
            units = units / self.huge[rows, np.newaxis]
        x *= self.column_units
        x *= units
        return self._drop(x)

    def _drop(self, x: np.ndarray) -> np.ndarray:
        """Columns of B with NaN or Inf have been looked at already."""
        if self.drop is not None:
            x[:, self.drop] = 0
        return x

    def run(self, rounds: int, rows: int, rng: np.random.Generator) -> Finding:
        allowance = self.allowance
        K, N = self.arrays[1].shape
        x = rng.choice((-1.0, 1.0), (N, rounds)) * rng.integers(1024, 2048, (N, rounds)) / 1024
        most = np.abs(x).max(axis=1)

        product, sizes = self._product(x, most)
        got, last = self._times(2, x, most)
        finite = np.isfinite(got).all(axis=1)
        if self.arrays[3] is not None:
            before, more = self._times(3, x, most)
            finite &= np.isfinite(before).all(axis=1)
            got -= self.beta * before
            last += allowance.passes * abs(self.beta) * more
        residual = np.abs(got - self.alpha * product).max(axis=1)
        allowed = sizes if self.ranks is None else self.ranks[0] * float(self.ranks[1] @ most)
        tolerance = abs(self.alpha) * (allowance.roundings * allowed + (K + N + 2) * self.u * sizes)
        tolerance += (allowance.last + (N + 2) * self.u) * last + self.underflow * float(self.column_units @ most)

        ratio = _ratio(residual, tolerance)
        ratio[self.left.bad | ~finite] = -1
        again = np.argsort(-ratio, kind="stable")[:rows]
        again = again[ratio[again] >= 0]
        irregular = np.flatnonzero(~finite & ~self.left.bad)  # not because of A or B: C₀, or overflow
        skipped = max(0, len(irregular) - MOST_IRREGULAR)
        worst = Finding(skipped=skipped)
        chosen = np.concatenate([again, irregular[:MOST_IRREGULAR]])
        if len(chosen):
            worst = self._element_by_element(chosen)._replace(skipped=skipped)
        i = int(ratio.argmax())
        if worst.ratio <= 1 < ratio[i]:
            unit = math.ldexp(1.0, int(self.left.exponents[i]))
            worst = Finding(float(ratio[i]), i, -1, float(residual[i]) * unit, float(tolerance[i]) * unit, skipped)
        return worst

    def _product(self, x: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A·(B·x) and |A|·(|B|·|x|); on the way `ranks`, whose outer product is the size of an LCMA's elements."""
        a, b = self.arrays[:2]
        (M, K), N = a.shape, b.shape[1]
        m, k, n = self.allowance.grid
        lcma, leaf = self.allowance.growth > 0, -(-K // k)
        ends = range(leaf, K, leaf) if lcma else range(0)
        y, z, columns = np.empty((K, x.shape[1]), self.wide), np.empty(K), np.zeros((N, k))
        for rows in _pieces(K, N, ends):
            piece = self.of_b(rows)
            y[rows] = piece @ x
            piece = np.abs(piece)
            z[rows] = piece @ most
            if lcma:
                columns[:, rows.start // leaf] += np.einsum("ij,ij->j", piece, piece)
        product, sizes, lines = np.empty((M, x.shape[1]), self.wide), np.empty(M), np.zeros((M, k))
        for rows in _pieces(M, K):
            piece = self.of_a(rows)
            product[rows] = piece @ y
            piece = np.abs(piece)
            sizes[rows] = piece @ z
            for segment in range(k if lcma else 0):
                part = piece[:, segment * leaf : (segment + 1) * leaf]
                lines[rows, segment] = np.einsum("ij,ij->i", part, part)
        self.ranks = None
        if lcma:
            self.ranks = self._norms(lines, self.left, m) * self.allowance.growth, self._norms(columns, self.right, n)
        elif self.allowance.max_error is not None:
            largest = self.allowance.max_error / self.allowance.roundings * K * float(self.left.most.max())
            self.ranks = largest * self.row_units, float(self.right.most.max()) * self.column_units
        return product, sizes

    def _norms(self, squares: np.ndarray, lines: _Lines, blocks: int) -> np.ndarray:
        """ã of every row, or b̃ of every column, in its own unit: the largest norm of a segment at its place in a block.

        Under the balanced contract the engine scales rows by powers of two where magnitudes differ; where they
        don't it may or may not have, so the larger value counts.
        """
        norms = np.where(lines.bad, 0.0, np.sqrt(squares.max(axis=1)))
        place = np.arange(len(norms)) % -(-len(norms) // blocks)
        exponents = np.minimum(lines.exponents.max() - lines.exponents, 900)
        unscaled = _largest(np.ldexp(norms, -exponents), place) * np.ldexp(1.0, exponents)
        if not self.allowance.balanced:
            return unscaled
        scaled = _largest(norms, place)
        return scaled if exponents.max() > SPREAD else np.maximum(scaled, unscaled)

    def _times(self, which: int, x: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """C·x and |C|·|x|, or of C₀."""
        M, N = self.arrays[which].shape
        signed, absolute = np.empty((M, x.shape[1]), self.wide), np.empty(M)
        for rows in _pieces(M, N):
            piece = self.of_c(which, rows)
            signed[rows] = piece @ x
            absolute[rows] = np.abs(piece) @ most
        return signed, absolute

    def _element_by_element(self, rows: np.ndarray) -> Finding:
        """The worst element of these rows, computed anew."""
        allowance = self.allowance
        K, N = self.arrays[1].shape
        a = self.of_a(rows)
        product, sizes = np.zeros((len(rows), N), self.wide), np.zeros((len(rows), N))
        for part in _pieces(K, N):
            piece = self.of_b(part)
            product += a[:, part] @ piece
            sizes += np.abs(a[:, part]) @ np.abs(piece)
        got = self.of_c(2, rows)
        error, last = got - self.alpha * product, np.abs(got)
        if self.arrays[3] is not None:
            before = self.beta * self.of_c(3, rows)
            error -= before
            last += allowance.passes * np.abs(before)
        allowed = sizes if self.ranks is None else np.outer(self.ranks[0][rows], self.ranks[1])
        allowed = abs(self.alpha) * (allowance.roundings * allowed + (K + 2) * self.u * sizes)
        allowed += (allowance.last + 4 * self.u) * last + np.outer(self.underflow[rows], self.column_units)
        ratio = _ratio(np.abs(error), allowed)

        known = np.zeros(got.shape, bool) if self.arrays[3] is None else ~np.isfinite(self.of_c(3, rows))
        wrong = ~np.isfinite(got) & ~known
        # An overflow on the way is nobody's fault; its sign, or NaN, depends on the order of the additions.
        exponents = np.add.outer(self.left.exponents[rows], self.right.exponents)
        magnitudes = max(1.0, abs(self.alpha)) * sizes + (0 if self.arrays[3] is None else np.abs(before))
        overflows = np.log2(magnitudes) + exponents > math.log2(allowance.largest) - 0.02
        ratio[known | (wrong & overflows)] = 0
        ratio[wrong & ~overflows] = math.inf
        i, j = map(int, np.unravel_index(ratio.argmax(), ratio.shape))
        unit = float(np.ldexp(1.0, exponents[i, j]))
        what = f"is {self.arrays[2][rows[i], j]:g} where a classical product is finite" if wrong[i, j] else ""
        return Finding(
            float(ratio[i, j]), int(rows[i]), j, float(abs(error[i, j])) * unit, float(allowed[i, j]) * unit, 0, what
        )


def _largest(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """For every value the largest of those at the same place."""
    largest = np.zeros(place.max() + 1)
    np.maximum.at(largest, place, values)
    return largest[place]


def _ratio(measured: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Measured as a part of allowed; 0/0 is 0, and what is not a number, such as Inf − Inf, is infinitely wrong."""
    ratio = np.where(measured == 0, 0.0, measured / allowed)
    return np.where(np.isnan(ratio), np.inf, ratio)
