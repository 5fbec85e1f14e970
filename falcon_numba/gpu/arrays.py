"""Arrays of other libraries on the GPU: what they are, on whose stream they live, and new ones of the same library.

A `DeviceArray` carries a *shadow*: a NumPy array over the device address. Nothing may read its elements, but shapes,
strides, dtypes, transposition, broadcasting and overlap are NumPy's own, so that the rules of the NumPy products apply.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import target


class _Interface:
    """What NumPy makes an array of without looking at its elements."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, writable: bool):
        self.__array_interface__ = {
            "version": 3,
            "data": (address, not writable),
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str,
        }


@dataclass(frozen=True)
class DeviceArray:
    """An operand in device memory.

    Attributes
    ----------
    shadow : ndarray
        Its shape, strides, dtype and address; elements must not be touched.
    device : int
        Ordinal of the GPU.
    stream : int
        Handle of the stream on which it was, or may still be, computed.
    owner : array
        The caller's array, which keeps the memory.
    library : str
        "torch", "cupy" or "numba".
    conjugated : bool
        Whether the elements are to be read as their conjugates (PyTorch's lazy conjugation).
    """

    shadow: np.ndarray
    device: int
    stream: int
    owner: Any
    library: str
    conjugated: bool = False


def dtype_of(name: str) -> np.dtype:
    """The NumPy dtype; of bfloat16 that of ml_dtypes.

    Raises
    ------
    TypeError
        There is none, or ml_dtypes is missing.
    """
    if name == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            raise TypeError("bfloat16 needs the package ml_dtypes: install falcon-numba[half]") from None
        return np.dtype(bfloat16)
    try:
        return np.dtype(name)
    except TypeError:
        raise TypeError(f"there is no matrix product of dtype {name} on the GPU") from None


def _shadow(
    address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype, *, writable: bool = True
) -> np.ndarray:
    """Strides in bytes."""
    if not address or 0 in shape:  # NumPy would allocate for a null pointer
        return np.lib.stride_tricks.as_strided(np.empty(1, dtype), tuple(shape), (0,) * len(shape), writeable=writable)
    size = dtype.itemsize if dtype.kind != "c" else dtype.itemsize // 2
    if address % size or any(x % dtype.itemsize for x, n in zip(strides, shape, strict=True) if n > 1):
        raise ValueError(f"a GPU array of dtype {dtype} has a misaligned address or strides: {address:#x}, {strides}")
    plain = np.dtype(np.uint16) if dtype.kind == "V" else dtype
    interface = _Interface(address, tuple(shape), tuple(strides), plain, writable)
    return np.asarray(interface).view(dtype) if plain != dtype else np.asarray(interface)


def as_device_array(x: Any) -> DeviceArray | None:
    """What is known of an array in device memory; None where it isn't one.

    Raises
    ------
    TypeError
        A dtype or a kind of array that no product takes.
    ValueError
        Misaligned elements.
    """
    module = type(x).__module__.partition(".")[0]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(x, torch) if x.is_cuda else None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        stream = cupy.cuda.get_current_stream(x.device.id).ptr
        shadow = _shadow(x.data.ptr, x.shape, x.strides, _checked(np.dtype(x.dtype)))
        return DeviceArray(shadow, x.device.id, stream, x, "cupy")
    try:
        interface = x.__cuda_array_interface__
    except AttributeError:
        return None
    if not isinstance(interface, dict):
        return None
    if interface.get("mask") is not None:
        raise TypeError("masked GPU arrays are not accepted, since the product would use the data behind the mask")
    shape = tuple(interface["shape"])
    dtype = _checked(np.dtype(interface["typestr"]))
    strides = interface.get("strides")
    if strides is None:
        strides = np.empty(0, dtype).itemsize * np.cumprod((1, *shape[:0:-1]))[::-1][: len(shape)]
    address, read_only = interface["data"]
    shadow = _shadow(int(address or 0), shape, tuple(map(int, strides)), dtype, writable=not read_only)
    stream = interface.get("stream")
    owner = "numba" if module in ("numba", "numba_cuda") else "other"
    return DeviceArray(shadow, _device_of(int(address or 0)), 1 if stream is None else int(stream), x, owner)


def _checked(dtype: np.dtype) -> np.dtype:
    longest = 16 if dtype.kind == "c" else 8
    if not (dtype.isnative and (dtype.kind in "biufc" or dtype.name == "bfloat16") and dtype.itemsize <= longest):
        raise TypeError(f"there is no matrix product of dtype {dtype} on the GPU")
    return dtype


def _from_torch(x: Any, torch: Any) -> DeviceArray:
    if x.layout != torch.strided:
        raise TypeError(f"tensors of layout {x.layout} are not supported; convert with to_dense()")
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            "a tensor requires grad, and the products of falcon_numba are not differentiable; "
            "call them under torch.no_grad(), or pass x.detach()"
        )
    if x.is_neg():
        x = x.resolve_neg()
    dtype = _checked(dtype_of(str(x.dtype).removeprefix("torch.")))
    strides = tuple(step * dtype.itemsize for step in x.stride())
    device = x.device.index
    shadow = _shadow(x.data_ptr(), tuple(x.shape), strides, dtype)
    stream = torch.cuda.current_stream(device).cuda_stream
    return DeviceArray(shadow, device, stream, x, "torch", x.is_conj())


def _device_of(address: int) -> int:
    """The device of an address; the current one for arrays without elements."""
    if not address:
        return int(target.call("cuCtxGetDevice")) if int(target.call("cuCtxGetCurrent")) else 0
    attribute = target.driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(target.call("cuPointerGetAttribute", attribute, address))


def empty(like: DeviceArray, shape: tuple[int, ...], dtype: np.dtype, *, column_major: bool = False) -> DeviceArray:
    """A new array of the library and device of another one, on its stream."""
    order = shape[::-1] if column_major else shape
    if like.library == "torch":
        torch = sys.modules["torch"]
        try:
            kind = getattr(torch, dtype.name)
        except AttributeError:
            raise TypeError(f"PyTorch has no dtype {dtype}") from None
        new = torch.empty(order, dtype=kind, device=like.owner.device)
        return as_known(new.permute(*range(new.ndim)[::-1]) if column_major else new)
    if like.library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device):
            return as_known(cupy.empty(shape, dtype, order="F" if column_major else "C"))
    cuda = target.numba_cuda()
    with cuda.gpus[like.device]:
        return as_known(cuda.device_array(shape, dtype, order="F" if column_major else "C"))


def as_known(x: Any) -> DeviceArray:
    found = as_device_array(x)
    assert found is not None
    return found


def follow(stream: int, other: int, device: int) -> None:
    """Makes later work on `stream` wait for what is on `other` now."""
    if (stream or 1) == (other or 1):  # 0 and 1 are the legacy default stream
        return
    with target.on_device(device):
        flags = target.driver().CUevent_flags.CU_EVENT_DISABLE_TIMING
        event = target.call("cuEventCreate", flags)
        try:
            target.call("cuEventRecord", event, other)
            target.call("cuStreamWaitEvent", stream, event, 0)
        finally:
            target.call("cuEventDestroy", event)
