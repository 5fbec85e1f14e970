"""`Scheme`: one lower-complexity matrix multiplication algorithm ⟨m,k,n;R⟩ as exact data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from .brent import Violation, first_violation


class SchemeError(ValueError):
    """A scheme that is malformed or does not multiply matrices.

    Attributes
    ----------
    violation : Violation or None
        The first Brent equation that fails; None when the data is malformed.
    """

    def __init__(self, message: str, violation: Violation | None = None):
        super().__init__(message)
        self.violation = violation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.violation)


@dataclass(frozen=True, eq=False, repr=False)
class Scheme:
    """A bilinear algorithm that multiplies an m×k grid of blocks by a k×n grid with R block products.

    Ã_r = Σ U[r,i,l]·A_il and B̃_r = Σ V[r,l,j]·B_lj are multiplied, H_r = Ã_r·B̃_r, and C_ij = Σ W[r,i,j]·H_r.

    Parameters
    ----------
    name : str
    U, V, W : array_like, shapes (R, m, k), (R, k, n), (R, m, n)
        Integers, `fractions.Fraction`, strings such as "-1/2", or finite floats, which are taken at their exact value.
        Stored as read-only int64 where every coefficient of the three is an integer that fits, else as arrays of
        `Fraction`.
    source : str
        Where the coefficients come from.
    evaluation_order : sequence of str, optional
        A straight-line program with fewer additions than the rows of U, V, W spelt out; see `straightline`.

    Raises
    ------
    SchemeError
        Shapes that do not fit together, or a coefficient that is no exact number. The Brent equations are checked by
        `verify`, not here.

    Notes
    -----
    Schemes with equal name and coefficients are equal and hash alike.
    """

    name: str
    U: np.ndarray
    V: np.ndarray
    W: np.ndarray
    source: str = ""
    evaluation_order: tuple[str, ...] = ()
    _hash: int = field(init=False)
    _verified: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        arrays = _exact_arrays(self.name, self.U, self.V, self.W)
        U, V, W = arrays
        if not (
            all(x.ndim == 3 and x.size for x in arrays)
            and U.shape[0] == V.shape[0] == W.shape[0]
            and U.shape[2] == V.shape[1]
            and U.shape[1] == W.shape[1]
            and V.shape[2] == W.shape[2]
        ):
            raise SchemeError(
                f"scheme {self.name!r}: U, V, W must have shapes (R, m, k), (R, k, n), (R, m, n) with R, m, k, n ≥ 1, "
                f"got {U.shape}, {V.shape}, {W.shape}"
            )
        content = tuple(x.tobytes() if x.dtype != object else tuple(x.flat) for x in arrays)
        for key, value in [
            *zip("UVW", arrays, strict=True),
            ("evaluation_order", tuple(self.evaluation_order)),
            ("_hash", hash((self.name, U.shape, V.shape, content))),
        ]:
            object.__setattr__(self, key, value)

    @property
    def m(self) -> int:
        """Rows of A's and C's grid."""
        return self.U.shape[1]

    @property
    def k(self) -> int:
        """Columns of A's grid, rows of B's: the inner size."""
        return self.U.shape[2]

    @property
    def n(self) -> int:
        """Columns of B's and C's grid."""
        return self.V.shape[2]

    @property
    def grid(self) -> tuple[int, int, int]:
        """(m, k, n)."""
        return self.m, self.k, self.n

    @property
    def rank(self) -> int:
        """R, the number of block products."""
        return self.U.shape[0]

    @property
    def format(self) -> str:
        """The format as the literature writes it, such as ⟨2,2,2;7⟩."""
        return f"⟨{self.m},{self.k},{self.n};{self.rank}⟩"

    @property
    def nonzeros(self) -> tuple[int, int, int]:
        """‖U‖₀, ‖V‖₀, ‖W‖₀."""
        u, v, w = (int(np.count_nonzero(x)) for x in (self.U, self.V, self.W))
        return u, v, w

    @property
    def speedup(self) -> float:
        """m·k·n/R: by how much one level cuts the multiplications."""
        return self.m * self.k * self.n / self.rank

    @property
    def omega(self) -> float:
        """The exponent ω = 3·log R / log(m·k·n) that unlimited recursion reaches; 3 for the 1×1×1 product."""
        volume = self.m * self.k * self.n
        return 3.0 if volume == 1 else 3.0 * math.log(self.rank) / math.log(volume)

    def verify(self) -> Scheme:
        """Check every Brent equation in exact arithmetic, once per object.

        Returns
        -------
        Scheme
            This object.

        Raises
        ------
        SchemeError
            Naming the first equation violated, with what it gives and what it should.
        """
        if not self._verified:
            violation = first_violation(self.U, self.V, self.W)
            if violation is not None:
                raise SchemeError(f"{self!r} violates a Brent equation: {violation}", violation)
            object.__setattr__(self, "_verified", True)
        return self

    def renamed(self, name: str, source: str | None = None) -> Scheme:
        """The same coefficients under another name (and source, where given)."""
        new_source = self.source if source is None else source
        return derived(Scheme(name, self.U, self.V, self.W, new_source, self.evaluation_order), self)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scheme):
            return NotImplemented
        if self is other:
            return True
        return (
            self._hash == other._hash
            and self.name == other.name
            and all(np.array_equal(x, y) for x, y in zip(self._arrays, other._arrays, strict=True))
        )

    @property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.U, self.V, self.W

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: read-only flags and the (per-process) string hash do not survive pickling.
        return Scheme, (self.name, self.U, self.V, self.W, self.source, self.evaluation_order)

    def __repr__(self) -> str:
        return f"Scheme {self.name!r} {self.format}"

    def _repr_html_(self) -> str:
        from .table import scheme_html  # display sits above this module; imported when a notebook asks

        return scheme_html(self)


def derived(scheme: Scheme, *parents: Scheme) -> Scheme:
    """`scheme`, marked as verified when every parent is: for constructions that keep validity."""
    object.__setattr__(scheme, "_verified", all(p._verified for p in parents))
    return scheme


def _exact_arrays(name: str, *arrays: Any) -> list[np.ndarray]:
    """Read-only copies of the coefficient arrays: all int64, or all arrays of Fraction."""
    raw = []
    for letter, x in zip("UVW", arrays, strict=True):
        try:
            raw.append(np.array(x))
        except ValueError:
            raise SchemeError(f"scheme {name!r}: {letter} is not a rectangular array") from None
    if not all(np.can_cast(x.dtype, np.int64) for x in raw):
        exact = [_fractions(name, letter, x) for letter, x in zip("UVW", raw, strict=True)]
        whole = all(c.denominator == 1 and abs(c) < 2**63 for x in exact for c in x.flat)
        raw = [np.array([int(c) for c in x.flat]).reshape(x.shape) for x in exact] if whole else exact
    out = [x if x.dtype == object else np.ascontiguousarray(x, dtype=np.int64) for x in raw]
    for x in out:
        x.flags.writeable = False
    return out


def _fractions(name: str, letter: str, x: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, dtype=object)
    for index, c in np.ndenumerate(x):
        try:
            out[index] = Fraction(c.item() if isinstance(c, np.generic) else c)
        except (TypeError, ValueError, OverflowError, ZeroDivisionError):
            raise SchemeError(
                f"scheme {name!r}: {letter}[{','.join(map(str, index))}] = {c!r} is not an exact number"
            ) from None
    return out


def grid_of(levels: Sequence[Scheme]) -> tuple[int, int, int]:
    """(m, k, n) of several levels together; (1, 1, 1) for none."""
    return math.prod(s.m for s in levels), math.prod(s.k for s in levels), math.prod(s.n for s in levels)
