"""The parts of `gemm`: transposition, result dtype, scalars, and the C·beta term around an engine or NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dispatch
from .config import Settings
from .integers import Lane, signed
from .lanes import is_short_float
from .operands import as_operand, convert, overlap, same_view, writable_in_place
from .problem import Problem
from .ufunc import MATMUL

if TYPE_CHECKING:
    from .planning import Plan


def matrix(name: str, x: Any, trans: str | bool) -> np.ndarray:
    """op(x) as a view, except that the conjugate of a complex matrix is a copy."""
    x = np.asarray(x)
    if x.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {x.shape}; matmul takes vectors and batches")
    if isinstance(trans, str):
        letter = trans.upper()
    else:
        letter = ("T" if trans else "N") if isinstance(trans, (bool, np.bool_)) else ""
    if letter not in ("N", "T", "C"):
        raise ValueError(f"trans_{name}={trans!r}: must be 'N', 'T', 'C', True or False")
    if letter == "N":
        return x
    return x.T if letter == "T" else x.conj().T if x.dtype.kind in "cO" else x.T


def sizes(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int]:
    """(M, N, K) of op(a)·op(b)."""
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"inner sizes differ: op(a) has shape {a.shape}, op(b) has shape {b.shape}")
    return a.shape[0], b.shape[1], a.shape[1]


def need_shape(name: str, x: np.ndarray, shape: tuple[int, int]) -> None:
    if x.shape != shape:
        raise ValueError(f"{name} has shape {x.shape}, the product has shape {shape}")


def result_dtypes(
    a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray | None, out_dtype: Any
) -> tuple[np.dtype, np.dtype]:
    """The type to compute in and the type of the result."""
    operands = (a.dtype, b.dtype) if c is None else (a.dtype, b.dtype, c.dtype)
    wanted = None if out_dtype is None else np.dtype(out_dtype)
    return _result_dtypes(operands, None if out is None else out.dtype, wanted)


@lru_cache(maxsize=256)
def _result_dtypes(
    operands: tuple[np.dtype, ...], out: np.dtype | None, wanted: np.dtype | None
) -> tuple[np.dtype, np.dtype]:
    natural = np.result_type(*operands)
    dtype = natural if out is None else out.newbyteorder("=")
    if wanted is not None:
        wanted = wanted.newbyteorder("=")
        if out is not None and wanted != dtype:
            raise TypeError(f"out_dtype={wanted} but out has dtype {out}")
        dtype = wanted
    if not np.can_cast(natural, dtype, "same_kind"):
        raise TypeError(f"a product of {natural} does not cast to {dtype} under the rule 'same_kind'")
    lane = np.result_type(natural, dtype)
    if natural.kind in "biu" and dtype.kind in "iu" and lane.kind == "f":  # uint64 into signed: the same bits, no float
        lane = natural if natural.itemsize >= dtype.itemsize else dtype
    if is_short_float(lane):
        lane = np.dtype(np.float32)
    elif lane.kind not in "biufcO":
        raise TypeError(f"there is no matrix product of dtype {lane}")
    return lane, dtype


def scalar_of(name: str, value: Any, dtype: np.dtype) -> Any:
    """`value` as a scalar of `dtype`; integers reduced modulo 2^bits."""
    if type(value) is int and value in (0, 1):  # the defaults, quickly
        return dtype.type(value)
    x = np.asarray(value)
    if x.ndim:
        raise TypeError(f"{name} must be a scalar, not an array of shape {x.shape}")
    if dtype.kind == "O":
        return value
    if x.dtype.kind in "biu" or isinstance(value, int):
        number = int(value)
        if dtype.kind == "b" and number not in (0, 1):
            raise ValueError(f"{name}={value!r}: must be 0 or 1 for a bool product")
        if dtype.kind in "iu":
            bits = 8 * dtype.itemsize
            return np.array(number % 2**bits, f"u{dtype.itemsize}").astype(dtype)[()]
        value = number
    elif x.dtype.kind == "O" or not np.can_cast(x.dtype, dtype, "same_kind"):
        raise TypeError(f"{name}={value!r} does not cast to {dtype} under the rule 'same_kind'")
    try:
        with np.errstate(over="raise"):
            return dtype.type(value)
    except ArithmeticError:  # Python's integers raise OverflowError, NumPy's numbers FloatingPointError
        raise ValueError(f"{name}={value!r} overflows {dtype}") from None


def run_on_engine(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None,
    alpha: Any,
    beta: Any,
    lane: Lane,
    wanted: np.dtype,
    *,
    out: np.ndarray | None,
    settings: Settings,
    plan: Plan | None,
) -> np.ndarray:
    """The result, `wanted` as a short float or still in its lane: `out` itself where the engine may write there, else a
    new array."""
    M, N, K = sizes(a, b)
    dtype = lane.result
    alpha, beta = (signed(x, dtype) if dtype.kind == "i" else float(np.real(x)) for x in (alpha, beta))
    idle = alpha == 0 or 0 in (M, N, K)
    if is_short_float(wanted) and not idle and (c is None or beta == 0 or c.dtype == wanted):
        dtype = wanted  # rounded as it leaves the engine
    # A refused plan must leave `out` untouched, so C is not copied there beforehand: only out=c saves the new array.
    in_place = (
        out is not None
        and writable_in_place(out, dtype)
        and (c is None or beta == 0 or same_view(c, out))
        and (idle or not (overlap(out, a) or overlap(out, b)))
    )
    result = out if out is not None and in_place else np.empty((M, N), dtype)
    target = convert(result, dtype)
    if c is not None and beta != 0 and not in_place:
        np.copyto(target, c, casting="unsafe")
    if not idle:
        a, b = as_operand(a, lane.operands), as_operand(b, lane.operands)
        dispatch.execute(Problem(a, b, target, alpha, beta, lane.headroom), settings, plan)
    elif beta == 0:
        target[...] = 0
    else:
        np.multiply(target, dtype.type(beta), out=target)
    return result


def run_by_steps(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None,
    alpha: Any,
    beta: Any,
    lane: np.dtype,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray] = MATMUL,
) -> np.ndarray:
    """The result in `lane`, NumPy doing what is to be done beside a `product`."""
    if alpha == 0:
        result = np.zeros((a.shape[0], b.shape[1]), lane)
    else:
        result = product(convert(a, lane), convert(b, lane))
        if alpha != 1:
            result = np.multiply(result, alpha, out=result)
    if beta != 0 and c is not None:
        result += np.multiply(convert(c, lane), beta)
    return result
