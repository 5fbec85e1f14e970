"""Several levels of schemes as one sparse scheme, the form the engines run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from .scheme import Scheme, grid_of


@dataclass(frozen=True, eq=False)
class Terms:
    """The non-zero coefficients of U, V or W, product by product (compressed sparse rows).

    The terms of product r stand at ``ptr[r]:ptr[r+1]``, in the order in which they are added: ascending blocks (of the
    original, in a transposed scheme).

    Attributes
    ----------
    ptr : ndarray of int64, shape (R + 1,)
    block : ndarray of int64, shape (nonzeros,)
        Row-major index of the block in its matrix's grid.
    coef : ndarray of float64, shape (nonzeros,)
        Exact for integers below 2^53 and for binary fractions; other rationals are rounded.
    """

    ptr: np.ndarray
    block: np.ndarray
    coef: np.ndarray

    def by_block(self, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same terms block by block: (ptr, product, coef), ``ptr`` of shape (blocks + 1,), products ascending."""
        product = np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))
        order = np.argsort(self.block, kind="stable")
        return _ptr(self.block[order], blocks), product[order], self.coef[order]


@dataclass(frozen=True, eq=False)
class FlatScheme:
    """⟨m,k,n;R⟩ with sparse coefficients; read-only, compared by identity (`flatten` caches).

    Attributes
    ----------
    grid : tuple of int
        (m, k, n) of all levels together.
    ranks : tuple of int
        Of the levels, outermost first, products without effect left out.
    levels : tuple of Scheme
        What was flattened, untransposed.
    U, V, W : Terms
        Blocks of A, B and C. The outermost level is the most significant part of product, block row and block column.
        For every product the largest coefficients of U and V lie in [1, 2): powers of two are moved to W, exactly,
        unless `integral`.
    integral : bool
        Coefficients are left as they are, for products of integers.
    """

    grid: tuple[int, int, int]
    ranks: tuple[int, ...]
    U: Terms
    V: Terms
    W: Terms
    levels: tuple[Scheme, ...]
    is_transposed: bool = False
    integral: bool = False

    @cached_property
    def grids(self) -> tuple[tuple[int, int, int], ...]:
        """(m, k, n) of the levels, outermost first."""
        return tuple(s.grid[::-1] if self.is_transposed else s.grid for s in self.levels)

    @property
    def rank(self) -> int:
        """R, the number of leaf products."""
        return math.prod(self.ranks)

    @cached_property
    def largest_sums(self) -> tuple[float, float, float]:
        """Most that magnitudes grow by, K apart: in combinations of A (max ‖U_r‖₁), of B, and in any sum towards C.

        A sum of inner levels is at most e = max_(i,j) Σ_r |W[r,i,j]|·‖U_r‖₁·‖V_r‖₁ of these levels times
        ‖U_r‖₁·‖V_r‖₁ of the outer ones, before their W applies. The figure bounds all such mixtures.
        """
        u, v = (np.add.reduceat(np.abs(t.coef), t.ptr[:-1]) for t in (self.U, self.V))
        growth = 1.0
        for U, V, W in (_effective(level, self.integral) for level in self.levels):
            each = np.abs(U).sum(axis=(1, 2)) * np.abs(V).sum(axis=(1, 2))
            weighted = np.abs(W) * each[:, None, None]
            growth *= max(float(each.max()), float(weighted.max()), float(weighted.sum(axis=0).max()))
        return float(u.max()), float(v.max()), growth

    def fits(self, dtype: str) -> bool:
        """Whether the dtype holds every coefficient without overflow or underflow; of integers, modulo 2^bits."""
        coefs = np.abs(np.concatenate([t.coef for t in (self.U, self.V, self.W)]))
        if np.dtype(dtype).kind == "i":
            return bool((coefs == np.rint(coefs)).all() and coefs.max() < 2**53)
        info = np.finfo(dtype)
        return bool(coefs.min() >= info.tiny and coefs.max() <= info.max)

    def split(self, outer: int) -> tuple[FlatScheme, FlatScheme]:
        """The `outer` outermost levels, and the others: their Kronecker product is this one."""
        outside, inside = (flatten(x, self.integral) for x in (self.levels[:outer], self.levels[outer:]))
        return (outside.transposed, inside.transposed) if self.is_transposed else (outside, inside)

    @cached_property
    def transposed(self) -> FlatScheme:
        """The same products for Cᵀ = Bᵀ·Aᵀ: U and V change roles, every block's row and column too."""
        m, k, n = self.grid
        return FlatScheme(
            (n, k, m),
            self.ranks,
            _transposed(self.V, k, n),
            _transposed(self.U, m, k),
            _transposed(self.W, m, n),
            self.levels,
            not self.is_transposed,
            self.integral,
        )


@lru_cache(maxsize=32)
def flatten(levels: tuple[Scheme, ...], integral: bool = False) -> FlatScheme:
    """The Kronecker product of all levels, built sparse.

    Parameters
    ----------
    levels : tuple of Scheme
        Outermost first; ``()`` is the classical product of one block.
    integral : bool
        Leave integer coefficients integers, see `FlatScheme`.

    Returns
    -------
    FlatScheme
        Cached: equal levels give the same object.
    """
    m, k, n = grid_of(levels)
    tensors = [_effective(scheme, integral) for scheme in levels]
    ranks = tuple(len(U) for U, _, _ in tensors)
    U, V, W = (_kron([level[i] for level in tensors], math.prod(ranks), columns) for i, columns in enumerate((k, n, n)))
    return FlatScheme((m, k, n), ranks, U, V, W, levels, integral=integral)


def _effective(scheme: Scheme, integral: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U, V, W as floats, without products of which one factor is zero, powers of two moved to W if not `integral`."""
    U, V, W = (x.astype(np.float64) for x in (scheme.U, scheme.V, scheme.W))
    largest = [np.abs(x).max(axis=(1, 2)) for x in (U, V, W)]
    keep = np.logical_and.reduce([x > 0 for x in largest])
    shift = [(np.frexp(x[keep])[1] - 1) * (not integral) for x in largest[:2]]
    u, v = (s[:, None, None] for s in shift)
    return np.ldexp(U[keep], -u), np.ldexp(V[keep], -v), np.ldexp(W[keep], u + v)


def _kron(tensors: list[np.ndarray], rank: int, columns: int) -> Terms:
    r = row = col = np.zeros(1, dtype=np.int64)
    coef = np.ones(1)
    for x in tensors:
        at = np.nonzero(x)
        r, row, col = (
            np.add.outer(size * outer, inner).ravel()
            for size, outer, inner in zip(x.shape, (r, row, col), at, strict=True)
        )
        coef = np.multiply.outer(coef, x[at]).ravel()
    return _terms(r, row * columns + col, coef, rank)


def _terms(product: np.ndarray, block: np.ndarray, coef: np.ndarray, rank: int) -> Terms:
    order = np.lexsort((block, product))
    terms = Terms(_ptr(product, rank), block[order], coef[order])
    for x in (terms.ptr, terms.block, terms.coef):
        x.flags.writeable = False
    return terms


def _ptr(row: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows)))).astype(np.int64)


def _transposed(terms: Terms, rows: int, columns: int) -> Terms:
    """The blocks of the transposed grid, in the old order of additions: the same bits."""
    row, col = np.divmod(terms.block, columns)
    block = col * rows + row
    block.flags.writeable = False
    return Terms(terms.ptr, block, terms.coef)
