"""What this installation runs on, as text: the body of ``falcon-numba info``."""

from __future__ import annotations

import ctypes
import datetime
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

from .decision.hardware import hardware


def describe() -> str:
    """Text about the machine, versions, compile cache, calibration and options, each fact with its origin.

    Never raises: a fact that can't be had says why.
    """
    sections = [
        ("CPU", _cpu()),
        ("Threads", [("Numba would use", *_try(_threads))]),
        ("GPU", [("devices", *_try(_gpu)), ("executor", "none yet: every product runs on the CPU", "")]),
        ("Versions", _versions()),
        ("Compiled code", [("cache folder", *_try(_cache_folder))]),
        ("Speeds", [("calibration", *_try(_calibration))]),
        ("Options", _options()),
    ]
    rows = [row for _, section in sections for row in section]
    width = max(len(label) for label, _, _ in rows)
    lines = []
    for title, section in sections:
        lines.append(title)
        for label, value, origin in section:
            lines.append(f"  {label:<{width}}  {value}" + (f"  [{origin}]" if origin else ""))
    return "\n".join(lines)


def bytes_text(size: int) -> str:
    """``"32 KiB"``, ``"23.5 GiB"``: binary units, at most four digits."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    for larger in units:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def versions() -> dict[str, str]:
    """Versions of this package, Python and what computes."""
    import llvmlite
    import numba
    import numpy as np

    from ._version import __version__

    return {
        "falcon_numba": __version__,
        "python": platform.python_version(),
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "numpy": np.__version__,
        "BLAS of NumPy": _blas(),
    }


def _try(read: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    try:
        return read()
    except Exception as error:  # a report about a broken installation is when it is needed most
        return f"unavailable ({type(error).__name__}: {error})", ""


def _cpu() -> list[tuple[str, str, str]]:
    facts = hardware()
    memory = bytes_text(facts.memory)
    if facts.memory_limit < facts.memory:
        memory = f"{bytes_text(facts.memory_limit)} of {memory}"
    return [
        ("model", f"{facts.cpu} ({facts.llvm_cpu}, {facts.architecture})", facts.source("cpu")),
        ("instruction set", facts.isa, facts.source("isa")),
        ("cores", f"{facts.physical_cores} physical, {facts.logical_cores} logical", facts.source("physical_cores")),
        ("usable CPUs", str(facts.usable_cpus), facts.source("usable_cpus")),
        ("L1d cache", bytes_text(facts.l1d), facts.source("l1d")),
        ("L2 cache", bytes_text(facts.l2), facts.source("l2")),
        ("L3 cache", bytes_text(facts.l3), facts.source("l3")),
        ("memory", memory, facts.source("memory_limit")),
    ]


def _threads() -> tuple[str, str]:
    import numba

    return str(numba.get_num_threads()), "NUMBA_NUM_THREADS or the CPUs this process may use"


def _gpu() -> tuple[str, str]:
    """NVIDIA devices, asked of the driver itself, and whether Numba could compile for them."""
    names = _driver_devices()
    compiler = "numba-cuda installed" if importlib.util.find_spec("numba_cuda") else "numba-cuda not installed"
    return ", ".join(names) or "none", f"NVIDIA driver; {compiler}"


def _driver_devices() -> list[str]:
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    names = []
    for index in range(count.value):
        buffer = ctypes.create_string_buffer(256)
        if driver.cuDeviceGetName(buffer, len(buffer), index) == 0:  # device handles are the indices
            names.append(buffer.value.decode(errors="replace"))
    return names


def _versions() -> list[tuple[str, str, str]]:
    return [(name, version, "") for name, version in versions().items()]


def _blas() -> str:
    import numpy as np

    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas['version']}"
    except (KeyError, TypeError):
        return "unknown"


def _cache_folder() -> tuple[str, str]:
    from .folders import cache_folder

    folder = cache_folder()
    if folder is None:
        return "none", "no home folder: every process compiles anew"
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    return str(folder), "" if writable else "not writable: every process compiles anew"


def _calibration() -> tuple[str, str]:
    from .decision.rates import calibration, switched_off

    if switched_off():
        return "off: speeds are assumed", "FALCON_CALIBRATION"
    found = calibration()
    if found.problem:
        return f"ignored, {found.problem}: speeds are assumed", str(found.file)
    if not found.measured:
        return "none: speeds are assumed until `falcon-numba calibrate` has measured them", str(found.file or "")
    counts = {dtype: ", ".join(map(str, sorted(by))) for dtype, by in found.measured.items()}
    used = "; ".join(f"{dtype} with {text} thread{'' if text == '1' else 's'}" for dtype, text in counts.items())
    return f"used, {_age(found.date)}: {used}", str(found.file)


def _age(date: str) -> str:
    try:
        seconds = time.time() - datetime.datetime.fromisoformat(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return "of unknown age"
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'' if count == 1 else 's'} old"
    return "new"


def _options() -> list[tuple[str, str, str]]:
    try:
        from .config import show_config

        return [(name, repr(value), origin) for name, value, origin in show_config()]
    except Exception as error:  # a FALCON_* variable with a value out of range
        return [("unavailable", f"{type(error).__name__}: {error}", "")]
