"""`gemm` and `matmul` of arrays in device memory: the rules of the NumPy products in front of the GPU engine.

For now every product is the portable kernel's (`tile`), classical and exact to its rounding analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import config
from ..blas import matrix, need_shape, result_dtypes, scalar_of, sizes
from ..config import Settings
from ..lanes import is_short_float
from ..operands import overlap, refuse_unsafe, same_view, writable_in_place
from ..ufunc import MATMUL, understand
from . import arrays, tile
from .arrays import DeviceArray


def handle(function: Any, operands: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The handler of `operands.register_array_type` for arrays with ``__cuda_array_interface__``."""
    out = keywords.get("out")
    if type(out) is tuple and len(out) == 1:
        out = out[0]
    given = {**dict(zip(("a", "b", "c"), operands, strict=False)), "out": out}
    found = {name: arrays.as_device_array(x) for name, x in given.items() if x is not None}
    on_gpu = [name for name, x in found.items() if x is not None]
    if not on_gpu:  # host tensors
        refuse_unsafe(tuple(given.values()))
        raise TypeError("none of the operands is in GPU memory")
    for name, x in found.items():
        if x is None:
            kind = type(given[name])
            raise TypeError(
                f"{on_gpu[0]} is in GPU memory but {name} ({kind.__module__}.{kind.__qualname__}) is not: "
                "move one of them, so that all are on the GPU or none is"
            )
    known: dict[str, DeviceArray] = {name: x for name, x in found.items() if x is not None}
    devices = {x.device for x in known.values()}
    if len(devices) > 1:
        where = ", ".join(f"{name} on {x.device}" for name, x in known.items())
        raise ValueError(f"the operands are on different GPUs: {where}")
    target = known.get("out")
    if target is not None:
        if target.conjugated:
            raise TypeError("out is a lazily conjugated tensor; pass out.resolve_conj()")
        if target.owner is not out:
            raise TypeError("out is a lazily negated tensor; pass out.resolve_neg()")
        if not target.shadow.flags.writeable:
            raise ValueError("out is read-only")
        if not writable_in_place(target.shadow, target.shadow.dtype):
            raise ValueError("out holds an element more than once")
    rest = {name: x for name, x in keywords.items() if name != "out"}
    a, b = known["a"], known["b"]
    if function.__name__ == "gemm":
        return _gemm(a, b, known.get("c"), target, **rest)
    return _matmul(a, b, target, rest)


def _check_options(settings: Settings) -> None:
    """Raise TypeError for what the portable kernel can't honour."""
    demands = {
        f"executor={settings.executor!r}": settings.executor != "auto",
        f"depth={settings.depth!r}": settings.depth not in ("auto", 0),
        f"scheme={settings.scheme!r}": settings.scheme != "auto" and settings.depth == "auto",
        f"max_error={settings.max_error!r}": settings.max_error is not None,
        "check=True": settings.check,
    }
    for demand, made in demands.items():
        if made:
            raise TypeError(
                f"{demand} cannot be honoured for arrays in GPU memory: they have the classical product only"
            )


