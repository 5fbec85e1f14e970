"""Products of integers and truth values beside NumPy's, in one process, every result compared element by element.

    python bench/integers.py --rows int64 int8 --sizes 1024 2048 --threads 2 --check -o integers.json

NumPy has neither a BLAS nor threads for these dtypes: one product of size 2048 takes it up to half a minute, so it is
timed once or a few times, ours in between several times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from contenders import set_threads
from measure import begin, say, write_json

import falcon_numba as fn

OURS = 5  # timings of ours for each of NumPy's
LONG = 2.0  # seconds of NumPy's product from which on it is timed once

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Row(NamedTuple):
    """One line of the table: operands, the two ways to multiply them, and the ratio of times that is asked for."""

    a: str
    b: str
    numpy: Product
    ours: Product
    least: float
    density: float = 0.5  # of True, for bool
    below: int = 0  # numbers from 0 up to there instead of the whole range


def _same(dtype: str, least: float) -> Row:
    return Row(dtype, dtype, np.matmul, fn.matmul, least)


def _widened(a: str, b: str, wide: str, least: float) -> Row:
    return Row(a, b, lambda x, y: x.astype(wide) @ y.astype(wide), lambda x, y: fn.matmul(x, y, dtype=wide), least)


def _modulo(p: int) -> Row:
    """NumPy's sums must not overflow."""
    return Row("int64", "int64", lambda x, y: (x @ y) % p, lambda x, y: fn.gemm(x, y, modulus=p), 0, below=p)


ROWS = {
    "int64": _same("int64", 60),
    "uint64": _same("uint64", 60),
    "int32": _same("int32", 60),
    "int16": _same("int16", 50),
    "int8": _same("int8", 40),
    "int8->int32": _widened("int8", "int8", "int32", 150),
    "uint8*int8->int32": _widened("uint8", "int8", "int32", 150),
    "bool, 0.1 %": Row("bool", "bool", np.matmul, fn.matmul, 30, 0.001),
    "bool, 3 %": Row("bool", "bool", np.matmul, fn.matmul, 1, 0.03),
    "bool, dense": Row("bool", "bool", np.matmul, fn.matmul, 1, 0.5),
    "bool, all true": Row("bool", "bool", np.matmul, fn.matmul, 1, 1.0),
    "modulo 251": _modulo(251),
    "modulo 65521": _modulo(65521),
    "int16->int64": _widened("int16", "int16", "int64", 0),
}
LEVELS = {"int64": 1.15, "int32": 1.15}  # what levels must gain over our classical product, at size 4096


def operands(row: Row, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random numbers of the whole range: always the same."""
    rng = np.random.default_rng(6)

    def one(dtype: str) -> np.ndarray:
        if dtype == "bool":
            return rng.random((n, n), np.float32) < row.density
        if row.below:
            return rng.integers(0, row.below, (n, n), dtype)
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (n, n), dtype, endpoint=True)

    return one(row.a), one(row.b)


def timed(product: Product, a: np.ndarray, b: np.ndarray) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    c = product(a, b)
    return time.perf_counter() - start, c


def against_numpy(name: str, n: int, threads: int) -> dict[str, Any]:
    """NumPy's product and ours, in turn."""
    row = ROWS[name]
    a, b = operands(row, n)
    with fn.trace() as plans:
        got = row.ours(a, b)  # compiles
    numpys: list[float] = []
    ours: list[float] = []
    while not numpys or (numpys[0] < LONG and len(numpys) < 3):
        seconds, expected = timed(row.numpy, a, b)
        numpys.append(seconds)
        ours += [timed(row.ours, a, b)[0] for _ in range(OURS)]
    if got.dtype != expected.dtype or not np.array_equal(got, expected):
        raise RuntimeError(f"{name}, size {n}: wrong result")
    (plan,) = plans
    return line(name, n, threads, plan, statistics.median(ours), statistics.median(numpys), row.least) | {
        "ours_samples": ours,
        "numpy_samples": numpys,
    }


def against_classical(name: str, n: int, threads: int) -> dict[str, Any]:
    """Ours on auto and at depth 0, in turn."""
    row = ROWS[name]
    a, b = operands(row, n)
    with fn.trace() as plans:
        got = row.ours(a, b)
    (plan,) = plans
    samples: dict[str, list[float]] = {"auto": [], "classical": []}
    for _ in range(OURS):
        samples["auto"].append(timed(row.ours, a, b)[0])
        seconds, expected = timed(lambda x, y: fn.matmul(x, y, depth=0, executor="cpu"), a, b)
        samples["classical"].append(seconds)
    if not np.array_equal(got, expected):
        raise RuntimeError(f"{name}, size {n}: levels and classical product differ")
    auto, classical = (statistics.median(samples[x]) for x in ("auto", "classical"))
    return line(f"{name}, levels", n, threads, plan, auto, classical, LEVELS[name]) | {"samples": samples}


def line(name: str, n: int, threads: int, plan: Any, ours: float, other: float, least: float) -> dict[str, Any]:
    met = other / ours >= least and plan.executor == "cpu"
    say(
        f"{'met ' if met else 'MISS'} {name:>18} {n:>5}, {threads} threads: {ours * 1e3:8.2f} ms, "
        f"{2 * n**3 / ours / 1e9:6.1f} Gop/s ({plan.executor}, {plan.scheme}), other {other * 1e3:9.1f} ms: "
        f"{other / ours:6.1f} (asked ≥ {least:g})"
    )
    return {
        "row": name,
        "n": n,
        "threads": threads,
        "seconds": ours,
        "other_seconds": other,
        "ratio": other / ours,
        "least": least,
        "met": met,
        "executor": plan.executor,
        "scheme": plan.scheme,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1024])
    parser.add_argument("--levels", nargs="*", choices=list(LEVELS), default=[], help="auto beside depth 0, too")
    parser.add_argument("--level-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a ratio is not met")
    parser.add_argument("-o", "--output", help="JSON file")
    args = parser.parse_args()
    data = begin()
    set_threads(args.threads, [])
    for name in args.rows:
        data["results"] += [against_numpy(name, n, args.threads) for n in args.sizes]
    data["results"] += [against_classical(name, args.level_size, args.threads) for name in args.levels]
    if args.output:
        write_json(args.output, data)
    return int(args.check and not all(x["met"] for x in data["results"]))


if __name__ == "__main__":
    raise SystemExit(main())
