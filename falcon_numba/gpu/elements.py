"""Elements in memory to accumulators and back, as functions for kernels to call.

They are intrinsics, since Numba compiles device functions only where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from . import target

I16, I32, F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def memory_type(name: str) -> str:
    """The Numba type by which memory of a dtype is addressed."""
    return {"bfloat16": "uint16", "bool": "uint8"}.get(name, name)


def conversions(
    name: str, accumulator: str, *, conjugate: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(load, store) between elements of a dtype and accumulators; `load` conjugates on demand.

    A store rounds to nearest even, cuts off integers, and drops imaginary parts.
    """
    if target.simulated():
        return _simulated(name, accumulator, conjugate)
    types = target.numba_cuda().types
    number, element = getattr(types, accumulator), getattr(types, memory_type(name))

    def load(context: Any, builder: Any, x: Any) -> Any:
        if name == "bfloat16":
            bits = builder.shl(builder.zext(x, I32), ir.Constant(I32, 16))
            return context.cast(builder, builder.bitcast(bits, F32), types.float32, number)
        if name == "bool":
            bits = builder.zext(builder.icmp_unsigned("!=", x, x.type(0)), I32)
            return context.cast(builder, bits, types.int32, number)
        value = context.cast(builder, x, element, number)
        if conjugate and accumulator.startswith("complex"):
            parts = context.make_complex(builder, number, value)
            parts.imag = builder.fsub(parts.imag.type(-0.0), parts.imag)
            value = parts._getvalue()
        return value

    def store(context: Any, builder: Any, x: Any) -> Any:
        source = number
        if accumulator.startswith("complex") and not name.startswith("complex"):
            source = number.underlying_float
            x = context.make_complex(builder, number, x).real
        if name == "bool":
            return builder.zext(builder.icmp_unsigned("!=", x, x.type(0)), ir.IntType(8))
        if name == "bfloat16":
            bits = builder.bitcast(context.cast(builder, x, source, types.float32), I32)
            top = builder.lshr(bits, I32(16))
            odd = builder.and_(top, I32(1))  # ties to even
            rounded = builder.lshr(builder.add(builder.add(bits, I32(0x7FFF)), odd), I32(16))
            magnitude = builder.and_(bits, I32(0x7FFFFFFF))
            is_nan = builder.icmp_unsigned(">", magnitude, I32(0x7F800000))
            return builder.trunc(builder.select(is_nan, builder.or_(top, I32(0x40)), rounded), I16)
        return context.cast(builder, x, source, element)

    return target.intrinsic(number, element, load), target.intrinsic(element, number, store)


def _simulated(name: str, accumulator: str, conjugate: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """For the simulator, whose memory holds NumPy's numbers."""
    number, element = np.dtype(accumulator).type, np.dtype(name).type
    drop = accumulator.startswith("complex") and not name.startswith("complex")

    def load(x: Any) -> Any:
        return number(np.conjugate(x) if conjugate else x)

    def store(x: Any) -> Any:
        return np.asarray(x.real if drop else x).astype(element)[()]

    return load, store