def _gemm(
    a: DeviceArray,
    b: DeviceArray,
    c: DeviceArray | None,
    out: DeviceArray | None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    trans_a: str | bool = "N",
    trans_b: str | bool = "N",
    out_dtype: Any = None,
    modulus: int | None = None,
    plan: Any = None,
    **options: Any,
) -> Any:
    _check_options(config.resolve(**options))
    if modulus is not None or plan is not None:
        raise TypeError(f"{'plan' if modulus is None else 'modulus'} cannot be used with arrays in GPU memory")
    (x, conjugate_a), (y, conjugate_b) = _operand("a", a, trans_a), _operand("b", b, trans_b)
    M, N, K = sizes(x, y)
    for name, z in (("c", c), ("out", out)):
        if z is not None:
            need_shape(name, z.shadow, (M, N))
    if c is not None and c.conjugated:
        raise TypeError("c is a lazily conjugated tensor; pass c.resolve_conj()")
    old = None if c is None else c.shadow
    computed, dtype = result_dtypes(x, y, old, None if out is None else out.shadow, out_dtype)
    for kind in (computed, dtype):
        _need_kernel(kind)
    alpha, beta = scalar_of("alpha", alpha, computed), scalar_of("beta", beta, computed)
    if beta != 0 and c is None:
        raise ValueError(f"beta={beta} needs c (to update out in place pass c=out as well)")

    result = out if out is not None else arrays.empty(a, (M, N), dtype)
    target = result
    clash = alpha != 0 and K > 0 and (overlap(result.shadow, x) or overlap(result.shadow, y))
    if old is not None and beta != 0:
        clash = clash or (overlap(result.shadow, old) and not same_view(result.shadow, old))
    if out is not None and clash:  # as if the inputs had been copied first
        target = arrays.empty(out, (M, N), dtype)
    used = [z for z in (a, b, c) if z is not None]
    before = target.shadow if old is None else old
    product = _Product(used, target, computed, (conjugate_a, conjugate_b))
    product.run((M, N, K if alpha != 0 else 0), (), (x, y, before), alpha, beta)
    if target is not result:
        _copy(target, result)
    return result.owner


def _need_kernel(dtype: np.dtype) -> None:
    """Raise TypeError for a type that the kernel has no arithmetic for."""
    if (dtype.kind not in "biufc" and dtype.name != "bfloat16") or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise TypeError(f"there is no matrix product of dtype {dtype} on the GPU")


def _operand(name: str, x: DeviceArray, trans: Any) -> tuple[np.ndarray, bool]:
    """op(x) as a view of the shadow, and whether it is to be conjugated."""
    conjugate = isinstance(trans, str) and trans.upper() == "C"
    view = matrix(name, x.shadow, "T" if conjugate else trans)  # "C" would conjugate the elements
    return view, conjugate != x.conjugated


def _matmul(a: DeviceArray, b: DeviceArray, out: DeviceArray | None, keywords: dict[str, Any]) -> Any:
    names = ("casting", "order", "dtype", "subok", "axes", "axis")
    given = {name: keywords.pop(name) for name in names if name in keywords}
    _check_options(config.resolve(**keywords))
    for name in ("axes", "axis"):
        if name in given:
            raise TypeError(f"{name} cannot be used with arrays in GPU memory")
    x, y = a.shadow, b.shadow
    call = understand(x, y, None if out is None else out.shadow, given)
    if call is None:
        _refuse(x, y, out, given)
        raise TypeError("matmul does not take these arguments for arrays in GPU memory")
    dtype = call.dtype
    _need_kernel(dtype)
    final = dtype if out is None else out.shadow.dtype
    M, N = (z.shape[axis] if z.ndim > 1 else 1 for z, axis in ((x, -2), (y, -1)))
    K = x.shape[-1]
    shape = call.batch + call.core
    result = out if out is not None else arrays.empty(a, shape, final, column_major=call.order == "F")
    target = result
    if out is not None and (final != dtype or overlap(out.shadow, x) or overlap(out.shadow, y)):
        target = arrays.empty(out, shape, dtype)
    left, right = (np.broadcast_to(z, call.batch + z.shape[-2:]) for z in (np.atleast_2d(x), _column(y)))
    rounded = np.dtype(np.float32) if is_short_float(dtype) else dtype
    product = _Product([a, b], target, rounded, (a.conjugated, b.conjugated))
    full = _matrices(target.shadow, x.ndim, y.ndim)
    product.run((M, N, K), call.batch, (left, right, full), rounded.type(1), rounded.type(0))
    if target is not result:
        _copy(target, result)
    return result.owner


def _column(y: np.ndarray) -> np.ndarray:
    return y[:, np.newaxis] if y.ndim == 1 else y


