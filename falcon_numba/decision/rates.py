"""How fast this machine is, for the model that compares plans: measured by `falcon-numba calibrate`, else assumed."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import store
from .hardware import Hardware, hardware

DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class Rates:
    """Speeds of one dtype with a number of threads, all threads together; seconds, bytes/s, flop/s.

    Attributes
    ----------
    dtype : str
        Of a kernel; only those of `DTYPES` are measured.
    threads : int
    fma : float
        Of the micro-kernel on packed operands in cache (FLOPS× of the paper); a multiply-add counts as two.
    add : float
        Of combinations of blocks in L1 and L2 (FLOPS+); a multiply-add for one term counts as one.
    l2, l3 : float
        Bytes read and written; the working set is half of an L2 for each thread, a quarter of the L3 together.
    read, write, copy : float
        Bytes from memory, to memory with streaming stores, and both together from memory to memory.
    pack : float
        Bytes of A and B read from memory and packed for a classical product.
    start : float
        Seconds that starting all threads and returning from them takes.
    call : float
        Seconds of Python around a product of the engine, the guard and `start` aside.
    numpy_call : float
        Seconds NumPy's product takes for 2 × 2.
    numpy : tuple of (size, flop/s) pairs
        NumPy's product of squares, sizes ascending. (Of other shapes the size is the harmonic mean of M, N and K.)
    source : {"calibrated", "default"}
    """

    dtype: str
    threads: int
    fma: float
    add: float
    l2: float
    l3: float
    read: float
    write: float
    copy: float
    pack: float
    start: float
    call: float
    numpy_call: float
    numpy: tuple[tuple[float, float], ...]
    source: str


# What a value may be. Wide enough for any computer from a first-generation ARM board on, narrow enough that no
# arithmetic with them overflows, divides by zero or makes one part of the model drown the others.
SPEED = (1e6, 1e17)
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("fma", "add", "l2", "l3", "read", "write", "copy", "pack"), SPEED),
    "start": (1e-8, 1.0),
    "call": (1e-7, 1.0),
    "numpy_call": (1e-8, 1.0),
}
SIZE, MOST_SIZES, MOST_THREADS = (1.0, 1e6), 64, 4096

SHARED = ("l3", "read", "write", "copy", "pack")  # don't grow with threads beyond those measured
EACH = ("fma", "add", "l2")  # of each core


@lru_cache(maxsize=256)
def rates_for(dtype: str, threads: int) -> Rates:
    """The speeds with `threads` threads: from the calibration file, where it is valid for this machine, else assumed.

    Between numbers of threads that were measured everything is interpolated linearly; outside, speeds of the cores are
    scaled by the number of threads, as far as there are CPUs, and those of shared memory aren't. A file that can't be
    used is ignored, with one warning per process. ``FALCON_CALIBRATION=off`` ignores any.
    """
    found = calibration()
    if found.problem:
        _warn_once()
    measured = found.measured.get(dtype)
    if measured:
        return _between(measured, threads, hardware())
    rates = default_rates(dtype, threads, hardware())
    if dtype not in DTYPES and "float32" in found.measured:  # nobody measures integers: as fast as floats suggest
        floats, assumed = rates_for("float32", threads), default_rates("float32", threads, hardware())
        numbers = {x: getattr(rates, x) * getattr(floats, x) / getattr(assumed, x) for x in LIMITS}
        speed = numbers["fma"] / rates.fma
        return replace(rates, **numbers, numpy=tuple((n, x * speed) for n, x in rates.numpy), source="calibrated")
    return rates


class Calibration(NamedTuple):
    """What is known from the calibration file, and why it isn't more: `problem` is "" where nothing is wrong."""

    file: Path | None
    measured: dict[str, dict[int, Rates]]  # by dtype and number of threads
    date: str
    problem: str


@lru_cache(maxsize=1)
def calibration() -> Calibration:
    """This machine's measurements; never raises. Read once per process."""
    file = store.calibration_file()
    if file is None or switched_off():
        return Calibration(file, {}, "", "")
    try:
        entry = store.read_entry(file, store.machine_key())
        return Calibration(file, _checked(entry), str((entry or {}).get("date", "")), "")
    except store.Unusable as error:
        return Calibration(file, {}, "", str(error))


def switched_off() -> bool:
    """Whether FALCON_CALIBRATION says that no calibration file is to be read."""
    return os.environ.get("FALCON_CALIBRATION", "").strip().lower() in ("off", "0", "no", "false")


