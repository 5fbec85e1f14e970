"""Operands in every memory layout, and exact references, for the tests of the CPU engine."""

from __future__ import annotations

import numpy as np

LAYOUTS = ("C", "F", "strided", "reversed", "transposed_strided", "unaligned", "readonly", "broadcast")
OUT_LAYOUTS = ("C", "F", "strided", "reversed", "transposed_strided", "unaligned")

# Sizes around every edge of tiles, vectors and grids.
SIZES = (1, 2, 3, 7, 11, 15, 16, 17, 31, 33, 63, 65, 127, 129)


def in_layout(values: np.ndarray, layout: str) -> np.ndarray:
    """A 2-D array equal to `values` that lies in memory as named ("broadcast": repeats its first row)."""
    rows, columns = values.shape
    if layout == "C":
        return np.ascontiguousarray(values)
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "readonly":
        out = values.copy()
        out.flags.writeable = False
        return out
    if layout == "broadcast":
        return np.broadcast_to(values[:1].copy(), values.shape)
    if layout == "unaligned":
        raw = np.zeros(values.nbytes + 1, np.uint8)
        out = raw[1:].view(values.dtype).reshape(values.shape)
    elif layout == "strided":
        out = np.zeros((2 * rows, 3 * columns), values.dtype)[::2, ::3]
    elif layout == "reversed":
        out = np.zeros(values.shape, values.dtype)[::-1, ::-1]
    elif layout == "transposed_strided":
        out = np.zeros((2 * columns, 2 * rows), values.dtype)[::2, ::2].T
    else:
        raise ValueError(layout)
    out[...] = values
    return out


def integers(rng: np.random.Generator, shape: tuple[int, int], dtype: str, most: int = 3) -> np.ndarray:
    """Integer-valued floats in [−most, most], not all equal to zero."""
    return rng.integers(-most, most + 1, shape).astype(dtype)


def exact_limit(dtype: str) -> int:
    """Integers up to here are exact in the dtype."""
    return 2 ** (np.finfo(dtype).nmant + 1)


def guarded(shape: tuple[int, int], dtype: str, layout: str, fill: float) -> tuple[np.ndarray, np.ndarray]:
    """An output in a layout, and the whole buffer around it, filled with a value that must survive outside of it."""
    rows, columns = shape
    size = {"strided": (2 * rows + 4, 3 * columns + 6)}.get(layout, (rows + 4, columns + 6))
    buffer = np.full(size, fill, dtype)
    if layout == "strided":
        return buffer[2 : 2 + 2 * rows : 2, 3 : 3 + 3 * columns : 3], buffer
    if layout == "F":
        buffer = np.full((columns + 6, rows + 4), fill, dtype)
        return buffer[3 : 3 + columns, 2 : 2 + rows].T, buffer
    if layout == "reversed":
        return buffer[2 : 2 + rows, 3 : 3 + columns][::-1, ::-1], buffer
    return buffer[2 : 2 + rows, 3 : 3 + columns], buffer
