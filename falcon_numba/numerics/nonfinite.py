"""Where the classical product has NaN and Inf, from the lines of A and B that hold some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

STEP = 256  # lines compared at a time
Alike = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (expected, got) -> where they agree


def signs(x: np.ndarray) -> np.ndarray:
    """NaN and Inf as they are, finite numbers as −1, 0 or 1: a product of such has the pattern, and can't overflow."""
    x = np.asarray(x)
    return np.where(np.isfinite(x), np.sign(x), x).astype(np.float32)


def first_wrong_pattern(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    alpha: Any,
    beta: Any,
    c_in: np.ndarray | None,
    bad_rows: np.ndarray,
    bad_columns: np.ndarray,
) -> tuple[int, int, str] | None:
    """The first element of C whose NaN or Inf is not that of α·A·B + β·C₀, or that lacks one: (row, column, what).

    Looked at are the rows of A and columns of B that hold NaN or Inf (`bad_rows`, `bad_columns`: all elements of C
    there are NaN or Inf) and the elements where C₀ does. The cost is O(n²) while these are few. Of complex numbers, and
    where the sums of the finite numbers could overflow as well, only whether they are finite is compared.
    """
    if c.dtype.kind == "c":
        expected = np.zeros(c.shape, bool)
        expected[bad_rows] = expected[:, bad_columns] = True
        if c_in is not None:
            expected |= ~np.isfinite(c_in)
        wrong = np.argwhere(expected & np.isfinite(c))
        return (int(wrong[0, 0]), int(wrong[0, 1]), "is finite, which it can't be") if len(wrong) else None
    alike = _not_finite if _may_overflow(a, b, c.dtype, alpha, beta, c_in) else _alike
    if bad_rows.any() or bad_columns.any():
        rows, columns = np.flatnonzero(bad_rows), np.flatnonzero(bad_columns)
        inner = np.flatnonzero(~np.isfinite(a[rows]).all(axis=0) | ~np.isfinite(b[:, columns]).all(axis=1))
        before = None if c_in is None else c_in.T
        for transposed, x, y, lines, got, old in (
            (False, a[:, inner], b[inner], rows, c, c_in),
            (True, b[inner].T, a[:, inner].T, columns, c.T, before),
        ):
            found = _wrong_in(x, signs(y), lines, got, alpha, beta, old, alike)
            if found is not None:
                i, j, what = found
                return (j, i, what) if transposed else (i, j, what)
    if c_in is not None:
        for first in range(0, len(c), STEP):
            last = first + STEP
            places = ~np.isfinite(c_in[first:last])
            places &= ~bad_columns
            places[bad_rows[first:last]] = False
            at = np.argwhere(places)
            at[:, 0] += first
            expected = signs(np.asarray(beta)) * c_in[at[:, 0], at[:, 1]]
            faults = np.flatnonzero(~alike(expected, c[at[:, 0], at[:, 1]]))
            if len(faults):
                i, j = map(int, at[faults[0]])
                return i, j, _told(c[i, j], expected[faults[0]])
    return None


def _wrong_in(
    x: np.ndarray,
    y: np.ndarray,
    lines: np.ndarray,
    got: np.ndarray,
    alpha: Any,
    beta: Any,
    old: np.ndarray | None,
    alike: Alike,
) -> tuple[int, int, str] | None:
    for first in range(0, len(lines), STEP):
        some = lines[first : first + STEP]
        expected = signs(np.asarray(alpha)) * np.matmul(signs(x[some]), y)
        if old is not None:
            expected += signs(np.asarray(beta)) * signs(old[some])
        wrong = np.argwhere(~alike(expected, got[some]))
        if len(wrong):
            i, j = map(int, wrong[0])
            return int(some[i]), j, _told(got[some[i], j], expected[i, j])
    return None


def _alike(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    return (np.isnan(expected) & np.isnan(got)) | (np.isinf(expected) & (expected == got))


def _not_finite(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    return ~np.isfinite(got) | np.isfinite(expected)


def _may_overflow(a: Any, b: Any, dtype: np.dtype, alpha: Any, beta: Any, c_in: np.ndarray | None) -> bool:
    """Whether the finite numbers alone could leave the range of `dtype`."""
    sums = a.shape[1] * _largest(a) * _largest(b) * abs(float(alpha))
    if c_in is not None:
        sums += _largest(c_in) * abs(float(beta))
    return not 2 * sums < float(np.finfo(dtype).max)


def _largest(x: np.ndarray) -> float:
    """The largest magnitude of a finite number."""
    return float(np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0))


def _told(got: Any, expected: Any) -> str:
    return f"is {float(got):g} where a classical product has {float(expected):g}"