@lru_cache(maxsize=1)
def _warn_once() -> None:
    found = calibration()
    message = f"falcon_numba ignores {found.file}: {found.problem}; `falcon-numba calibrate` writes it anew"
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def save(measured: Iterable[Rates]) -> str:
    """Add measurements to this machine's entry in the calibration file, and use them from now on.

    Returns
    -------
    str
        The file's path.

    Raises
    ------
    OSError
        When it can't be written.
    ValueError
        A measurement that `rates_for` would refuse to read.
    """
    file = store.calibration_file()
    if file is None:
        raise FileNotFoundError("no home folder to keep the calibration in; FALCON_CACHE_DIR names another")
    new = list(measured)
    for rates in new:
        check(rates)

    def change(old: Any) -> dict[str, Any]:
        try:
            kept = _checked(old)
        except store.Unusable:
            kept = {}
        for rates in new:
            kept.setdefault(rates.dtype, {})[rates.threads] = rates
        return {"rates": {d: {str(t): _values(by[t]) for t in sorted(by)} for d, by in kept.items()}}

    store.write_entry(file, store.machine_key(), change)
    forget()
    return str(file)


def forget() -> None:
    """Read the calibration file anew when the next rates are asked for."""
    calibration.cache_clear()
    rates_for.cache_clear()


def check(rates: Rates) -> Rates:
    """The same rates; raises ValueError where `rates_for` would not read them from a file, see `LIMITS`."""
    entry = {"rates": {rates.dtype: {str(rates.threads): _values(rates)}}}
    return _checked(entry)[rates.dtype][rates.threads]


def _values(rates: Rates) -> dict[str, Any]:
    values = asdict(rates)
    return {name: values[name] for name in (*LIMITS, "numpy")}


def _checked(entry: Any) -> dict[str, dict[int, Rates]]:
    """The measurements of an entry. Raises `store.Unusable` where anything in it is not as `save` writes it."""
    if entry is None:
        return {}
    tables = entry.get("rates") if isinstance(entry, dict) else None
    if not isinstance(tables, dict) or not set(tables) <= set(DTYPES):
        raise store.Unusable("this machine's entry has no rates of known dtypes")
    found: dict[str, dict[int, Rates]] = {}
    for dtype, table in tables.items():
        if not isinstance(table, dict) or not table:
            raise store.Unusable(f"no measurements of {dtype}")
        for text, values in table.items():
            if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MOST_THREADS):
                raise store.Unusable(f"{dtype}: {text[:40]!r} is no number of threads")
            found.setdefault(dtype, {})[int(text)] = _rates(dtype, int(text), values)
    return found


def _rates(dtype: str, threads: int, values: Any) -> Rates:
    where = f"{dtype}, {threads} threads"
    if not isinstance(values, dict):
        raise store.Unusable(f"{where}: no JSON object")
    numbers = {name: _number(f"{where}: {name}", values.get(name), *LIMITS[name]) for name in LIMITS}
    curve = values.get("numpy")
    if not isinstance(curve, (list, tuple)) or not 1 <= len(curve) <= MOST_SIZES:
        raise store.Unusable(f"{where}: numpy is no list of sizes and speeds")
    points = []
    for point in curve:
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise store.Unusable(f"{where}: numpy is no list of sizes and speeds")
        points.append((_number(f"{where}: numpy", point[0], *SIZE), _number(f"{where}: numpy", point[1], *SPEED)))
    if any(a[0] >= b[0] for a, b in pairwise(points)):
        raise store.Unusable(f"{where}: the sizes of numpy don't ascend")
    return Rates(dtype=dtype, threads=threads, **numbers, numpy=tuple(points), source="calibrated")


