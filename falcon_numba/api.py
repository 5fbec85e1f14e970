"""The public products, `gemm` and `matmul`: NumPy's and BLAS's semantics in front of the engines.

Both bring their operands into the form of a `Problem` (native byte order, one dtype, broadcast views) and hand it to
`dispatch`. What the engines have no business with (invalid arguments, empty arrays, dtypes they lack) goes to NumPy.
"""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np

from . import config, dispatch
from .blas import matrix, need_shape, result_dtypes, run_by_steps, run_on_engine, scalar_of, sizes
from .config import Settings
from .cpu.overload import register
from .decision.predict import numpy_is_surely_faster
from .gpu import handle as gpu_handle
from .gpu import is_device_type
from .integers import Lane, lane_for, same_bits
from .modular import checked_modulus, reduced, residue_dtype
from .modular import product as modular_product
from .modular import scalar as modular_scalar
from .operands import (
    as_operand,
    convert,
    find_handler,
    overlap,
    overrides_ufuncs,
    refuse_unsafe,
    register_array_type,
    writable_in_place,
)
from .planning import Plan
from .preview import ENGINE_DTYPES, lane_plan, need_no_engine
from .problem import Problem
from .tracing import record, tracing
from .ufunc import MATMUL, Call, allocate, understand, wrap

HALF_BELOW = 16**3  # multiplications of float16 numbers that NumPy has done before the engine has begun

_ndarray = np.ndarray
_NoValue: Any = np._NoValue


def matmul(
    x1: Any,
    x2: Any,
    /,
    out: Any = None,
    *,
    casting: Any = "same_kind",
    order: Any = "K",
    dtype: Any = None,
    subok: Any = True,
    axes: Any = _NoValue,
    axis: Any = _NoValue,
    **options: Any,
) -> Any:
    """Matrix product with the semantics of `numpy.matmul`.

    Real and complex numbers of single and double precision, integers, bool, and float16 (in float32, rounded once) run
    on this package's engines; every other dtype gives NumPy's own answer.

    Parameters
    ----------
    x1 : array_like, shape (..., M, K) or (K,)
    x2 : array_like, shape (..., K, N) or (K,)
        Any strides, alignment and byte order; a one-dimensional operand is a row on the left, a column on the right.
        Batch axes broadcast, and a broadcast operand is never copied out.
    out : ndarray or tuple of one, shape (..., M, N), optional
        Written and returned. It may overlap the inputs: the result is as if they had been copied first.
    casting, order, dtype, subok, axes, axis
        As for every NumPy ufunc.
    **options
        See `falcon_numba.config_context`.

    Returns
    -------
    ndarray, shape (..., M, N), or scalar
        Without M (N) where `x1` (`x2`) has one dimension; a scalar where both have.

    Raises
    ------
    ValueError
        Shapes that do not fit, a read-only `out`, a bad value of an option.
    TypeError
        A dtype that does not cast, an unknown option, an option that cannot be honoured for this dtype, masked
        arrays, and array types of other libraries unless they are in GPU memory, all operands alike, or take part in
        NumPy's ``__array_ufunc__`` protocol.

    Notes
    -----
    Unlike NumPy no floating-point warning is raised for what happens inside an engine.

    Examples
    --------
    >>> matmul([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0])
    array([3., 7.])
    """
    exact = type(x1) is _ndarray and type(x2) is _ndarray and (out is None or type(out) is _ndarray)
    if (
        exact
        and not options
        and dtype is None
        and axes is _NoValue
        and axis is _NoValue
        and order == "K"
        and casting == "same_kind"
        and subok is True
        and config.untouched()
        and not tracing()
        and _numpy_rules(x1, x2)
    ):
        return MATMUL(x1, x2, out)

    given: dict[str, Any] = {}  # what the caller said, for NumPy
    if out is not None:
        given["out"] = out
    if casting != "same_kind":
        given["casting"] = casting
    if order != "K":
        given["order"] = order
    if dtype is not None:
        given["dtype"] = dtype
    if subok is not True:
        given["subok"] = subok
    if axes is not _NoValue:
        given["axes"] = axes
    if axis is not _NoValue:
        given["axis"] = axis

    settings = config.resolve(**options)
    target = out[0] if type(out) is tuple and len(out) == 1 else out
    if not exact:
        operands = (x1, x2, target)
        handler = find_handler(operands)
        if handler is not None:
            return handler(matmul, (x1, x2), {**given, **options})
        refuse_unsafe(operands)
        if any(map(overrides_ufuncs, operands)):
            need_no_engine(settings, None)
            return MATMUL(x1, x2, **given)

    a, b = np.asarray(x1), np.asarray(x2)
    call = understand(a, b, target, given)
    if call is None or call.empty:  # NumPy's own error, or nothing to compute
        return MATMUL(x1, x2, **given)
    lane = lane_for(call.a.dtype, call.b.dtype, call.dtype)
    if call.dtype.char == "e" and settings.executor == "numpy":
        lane = None
    if lane is None or lane.exact:  # operands that NumPy multiplies must not be converted before
        if lane is None or call.dtype.kind == "b":
            need_no_engine(settings, call.dtype)
        if lane is not None or tracing():
            M, N = (x.shape[i] if x.ndim > 1 else 1 for x, i in ((call.a, -2), (call.b, -1)))
            plan = lane_plan(M, N, call.a.shape[-1], call.dtype, lane, settings, prod(call.batch))
            if plan.executor == "numpy":
                record(plan)
        if lane is None or plan.executor == "numpy":
            return MATMUL(x1, x2, **given)
    result = _run(call, lane, target, settings)
    return wrap(result, (x1, x2), target, subok=subok)


