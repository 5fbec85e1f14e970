"""`gram`: a matrix times its own (conjugate) transpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import config, dispatch, symmetric
from .api import matmul
from .cpu.mirror import mirror
from .cpu.threads import default_threads
from .operands import convert, overlap, refuse_unsafe, writable_in_place
from .preview import ENGINE_DTYPES, SINGLE
from .problem import Problem


def gram(a: Any, *, out: np.ndarray | None = None, **options: Any) -> np.ndarray:
    """A·Aᴴ, which is A·Aᵀ for real matrices; ``gram(a.T)`` is AᵀA for those.

    Symmetric, of complex numbers Hermitian with a real diagonal, to the last bit; computed with about half the work of
    a product.

    Parameters
    ----------
    a : array_like, shape (..., M, K)
        Any strides, alignment and byte order.
    out : ndarray, shape (..., M, M), optional
        Of the dtype of the result. Written and returned; it may overlap `a`.
    **options
        See `falcon_numba.config_context`; they hold for every block of the result.

    Returns
    -------
    ndarray, shape (..., M, M)
        `out`, or a new C-ordered array of the dtype of ``matmul(a, a)``.

    Raises
    ------
    ValueError
        Less than two dimensions, an `out` of another shape or read-only, a bad value of an option.
    TypeError
        An `out` of another dtype, an unknown option or one that can't be honoured for this dtype, masked arrays.

    Examples
    --------
    >>> gram([[1.0, 2.0], [3.0, 4.0]])
    array([[ 5., 11.],
           [11., 25.]])
    """
    settings = config.resolve(**options)
    refuse_unsafe((a, out))
    a = np.asarray(a)
    if a.ndim < 2:
        raise ValueError(f"gram needs at least two dimensions, not shape {a.shape}")
    dtype = np.matmul.resolve_dtypes((a.dtype, a.dtype, None))[2]
    shape = (*a.shape[:-1], a.shape[-2])
    if out is not None:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be a numpy.ndarray, not {type(out).__name__}")
        if out.shape != shape:
            raise ValueError(f"out has shape {out.shape}, the result has shape {shape}")
        if out.dtype != dtype:
            raise TypeError(f"out has dtype {out.dtype}, the result has dtype {dtype}")
        if not out.flags.writeable:
            raise ValueError("out is read-only")
    lane = SINGLE if dtype.char == "e" else dtype
    if lane not in ENGINE_DTYPES or 0 in a.shape:
        conjugate = a.conj() if a.dtype.kind in "cO" else a
        return matmul(a, conjugate.swapaxes(-1, -2), out=out, **options)

    x = convert(a, lane)
    y = x.conj() if lane.kind == "c" else x
    in_place = out is not None and writable_in_place(out, lane) and not (overlap(out, x) or overlap(out, y))
    c = out if out is not None and in_place else np.empty(shape, lane)
    for index in np.ndindex(shape[:-2]):
        _one(Problem(x[index], y[index].T, np.asarray(c)[index]), settings)
    with np.errstate(over="ignore"):  # of numbers too large for a shorter type, as within the engines
        if out is None:
            return c.astype(dtype, copy=False)
        if c is not out:
            np.copyto(out, c, casting="same_kind")
    return out


def _one(problem: Problem, settings: config.Settings) -> None:
    """One product of a matrix and its (conjugate) transpose."""
    hermitian = problem.c.dtype.kind == "c"
    if len(problem.c) >= symmetric.LEAST and settings.executor != "numpy":
        blocks = symmetric.run(problem, settings, dispatch.plan_product, dispatch.execute_general, hermitian)
        if blocks is not None:
            return
    dispatch.execute(problem, settings)
    mirror(problem.c, settings.threads or default_threads(), hermitian)
