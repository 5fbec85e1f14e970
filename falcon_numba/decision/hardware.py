"""Facts about this machine, read from the operating system: CPU, instruction set, cores, caches, memory.

Nothing is measured here and nothing is read at import. Every fact knows where it came from (`Hardware.source`), because
virtual machines and containers often hide some of them; a fact nobody reports has the default of `DEFAULTS`.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

# What is assumed where nothing is reported. The cache sizes are the small end of what CPUs of the last ten years have:
# blocks chosen too small cost a few percent, blocks that overflow a cache cost far more.
DEFAULTS: dict[str, Any] = {
    "l1d": 32 << 10,
    "l2": 512 << 10,
    "l3": 8 << 20,
    "memory": 4 << 30,
}

# A kernel for AVX-512 uses 256-bit and 512-bit forms of all these (Skylake-SP and Zen 4 onwards have them all;
# Knights Landing has only the first). AVX2 without FMA would halve the multiply rate: such a CPU counts as generic.
_AVX512 = frozenset({"avx512f", "avx512vl", "avx512dq", "avx512bw"})
_AVX2 = frozenset({"avx2", "fma"})


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one process may use of this machine.

    Attributes
    ----------
    cpu : str
        Brand and model, as the operating system prints it.
    llvm_cpu : str
        The name LLVM compiles for, for example ``"znver4"``.
    architecture : str
        ``"x86_64"``, ``"aarch64"``, …
    isa : {"avx512", "avx2", "neon", "generic"}
        Instruction-set family, see `isa_family`.
    physical_cores, logical_cores : int
        Of the whole machine, as far as it is visible.
    usable_cpus : int
        Logical CPUs this process may keep busy: the affinity mask, further limited by a cgroup's CPU quota
        (rounded up).
    l1d, l2, l3 : int
        Bytes of one data cache of each level, as seen by the first CPU of the affinity mask. L3 is shared by several
        cores on nearly every CPU, L2 on some.
    memory, memory_limit : int
        Bytes of the machine, and the part that the cgroups of this process allow (equal where there is no limit).
    sources : tuple of (fact, source) pairs
        ``"sysfs"``, ``"procfs"``, ``"sysctl"``, ``"sysconf"``, ``"cgroup"``, ``"affinity"``, ``"llvm"``, ``"python"``
        or ``"default"`` for every fact above.
    """

    cpu: str
    llvm_cpu: str
    architecture: str
    isa: str
    physical_cores: int
    logical_cores: int
    usable_cpus: int
    l1d: int
    l2: int
    l3: int
    memory: int
    memory_limit: int
    sources: tuple[tuple[str, str], ...]

    def source(self, fact: str) -> str:
        """Where `fact` (an attribute's name) came from."""
        return dict(self.sources)[fact]


@lru_cache(maxsize=1)
def hardware() -> Hardware:
    """The facts about this machine, read once per process (some milliseconds)."""
    return detect()


@lru_cache(maxsize=1)
def isa_family() -> str:
    """Instruction-set family that Numba compiles for: ``"avx512"``, ``"avx2"``, ``"neon"`` or ``"generic"``.

    Takes less than a millisecond once numba is imported. It is the host as LLVM sees it, unless NUMBA_CPU_FEATURES,
    NUMBA_CPU_NAME=generic or NUMBA_ENABLE_AVX=0 tell Numba otherwise: kernels must not use instructions that the rest
    of the compiled code may not.
    """
    from numba.core import codegen, config

    features = getattr(config, "CPU_FEATURES", None)  # what the user set, through the environment or a file
    return _family(codegen.get_host_cpu_features() if features is None else features, _architecture())


def _family(features: str, architecture: str) -> str:
    """Family of an LLVM feature string such as ``"+avx2,+fma,-avx512f"``; of two mentions the later counts."""
    on: dict[str, bool] = {}
    for token in features.lower().split(","):
        token = token.strip()
        if token[:1] in ("+", "-"):
            on[token[1:]] = token[0] == "+"
    enabled = {name for name, value in on.items() if value}
    if enabled >= _AVX512:
        return "avx512"
    if enabled >= _AVX2:
        return "avx2"
    # Every 64-bit ARM has NEON, and LLVM doesn't report a feature list on all of them.
    if architecture == "aarch64" and on.get("neon", True):
        return "neon"
    return "generic"


