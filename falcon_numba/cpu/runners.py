"""The engine's kernels as `decision.calibrate` measures them: short runs, each a sample of one speed.

Where kernels work in caches every thread has whole products of its own, small and many, and the engine's clock tells
how long its micro-kernel or its packing took; packing from memory and the streams share operands larger than L3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..algorithms import FlatScheme, flatten, resolve_scheme
from ..decision.hardware import hardware, isa_family
from ..problem import Problem
from . import phases
from .blocking import choose_blocks, default_limit
from .engine import engine_for
from .spec import SPECS
from .streams import make_stream
from .threads import pool
from .workspace import ALIGN

TILE = 96  # rows and columns of whole tiles in every kernel spec
PRODUCTS = 64  # small products for each thread: 10 ms or so
IN_CACHE = 128 << 20  # bytes that a stream in a cache moves, for each thread: 3 to 10 ms
IN_MEMORY = (64 << 20, 1 << 30)  # bytes of operands that are too large for L3, at least and at most
CALL_SIZE = 512  # of a product that leaves nothing of Python in the caches and takes a few milliseconds
SPIN = 20_000_000  # bytes read in L1 while all threads start: 100 µs or so
SPIN_BYTES = 16 << 10


class EngineRunners:
    """Runs of one dtype. The methods named like attributes of `Rates` return a sample of them.

    Parameters
    ----------
    dtype : {"float32", "float64"}
    gemm : callable
        `falcon_numba.gemm`, whose Python `call` measures.
    """

    def __init__(self, dtype: str, gemm: Callable[..., Any]):
        self.dtype = dtype
        self._gemm = gemm
        machine = hardware()
        self._l2, self._l3 = machine.l2, machine.l3
        self._spec = SPECS[isa_family(), dtype]
        self._engine = engine_for(self._spec, False)
        self._strassen = resolve_scheme("strassen")
        size = min(max(IN_MEMORY[0], 4 * machine.l3), IN_MEMORY[1], machine.memory_limit // 8)
        self._memory = np.empty(size + ALIGN, np.uint8)
        self._base = -(-self._memory.ctypes.data // ALIGN) * ALIGN
        self._size = size // 4096 * 4096
        self._stream("write", self._size, 1, 1)  # numbers everywhere, so that operands in it are finite

    def fma(self, threads: int) -> float:
        operands = self._small(TILE, TILE, self._spec.KC, threads)
        clock = self._run(operands, flatten(()), threads, whole=True)
        flops = 2 * TILE * TILE * self._spec.KC * PRODUCTS * threads
        return _rate(flops, clock, threads, phases.KERNEL)

    def add(self, threads: int) -> float:
        """Of two levels of Strassen's combinations of A, in rows as long as those of large products."""
        M, N, K = 4 * self._spec.MR, 4 * self._spec.NR, 4096 // self._spec.itemsize
        scheme = flatten((self._strassen, self._strassen))
        m, k, _ = scheme.grid
        clock = self._run(self._small(M, N, K, threads), scheme, threads, whole=True)
        terms = len(scheme.U.block) * (M // m) * (K // k)
        return _rate(terms * PRODUCTS * threads, clock, threads, phases.PACK_A)

    def l2(self, threads: int) -> float:
        nbytes = self._l2 // 2
        return self._stream("cached", nbytes, max(1, IN_CACHE // nbytes), threads)

    def l3(self, threads: int) -> float:
        nbytes = max(self._l3 // 4 // threads, 2 * self._l2)  # many cores have more L2 together than a quarter of L3
        return self._stream("cached", nbytes, max(1, IN_CACHE // nbytes), threads)

    def read(self, threads: int) -> float:
        return self._stream("read", self._size // threads, 1, threads)

    def write(self, threads: int) -> float:
        return self._stream("write", self._size // threads, 1, threads)

    def copy(self, threads: int) -> float:
        return self._stream("copy", self._size // threads, 1, threads)

    def pack(self, threads: int) -> float:
        """Of a tall A and of a wide B, in products of so little else that they stay short."""
        spec = self._spec
        K = 2 * spec.KC
        length = self._size // 2 // (K * spec.itemsize)
        dtype = np.dtype(self.dtype)
        operand = self._memory[self._base - self._memory.ctypes.data :][: length * K * spec.itemsize].view(dtype)
        tall = operand.reshape(length, K), np.ones((K, spec.NR), dtype), np.empty((length, spec.NR), dtype)
        wide = np.ones((spec.MR, K), dtype), operand.reshape(K, length), np.empty((spec.MR, length), dtype)
        clock = self._run(Problem(*tall), flatten(()), threads) + self._run(Problem(*wide), flatten(()), threads)
        return _rate(2 * operand.nbytes, clock, threads, phases.PACK_A, phases.PACK_B)

    def start(self, threads: int) -> float:
        """From the call until the last thread works, and from its end until the return, the threads asleep before."""
        stream = make_stream(self._spec.isa, "read")
        first, last = np.zeros(threads, np.int64), np.zeros(threads, np.int64)

        def work(tid: int, _threads: int, _sync: int) -> None:
            first[tid] = time.perf_counter_ns()
            stream(self._base + tid * SPIN_BYTES, SPIN_BYTES, SPIN // SPIN_BYTES)
            last[tid] = time.perf_counter_ns()

        samples = []
        for _ in range(10):
            time.sleep(0.001)
            begin = time.perf_counter_ns()
            _all(pool.run(threads, work), threads)
            samples.append((int(first.max()) - begin + time.perf_counter_ns() - int(last.max())) * 1e-9)
        return float(np.median(samples))

    def call(self) -> float:
        """Of a classical product on one thread, which has no guard, just as plans with levels are run but for that."""
        a = np.ones((CALL_SIZE, CALL_SIZE), self.dtype)
        c = np.empty_like(a)
        samples = []
        for _ in range(8):
            self._engine.clock = clock = np.zeros((1, phases.COLUMNS), np.int64)
            try:
                begin = time.perf_counter_ns()
                self._gemm(a, a, out=c, executor="cpu", leaf="simd", depth=0, threads=1)
                wall = time.perf_counter_ns() - begin
            finally:
                self._engine.clock = None
            samples.append((wall - int(clock[0, phases.LAST] - clock[0, phases.FIRST])) * 1e-9)
        return float(np.median(samples))

    def _small(self, M: int, N: int, K: int, threads: int) -> Problem:
        batch = PRODUCTS * threads
        a, b = np.full((M, K), 0.5, self.dtype), np.full((K, N), 0.5, self.dtype)
        c = np.empty((batch, M, N), self.dtype)
        return Problem(np.broadcast_to(a, (batch, M, K)), np.broadcast_to(b, (batch, K, N)), c)

    def _run(self, problem: Problem, scheme: FlatScheme, threads: int, whole: bool = False) -> np.ndarray:
        """Run a product or a batch, and return what the clock says."""
        M, N, K = problem.mnk
        limit = default_limit(M, N, K, self._spec.itemsize, threads)
        blocks = choose_blocks(self._spec, scheme, M, N, K, threads, threads if whole else 1, limit)
        self._engine.clock = clock = np.zeros((threads, phases.COLUMNS), np.int64)
        try:
            _all(self._engine.run([problem], scheme, blocks, threads, whole_products=whole), threads)
        finally:
            self._engine.clock = None
        return clock

    def _stream(self, kind: str, nbytes: int, rounds: int, threads: int) -> float:
        """Bytes/s of all threads together, each on memory of its own, in the middle of their runs."""
        stream = make_stream(self._spec.isa, kind)
        nbytes = min(nbytes, self._size // threads) // 1024 * 1024
        seconds = np.zeros(threads)

        def work(tid: int, _threads: int, _sync: int) -> None:
            begin = time.perf_counter_ns()
            stream(self._base + tid * nbytes, nbytes, rounds)
            seconds[tid] = (time.perf_counter_ns() - begin) * 1e-9

        _all(pool.run(threads, work), threads)
        return float((nbytes * rounds / seconds).sum())


def _rate(work: float, clock: np.ndarray, threads: int, *phases_: int) -> float:
    """Work per second of all threads: they share it, so the mean of their times counts."""
    nanoseconds = sum(int(clock[:, phases.SUMS + phase].sum()) for phase in phases_)
    return work / (nanoseconds / threads * 1e-9)


def _all(used: int, threads: int) -> None:
    if used != threads:
        raise RuntimeError("another thread of this process is multiplying: nothing can be measured meanwhile")
