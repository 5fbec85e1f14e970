"""Where the time of one product goes, measured by a clock inside the engine.

    python bench/profile_product.py 4096 4096 4096 --dtype float32 --depth 2 --threads 2

The parts are shares of threads × wall time and add up to it: what a thread spends waiting counts like work.
(Not called profile.py, which would hide Python's module of that name from scripts in this folder.)
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from measure import fma_peak, operands, refuse_pinned_blas, say
from shapes import Shape

import falcon_numba as fn
from falcon_numba import dispatch
from falcon_numba.cpu import phases
from falcon_numba.cpu.engine import Engine, engine_for
from falcon_numba.cpu.microkernel import ROWS_STEP
from falcon_numba.cpu.spec import SPECS
from falcon_numba.decision.hardware import isa_family

LABELS = {
    "pack_a": "combine and pack A",
    "pack_b": "combine and pack B",
    "kernel": "micro-kernel, targets",
    "targets": "inner into outer sums",
    "flush": "flush to C",
    "barrier": "waiting at barriers",
    "other": "other, in the engine",
    "edges": "starting, waiting for the last",
    "guard": "guard",
    "python": "Python",
}


class Profile(NamedTuple):
    """One product: nanoseconds of its parts, summed over the threads, and of the whole."""

    parts: dict[str, int]
    wall: int
    threads: int
    plan: Any

    @property
    def total(self) -> int:
        return self.wall * self.threads


@contextmanager
def _guard_timed(spent: list[int]) -> Iterator[None]:
    magnitudes = dispatch.magnitudes

    def timed(*args: Any) -> Any:
        start = time.monotonic_ns()
        try:
            return magnitudes(*args)
        finally:
            spent.append(time.monotonic_ns() - start)

    with mock.patch.object(dispatch, "magnitudes", timed):
        yield


def profile(shape: Shape, dtype: str, threads: int, repetitions: int, **options: Any) -> Profile:
    """The product with the median wall time of some, after one to warm up."""
    engine = engine_for(SPECS[isa_family(), dtype], False)
    a, b, c = operands(shape, dtype)
    runs = [_once(engine, a, b, c, threads, options) for _ in range(repetitions + 1)][1:]
    return sorted(runs, key=lambda x: x.wall)[len(runs) // 2]


def _once(engine: Engine, a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int, options: dict) -> Profile:
    clock = np.zeros((threads, phases.COLUMNS), np.int64)
    guarding: list[int] = []
    engine.clock = clock
    try:
        with _guard_timed(guarding), fn.trace() as plans:
            start = time.monotonic_ns()
            fn.gemm(a, b, out=c, executor="cpu", threads=threads, **options)
            wall = time.monotonic_ns() - start
    finally:
        engine.clock = None
    first, last = clock[:, phases.FIRST], clock[:, phases.LAST]
    if not first.all():
        raise RuntimeError(f"only {np.count_nonzero(first)} of {threads} threads ran")
    parts = {name: int(clock[:, phases.SUMS + i].sum()) for i, name in enumerate(phases.PHASES)}
    inside = int(last.max() - first.min())  # from the first thread's start to the last one's end
    parts["edges"] = threads * inside - int((last - first).sum())
    parts["guard"] = threads * sum(guarding)
    parts["python"] = threads * (wall - inside) - parts["guard"]
    return Profile(parts, wall, threads, plans[0])


def multiplications(plan: Any, whole_tiles: bool) -> int:
    """Multiply-adds in the micro-kernel: of the blocks, or of what the micro-kernel makes of them."""
    spec = SPECS[isa_family(), plan.dtype]
    (m, k, n), tile = plan.grid, (ROWS_STEP, spec.VL) if whole_tiles else (1, 1)
    rows, columns = (math.ceil(math.ceil(x / y) / z) * z for x, y, z in ((plan.M, m, tile[0]), (plan.N, n, tile[1])))
    return plan.rank * rows * math.ceil(plan.K / k) * columns


def table(found: Profile, peak: float) -> str:
    """The parts and what the micro-kernel would take at the FMA peak of all threads (GFLOP/s), as text."""
    plan, ms = found.plan, 1e-6 / found.threads
    lines = [str(plan), "", f"{'part':<32}{'ms':>10}{'share':>9}", "-" * 51]
    for name, label in LABELS.items():
        lines.append(f"{label:<32}{found.parts[name] * ms:>10.3f}{found.parts[name] / found.total:>9.1%}")
    lines.append(f"{'wall time':<32}{found.wall * 1e-6:>10.3f}{sum(found.parts.values()) / found.total:>9.1%}")
    ideal = 2 * multiplications(plan, False) / peak  # ns
    classical = 2 * plan.M * plan.N * plan.K
    padding = multiplications(plan, True) / multiplications(plan, False) - 1
    lines += [
        "",
        f"micro-kernel at the FMA peak ({peak:.1f} GFLOP/s): {ideal * 1e-6:.3f} ms, {ideal / found.wall:.1%} of the "
        f"wall time; the micro-kernel took {found.parts['kernel'] / found.threads / ideal:.3f} times that, of which "
        f"whole tiles at the edges {1 + padding:.3f}",
        f"effective {classical / found.wall:.1f} GFLOP/s, {classical / found.wall / peak:.3f} of the peak "
        "(a classical product can't pass 1)",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for size in ("M", "N", "K"):
        parser.add_argument(size, type=int)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--depth", type=lambda x: x if x == "auto" else int(x), default="auto")
    parser.add_argument("--scheme", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workspace", help='limit, such as "256 MiB"')
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    refuse_pinned_blas()
    options = {"depth": args.depth, "scheme": args.scheme, "workspace_limit": args.workspace}
    peak = fma_peak(args.dtype, args.threads)
    say(f"FMA peak {peak:.1f} GFLOP/s; {args.repetitions} products ...")
    found = profile(Shape(args.M, args.N, args.K), args.dtype, args.threads, args.repetitions, **options)
    print(table(found, max(peak, fma_peak(args.dtype, args.threads))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
