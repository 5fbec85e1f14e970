"""How fast NumPy's product is: squares of several sizes, with a given number of threads of its BLAS."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .hardware import hardware

SIZES = (64, 128, 256, 512, 1024, 2048)
LONGEST = 0.7  # seconds of one product, about; larger sizes are left out
VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


class NumpySquares:
    """Products of squares of one dtype.

    Attributes
    ----------
    limited : bool
        Whether the BLAS runs with as many threads as asked for, which takes the package threadpoolctl. Without it the
        BLAS has as many as it likes, and speeds with another number are guessed to be in proportion.
    """

    def __init__(self, dtype: str, sizes: Sequence[int] = SIZES):
        self._sizes = sizes
        rng = np.random.default_rng(1)
        # Never zeros, which CPUs multiply faster.
        self._a, self._b = (rng.standard_normal((max(sizes),) * 2, np.float32).astype(dtype) for _ in range(2))
        self._out = np.empty_like(self._a)
        self._controller = _controller()
        self.limited = self._controller is not None

    def call(self) -> float:
        """Seconds of a 2 × 2 product."""
        a, b, out = (x[:2, :2].copy() for x in (self._a, self._b, self._out))
        repeats = 1000
        start = time.perf_counter()
        for _ in range(repeats):
            np.matmul(a, b, out=out)
        return (time.perf_counter() - start) / repeats

    def speeds(self, threads: int) -> dict[int, float]:
        """Flop/s of each size, of those that don't take too long."""
        ratio = 1.0 if self.limited else threads / _default_threads()
        limit = self._controller.limit(limits=threads) if self.limited else contextlib.nullcontext()
        found: dict[int, float] = {}
        with limit:
            for n in self._sizes:
                seconds = self._seconds(n)
                found[n] = 2 * n**3 / seconds * ratio
                if seconds > LONGEST / 8:  # the next size takes eight times as long
                    break
        return found

    def _seconds(self, n: int) -> float:
        # Contiguous operands in memory that is there already.
        a, b, out = (x.ravel()[: n * n].reshape(n, n) for x in (self._a, self._b, self._out))
        np.matmul(a, b, out=out)  # brings them into the cache, if they fit, and wakes the threads
        repeats = min(max(1, 2**27 // n**3), 1000)
        start = time.perf_counter()
        for _ in range(repeats):
            np.matmul(a, b, out=out)
        return (time.perf_counter() - start) / repeats


def _controller() -> Any:
    """Sets the number of threads of NumPy's BLAS; None where nothing can."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    controller = ThreadpoolController().select(user_api="blas")
    return controller if controller.info() else None


def _default_threads() -> int:
    """What a BLAS starts with: the variable that limits it, or the CPUs of this process."""
    for name in VARIABLES:
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return min(int(text), hardware().usable_cpus)
    return hardware().usable_cpus
