"""Measures the speeds that `rates` describes: medians of interleaved samples, in some seconds.

What is measured here itself is NumPy; the engine's kernels come in as `Runners`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .numpy_speed import SIZES, NumpySquares
from .rates import Rates, check

ROUNDS = 5
PAUSE = 0.1  # idle workers of a BLAS spin for tens of milliseconds after a call, on the core of whoever comes next
SPEEDS = ("fma", "add", "l2", "l3", "read", "write", "copy", "pack", "start")  # depend on the number of threads

Report = Callable[[int, int], None]


class Runners(Protocol):
    """An engine's kernels of one dtype. A call takes milliseconds and returns a sample of its namesake in `Rates`."""

    dtype: str

    def fma(self, threads: int) -> float: ...
    def add(self, threads: int) -> float: ...
    def l2(self, threads: int) -> float: ...
    def l3(self, threads: int) -> float: ...
    def read(self, threads: int) -> float: ...
    def write(self, threads: int) -> float: ...
    def copy(self, threads: int) -> float: ...
    def pack(self, threads: int) -> float: ...
    def start(self, threads: int) -> float: ...
    def call(self) -> float: ...


def calibrate(
    runners: Runners,
    threads: Sequence[int],
    report: Report | None = None,
    *,
    rounds: int = ROUNDS,
    sizes: Sequence[int] = SIZES,
) -> list[Rates]:
    """Measure everything with each number of threads; nothing is saved.

    Parameters
    ----------
    runners : Runners
    threads : sequence of int
        Numbers of threads, each at least 1.
    report : callable (done, total), optional
        Told about the progress. It may raise, as Ctrl-C does, to end the measurement.
    rounds : int
        Samples of each figure, the whole set being gone through so many times, after a short one to warm up.
    sizes : sequence of int
        Of NumPy's squares, ascending.

    Raises
    ------
    ValueError
        A figure that can't be true, see `rates.LIMITS`.
    """
    squares = NumpySquares(runners.dtype, sizes)
    samples: dict[tuple[int, Any], list[float]] = defaultdict(list)
    total, done = (rounds + 1) * len(threads), 0
    for i in range(rounds + 1):
        for count in threads:
            found: dict[Any, float] = {name: getattr(runners, name)(count) for name in SPEEDS}
            found |= {"call": runners.call(), "numpy_call": squares.call()}
            if i:  # round 0 touches pages and wakes the clock up
                for name, value in (found | squares.speeds(count)).items():
                    samples[count, name].append(value)
                time.sleep(PAUSE)
            done += 1
            if report:
                report(done, total)
    medians = {key: float(np.median(values)) for key, values in samples.items()}
    measured = []
    for count in threads:
        numbers = {name: medians[count, name] for name in (*SPEEDS, "call", "numpy_call")}
        curve = tuple((float(n), medians[count, n]) for n in sizes if (count, n) in medians)
        rates = Rates(dtype=runners.dtype, threads=count, **numbers, numpy=curve, source="calibrated")
        measured.append(check(rates))
    return measured
