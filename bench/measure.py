"""What all benchmarks share: a clean environment, operands, errors, the FMA peak, and a record of the machine."""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types
from shapes import Shape

import falcon_numba as fn
from falcon_numba.cpu.microkernel import make_microkernel, make_portable_microkernel
from falcon_numba.cpu.simd import peek_i64
from falcon_numba.cpu.spec import SPECS, KernelSpec
from falcon_numba.cpu.threads import pool
from falcon_numba.decision.hardware import hardware, isa_family
from falcon_numba.lanes import lane_of
from falcon_numba.sysinfo import versions

PAUSE = 0.15  # idle workers of a BLAS spin for tens of milliseconds after a call, on the core of whoever comes next
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # hold OpenBLAS to kernels or blocks that aren't this machine's


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def refuse_pinned_blas(environment: dict[str, str] | None = None) -> None:
    """Leave with an explanation where the environment slows OpenBLAS down."""
    pinned = [name for name in PINS if name in (os.environ if environment is None else environment)]
    if pinned:
        unset = " ".join(f"-u {name}" for name in pinned)
        raise SystemExit(
            f"{' and '.join(pinned)} set: OpenBLAS would not run as it does for others. "
            f"Run `env {unset} python …` instead."
        )


def record() -> dict[str, Any]:
    """Machine, versions, options and date, for the head of a JSON file."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": asdict(hardware()),
        "versions": versions(),
        "options": {name: str(value) for name, value, origin in fn.show_config() if origin != "default"},
        "load_average": list(os.getloadavg()),
        "command": sys.argv,
    }


def begin() -> dict[str, Any]:
    """An empty JSON file in a clean environment, with warnings of what may spoil the numbers."""
    refuse_pinned_blas()
    data = record() | {"peak": {}, "results": []}
    if data["options"]:
        say(f"options that are not at their defaults: {data['options']}")
    if data["load_average"][0] > 0.3:
        say(f"load average {data['load_average'][0]:.1f}: others use this machine, don't trust the times")
    return data


def settle(most: float = 2 * PAUSE) -> None:
    """Wait until no thread of this process works any more: a BLAS's workers spin on after a call, each BLAS its time.

    Looks at 12 ms at a time (a kernel accounts running threads in ticks of up to 10), and takes `most` seconds at most.
    """
    end = time.perf_counter() + most
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        time.sleep(0.012)
        now = time.perf_counter()
        if time.process_time() - cpu < (now - wall) / 4 or now > end:
            return


def write_json(path: str | Path, data: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = Path(f"{path}.tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def operands(shape: Shape, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random A, B and room for C: always the same numbers for a shape. Never zeros, which CPUs multiply faster."""
    rng = np.random.default_rng(2605)
    lead = () if shape.batch == 1 else (shape.batch,)
    real, parts = lane_of(dtype)

    def random(*size: int) -> np.ndarray:
        x = rng.standard_normal((*lead, *size[:-1], parts * size[-1]), dtype=np.dtype(real).type)
        return x.view(dtype) if parts > 1 else x.astype(dtype, copy=False)

    return random(shape.M, shape.K), random(shape.K, shape.N), np.empty((*lead, shape.M, shape.N), dtype)


class Reference:
    """A · B in a wider type at some rows and columns of some products, to measure errors against.

    float64 is the reference of float32 and float16, longdouble of float64 (80 bits on x86; as wide as float64 on some
    machines), and likewise for complex numbers.
    """

    ROWS, COLUMNS = 16, 1024

    def __init__(self, a: np.ndarray, b: np.ndarray):
        a, b = (x.reshape(-1, *x.shape[-2:]) for x in (a, b))
        self.products = np.unique([0, len(a) // 2, len(a) - 1])
        self.rows = np.unique(np.linspace(0, a.shape[1] - 1, self.ROWS).astype(int))
        self.columns = np.unique(np.linspace(0, b.shape[2] - 1, self.COLUMNS).astype(int))
        wide = np.result_type(a, "f8" if lane_of(a.dtype).dtype == "float32" else "g")
        self.values = np.stack(
            [a[p][self.rows].astype(wide) @ b[p][:, self.columns].astype(wide) for p in self.products]
        )
        # Largest magnitudes of the sampled products alone: an error never looks smaller for the others.
        self.scale = a.shape[2] * float(np.abs(a[self.products]).max()) * float(np.abs(b[self.products]).max())

    def error(self, c: np.ndarray) -> float:
        """Largest |error| relative to K·max|A|·max|B|; NaN where anything is."""
        c = c.reshape(-1, *c.shape[-2:])
        sampled = np.stack([c[p][np.ix_(self.rows, self.columns)] for p in self.products])
        return float(np.abs(sampled - self.values).max()) / self.scale


class AgainstNumPy:
    """NumPy's own product as the reference: faster than `Reference`, and covers all of C."""

    def __init__(self, a: np.ndarray, b: np.ndarray):
        self.values = np.matmul(a, b)
        self.scale = a.shape[-1] * float(np.abs(a).max()) * float(np.abs(b).max())

    def error(self, c: np.ndarray) -> float:
        """Largest difference relative to K·max|A|·max|B|; NaN where anything is."""
        return float(np.abs(c - self.values).max()) / self.scale


@functools.cache
def _peak_kernel(spec: KernelSpec) -> Any:
    tile, scale = (spec.MR, spec.NR), np.dtype(spec.dtype).type(1)
    microkernel = (make_portable_microkernel if spec.isa == "generic" else make_microkernel)(spec)

    @njit([types.void(*[types.int64] * 5)], nogil=True)
    def repeat(rounds, K, a, b, zero):
        for _ in range(rounds):
            # Zero targets, so that nothing is stored, but a zero from memory, so that the product isn't optimised away.
            sums = (peek_i64(zero), a, a, a)
            microkernel(K, tile, (a, b), sums, 0, (a, 0, 0), (scale, scale, 0), (a, 0, b, 0))

    return repeat


def fma_peak(dtype: str, threads: int, seconds: float = 0.5) -> float:
    """GFLOP/s of fused multiply-adds: the best run of the micro-kernel on panels that stay in L1, on all threads."""
    spec = SPECS[isa_family(), dtype]
    K = max(spec.VL, hardware().l1d * 3 // 4 // ((spec.MR + spec.NR) * spec.itemsize) // spec.VL * spec.VL)
    bytes_a, bytes_b = spec.MR * K * spec.itemsize, spec.NR * K * spec.itemsize
    buffers = []
    for _ in range(threads):
        raw = np.zeros(bytes_a + bytes_b + 192, np.uint8)
        start = -raw.ctypes.data % 64
        values = raw[start : start + bytes_a + bytes_b].view(dtype)
        values[:] = np.random.default_rng(1).standard_normal(len(values))
        buffers.append((raw, raw.ctypes.data + start))
    kernel = _peak_kernel(spec)

    def run(rounds: int) -> float:
        def work(tid: int, threads: int, sync: int) -> None:
            a = buffers[tid][1]
            kernel(rounds, K, a, a + bytes_a, a + bytes_a + bytes_b)

        start = time.perf_counter()
        pool.run(threads, work)
        return time.perf_counter() - start

    rounds = 64
    while run(rounds) < 0.02:
        rounds *= 2
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, run(rounds))
    return threads * rounds * 2 * spec.MR * spec.NR * K / best / 1e9
