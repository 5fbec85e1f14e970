"""What may be an operand, and how arrays are brought into the form a `Problem` wants, without copies where possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .integers import same_bits
from .lanes import SINGLE, is_short_float, lane_of

_FOREIGN = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__", "__cuda_array_interface__")
_PLAIN = frozenset({np.ndarray, list, tuple, bool, int, float, complex, type(None)})
_MAX_OVERLAP_WORK = 10_000  # candidate solutions tried before two views count as overlapping

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_handlers: list[tuple[Callable[[type], bool], Handler]] = []


def register_array_type(matches: Callable[[type], bool], handler: Handler) -> None:
    """Teach `gemm` and `matmul` a foreign array type.

    Parameters
    ----------
    matches : callable, type -> bool
        Asked about the type of each operand and of `out`, unless it is a plain NumPy or Python one.
    handler : callable, (function, args, kwargs) -> result
        Called in place of `function` (`gemm` or `matmul`) with the caller's operands and keywords (those that differ
        from the defaults) when `matches` said yes. The latest registration is asked first.
    """
    _handlers.insert(0, (matches, handler))


def find_handler(operands: tuple[Any, ...]) -> Handler | None:
    """The registered handler of the first operand that has one."""
    for operand in operands:
        kind = type(operand)
        if kind not in _PLAIN:
            for matches, handler in _handlers:
                if matches(kind):
                    return handler
    return None


def overrides_ufuncs(operand: Any) -> bool:
    """Whether NumPy's ``__array_ufunc__`` protocol hands the call to `operand` (or refuses it, where it is None)."""
    kind = type(operand)
    if kind in _PLAIN or issubclass(kind, np.generic):
        return False
    missing = object()
    found = getattr(kind, "__array_ufunc__", missing)
    return found is not missing and found is not np.ndarray.__array_ufunc__


def refuse_unsafe(operands: tuple[Any, ...]) -> None:
    """Raise TypeError for operands whose numbers NumPy would read wrongly or through a hidden copy."""
    refuse_masks(operands)
    for operand in operands:
        kind = type(operand)
        if kind in _PLAIN or issubclass(kind, (np.ndarray, np.generic)):
            continue
        if any(hasattr(operand, name) for name in _FOREIGN):
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise TypeError(f"operands of type {name} are not supported; convert to numpy.ndarray first")


def refuse_masks(operands: tuple[Any, ...]) -> None:
    """Raise TypeError for masked arrays."""
    if any(map(_has_mask, operands)):
        raise TypeError(
            "masked arrays are not accepted, since the product would use the data behind the mask; "
            "pass x.filled(0), or use numpy.ma.dot"
        )


def _has_mask(operand: Any) -> bool:
    if isinstance(operand, (list, tuple)):
        return any(_has_mask(item) for item in operand)
    return isinstance(operand, np.ndarray) and isinstance(operand, np.ma.MaskedArray)


def convert(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` as a base-class array of `dtype`, native byte order; itself where it already is. Broadcast axes stay so.

    Integers wrap; of unsigned ones as wide as `dtype` it is a view.
    """
    x = np.asarray(x)
    if x.dtype == dtype:
        return x
    if same_bits(x.dtype, dtype):
        return x.view(dtype)
    if 0 not in x.strides:
        return x.astype(dtype)
    once = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.strides)]
    return np.broadcast_to(once.astype(dtype), x.shape)


def as_operand(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` as an operand of a product in `dtype`: converted, unless it is a short float that an engine widens itself."""
    if x.dtype != dtype and is_short_float(x.dtype) and lane_of(dtype) == SINGLE:
        dtype = x.dtype.newbyteorder("=")
    return convert(x, dtype)


def overlap(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether `x` and `y` share an element; True also when that is too hard to tell."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=_MAX_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def same_view(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether `x` and `y` are the same elements in the same order."""
    return x is y or (
        x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
        and x.shape == y.shape
        and x.strides == y.strides
        and x.dtype == y.dtype
    )


def writable_in_place(out: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an engine may write `dtype` results straight into `out`, or into a view of it."""
    return (out.dtype == dtype or same_bits(out.dtype, dtype)) and out.flags.aligned and not _repeats(out)


def _repeats(x: np.ndarray) -> bool:
    """Whether an element may stand twice in `x`: False only if each axis steps over all that lies below it."""
    if x.flags.forc:
        return False
    reach = x.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(x.strides, x.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False