def detect(
    root: Path | str = "/",
    *,
    affinity: Iterable[int] | None = None,
    sysctl: Callable[[str], bytes | None] | None = None,
    sysconf: Callable[[str], int] | None = None,
) -> Hardware:
    """Read the facts now. `hardware` is the cached form; the parameters stand in for the operating system in tests.

    Parameters
    ----------
    root : path
        Folder with the ``sys`` and ``proc`` trees of Linux.
    affinity : iterable of int, optional
        Numbers of the CPUs that this process may run on.
    sysctl, sysconf : callable, optional
        Name to raw bytes (None where unknown), name to integer (raising where unknown).

    Notes
    -----
    Never raises for a missing or garbled file: the next source is asked, `DEFAULTS` last.
    """
    base = Path(root)
    cpus = sorted(_affinity() if affinity is None else affinity)
    readings: list[tuple[str, dict[str, Any]]] = [
        ("sysfs", _read_sysfs(base, cpus[0] if cpus else 0)),
        ("procfs", _read_procfs(base)),
        ("sysctl", _read_sysctl(sysctl or _system_sysctl())),
        ("sysconf", _read_sysconf(sysconf or getattr(os, "sysconf", None))),
        ("llvm", _read_llvm()),
        ("python", {"logical_cores": os.cpu_count() or 1, "architecture": _architecture()}),
        ("default", DEFAULTS),
    ]
    facts: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def settle(fact: str, value: Any, source: str) -> None:
        facts[fact], sources[fact] = value, source

    for source, reading in readings:
        for fact, value in reading.items():
            if value and fact not in facts:
                settle(fact, value, source)

    settle("isa", isa_family(), "llvm")
    if "physical_cores" not in facts:  # cores without topology: take them for real ones
        settle("physical_cores", facts["logical_cores"], sources["logical_cores"])
    if sources["l3"] == "default":  # a CPU without L3 (Apple's, say) has its last level in L2
        settle("l3", max(facts["l3"], facts["l2"]), "default")

    usable = (len(cpus), "affinity") if cpus else (facts["logical_cores"], sources["logical_cores"])
    quota = _cpu_quota(base)
    if quota is not None and math.ceil(quota) < usable[0]:
        usable = max(1, math.ceil(quota)), "cgroup"
    settle("usable_cpus", *usable)

    limit = _memory_limit(base)
    if limit is not None and limit < facts["memory"]:
        settle("memory_limit", limit, "cgroup")
    else:
        settle("memory_limit", facts["memory"], sources["memory"])
    return Hardware(**facts, sources=tuple(sources.items()))


def _architecture() -> str:
    """Linux's name of the architecture, on every system."""
    name = platform.machine().lower() or "unknown"
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _affinity() -> set[int]:
    """CPUs this process may run on; empty where the operating system has no such notion."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set()


def _text(path: Path) -> str:
    """The file's text, stripped; empty when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def _integer(text: str) -> int | None:
    """The number `text` consists of; None for anything else ("max" and "-1" among it: no limit)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _size(text: str) -> int | None:
    """Bytes of sysfs's ``"32K"``."""
    shift = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    number = _integer(text if shift is None else text[:-1])
    return None if number is None else number << (shift or 0)


