"""The calling convention of NumPy's matmul: which calls are valid, what they mean, and in what form results return."""

from __future__ import annotations

import operator
import warnings
from typing import Any, NamedTuple

import numpy as np

MATMUL = np.matmul  # bound at import: the tests put this package's function in the place of np.matmul


class Call(NamedTuple):
    """A valid call of matmul. Core axes come last here, whatever `axes` said, and only those that exist."""

    a: np.ndarray
    b: np.ndarray
    out: np.ndarray | None
    dtype: np.dtype  # of the loop NumPy would run
    batch: tuple[int, ...]
    core: tuple[int, ...]  # of the result: (M, N), (M,), (N,) or ()
    order: str  # "C", "F" or "K"
    casting: str
    out_axes: tuple[int, ...] | None  # where the result's core axes go; None: last
    empty: bool


def understand(a: np.ndarray, b: np.ndarray, out: Any, given: dict[str, Any]) -> Call | None:
    """The call in normal form, or None when it is not certain that NumPy would accept it."""
    if not a.ndim or not b.ndim or "axis" in given or type(given.get("subok", True)) is not bool:
        return None
    if out is not None:
        if not (isinstance(out, np.ndarray) and out.flags.writeable):
            return None
        out = np.asarray(out)
    order, casting, dtype = given.get("order", "K"), given.get("casting", "same_kind"), given.get("dtype")
    if order is None:
        order = "K"
    if not (isinstance(order, str) and isinstance(casting, str) and order.upper() in ("K", "C", "F", "A")):
        return None
    order = order.upper()
    try:
        loop = MATMUL.resolve_dtypes(
            (a.dtype, b.dtype, None if out is None else out.dtype),
            signature=(None, None, dtype),
            casting=casting,  # type: ignore[arg-type]
        )
    except (TypeError, ValueError):
        return None
    if order == "A":
        order = "F" if a.flags.f_contiguous and b.flags.f_contiguous else "C"

    cores = (min(a.ndim, 2), min(b.ndim, 2), (a.ndim > 1) + (b.ndim > 1))
    out_axes = None
    if "axes" in given:
        places = _core_axes(given["axes"], cores)
        if places is None:
            return None
        try:
            a, b = (np.moveaxis(x, at, range(-len(at), 0)) for x, at in zip((a, b), places[:2], strict=True))
            out_axes = places[2]
            if out is not None:
                out = np.moveaxis(out, out_axes, range(-len(out_axes), 0))
        except ValueError:
            return None
    inner = a.shape[-1]
    if inner != b.shape[-cores[1]]:
        return None
    core = a.shape[-2:-1] + (b.shape[-1:] if cores[1] == 2 else ())
    try:
        batch = a.shape[: -cores[0]]
        if batch != b.shape[: -cores[1]]:
            batch = np.broadcast_shapes(batch, b.shape[: -cores[1]])
        if out is not None:
            above = out.ndim - cores[2]
            if out.shape[above:] != core:
                return None
            if batch != out.shape[:above] != np.broadcast_shapes(batch, out.shape[:above]):
                return None
            batch = out.shape[:above]
    except ValueError:
        return None
    if out_axes is not None and not _fit(out_axes, len(batch) + len(core)):
        return None
    empty = not inner or 0 in core or 0 in batch
    return Call(a, b, out, loop[2], batch, core, order, casting, out_axes, empty)


def _core_axes(axes: Any, cores: tuple[int, int, int]) -> list[tuple[int, ...]] | None:
    """`axes` as three tuples of int, or None where it is not what the ufunc protocol allows."""
    if type(axes) is not list or len(axes) != 3:
        return None
    places = []
    for entry, count in zip(axes, cores, strict=True):
        if type(entry) is not tuple:
            if count != 1:
                return None
            entry = (entry,)
        if len(entry) != count:
            return None
        try:
            places.append(tuple(map(operator.index, entry)))
        except TypeError:
            return None
    return places


def _fit(axes: tuple[int, ...], ndim: int) -> bool:
    """Whether `axes` names different axes of an `ndim`-dimensional array."""
    return all(-ndim <= axis < ndim for axis in axes) and len({axis % ndim for axis in axes}) == len(axes)


def allocate(batches: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...], dtype: np.dtype, order: str) -> np.ndarray:
    """A new result in the memory order that NumPy's matmul gives it.

    Parameters
    ----------
    batches : pair of ndarray
        One element of every matrix of either operand: their strides decide the order of batch axes for ``order="K"``.
    shape : tuple of int
        Batch axes, then the core axes of the result.
    order : {"C", "F", "K"}
    """
    ndim = max(x.ndim for x in batches)
    if order != "K" or ndim < 2:
        return np.empty(shape, dtype, order="F" if order == "F" else "C")
    iterator = np.nditer(
        (*batches, None),
        op_flags=[["readonly"], ["readonly"], ["writeonly", "allocate"]],
        flags=["zerosize_ok"],
        order="K",
    )
    strides = iterator.operands[2].strides
    axes = [*sorted(range(ndim), key=lambda axis: -abs(strides[axis])), *range(ndim, len(shape))]
    return np.empty([shape[axis] for axis in axes], dtype).transpose(np.argsort(axes))


def wrap(result: np.ndarray, inputs: tuple[Any, Any], out: np.ndarray | None, *, subok: bool) -> Any:
    """What NumPy's matmul returns for `result`: a scalar, an ndarray, or what a subclass's ``__array_wrap__`` makes.

    The subclass is that of `out` where given, else, with `subok`, of the input with the highest ``__array_priority__``.
    """
    if out is not None:
        return out if type(out) is np.ndarray else _call_wrap(out, out, (*inputs, out), scalar=False)
    scalar = result.ndim == 0
    best, priority = None, -np.inf
    for x in inputs if subok else ():
        if type(x) is np.ndarray:
            rank, candidate = 0.0, None
        elif isinstance(x, np.ndarray):
            rank, candidate = float(getattr(x, "__array_priority__", 0.0)), x
        else:
            continue
        if rank > priority or (rank == 0.0 and best is None):
            best, priority = candidate, rank
    if best is not None:
        return _call_wrap(best, result, inputs, scalar=scalar)
    return result[()] if scalar else result


def _call_wrap(owner: Any, result: np.ndarray, arguments: tuple[Any, ...], *, scalar: bool) -> Any:
    full = (result, (MATMUL, arguments, 0), scalar)
    for count in (3, 2, 1):  # NumPy 1 called it with the context, or with the array alone
        try:
            wrapped = owner.__array_wrap__(*full[:count])
        except TypeError:
            if count == 1:
                raise
            continue
        if count < 3:
            warnings.warn(
                "__array_wrap__ must accept context and return_scalar arguments (positionally)",
                DeprecationWarning,
                stacklevel=4,
            )
        return wrapped