def _matrices(c: np.ndarray, a_ndim: int, b_ndim: int) -> np.ndarray:
    """A result of matmul with both core axes."""
    if a_ndim == 1:
        c = c[..., np.newaxis, :] if b_ndim > 1 else c[..., np.newaxis]
    return c[..., np.newaxis] if b_ndim == 1 else c


def _refuse(x: np.ndarray, y: np.ndarray, out: DeviceArray | None, given: dict[str, Any]) -> None:
    """Raise NumPy's own error: on empty arrays of the same shapes and dtypes, whose elements it may read."""
    one = [np.broadcast_to(np.zeros((), z.dtype), z.shape) for z in (x, y)]
    if out is not None:
        given = {**given, "out": np.empty(out.shadow.shape, out.shadow.dtype)}
    if x.size and y.size and (x.ndim and y.ndim) and x.shape[-1] == y.shape[-min(y.ndim, 2)]:
        one = [z[..., :0] if z is one[0] else z[..., :0, :] if z.ndim > 1 else z[:0] for z in one]
    MATMUL(*one, **given)


class _Product:
    """What the kernel, its stream and the order among streams depend on.

    Parameters
    ----------
    operands : sequence of DeviceArray
        All that is read.
    target : DeviceArray
        Written; its library's current stream runs the product.
    computed : dtype
        Of the computation.
    conjugate : pair of bool
        Of A and B.
    """

    def __init__(
        self, operands: Sequence[DeviceArray], target: DeviceArray, computed: np.dtype, conjugate: tuple[bool, bool]
    ):
        self._operands, self._target = operands, target
        self._number = tile.accumulator_of(computed)
        self._conjugate = conjugate

    def run(
        self,
        mnk: tuple[int, int, int],
        batch: Sequence[int],
        views: tuple[np.ndarray, np.ndarray, np.ndarray],
        alpha: Any,
        beta: Any,
    ) -> None:
        """Enqueue target ← alpha·A·B + beta·C₀ for shadows (A, B, C₀)."""
        target = self._target
        matrices = target.shadow if target.shadow.ndim == views[2].ndim else views[2]
        names = [x.dtype.name for x in (*views, matrices)]
        spec = tile.Spec(names[0], names[1], names[2], names[3], self._number.name, *self._conjugate)
        described = [(_address(x), [s // x.itemsize for s in x.strides], x.itemsize) for x in (*views, matrices)]
        alpha, beta = (_scalar(x, self._number) for x in (alpha, beta))
        launches = tile.launches(spec, target.device, mnk, batch, described, alpha, beta)
        others = {x.stream for x in self._operands}
        for stream in others:
            arrays.follow(target.stream, stream, target.device)
        for launch in launches:
            launch(target.stream)
        for stream in others:  # so that memory freed or overwritten there is not still being read here
            arrays.follow(stream, target.stream, target.device)


def _address(x: np.ndarray) -> int:
    return x.__array_interface__["data"][0] if x.dtype.kind != "V" else x.view(np.uint16).ctypes.data


def _scalar(value: Any, number: np.dtype) -> Any:
    """As a number of the kernel: integers modulo 2^bits with a sign."""
    if number.kind != "i":
        return number.type(value)
    half = 1 << (8 * number.itemsize - 1)
    return (int(value) + half) % (2 * half) - half


def _copy(source: DeviceArray, target: DeviceArray) -> None:
    """Enqueue target ← source, elements cast: C₀ alone of the kernel, which then reads neither A nor B."""
    x, y = (np.atleast_2d(z.shadow) for z in (source, target))
    name = source.shadow.dtype
    number = tile.accumulator_of(np.result_type(name, target.shadow.dtype) if name != target.shadow.dtype else name)
    spec = tile.Spec(name.name, name.name, name.name, target.shadow.dtype.name, number.name)
    described = [(_address(z), [s // z.itemsize for s in z.strides], z.itemsize) for z in (x, x, x, y)]
    zero, one = (_scalar(v, number) for v in (0, 1))
    for launch in tile.launches(spec, target.device, (*y.shape[-2:], 0), y.shape[:-2], described, zero, one):
        launch(target.stream)