def _cpu_list(text: str) -> list[int]:
    """CPU numbers of ``"0-3,8"``; empty when garbled."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        low, high = _integer(first), _integer(last or first)
        if low is None or high is None or high > 1 << 16:
            return []
        cpus.extend(range(low, high + 1))
    return cpus


def _read_sysfs(root: Path, cpu: int) -> dict[str, Any]:
    """Cores and the caches of CPU number `cpu`."""
    system = root / "sys/devices/system/cpu"
    online = _cpu_list(_text(system / "online"))
    # CPUs of one core list the same siblings.
    siblings = {_text(system / f"cpu{number}/topology/thread_siblings_list") for number in online}
    facts: dict[str, Any] = {"logical_cores": len(online), "physical_cores": len(siblings - {""})}
    for index in range(8):  # level and type say which cache it is; the index only counts them
        folder = system / f"cpu{cpu}/cache/index{index}"
        level, kind = _text(folder / "level"), _text(folder / "type")
        if kind in ("Data", "Unified") and level in ("1", "2", "3"):
            facts["l1d" if level == "1" else f"l{level}"] = _size(_text(folder / "size"))
    return facts


def _read_procfs(root: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            facts["cpu"] = " ".join(value.split())
            break
    for line in _text(root / "proc/meminfo").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == "MemTotal" and words:
            facts["memory"] = (_integer(words[0]) or 0) << 10  # the file says kB and means KiB
            break
    return facts


def _read_sysctl(sysctl: Callable[[str], bytes | None] | None) -> dict[str, Any]:
    """The same facts from macOS. "perflevel0" are the fast cores of Apple's CPUs; Intel Macs don't have it."""
    if sysctl is None:
        return {}

    def number(*names: str) -> int | None:
        for name in names:
            raw = sysctl(name)
            if raw:
                return int.from_bytes(raw, sys.byteorder)
        return None

    brand = sysctl("machdep.cpu.brand_string") or b""
    return {
        "cpu": brand.rstrip(b"\0").decode("utf-8", "replace"),
        "logical_cores": number("hw.logicalcpu"),
        "physical_cores": number("hw.physicalcpu"),
        "l1d": number("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
        "l2": number("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
        "l3": number("hw.l3cachesize"),
        "memory": number("hw.memsize"),
    }


def _system_sysctl() -> Callable[[str], bytes | None] | None:
    """``sysctlbyname`` of the C library on macOS; None elsewhere."""
    if platform.system() != "Darwin":
        return None
    import ctypes

    libc = ctypes.CDLL(None)

    def read(name: str) -> bytes | None:
        size = ctypes.c_size_t(0)
        if libc.sysctlbyname(name.encode(), None, ctypes.byref(size), None, 0) != 0:
            return None
        buffer = ctypes.create_string_buffer(size.value)
        if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, 0) != 0:
            return None
        return buffer.raw[: size.value]

    return read


def _read_sysconf(sysconf: Callable[[str], int] | None) -> dict[str, Any]:
    """What the C library knows (glibc asks the CPU itself): serves sandboxes that show no sysfs."""

    def number(name: str) -> int:
        try:
            return max(0, sysconf(name)) if sysconf else 0
        except (OSError, ValueError):
            return 0

    return {
        "l1d": number("SC_LEVEL1_DCACHE_SIZE"),
        "l2": number("SC_LEVEL2_CACHE_SIZE"),
        "l3": number("SC_LEVEL3_CACHE_SIZE"),
        "memory": number("SC_PAGE_SIZE") * number("SC_PHYS_PAGES"),
    }


def _read_llvm() -> dict[str, Any]:
    """LLVM's name of the CPU, also the best brand there is where ``/proc/cpuinfo`` has none (ARM)."""
    import llvmlite.binding
    from numba.core import config

    name = llvmlite.binding.get_host_cpu_name()
    return {"llvm_cpu": getattr(config, "CPU_NAME", None) or name, "cpu": name}


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders whose limits for `controller` hold for this process: its own group's and those above, versions 1 and 2.

    A container often sees its own group as the root of the mount although ``/proc/self/cgroup`` names the host's path,
    so folders that don't exist are simply skipped by whoever reads them.
    """
    mount = root / "sys/fs/cgroup"
    folders: dict[Path, None] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        inner = Path(path.strip().lstrip("/"))
        if ".." in inner.parts:  # a group outside of this namespace
            inner = Path()
        for top in (mount / names, mount / controller) if names else (mount, mount / "unified"):
            for folder in (inner, *inner.parents):
                folders[top / folder] = None
    return list(folders)


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time that the tightest cgroup allows; None without a limit."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        version2 = _text(folder / "cpu.max").split()
        version1 = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
        for pair in (version2, version1):
            quota, period = map(_integer, pair) if len(pair) == 2 else (None, None)
            if quota and period:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _memory_limit(root: Path) -> int | None:
    """Bytes that the tightest cgroup allows; None without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_integer(_text(folder / name)) for folder in _cgroup_folders(root, "memory") for name in names]
    return min(filter(None, limits), default=None)
