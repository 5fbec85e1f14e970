"""Inputs that are hard on fast algorithms, and measured errors beside their bounds, for the tests of accuracy."""

from __future__ import annotations

import numpy as np

import falcon_numba as fn
from falcon_numba.numerics.bounds import entry_bounds, error_bound


def family(name: str, rng: np.random.Generator, n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """(A, B) of one input family, n × n."""
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    if name == "uniform":
        a, b = rng.random((n, n)), rng.random((n, n))
    elif name == "units":
        a *= 10 ** rng.uniform(-8, 8, (n, 1))
        b *= 10 ** rng.uniform(-8, 8, (1, n))
    elif name == "graded":
        grade = np.logspace(0, -6, n)
        a, b = a * grade[:, None], b * grade[None, :]
    elif name == "inside":
        scale = np.logspace(-5, 5, n)
        a, b = a * scale, b / scale[:, None]
    elif name == "hilbert":
        i = np.arange(n)
        a = b = 1.0 / (i[:, None] + i + 1)
    elif name == "equal":
        a, b = np.full((n, n), 0.1), np.full((n, n), 0.3)
    elif name == "sparse":
        a, b = (np.abs(x) * (rng.random((n, n)) < 0.01) for x in (a, b))
    elif name == "subnormal":
        a, b = a * np.finfo(dtype).tiny, b * 1e3
    elif name == "zero_rows":
        a[::3], b[:, ::5] = 0, 0
    elif name == "near_overflow":  # the product is far from it, sums of blocks of A are not
        a, b = np.clip(a / 4, -1, 1) * float(np.finfo(dtype).max), b / 2**28
    return a.astype(dtype), b.astype(dtype)


FAMILIES = (
    "normal",
    "uniform",
    "units",
    "graded",
    "inside",
    "hilbert",
    "equal",
    "sparse",
    "subnormal",
    "zero_rows",
    "near_overflow",
)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product with far more digits than the dtype has: float64 for float32, longdouble for float64."""
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return a.astype(wide) @ b.astype(wide)


def ratio_to_bound(a, b, accuracy="balanced", reference=None, **options):
    """Largest measured error as a part of its bound, and the plan that ran."""
    with fn.trace() as plans:
        c = fn.gemm(a, b, executor="cpu", accuracy=accuracy, **options)
    (plan,) = plans
    bound = error_bound(plan.levels, plan.K, plan.blocks.KC, plan.dtype, accuracy)
    allowed = entry_bounds(bound, a, b, c, accuracy=accuracy)
    reference = exact(a, b) if reference is None else reference
    error = np.abs(c.astype(allowed.dtype) - reference)
    return float((error / np.maximum(allowed, np.finfo(allowed.dtype).tiny)).max()), plan
