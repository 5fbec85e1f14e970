"""The command ``falcon-numba demo``: the matrix products of one Llama-3-8B layer, NumPy beside falcon_numba.

Reading a prompt of 2048 tokens, every layer of the model multiplies its activations by seven weight matrices. Both
libraries do these products in float32, in turn, in one process; every time printed is a median. The weights are random:
their values don't change the work. The quick form takes 1024 tokens and the attention's products only.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

# Names, K, N and how many products of that shape a layer has (sizes: huggingface.co/meta-llama/Meta-Llama-3-8B,
# config.json: hidden 4096, intermediate 14336, 32 query heads and 8 key/value heads of 128).
PRODUCTS = (
    ("query, output", 4096, 4096, 2),
    ("key, value", 4096, 1024, 2),
    ("gate, up", 4096, 14336, 2),
    ("down", 14336, 4096, 1),
)
TOKENS, QUICK_TOKENS = 2048, 1024
QUICK_PRODUCTS = 2  # the attention's; with fewer tokens than this NumPy would compute all of them

REPETITIONS = 3
SECONDS = 80.0  # a slow machine repeats less, to finish within two minutes
# NumPy's BLAS keeps its idle threads spinning for tens of milliseconds after a call, which would slow down whichever
# call comes next.
PAUSE = 0.15
SAMPLED_ROWS = 8
NOISE = 0.03  # times that differ by less are called equal


@dataclass(frozen=True, slots=True)
class Row:
    """One measured shape. Times are seconds of one product; errors are relative to K·max|A|·max|B|."""

    name: str
    M: int
    N: int
    K: int
    count: int
    numpy_seconds: float
    falcon_seconds: float
    numpy_error: float
    falcon_error: float
    error_bound: float
    plan: str
    repetitions: int

    @property
    def operations(self) -> int:
        return 2 * self.M * self.N * self.K


def run(*, quick: bool = False, json_path: str | None = None) -> int:
    """Measure, print the table on stdout and progress on stderr, and return the exit code: 1 after a wrong product."""
    import falcon_numba

    if json_path is not None and not Path(json_path).resolve().parent.is_dir():
        raise FileNotFoundError(f"no such folder: {Path(json_path).resolve().parent}")  # before two minutes of work
    tokens = QUICK_TOKENS if quick else TOKENS
    products = PRODUCTS[:QUICK_PRODUCTS] if quick else PRODUCTS
    what = "one layer's attention" if quick else "one layer"
    plans = [falcon_numba.plan_for(tokens, N, K, "float32") for _, K, N, _ in products]
    _compile({plan.levels for plan in plans if plan.executor != "numpy"})

    everything = sum(K * N for _, K, N, _ in products)
    rows = []
    for name, K, N, count in products:
        _say(f"{name}: {tokens}×{K} times {K}×{N}, {count} a layer ...")
        rows.append(_measure(name, tokens, N, K, count, SECONDS * K * N / everything))
    print(table(rows, what))
    print()
    print(verdict(rows, what))
    if json_path is not None:
        Path(json_path).write_text(json.dumps(_record(rows, what), indent=2) + "\n", encoding="utf-8")
    return 1 if _wrong(rows) else 0


def _compile(schemes: set[tuple[Any, ...]]) -> None:
    """Compile the engine's kernels for these levels, where any are needed."""
    import falcon_numba

    if not schemes:
        return
    _say("compiling the kernels (only the first run after installation takes long) ...")
    start = time.perf_counter()
    square = np.ones((512, 512), np.float32)
    for levels in schemes:
        forced: dict[str, Any] = {"scheme": levels, "depth": len(levels)} if levels else {"depth": 0}
        falcon_numba.gemm(square, square, executor="cpu", **forced)
    _say(f"ready after {time.perf_counter() - start:.1f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _measure(name: str, M: int, N: int, K: int, count: int, seconds: float) -> Row:
    """Time one shape with both libraries in turn, for about `seconds`."""
    import falcon_numba

    rng = np.random.default_rng(2048)
    a = rng.standard_normal((M, K), dtype=np.float32)
    b = rng.standard_normal((K, N), dtype=np.float32)
    c_numpy, c_falcon = np.empty((2, M, N), np.float32)

    def by_numpy() -> None:
        np.matmul(a, b, out=c_numpy)

    def by_falcon() -> None:
        falcon_numba.gemm(a, b, out=c_falcon)

    begin = time.perf_counter()
    by_numpy()  # first calls also touch the memory, so they don't count
    with falcon_numba.trace() as plans:
        by_falcon()
    times: dict[Callable[[], None], list[float]] = {by_numpy: [], by_falcon: []}
    round_seconds = time.perf_counter() - begin
    for repetition in range(REPETITIONS):
        if repetition and time.perf_counter() - begin + round_seconds > seconds:
            break
        for product, measured in times.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            product()
            measured.append(time.perf_counter() - start)
    error_numpy, error_falcon = _errors(a, b, (c_numpy, c_falcon))
    plan = plans[-1]
    return Row(
        name,
        M,
        N,
        K,
        count,
        numpy_seconds=statistics.median(times[by_numpy]),
        falcon_seconds=statistics.median(times[by_falcon]),
        numpy_error=error_numpy,
        falcon_error=error_falcon,
        error_bound=float(plan.error_bound),
        plan=plan_word(plan),
        repetitions=len(times[by_numpy]),
    )


def plan_word(plan: Any) -> str:
    """A plan in one word: ``"numpy"``, ``"classical"``, ``"strassen"``, ``"strassen×2"`` or ``"laderman*strassen"``."""
    if plan.executor == "numpy":
        return "numpy"
    if plan.depth == 0:
        return "classical"
    names = [scheme.name for scheme in plan.levels]
    return f"{names[0]}×{len(names)}" if len(names) > 1 and len(set(names)) == 1 else "*".join(names)


def _errors(a: np.ndarray, b: np.ndarray, products: tuple[np.ndarray, ...]) -> list[float]:
    """Largest error of every product over some rows, against float64, relative to K·max|A|·max|B|."""
    rows = np.linspace(0, a.shape[0] - 1, SAMPLED_ROWS).astype(int)
    sampled = a[rows].astype(np.float64)
    scale = a.shape[1] * float(np.abs(a).max()) * float(max(b.max(), -b.min()))
    worst = [0.0] * len(products)
    step = 1024  # columns at a time: a float64 copy of all of B would be the largest array of the demo
    for column in range(0, b.shape[1], step):
        columns = slice(column, column + step)
        reference = sampled @ b[:, columns].astype(np.float64)
        for index, c in enumerate(products):
            error = float(np.abs(c[rows, columns] - reference).max())
            # A NaN compares false with everything: it must not pass as a small error.
            worst[index] = error if not error <= worst[index] else worst[index]
    return [error / scale for error in worst]


def totals(rows: list[Row]) -> tuple[float, float]:
    """Seconds of all products together: NumPy's and falcon_numba's."""
    return sum(row.count * row.numpy_seconds for row in rows), sum(row.count * row.falcon_seconds for row in rows)


def table(rows: list[Row], what: str = "one layer") -> str:
    """The measured rows and their total as text."""
    lines = [
        ("product", "count", "M×K×N", "NumPy", "falcon_numba", "ratio", "NumPy", "falcon_numba", "plan"),
        ("", "", "", "GFLOP/s", "GFLOP/s", "", "error", "error", ""),
    ]

    def rates(operations: int, numpy_seconds: float, falcon_seconds: float) -> tuple[str, str, str]:
        by_numpy, by_falcon = operations / numpy_seconds / 1e9, operations / falcon_seconds / 1e9
        return f"{by_numpy:.1f}", f"{by_falcon:.1f}", f"{numpy_seconds / falcon_seconds:.2f}"

    for row in rows:
        measured = rates(row.operations, row.numpy_seconds, row.falcon_seconds)
        errors = (f"{row.numpy_error:.1e}", f"{row.falcon_error:.1e}")
        lines.append((row.name, str(row.count), f"{row.M}×{row.K}×{row.N}", *measured, *errors, row.plan))
    measured = rates(sum(row.count * row.operations for row in rows), *totals(rows))
    worst = (f"{max(row.numpy_error for row in rows):.1e}", f"{max(row.falcon_error for row in rows):.1e}")
    lines.append((what, str(sum(row.count for row in rows)), "", *measured, *worst, ""))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for name, *numbers, plan in lines:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        text.append("  ".join([name.ljust(widths[0]), *cells, plan]).rstrip())
    rule = "-" * max(map(len, text))
    return "\n".join([*text[:2], rule, *text[2:-1], rule, text[-1]])


def _wrong(rows: list[Row]) -> list[Row]:
    """Rows whose error is above the bound that the plan promised (or NaN)."""
    return [row for row in rows if not row.falcon_error <= row.error_bound]


def verdict(rows: list[Row], what: str = "one layer") -> str:
    """What the measurement says, and no more, in two or three sentences."""
    wrong = _wrong(rows)
    if wrong:
        names = ", ".join(row.name for row in wrong)
        return f"WRONG RESULT: the error of {names} is above the bound the plan promised. Please report this."
    left = [row.name for row in rows if row.plan == "numpy"]
    if len(left) == len(rows):
        return (
            "falcon_numba left every product to NumPy, as too small for its engine or as its options say: both columns "
            "time NumPy, and a difference between them is noise.\nThis says nothing about falcon_numba's speed."
        )
    by_numpy, by_falcon = totals(rows)
    ratio = by_numpy / by_falcon
    if ratio > 1 + NOISE:
        speed = f"falcon_numba is {ratio:.2f} times as fast as NumPy here"
    elif ratio >= 1 - NOISE:
        speed = "falcon_numba and NumPy are equally fast here"
    else:
        speed = f"falcon_numba is slower than NumPy here, {ratio:.2f} times as fast"
    worst = max(row.falcon_error for row in rows)
    engine = f" {', '.join(left)}: left to NumPy." if left else ""
    return (
        f"{speed}: the products of {what} take {by_falcon:.2f} s, with NumPy {by_numpy:.2f} s (effective GFLOP/s count "
        f"2·M·N·K).{engine}\nThe largest error is {worst:.1e} of K·max|A|·max|B|, and every product is inside its "
        f"proven bound, {max(row.error_bound for row in rows):.1e} at most."
    )


def _record(rows: list[Row], what: str) -> dict[str, Any]:
    from .decision.hardware import hardware
    from .sysinfo import versions

    by_numpy, by_falcon = totals(rows)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": asdict(hardware()),
        "versions": versions(),
        "dtype": "float32",
        "products": [asdict(row) for row in rows],
        "what": what,
        "layer": {"numpy_seconds": by_numpy, "falcon_seconds": by_falcon, "ratio": by_numpy / by_falcon},
        "verdict": verdict(rows, what),
    }
