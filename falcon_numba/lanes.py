"""Dtypes whose products run on the engine of another dtype, one line each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class RealForm(NamedTuple):
    """What an engine computes in.

    Attributes
    ----------
    dtype : str
        NumPy name of a real type.
    parts : int
        Real numbers in an element: a complex product is a real one of twice as many columns and inner steps.
    """

    dtype: str
    parts: int = 1


SINGLE = RealForm("float32")
LANES = {
    "float16": SINGLE,
    "bfloat16": SINGLE,
    "complex64": RealForm("float32", 2),
    "complex128": RealForm("float64", 2),
}


def lane_of(dtype: np.dtype | str) -> RealForm:
    """The lane of a dtype; its own where it isn't in the table."""
    name = dtype if isinstance(dtype, str) else dtype.name
    return LANES.get(name) or (SINGLE if is_short_float(dtype) else RealForm(name))


def is_short_float(dtype: np.dtype | str) -> bool:
    """float16, and bfloat16 and the 8-bit floats of ml_dtypes, which NumPy knows by name only."""
    if isinstance(dtype, str):
        return dtype in ("float16", "bfloat16") or dtype.startswith(("float8_", "float6_", "float4_"))
    return dtype.kind in "fV" and dtype.itemsize <= 2 and dtype.name.startswith(("float", "bfloat"))
