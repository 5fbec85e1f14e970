"""The plans that products would follow: `plan` for operands, `plan_for` for a shape."""

from __future__ import annotations

import operator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from . import config, dispatch
from .blas import matrix, result_dtypes, sizes
from .config import Settings
from .integers import NAMES, Lane, lane_for
from .lanes import is_short_float
from .operands import convert, refuse_unsafe
from .problem import Problem
from .symmetric import is_free, is_symmetric
from .ufunc import MATMUL, understand

if TYPE_CHECKING:
    from .planning import Plan

ENGINE_DTYPES = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
SINGLE = np.dtype(np.float32)


def lane_plan(M: int, N: int, K: int, dtype: np.dtype, lane: Lane | None, settings: Settings, batch: int = 1) -> Plan:
    """The plan for products of a dtype that are computed in a lane."""
    if lane is None:
        return dispatch.plan_product(M, N, K, dtype, settings, batch)
    return dispatch.plan_product(M, N, K, lane.operands, settings, batch, lane.headroom)


def need_no_engine(settings: Settings, dtype: np.dtype | None) -> None:
    """Raise TypeError if an option demands what only an engine can do for a product that goes through NumPy.

    No `dtype` stands for an operand that brings its own product.
    """
    depth, scheme = settings.depth, settings.scheme
    exact = dtype is not None and dtype.kind in "biu"
    demands = {
        f"executor={settings.executor!r}": settings.executor == "cpu" and not (dtype is not None and dtype.kind == "b"),
        f"depth={depth!r}": depth not in ("auto", 0),
        f"scheme={scheme!r}": scheme != "auto" and depth == "auto",
        f"leaf={settings.leaf!r}": settings.leaf != "auto",
        f"max_error={settings.max_error!r}": settings.max_error is not None and not exact,
        "reproducible=True": settings.reproducible and dtype is None,
    }
    for demand, made in demands.items():
        if made:
            what = "an operand that brings its own product (__array_ufunc__)" if dtype is None else f"dtype {dtype}"
            raise TypeError(f"{demand} cannot be honoured for {what}: the engine computes {NAMES}")


def plan(a: Any, b: Any, *, trans_a: str | bool = "N", trans_b: str | bool = "N", **options: Any) -> Plan:
    """The plan that a product of `a` and `b` would run: of `gemm` for two matrices, else of `matmul`.

    Only shapes and dtypes are looked at, but for what runs on an engine with ``accuracy="estimated"``: then the data
    are, too, and `Plan.error_estimate` is what was found. The plan of short floats is that of float32.

    Parameters
    ----------
    a, b : array_like, shapes (..., M, K) and (..., K, N)
    trans_a, trans_b : {"N", "T", "C"} or bool
        For two matrices, as in `gemm`.
    **options
        See `falcon_numba.config_context`.

    Raises
    ------
    ValueError, TypeError
        As the product would, and ValueError for an empty product.
    """
    refuse_unsafe((a, b))
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim == b.ndim == 2:
        a, b = matrix("a", a, trans_a), matrix("b", b, trans_b)
        M, N, _ = sizes(a, b)
        lane = result_dtypes(a, b, None, None, None)[0]
        return _plan_of(a, b, np.broadcast_to(lane.type(), (M, N)), options)
    if trans_a not in ("N", False) or trans_b not in ("N", False):
        raise ValueError("trans_a and trans_b are for two matrices")
    call = understand(a, b, None, {})
    if call is None:
        MATMUL(a, b)  # raises NumPy's own error
        raise ValueError(f"no product of shapes {a.shape} and {b.shape}")
    M = a.shape[-2] if a.ndim > 1 else 1
    N = b.shape[-1] if b.ndim > 1 else 1
    a = a[np.newaxis, :] if a.ndim == 1 else a
    b = b[:, np.newaxis] if b.ndim == 1 else b
    return _plan_of(a, b, np.broadcast_to(call.dtype.type(), (*call.batch, M, N)), options)


def _plan_of(a: np.ndarray, b: np.ndarray, c: np.ndarray, options: dict[str, Any]) -> Plan:
    """The plan for operands; of C only shape and dtype count."""
    settings, (M, N), K = config.resolve(**options), c.shape[-2:], a.shape[-1]
    dtype = SINGLE if is_short_float(c.dtype) else c.dtype
    if is_free(settings) and is_symmetric(Problem(a, b, c)):
        plan = plan_for(M, N, K, dtype, **options)
        note = "B is A's transpose, so half of C is computed, by blocks with plans of their own, and mirrored"
        return replace(plan, reason=f"{plan.reason}; {note}")
    if settings.accuracy != "estimated" or dtype not in ENGINE_DTYPES or 0 in (*c.shape, K):
        return plan_for(M, N, K, dtype, batch=prod(c.shape[:-2]), **options)
    a, b = (np.broadcast_to(convert(x, dtype), c.shape[:-2] + x.shape[-2:]) for x in (a, b))
    return dispatch.plan_for_data(Problem(a, b, c), settings)


def plan_for(M: int, N: int, K: int, dtype: Any = "float64", *, batch: int = 1, **options: Any) -> Plan:
    """The plan for products of M×K and K×N matrices of this dtype, `batch` of them.

    With ``accuracy="estimated"`` it is the plan that runs if its estimated error is small enough: without data nothing
    can be estimated, and `Plan.error_estimate` is NaN.

    Raises
    ------
    ValueError
        A size below 1, or a bad value of an option.
    TypeError
        A size that is no integer, an unknown option, or an option that cannot be honoured for this dtype.
    """
    settings = config.resolve(**options)
    whole = {"M": M, "N": N, "K": K, "batch": batch}
    for name, size in whole.items():
        try:
            whole[name] = operator.index(size)
        except TypeError:
            raise TypeError(f"{name}={size!r}: must be an integer, as in plan_for(M, N, K, dtype)") from None
        if whole[name] < 1:
            raise ValueError(f"{name}={size}: must be >= 1")
    dtype = np.dtype(dtype).newbyteorder("=")
    if is_short_float(dtype):
        dtype = SINGLE
    lane = lane_for(dtype, dtype, dtype)
    if lane is None or dtype.kind == "b":
        need_no_engine(settings, dtype)
    plan = lane_plan(whole["M"], whole["N"], whole["K"], dtype, lane, settings, whole["batch"])
    if settings.accuracy == "estimated" and dtype in ENGINE_DTYPES:
        plan = replace(plan, reason=f"{plan.reason}; without data nothing was estimated, another plan may have to run")
    return plan
