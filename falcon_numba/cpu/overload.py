"""`gemm` inside users' ``@njit`` functions.

There it is the classical product on the calling thread, also within ``prange``: the same bits as
``gemm(..., executor="cpu", depth=0)`` from Python, for two-dimensional float32 or float64 arrays of any layout. As
from Python, `out` may overlap the inputs: the result is then computed aside and copied.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import overload, register_jitable


def register(gemm: Callable) -> None:
    """Make `gemm` known to Numba."""
    options = {"fastmath": False, "error_model": "numpy"}  # whatever the user's function says
    overload(gemm, options, target="cpu")(_gemm)
    cpu_target.typing_context.refresh()  # Numba may be typing a function at this moment


# --- what a call compiles to -----------------------------------------------------------------------------------------


@register_jitable
def _view(x):
    """Address and steps. The step along an axis of one element is never taken; as "contiguous" it is fast."""
    row, column = x.strides
    return x.ctypes.data, row if x.shape[0] > 1 else x.itemsize, column if x.shape[1] > 1 else x.itemsize


@register_jitable
def _apart(x, y):
    """Whether the ranges of addresses from the first to the last byte of two matrices are disjoint."""
    x0, y0 = x.ctypes.data, y.ctypes.data
    x1, y1 = x0 + x.itemsize, y0 + y.itemsize
    for i in range(2):
        x0 += min(0, (x.shape[i] - 1) * x.strides[i])
        x1 += max(0, (x.shape[i] - 1) * x.strides[i])
        y0 += min(0, (y.shape[i] - 1) * y.strides[i])
        y1 += max(0, (y.shape[i] - 1) * y.strides[i])
    return x.size == 0 or y.size == 0 or x1 <= y0 or y1 <= x0


@register_jitable
def _repeats(x):
    """Whether an element may stand twice in a matrix."""
    below, above = abs(x.strides[0]), abs(x.strides[1])
    rows, columns = x.shape
    if below > above:
        below, above, rows, columns = above, below, columns, rows
    reach = x.itemsize
    if rows > 1:
        if below < reach:
            return True
        reach += below * (rows - 1)
    return columns > 1 and above < reach


@register_jitable
def _copy(result, x):
    for i in range(x.shape[0]):  # much less to compile than an assignment of arrays
        for j in range(x.shape[1]):
            result[i, j] = x[i, j]


@register_jitable
def _number(value, lane):
    """A factor in the dtype of the product."""
    wide = np.float64(value)
    number = lane(wide)
    if np.isinf(number) and not np.isinf(wide):
        raise ValueError("gemm: alpha or beta overflows float32")
    return number


# --- typing ----------------------------------------------------------------------------------------------------------


def _given(x) -> bool:
    return not (x is None or isinstance(x, types.NoneType) or getattr(x, "value", x) is None)


def _need_matrix(name: str, x, dtype=None) -> None:
    kind = "float32 or float64" if dtype is None else str(dtype)
    if not (isinstance(x, types.Array) and x.ndim == 2 and x.dtype in (types.float32, types.float64)):
        raise TypingError(f"gemm in compiled code: {name} must be a 2-D array of {kind}, not {x}")
    if dtype not in (None, x.dtype):
        raise TypingError(f"gemm in compiled code: {name} must be {kind} like a, not {x.dtype}; convert it with astype")


def _need_number(name: str, x) -> None:
    kinds = int, float, types.Integer, types.Boolean, types.Float
    if not isinstance(getattr(x, "value", x) if isinstance(x, types.Omitted) else x, kinds):
        raise TypingError(f"gemm in compiled code: {name} must be a real number, not {x}")


def _transposes(name: str, x) -> bool:
    value = x if isinstance(x, (str, bool)) else getattr(x, "literal_value", getattr(x, "value", None))
    if isinstance(value, bool):
        return value
    letter = value.upper() if isinstance(value, str) else ""
    if letter not in ("N", "T", "C"):
        raise TypingError(f"gemm in compiled code: {name} must be a literal 'N', 'T', 'C', True or False, not {x}")
    return letter != "N"


def _gemm(a, b, c=None, alpha=1, beta=0, trans_a="N", trans_b="N", out=None):
    from .kernel import make_classical  # only now: registering happens while numba is being imported

    _need_matrix("a", a)
    _need_matrix("b", b, a.dtype)
    if _given(c):
        _need_matrix("c", c, a.dtype)
    if _given(out):
        _need_matrix("out", out, a.dtype)
        if not out.mutable:
            raise TypingError("gemm in compiled code: out is read-only")
    _need_number("alpha", alpha)
    _need_number("beta", beta)
    flip_a, flip_b = _transposes("trans_a", trans_a), _transposes("trans_b", trans_b)
    dtype = str(a.dtype)
    lane, classical, has_c = np.dtype(dtype).type, make_classical(dtype), _given(c)

    @register_jitable
    def into(result, a, b, c, flip_a, flip_b, alpha, beta):
        """alpha·op(A)·op(B) + beta·C into a `result` that lies apart from all of them, or is `c`."""
        (M, N), K = result.shape, a.shape[0] if flip_a else a.shape[1]
        if c is not None and beta != 0 and _view(c) != _view(result):
            _copy(result, c)
        if alpha == 0 or M == 0 or N == 0 or K == 0:
            for i in range(M):
                for j in range(N):
                    result[i, j] = 0 if beta == 0 else result[i, j] * beta
        else:
            a_view, b_view = _view(a), _view(b)
            if flip_a:
                a_view = a_view[0], a_view[2], a_view[1]
            if flip_b:
                b_view = b_view[0], b_view[2], b_view[1]
            classical(M, N, K, a_view, b_view, _view(result), alpha, beta)
        return a.size + b.size + result.size  # used through their addresses only, they must live until here

    def gemm(a, b, c=None, alpha=1, beta=0, trans_a="N", trans_b="N", out=None):
        (M, K) = (a.shape[1], a.shape[0]) if flip_a else a.shape
        (L, N) = (b.shape[1], b.shape[0]) if flip_b else b.shape
        if K != L:
            raise ValueError("gemm: the inner sizes of op(a) and op(b) differ")
        if c is not None and c.shape != (M, N):
            raise ValueError("gemm: c has not the shape of the product")
        if out is not None and out.shape != (M, N):
            raise ValueError("gemm: out has not the shape of the product")
        factor, addend = _number(alpha, lane), _number(beta, lane)
        if addend != 0 and not has_c:
            raise ValueError("gemm: beta needs c (to update out in place pass c=out as well)")
        if out is None:
            result = np.empty((M, N), lane)
            into(result, a, b, c, flip_a, flip_b, factor, addend)
            return result
        else:
            direct = not _repeats(out) and (factor == 0 or (_apart(out, a) and _apart(out, b)))
            if c is not None:
                direct = direct and (addend == 0 or _view(c) == _view(out) or _apart(out, c))
            if direct:
                into(out, a, b, c, flip_a, flip_b, factor, addend)
            else:
                aside = np.empty((M, N), lane)
                into(aside, a, b, c, flip_a, flip_b, factor, addend)
                _copy(out, aside)
            return out

    return gemm
