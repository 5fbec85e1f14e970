"""Kernels: compiled once for a kind of GPU, kept on disk, loaded once for a device, launched with packed arguments."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numba

from ..folders import cache_folder, write_whole
from . import target

Launch = Callable[[int], None]


class Source(NamedTuple):
    """A kernel before it is compiled.

    Attributes
    ----------
    name : str
        Tells it, with all that `build` makes its code depend on, from every other kernel of this package.
    build : callable, () -> function
        Makes the kernel function; not called where the disk has the machine code.
    arguments : tuple of str
        Of each argument: "pointer T", or T, where T is the name of a Numba type.
    threads : int
        Of a block.
    blocks : int
        Of a multiprocessor at least, for the compiler's choice of registers.
    max_registers : int, optional
        Of a thread.
    shared_bytes : int
        Dynamic shared memory of a block.
    """

    name: str
    build: Callable[[], Any]
    arguments: tuple[str, ...]
    threads: int
    blocks: int = 1
    max_registers: int | None = None
    shared_bytes: int = 0

    def types(self) -> tuple[Any, ...]:
        """The arguments as Numba types."""
        known = target.numba_cuda().types
        return tuple(
            known.CPointer(getattr(known, x.split()[1])) if x.startswith("pointer ") else getattr(known, x)
            for x in self.arguments
        )

    def compile(self, capability: tuple[int, int]) -> tuple[str, bytes]:
        """Entry name and cubin, from the disk or made now."""
        file = _file(self, capability)
        found = None if file is None else _read(file)
        if found is None:
            logging.getLogger("falcon_numba").info("compiling %s for compute capability %d.%d", self.name, *capability)
            found = target.compile_cubin(
                self.build(),
                self.types(),
                capability,
                launch_bounds=(self.threads, self.blocks),
                max_registers=self.max_registers,
            )
            if file is not None:
                payload = pickle.dumps(found)
                try:
                    write_whole(file, hashlib.sha256(file.name.encode() + payload).digest() + payload)
                except OSError as error:
                    logging.getLogger("falcon_numba").info("%s can't be kept on disk: %s", self.name, error)
        return found


@functools.cache
def _versions() -> tuple[str, ...]:
    """Of this folder's source and of what compiles it."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    versions = [digest.hexdigest(), numba.__version__]
    for package in ("numba-cuda", "nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12"):
        try:
            versions.append(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            versions.append("")
    return tuple(versions)


def _file(source: Source, capability: tuple[int, int]) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    options = (source.name, source.arguments, source.threads, source.blocks, source.max_registers)
    key = hashlib.sha256(repr((_versions(), options, capability)).encode()).hexdigest()[:24]
    return folder / f"gpu-{key}.bin"


def _read(file: Path) -> tuple[str, bytes] | None:
    """What `Source.compile` wrote; None where anything is wrong with it."""
    try:
        data = file.read_bytes()
        if hashlib.sha256(file.name.encode() + data[32:]).digest() != data[:32]:
            return None
        return pickle.loads(data[32:])
    except Exception:  # a missing, foreign or damaged file must never stop a product
        return None


def _scalar(kind: str) -> Callable[[Any], list[Any]]:
    """How an argument becomes what the driver reads: one or, of complex numbers, two C values."""
    if kind.startswith("pointer "):
        return lambda x: [ctypes.c_uint64(x)]
    if kind.startswith("complex"):
        part = ctypes.c_float if kind == "complex64" else ctypes.c_double
        return lambda x: [part(x.real), part(x.imag)]
    number = {"float32": ctypes.c_float, "float64": ctypes.c_double}.get(kind) or getattr(ctypes, f"c_{kind}")
    return lambda x: [number(x)]


class Kernel:
    """A kernel loaded on one device.

    Parameters
    ----------
    source : Source
    device : int
        Ordinal of the GPU.

    Raises
    ------
    GPUError
        It does not compile or load.
    """

    def __init__(self, source: Source, device: int):
        self.source, self.device = source, device
        self._pack = [_scalar(kind) for kind in source.arguments]
        name, cubin = source.compile(target.compute_capability(device))
        with target.on_device(device):
            library = target.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)
            kernel = target.call("cuLibraryGetKernel", library, name.encode())
            if source.shared_bytes > 48 << 10:  # more than a kernel gets unasked
                attribute = target.driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                target.call("cuKernelSetAttribute", attribute, source.shared_bytes, kernel, device)
            # Loads the code now: later, while a graph is captured, the driver could not.
            self._function = target.call("cuKernelGetFunction", kernel)

    def launcher(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> Launch:
        """A function of a stream (its handle) that launches with these arguments.

        It neither allocates nor waits and may be called any number of times, also while a graph is captured.
        """
        values = [x for pack, y in zip(self._pack, arguments, strict=True) for x in pack(y)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        address, block, shared = ctypes.addressof(pointers), (self.source.threads, 1, 1), self.source.shared_bytes

        def launch(stream: int, _alive: Any = (values, pointers)) -> None:
            with target.on_device(self.device):
                target.call("cuLaunchKernel", self._function, *grid, *block, shared, stream, address, 0)

        return launch


_loading = threading.Lock()
_kernels: dict[tuple[str, int], Kernel] = {}


def kernel(source: Source, device: int) -> Kernel:
    """The kernel of this source on a device, compiled and loaded the first time."""
    found = _kernels.get((source.name, device))
    if found is None:
        with _loading:
            found = _kernels.get((source.name, device))
            if found is None:
                found = _kernels[source.name, device] = Kernel(source, device)
    return found
