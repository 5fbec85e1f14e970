"""Kernels compiled from explicit signatures, and launches with prepacked arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

if not hasattr(np, "row_stack"):  # numba-cuda 0.30 asks for what numpy 2.5 removed
    np.row_stack = np.vstack  # noqa: NPY201

from cuda.bindings import driver
from numba import cuda, types

Launch = Callable[[int], None]


class Source(NamedTuple):
    """A kernel to compile: its function, Numba argument types, threads of a block, columns that a block covers."""

    function: Callable[..., None]
    arguments: list[Any]
    threads: int
    columns: int
    name: str


class Kernel:
    """A compiled `Source` on the current device."""

    def __init__(self, source: Source):
        self.source = source
        compiled = cuda.jit(types.void(*source.arguments), launch_bounds=(source.threads, 1))(source.function)
        self._compiled = next(iter(compiled.overloads.values()))._codelibrary.get_cufunc()  # also keeps it loaded
        self._handle = driver.CUfunction(int(self._compiled.handle))
        self.registers, self.local = self._compiled.attrs.regs, self._compiled.attrs.local

    def launcher(self, grid: tuple[int, int, int], args: Sequence[float]) -> Launch:
        """A function of a stream (its handle) that launches with these arguments: no allocation, no waiting."""
        values = [_C_TYPES[kind](x) for kind, x in zip(self.source.arguments, args, strict=True)]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])

        def launch(stream: int, _alive: Any = values) -> None:
            code = driver.cuLaunchKernel(
                self._handle, *grid, self.source.threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0
            )[0]
            if int(code):
                raise RuntimeError(f"kernel {self.source.name} could not be launched: {code}")

        return launch


_C_TYPES: dict[Any, Any] = {
    types.int64: lambda x: ctypes.c_int64(int(x)),
    types.float32: ctypes.c_float,
    types.float64: ctypes.c_double,
}


def zero_words(address: int, count: int) -> Launch:
    """Sets `count` 32-bit words to zero."""

    def launch(stream: int) -> None:
        code = driver.cuMemsetD32Async(address, 0, count, stream)[0]
        if int(code):
            raise RuntimeError(f"device memory could not be cleared: {code}")

    return launch


def upload(address: int, words: Sequence[Sequence[int]]) -> None:
    """Copies a table of int64 to the device, before any launch is made."""
    host = np.ascontiguousarray(words, dtype=np.int64)
    code = driver.cuMemcpyHtoD(address, host.ctypes.data, host.nbytes)[0]
    if int(code):
        raise RuntimeError(f"a table could not be copied to the device: {code}")
