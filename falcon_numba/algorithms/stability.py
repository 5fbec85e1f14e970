"""What a scheme does to rounding errors, as exact functions of its coefficients.

D. Bini and G. Lotti, "Stability of fast algorithms for matrix multiplication", Numer. Math. 36 (1980);
G. Ballard, A. R. Benson, A. Druinsky, B. Lipshitz, O. Schwartz, "Improving the numerical stability of fast matrix
multiplication", SIAM J. Matrix Anal. Appl. 37 (2016) (their stability factor E is `growth_factor`);
J.-G. Dumas, C. Pernet, A. Sedoglavic, "Strassen's algorithm is not optimally accurate", ISSAC 2024 (γ).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from .scheme import Scheme


@lru_cache(maxsize=128)
def growth_factor(scheme: Scheme) -> int | Fraction:
    """e = max over (i, j) of Σ_r |W[r,i,j]|·‖U_r‖₁·‖V_r‖₁, exact.

    Strassen 12, Winograd 18, the classical ⟨m,k,n⟩ k. Factors of several levels multiply.
    """
    u, v, w = (np.abs(x.astype(object)) for x in (scheme.U, scheme.V, scheme.W))
    weight = u.sum(axis=(1, 2)) * v.sum(axis=(1, 2))
    return _plain((w * weight[:, None, None]).sum(axis=0).max())


@lru_cache(maxsize=128)
def gamma(scheme: Scheme) -> float:
    """γ = Σ_r ‖U_r‖₂·‖V_r‖₂·‖W_r‖₂ (Frobenius norms), correctly rounded but for the square roots.

    Strassen 14.83, Winograd 17.85, the classical ⟨m,k,n⟩ m·k·n. Values of several levels multiply.
    """
    u, v, w = ((x.astype(object) ** 2).sum(axis=(1, 2)) for x in (scheme.U, scheme.V, scheme.W))
    return math.fsum(math.sqrt(x) for x in u * v * w)


@lru_cache(maxsize=128)
def combination_lengths(scheme: Scheme) -> tuple[int, int, int]:
    """The most blocks summed in one Ã_r, in one B̃_r, and the most products summed in one block of C."""
    return (
        int(np.count_nonzero(scheme.U, axis=(1, 2)).max()),
        int(np.count_nonzero(scheme.V, axis=(1, 2)).max()),
        int(np.count_nonzero(scheme.W, axis=0).max()),
    )


@lru_cache(maxsize=128)
def chain_length(scheme: Scheme) -> int:
    """Q, the longest chain of roundings in forming one Ã_r, B̃_r or block of C with one level.

    One per addition; one more where some coefficient is not ± a power of two, and another where one is not even a
    binary fraction that float32 holds.
    """
    return max(combination_lengths(scheme)) - 1 + _coefficient_roundings(scheme)


def levels_growth(levels: Sequence[Scheme]) -> Fraction:
    """Π e/k over the levels: the factor in front of K in the error bound; 1 for no levels."""
    return math.prod((Fraction(growth_factor(s)) / s.k for s in levels), start=Fraction(1))


def levels_chain(levels: Sequence[Scheme]) -> int:
    """The largest `chain_length` among the levels: roundings a level when each level is combined on its own."""
    return max((chain_length(s) for s in levels), default=0)


def flat_chains(levels: Sequence[Scheme]) -> tuple[int, int, int]:
    """Roundings in one Ã_r, one B̃_r, one block of C when all levels are summed term by term in one go.

    Such a sum has as many terms as the product of its lengths level by level, which is more than the levels' chains add
    up to: two Strassen levels sum 16 products into a block, a chain of 15, not 2·3.
    """
    lengths = [combination_lengths(s) for s in levels]
    extra = sum(_coefficient_roundings(s) for s in levels)
    a, b, c = (math.prod(x[i] for x in lengths) - 1 + extra for i in range(3))
    return a, b, c


@lru_cache(maxsize=128)
def _coefficient_roundings(scheme: Scheme) -> int:
    values = {abs(Fraction(c)) for x in (scheme.U, scheme.V, scheme.W) for c in x[x != 0].tolist()}
    if all(_power_of_two(c.numerator) and _power_of_two(c.denominator) for c in values):
        return 0
    return 1 if all(c.numerator < 2**24 and _power_of_two(c.denominator) for c in values) else 2


def _power_of_two(x: int) -> bool:
    return x & (x - 1) == 0


def _plain(x: int | Fraction) -> int | Fraction:
    return x.numerator if isinstance(x, Fraction) and x.denominator == 1 else x
