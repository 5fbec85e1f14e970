"""New schemes from old: classical products, Kronecker composition, powers, direct sums."""

from __future__ import annotations

import math

import numpy as np

from .scheme import Scheme, derived

# Coefficients (zeros included) of the largest scheme that is worth holding dense.
_MAX_DENSE = 1 << 25


def classical(m: int, k: int, n: int, name: str | None = None) -> Scheme:
    """The classical algorithm ⟨m,k,n;m·k·n⟩.

    Parameters
    ----------
    m, k, n : int
        At least 1.
    name : str, optional
        Default ``"classical{m}{k}{n}"``.

    Returns
    -------
    Scheme
        Product r = (i·k + l)·n + j is A_il·B_lj.
    """
    i, inner, j = (x.ravel() for x in np.indices((m, k, n)))
    r = np.arange(m * k * n)
    U, V, W = (np.zeros((r.size, *shape), dtype=np.int64) for shape in ((m, k), (k, n), (m, n)))
    U[r, i, inner] = V[r, inner, j] = W[r, i, j] = 1
    return Scheme(name or f"classical{m}{k}{n}", U, V, W, "the definition of the matrix product")


def as_scheme(scheme: Scheme | str) -> Scheme:
    """`scheme`, or the scheme of that name in the catalogue; TypeError for anything else."""
    if isinstance(scheme, str):
        from .catalog import schemes  # the catalogue sits above this module; asked only for names

        return schemes[scheme]
    if not isinstance(scheme, Scheme):
        raise TypeError(f"a scheme is a Scheme or a name in the catalogue, got {type(scheme).__name__}")
    return scheme


def compose(*schemes: Scheme | str, name: str | None = None) -> Scheme:
    """The Kronecker product of schemes: each multiplies the blocks of the one before it.

    Parameters
    ----------
    *schemes : Scheme or str
        Outermost first, at least one; a str is a name in `falcon_numba.schemes`.
    name : str, optional
        Default: the names joined by ``*``, as the catalogue looks them up.

    Returns
    -------
    Scheme
        ⟨m₁m₂…, k₁k₂…, n₁n₂…; R₁R₂…⟩, dense: for the levels of a plan use `flatten`. The outermost level is the most
        significant part of every block row, block column and product index.

    Raises
    ------
    ValueError
        No scheme, an unknown name, or a result of more than 2^25 coefficients.
    TypeError
        Neither a Scheme nor a name.
    """
    if not schemes:
        raise ValueError("compose needs at least one scheme")
    parts = [as_scheme(s) for s in schemes]
    size = sum(math.prod(getattr(s, letter).size for s in parts) for letter in "UVW")
    if size > _MAX_DENSE:
        raise ValueError(
            f"composing {' * '.join(s.name for s in parts)} makes {size} coefficients, more than {_MAX_DENSE}: "
            "give the schemes as levels instead"
        )
    outer, *rest = parts
    for inner in rest:
        U, V, W = (_kron(getattr(outer, x), getattr(inner, x)) for x in "UVW")
        outer = Scheme("*".join((outer.name, inner.name)), U, V, W, f"composition: {outer.name}, then {inner.name}")
    result = outer if name is None and rest else outer.renamed(name or outer.name)
    return derived(result, *parts)


def power(scheme: Scheme | str, depth: int, name: str | None = None) -> Scheme:
    """`scheme` composed with itself: `depth` levels as one scheme; ⟨1,1,1;1⟩ for ``depth=0``."""
    if depth < 0:
        raise ValueError(f"depth must be at least 0, got {depth}")
    if depth == 0:
        return classical(1, 1, 1, name)
    return compose(*[scheme] * depth, name=name)


def direct_sum(first: Scheme | str, second: Scheme | str, axis: str, name: str | None = None) -> Scheme:
    """Two schemes side by side: the grid is cut in two along one axis and each part has its own scheme.

    Parameters
    ----------
    first, second : Scheme or str
        Equal in the two grid sizes other than `axis`; `first` takes the leading part.
    axis : {"m", "k", "n"}
        Grid size that adds up. Along "k" both add into the same blocks of C.
    name : str, optional
        Default: the names joined by ``+``.

    Returns
    -------
    Scheme
        Rank R₁ + R₂.

    Raises
    ------
    ValueError
        Unknown axis, or grids that do not fit.
    """
    if axis not in ("m", "k", "n"):
        raise ValueError(f"axis must be 'm', 'k' or 'n', got {axis!r}")
    first, second = as_scheme(first), as_scheme(second)
    if any(getattr(first, x) != getattr(second, x) for x in "mkn" if x != axis):
        raise ValueError(f"{first!r} and {second!r} do not stand side by side along {axis}")
    parts = []
    for letter, axes in (("U", "mk"), ("V", "kn"), ("W", "mn")):
        x, y = getattr(first, letter), getattr(second, letter)
        offset = [x.shape[1 + d] if a == axis else 0 for d, a in enumerate(axes)]
        out = np.zeros((len(x) + len(y), offset[0] + y.shape[1], offset[1] + y.shape[2]), dtype=np.result_type(x, y))
        out[: len(x), : x.shape[1], : x.shape[2]] = x
        out[len(x) :, offset[0] :, offset[1] :] = y
        parts.append(out)
    U, V, W = parts
    source = f"{first.name} and {second.name} side by side along {axis}"
    return derived(Scheme(name or f"{first.name}+{second.name}", U, V, W, source), first, second)


def _kron(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype != object and y.dtype != object and int(np.abs(x).max()) * int(np.abs(y).max()) < 2**63:
        return np.kron(x, y)
    return np.kron(x.astype(object), y.astype(object))  # Python numbers cannot overflow
