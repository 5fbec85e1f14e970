"""The CUDA target: the only file that imports numba.cuda and the driver's bindings, and only when asked for.

Everything else of the GPU engine takes them from here, so that a successor of numba-cuda is a change of one file.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

HINT = "install falcon-numba[cuda12] or falcon-numba[cuda13], whichever fits the driver"


class GPUError(RuntimeError):
    """The GPU engine can't run here, or the driver refused."""


def simulated() -> bool:
    """Whether kernels run in Numba's CUDA simulator, on host arrays."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@functools.cache
def numba_cuda() -> Any:
    """The module numba.cuda.

    Raises
    ------
    GPUError
        It is not installed, or fails to import.
    """
    if not hasattr(np, "row_stack"):  # numba-cuda 0.30 asks for what NumPy 2.5 removed
        np.row_stack = np.vstack  # noqa: NPY201
    try:
        from numba import cuda
    except ImportError as error:
        raise GPUError(f"GPU arrays need numba-cuda ({error}); {HINT}") from error
    return cuda


def intrinsic(result: Any, argument: Any, generate: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of one argument for kernels, made of LLVM instructions by generate(context, builder, value)."""
    numba_cuda()
    from numba.cuda.extending import intrinsic as declare

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return generate(context, builder, arguments[0])

    def function(typing_context, x):
        return result(argument), codegen

    return declare(function)


@functools.cache
def driver() -> Any:
    """The module cuda.bindings.driver, initialised.

    Raises
    ------
    GPUError
        The bindings are not installed, or there is no driver or no GPU.
    """
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise GPUError(f"GPU arrays need the CUDA bindings ({error}); {HINT}") from error
    try:
        code = bindings.cuInit(0)[0]
    except RuntimeError as error:  # the bindings find no libcuda
        raise GPUError(f"there is no CUDA driver: {error}") from error
    if int(code):
        raise GPUError(f"the CUDA driver could not start: {code}")
    return bindings


def call(function: str, *arguments: Any) -> Any:
    """What a function of the driver returns beside its code; GPUError where that is not success."""
    code, *values = getattr(driver(), function)(*arguments)
    if int(code):
        raise GPUError(f"{function}: {code.name}")
    return values[0] if len(values) == 1 else values


def available() -> bool:
    """Whether there is a GPU, its driver and numba-cuda."""
    try:
        numba_cuda()
        return call("cuDeviceGetCount") > 0
    except GPUError:
        return False


@functools.cache
def compute_capability(device: int) -> tuple[int, int]:
    """(major, minor) of a device, by its ordinal."""
    attribute = driver().CUdevice_attribute
    return tuple(
        call("cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), device)
        for part in ("MAJOR", "MINOR")
    )


@functools.cache
def _primary_context(device: int) -> Any:
    return call("cuDevicePrimaryCtxRetain", device)


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """Makes the primary context of a device, which every library shares, the current one of this thread."""
    context = _primary_context(device)
    if int(call("cuCtxGetCurrent")) == int(context):
        yield
        return
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        call("cuCtxPopCurrent")


def compile_cubin(
    function: Any,
    arguments: tuple[Any, ...],
    capability: tuple[int, int],
    *,
    launch_bounds: tuple[int, ...] | None = None,
    max_registers: int | None = None,
) -> tuple[str, bytes]:
    """Machine code of one kernel; needs no GPU.

    Parameters
    ----------
    function : function
        The kernel, undecorated.
    arguments : tuple of Numba types
    capability : (int, int)
        Compute capability; from 9.0 on the code is for exactly this architecture ("a").
    launch_bounds : tuple of int, optional
        Threads of a block, blocks of a multiprocessor.
    max_registers : int, optional
        Of a thread.

    Returns
    -------
    (str, bytes)
        Name of the entry, and the cubin.
    """
    cuda = numba_cuda()
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.cudadrv import nvvm

    options = {"fastmath": False, "opt": 3}
    compiled = compile_cuda(
        function, cuda.types.void, arguments, nvvm_options=options, cc=capability, max_registers=max_registers
    )
    library, name = compiled.library, compiled.fndesc.llvm_func_name
    kernel = library.get_function(name)
    library._entry_name = name
    kernel_fixup(kernel, False)
    nvvm.set_launch_bounds(kernel, launch_bounds)
    exact = (*capability, "a") if capability >= (9, 0) else capability
    return name, bytes(library.get_cubin(cc=exact).code)