def _number(what: str, value: Any, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:  # NaN fails every comparison
        shown = value if isinstance(value, float) else f"of type {type(value).__name__}"
        raise store.Unusable(f"{what} is {shown}, not a number from {least:g} to {most:g}")
    return float(value)


def _between(measured: dict[int, Rates], threads: int, machine: Hardware) -> Rates:
    if threads in measured:
        return measured[threads]
    counts = sorted(measured)
    below, above = ([c for c in counts if c < threads][-1:], [c for c in counts if c > threads][:1])
    if not below or not above:
        (nearest,) = below or above
        most = max(machine.usable_cpus, counts[-1])
        return _scaled(measured[nearest], threads, min(threads, most) / nearest)
    low, high = measured[below[0]], measured[above[0]]
    part = (threads - low.threads) / (high.threads - low.threads)
    numbers = {name: (1 - part) * getattr(low, name) + part * getattr(high, name) for name in LIMITS}
    sizes = sorted({size for rates in (low, high) for size, _ in rates.numpy})
    speeds = [np.interp(sizes, *np.transpose(rates.numpy)) for rates in (low, high)]
    curve = zip(sizes, ((1 - part) * speeds[0] + part * speeds[1]).tolist(), strict=True)
    return replace(low, threads=threads, **numbers, numpy=tuple(curve))


def _scaled(rates: Rates, threads: int, ratio: float) -> Rates:
    numbers = {name: getattr(rates, name) * ratio for name in EACH}
    curve = tuple((size, speed * ratio) for size, speed in rates.numpy)
    return replace(rates, threads=threads, **numbers, numpy=curve)


# --- without a calibration -------------------------------------------------------------------------------------------

# Flop/s of the micro-kernel in float32 on one core, at the clock that such CPUs commonly have: two AVX-512 units at
# 2 GHz (servers of Intel) are as fast as Zen 4's halved ones at 3.7 GHz; two AVX2 units at 3.2 GHz; two to four NEON
# units at 3 GHz; SSE2 without FMA.
FMA = {"avx512": 114e9, "avx2": 98e9, "neon": 64e9, "generic": 24e9}
# Measured on two cores of a Zen 4, relative to FMA where the core sets the pace.
ADD, L2, L3, PACK = 0.19, 0.95, 0.69, 0.096  # terms per flop; bytes per flop of float32
L3_MOST = 400e9  # of some dozen cores: a mesh has no more, but twice what memory gives
DRAM_CORE, DRAM, DRAM_EACH = 28e9, 25e9, 8e9  # read by one core, at most; by all, and more for every core there is
WRITE, COPY, PACK_DRAM = 0.78, 1.3, 0.5  # of the read bandwidth
START, START_EACH, CALL, NUMPY_CALL = 20e-6, 40e-6, 120e-6, 1e-6
NUMPY = {64: 0.8, 128: 0.84, 256: 0.86, 512: 0.88, 1024: 0.92, 2048: 0.94}  # of FMA, one thread
NUMPY_START = 5e-6  # for each thread, where there are several
# Multiply-adds of the micro-kernels over those of float32, and NumPy's loops over that: they have neither vectors that
# fit nor threads.
KERNELS = {"float32": 1.0, "float64": 0.5, "int64": 0.42, "int32": 0.86, "int16": 2.0}
LOOPS = {"int64": 0.016, "int32": 0.016, "int16": 0.012}


def default_rates(dtype: str, threads: int, hardware: Hardware) -> Rates:
    """Speeds assumed of a machine that nobody measured, from its instruction set and number of cores alone.

    The clock is unknown, so every core counts as an average one of its kind (`FMA`), and all else is in a proportion to
    it that was measured on one machine. The proportions matter more than the speeds: a model that is wrong by the same
    factor everywhere still compares plans rightly.
    """
    cores = max(1, min(threads, hardware.physical_cores, hardware.usable_cpus))
    single = FMA.get(hardware.isa, FMA["generic"])
    one = single * KERNELS[dtype]
    vector = single * 4 / np.dtype(dtype).itemsize
    # Cores with narrow vectors don't get to the limit of what one may have outstanding.
    read = min(cores * min(DRAM_CORE, single * L3 / 2), DRAM + DRAM_EACH * hardware.physical_cores)

    def squares(n: int, share: float) -> float:
        alone = one * share
        if cores == 1:
            return alone
        flops = 2.0 * n**3
        return max(alone, flops / (flops / (alone * cores) + NUMPY_START * cores))  # small ones run on one thread

    return Rates(
        dtype=dtype,
        threads=threads,
        fma=one * cores,
        add=vector * cores * ADD,
        l2=single * cores * L2,
        l3=min(single * cores * L3, max(L3_MOST, 2 * read)),
        read=read,
        write=read * WRITE,
        copy=read * COPY,
        pack=min(single * cores * PACK, read * PACK_DRAM),
        start=1e-6 if threads == 1 else START + START_EACH * threads,
        call=CALL,
        numpy_call=NUMPY_CALL,
        numpy=tuple((float(n), one * LOOPS[dtype] if dtype in LOOPS else squares(n, x)) for n, x in NUMPY.items()),
        source="default",
    )
