"""The six permutations of a scheme's format.

trace(A·B·Cᵀ) is invariant under cyclic rotation and transposition, so a scheme for ⟨m,k,n⟩ is one for every order of
m, k, n (J. E. Hopcroft and J. Musinski, "Duality applied to the complexity of matrix multiplication and other bilinear
forms", SIAM J. Comput. 2 (1973)).
"""

from __future__ import annotations

from itertools import permutations as _orders

import numpy as np

from .scheme import Scheme, derived

ORDERS: tuple[str, ...] = tuple("".join(p) for p in _orders("mkn"))


def permute(scheme: Scheme, order: str, name: str | None = None) -> Scheme:
    """The scheme for a permuted format.

    Parameters
    ----------
    scheme : Scheme
        ⟨m,k,n;R⟩.
    order : str
        A permutation of ``"mkn"``: the sizes of `scheme` in the order that the result has them, so that ``"knm"`` is
        the cyclic rotation ⟨k,n,m;R⟩ and ``"nkm"`` the transposition ⟨n,k,m;R⟩.
    name : str, optional
        Default ``"{scheme.name}.{order}"``, as the catalogue looks it up; the scheme itself for ``"mkn"``.

    Returns
    -------
    Scheme

    Raises
    ------
    ValueError
        `order` is no permutation of "mkn".
    """
    if order not in ORDERS:
        raise ValueError(f"order must be a permutation of 'mkn', got {order!r}")
    if order == "mkn":
        return scheme if name is None else scheme.renamed(name)
    tensors = {"mk": scheme.U, "kn": scheme.V, "mn": scheme.W}

    def tensor(rows: str, columns: str) -> np.ndarray:
        return tensors[rows + columns] if rows + columns in tensors else tensors[columns + rows].transpose(0, 2, 1)

    m, k, n = tuple(order)
    permuted = Scheme(
        name or f"{scheme.name}.{order}", tensor(m, k), tensor(k, n), tensor(m, n), f"{scheme.source}; order {order}"
    )
    return derived(permuted, scheme)


def transpose(scheme: Scheme, name: str | None = None) -> Scheme:
    """The scheme for Cᵀ = Bᵀ·Aᵀ: ⟨n,k,m;R⟩."""
    return permute(scheme, "nkm", name)


def permutations(scheme: Scheme) -> dict[str, Scheme]:
    """All six permutations of a scheme, keyed by their order, itself (``"mkn"``) first."""
    return {order: permute(scheme, order) for order in ORDERS}
