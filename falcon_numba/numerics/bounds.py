"""Proven error bounds of a plan, as the engine really computes.

Let u be the unit roundoff of the dtype, and let all levels be flattened into one scheme ⟨m,k,n;R⟩ with coefficient
tensors U, V, W. The engine forms Ã_r and B̃_r by chains of fused multiply-adds over the blocks, accumulates each
element of Ã_r·B̃_r over K_leaf = ⌈K/k⌉ in chunks of KC, and adds every finished chunk, times W, into the block of C.
Follow one elementary product a·b to the element of C that it ends in. It passes through at most

- Q_U roundings while its block of A is combined, Q_V for B (the longest combination less one; fewer where the first
  levels are combined before the others),
- min(KC, K_leaf) roundings in the chain of a chunk,
- Q_W + 1 additions for every chunk into the block of C, of which there are ⌈K_leaf/KC⌉, the products of the block
  being Q_W + 1, the product of the levels' (q_W + 1). The engine adds in up to three steps, sums of inner levels into
  those of outer ones: then it passes through the sum of their numbers instead, which is not larger, but by one for
  every level of a single product to a block (o_W of them),

so with L = min(KC, K_leaf) + (Q_W + 1 + o_W)·⌈K_leaf/KC⌉ + Q_U + Q_V + 1 and |α| rounded in once more, standard
analysis (N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., lemma 3.1) gives to first order

    |Ĉ − C|_ij ≤ |α|·L·u · Σ_r |W[r]|·(|U[r]|·|A|)(|V[r]|·|B|)  (at i, j)  +  u·(|Ĉ| + P·|βC|)_ij,

P being the number of passes over C (`Plan.passes`): βC is rounded once in every pass that adds to it.

*Classical product.* The sum is (|A||B|)_ij: the componentwise contract.

*LCMA.* Every element of |A| in the sum stands in a row that shares its place within a block with row i, every element
of |B| likewise in a column. If those rows have magnitude at most a, those columns at most b, the sum is at most
e·K_leaf·a·b with the growth factor e = max_(i,j) Σ_r |W[r,i,j]|·‖U_r‖₁·‖V_r‖₁ (Bini & Lotti 1980; Ballard, Benson,
Druinsky, Lipshitz & Schwartz 2016), and e of a composition is the product of its levels' (12 for Strassen, so 6 for
every level in front of K): the normwise contract, with a = max|A| and b = max|B|. (In the Frobenius norm
Σ_r ‖U_r‖₂‖V_r‖₂‖W_r‖₂ stands in its place, 14.83 for Strassen: J.-G. Dumas, C. Pernet & A. Sedoglavic, "Strassen's
algorithm is not optimally accurate", ISSAC 2024. That says nothing of single elements, which are promised here.)

*Balanced contract.* Rows of A and columns of B are multiplied by powers of two, exactly, so that all magnitudes lie in
[1, 2); undoing it in C is exact. Then the magnitude of any other row is less than twice that of row i, in units of
row i, and the bound holds with 2·a_i and 2·b_j. Where the magnitudes lie within `SPREAD` powers of two the engine saves
itself the scaling, which leaves a factor below 2^(SPREAD+1) on either side. Hence `BALANCED`.

To this comes underflow, at most e·K_leaf·η with η the smallest normal number of the dtype, and the second-order terms,
covered by a factor of 1.01 while L·u < 0.01.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..algorithms import Scheme, flat_chains, flatten, levels_growth

SPREAD = 1  # powers of two by which row magnitudes may differ before the balanced contract scales them
SCALED = ("balanced", "estimated")  # contracts under which rows of A and columns of B are rescaled
BALANCED = 2.0 ** (2 * (SPREAD + 1))
FIRST_ORDER = 1.01


class ErrorBound(NamedTuple):
    """Bound of one plan: |Ĉ − C|_ij ≤ |α|·factor·x_ij + u·(|Ĉ| + P·|βC|)_ij + |α|·underflow.

    x is |A||B| for depth 0 (`componentwise`), else the row magnitude a_i times the column magnitude b_j (balanced) or
    max|A|·max|B| (normwise).

    Attributes
    ----------
    factor : float
    relative : float
        The bound divided by K·max|A|·max|B|, without the last rounding: what ``max_error`` is compared with.
    underflow : float
    componentwise : bool
    """

    factor: float
    relative: float
    underflow: float
    componentwise: bool


def unit_roundoff(dtype: str | np.dtype) -> float:
    """u = ε/2 of a NumPy float type."""
    return float(np.finfo(dtype).eps) / 2


def chain(levels: tuple[Scheme, ...], K: int, KC: int) -> int:
    """L: the most roundings between an elementary product and its element of C."""
    combined, added = _chains(levels)
    leaf = -(-K // flatten(levels).grid[1])
    return min(KC, leaf) + added * -(-leaf // KC) + combined + 2


@functools.lru_cache(maxsize=1024)
def _chains(levels: tuple[Scheme, ...]) -> tuple[int, int]:
    """Q_U + Q_V, and Q_W + 1 + o_W."""
    q_u, q_v, q_w = flat_chains(levels)
    single = sum(flat_chains((level,))[2] == 0 for level in levels)
    return q_u + q_v, q_w + 1 + single


@functools.lru_cache(maxsize=1024)
def _growth(levels: tuple[Scheme, ...]) -> float:
    return float(levels_growth(levels))


@functools.lru_cache(maxsize=1024)
def error_bound(levels: tuple[Scheme, ...], K: int, KC: int, dtype: str, accuracy: str) -> ErrorBound:
    """Bound of the product of inner size K with these levels under a contract.

    Parameters
    ----------
    levels : tuple of Scheme
        Outermost first; ``()`` is the classical product.
    K, KC : int
        Inner size and longest chunk of it.
    dtype : str
    accuracy : {"balanced", "componentwise", "normwise", "estimated"}
        "estimated" has the balanced bound.

    Integers are exact modulo 2^bits.
    """
    if np.dtype(dtype).kind == "i":
        return ErrorBound(0.0, 0.0, 0.0, True)
    roundings = FIRST_ORDER * chain(levels, K, KC) * unit_roundoff(dtype)
    tiny = float(np.finfo(dtype).tiny)
    if not levels:
        return ErrorBound(roundings, roundings, K * tiny, True)
    k = flatten(levels).grid[1]
    leaf = -(-K // k)
    sums = _growth(levels) * k * leaf  # e·K_leaf
    factor = sums * roundings * (BALANCED if accuracy in SCALED else 1.0)
    return ErrorBound(factor, factor / K, sums * tiny, False)


def entry_bounds(
    bound: ErrorBound, a, b, c, *, alpha=1.0, beta=0.0, c_in=None, passes=1, accuracy="balanced"
) -> np.ndarray:
    """The bound of every element of a result, in float64 (longdouble for float64 input).

    Parameters
    ----------
    bound : ErrorBound
    a, b, c : ndarray, shapes (M, K), (K, N), (M, N)
        Operands and computed result.
    alpha, beta, c_in : scalars and ndarray (M, N)
        As given to the product.
    passes : int
        Over C, `Plan.passes`.
    """
    wide = np.longdouble if c.dtype == np.float64 else np.float64
    x, y = np.abs(a).astype(wide), np.abs(b).astype(wide)
    if bound.componentwise:
        size = x @ y
    elif accuracy in SCALED:
        size = np.outer(x.max(axis=1, initial=0), y.max(axis=0, initial=0))
    else:
        size = np.full(c.shape, x.max(initial=0) * y.max(initial=0))
    last = np.abs(c).astype(wide)
    if c_in is not None and beta != 0:
        last += passes * abs(wide(beta)) * np.abs(c_in).astype(wide)
    return abs(wide(alpha)) * (bound.factor * size + bound.underflow) + unit_roundoff(c.dtype) * last