def _numpy_rules(a: np.ndarray, b: np.ndarray) -> bool:
    """The rule by which a plan would choose NumPy, without making a plan."""
    if a.dtype.char == b.dtype.char == "e":  # NumPy has no BLAS for float16
        return a.size * (b.shape[-1] if b.ndim > 1 else 1) < HALF_BELOW
    if a.ndim < 2 or b.ndim < 2:
        return True
    return numpy_is_surely_faster(a.shape[-2], b.shape[-1], a.shape[-1], a.dtype.kind)


def _run(call: Call, lane: Lane, target: np.ndarray | None, settings: Settings) -> np.ndarray:
    """Compute a valid, non-empty call on an engine; the result has the axes that the caller asked for."""
    a, b = (
        # A float becomes the integer asked for before that is looked at as a signed one.
        as_operand(x.astype(call.dtype) if lane.exact and x.dtype.kind not in "biu" else x, lane.operands)
        for x in (call.a, call.b)
    )
    if a.ndim == 1:
        a = a[np.newaxis, :]
    if b.ndim == 1:
        b = b[:, np.newaxis]
    shape = call.batch + call.core
    out = call.out
    if out is not None and writable_in_place(out, call.dtype) and not (overlap(out, a) or overlap(out, b)):
        result = out
    else:
        result = allocate((a[..., 0, 0], b[..., 0, 0]), shape, call.dtype, call.order if out is None else "C")
    # Sums of 32 bits are cut off where the result is narrower.
    c = convert(result, lane.result) if call.dtype.itemsize == lane.result.itemsize else np.empty(shape, lane.result)
    computed = c
    if call.a.ndim == 1:
        c = c[..., np.newaxis, :] if call.b.ndim > 1 else c[..., np.newaxis]
    if call.b.ndim == 1:
        c = c[..., np.newaxis]
    if call.batch:
        a = np.broadcast_to(a, call.batch + a.shape[-2:])
        b = np.broadcast_to(b, call.batch + b.shape[-2:])
    dispatch.execute(Problem(a, b, c, headroom=lane.headroom), settings)
    if call.dtype.itemsize != lane.result.itemsize:
        np.copyto(result, computed, casting="unsafe")
    if out is not None and result is not out:
        np.copyto(out, result, casting=call.casting)  # type: ignore[arg-type]
    if target is not None:
        return target
    return result if call.out_axes is None else np.moveaxis(result, range(-len(call.core), 0), call.out_axes)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    trans_a: str | bool = "N",
    trans_b: str | bool = "N",
    out: np.ndarray | None = None,
    out_dtype: Any = None,
    modulus: int | None = None,
    plan: Plan | None = None,
    **options: Any,
) -> np.ndarray:
    """alpha·op(A)·op(B) + beta·C for matrices, with the semantics of the BLAS.

    Parameters
    ----------
    a, b : array_like, shapes (M, K) and (K, N) after `trans_a` and `trans_b`
        Any strides, alignment and byte order.
    c : array_like, shape (M, N), optional
        Only read, and not even that with ``beta=0``; ``out=c`` updates it in place.
    alpha, beta : scalar
        With ``alpha=0`` neither `a` nor `b` is read. For an integer result they count modulo 2^bits.
    trans_a, trans_b : {"N", "T", "C"} or bool
        As it is, transposed (also True), or conjugate transposed.
    out : ndarray, shape (M, N), optional
        Written and returned. It may overlap the inputs: the result is as if they had been copied first.
    out_dtype : dtype, optional
        Type of the result; without it that of `out`, or else what NumPy's promotion makes of `a`, `b` and `c`. A wider
        type widens the whole computation (int8 to int32 is exact), a narrower one rounds or wraps the result once.
    modulus : int, optional
        Below 2^31, for integers: the result modulo it, exact, from 0 to modulus − 1, whatever the true product is. Any
        `out_dtype` or `out` of integers will do that has room for residues.
    plan : Plan, optional
        From `plan` or `plan_for`: run this, decide nothing. Not with `modulus`.
    **options
        See `falcon_numba.config_context`.

    Returns
    -------
    ndarray, shape (M, N)
        `out`, or a new C-ordered array.

    Raises
    ------
    ValueError
        Shapes that do not fit, a read-only `out`, `beta` without `c`, a bad value of an option.
    TypeError
        Types that do not cast under NumPy's "same_kind" rule, an unknown option, an option that cannot be honoured
        for this dtype, masked arrays, and array types of other libraries unless they are in GPU memory, all operands
        alike. In either case `out` is untouched.

    Notes
    -----
    Real and complex numbers of single and double precision, integers and bool run on this package's engines; float16,
    bfloat16 and the 8-bit floats of ml_dtypes are computed there in float32 and rounded once. Integers are exact modulo
    2^bits, bool is OR of ANDs. Longer types go through NumPy.

    Arrays in GPU memory (PyTorch, CuPy, Numba) are multiplied there, classically, on their library's current stream,
    without copies and without waiting; the result is an array of the same library.

    In functions compiled by ``numba.njit`` it takes the arguments up to `out`: 2-D arrays, all float32 or all float64,
    and literal `trans_a` and `trans_b`. There it is the product of ``executor="cpu", depth=0`` on the calling thread,
    also within ``numba.prange``; wrong types raise a TypingError when the function is compiled.

    Examples
    --------
    >>> gemm([[1.0, 2.0], [3.0, 4.0]], [[1.0], [1.0]], alpha=2)
    array([[ 6.],
           [14.]])
    """
    exact = type(a) is _ndarray and type(b) is _ndarray and (c is None or type(c) is _ndarray)
    exact = exact and (out is None or type(out) is _ndarray)
    if (
        exact
        and not options
        and c is None
        and out_dtype is None
        and modulus is None
        and plan is None
        and (type(alpha), alpha, type(beta), beta) == (int, 1, int, 0)
        and trans_a == "N"
        and trans_b == "N"
        and a.ndim == 2
        and b.ndim == 2
        and a.dtype == b.dtype
        and (a.dtype in ENGINE_DTYPES or a.dtype.kind in "biu")
        and a.shape[1] == b.shape[0]
        and (out is None or (out.dtype == a.dtype and out.shape == (a.shape[0], b.shape[1]) and out.flags.writeable))
        and config.untouched()
        and not tracing()
        and _numpy_rules(a, b)
    ):
        return MATMUL(a, b, out)

    settings = config.resolve(**options)
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, as `plan` makes them, not {type(plan).__name__}")
    if plan is not None and options:
        raise TypeError(f"a plan has already decided {', '.join(sorted(options))}: pass either plan or these options")
    if not exact:
        operands = (a, b, c, out)
        handler = find_handler(operands)
        if handler is not None:
            keywords = {"alpha": alpha, "beta": beta, "trans_a": trans_a, "trans_b": trans_b, "out": out}
            keywords |= {"out_dtype": out_dtype, "modulus": modulus, "plan": plan, **options}
            return handler(gemm, (a, b, c), keywords)
        refuse_unsafe(operands)
    a, b = matrix("a", a, trans_a), matrix("b", b, trans_b)
    M, N, K = sizes(a, b)
    if c is not None:
        c = np.asarray(c)
        need_shape("c", c, (M, N))
    if out is not None:
        if not isinstance(out, _ndarray):
            raise TypeError(f"out must be a numpy.ndarray, not {type(out).__name__}")
        need_shape("out", out, (M, N))
        if not out.flags.writeable:
            raise ValueError("out is read-only")
    if modulus is not None:
        if plan is not None:
            raise TypeError("pass either plan or modulus")
        dtype = residue_dtype(a, b, c, out, out_dtype)
        result = _modular(a, b, c, alpha, beta, modulus, dtype, options)
        if out is None:
            return result.astype(dtype)
        np.copyto(out, result, casting="unsafe")
        return out
    computed, dtype = result_dtypes(a, b, c, out, out_dtype)
    alpha, beta = scalar_of("alpha", alpha, computed), scalar_of("beta", beta, computed)
    if beta != 0 and c is None:
        raise ValueError(f"beta={beta} needs c (to update out in place pass c=out as well)")

    lane = lane_for(a.dtype, b.dtype, computed)
    if plan is not None and (lane is None or np.dtype(plan.dtype).kind != lane.operands.kind):
        raise TypeError(f"the plan is for {plan.dtype}, the product is computed in {computed}")
    if plan is None and (lane is None or computed.kind == "b"):
        need_no_engine(settings, computed)
    chosen = plan
    if plan is None and (lane.exact if lane is not None else tracing()) and alpha != 0 and K * M * N:
        chosen = lane_plan(M, N, K, computed, lane, settings)
    if lane is not None and (chosen is None or plan is not None or chosen.executor == "cpu"):
        run = functools.partial(run_on_engine, lane=lane, settings=settings, plan=plan)
        if np.imag(alpha) == np.imag(beta) == 0:
            result = run(a, b, c, alpha, beta, wanted=dtype, out=out)
        else:
            product = functools.partial(run, c=None, alpha=1, beta=0, wanted=computed, out=None)
            result = run_by_steps(a, b, c, alpha, beta, computed, product)
    else:
        if chosen is not None:
            record(chosen)
        result = run_by_steps(a, b, c, alpha, beta, computed)
    if out is None:
        return result.view(dtype) if same_bits(result.dtype, dtype) else result.astype(dtype, copy=False)
    if result is not out:
        np.copyto(out, result, casting="unsafe")  # result_dtypes has checked it
    return out


def _modular(
    a: np.ndarray, b: np.ndarray, c: Any, alpha: Any, beta: Any, modulus: Any, dtype: np.dtype, options: dict[str, Any]
) -> np.ndarray:
    """alpha·A·B + beta·C modulo `modulus` as int64; see `modular`."""
    p = checked_modulus(modulus, (a, b, c), dtype)
    alpha, beta = modular_scalar("alpha", alpha, p), modular_scalar("beta", beta, p)
    if beta and c is None:
        raise ValueError(f"beta={beta} needs c (to update out in place pass c=out as well)")
    if alpha and a.size and b.size:
        result = modular_product(a, b, p, lambda x, y, wide: gemm(x, y, out_dtype=wide, **options))
    else:
        result = np.zeros((a.shape[0], b.shape[1]), np.int64)
    if alpha != 1:
        result = reduced(result * alpha, p)
    return reduced(result + beta * reduced(c, p), p) if beta else result


register(gemm)  # inside users' compiled functions
register_array_type(is_device_type, gpu_handle)
