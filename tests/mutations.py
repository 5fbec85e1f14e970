"""Do the tests notice a fault? One-line faults, put into a copy of the package one at a time, outside of the test run::

    python tests/mutations.py                    # all: half an hour or more, since kernels are compiled for each
    python tests/mutations.py --only beta        # those whose name holds a word
    python tests/mutations.py --list

A fault is found by exact source text, which must stand in its file once: where the source has changed it "does not
apply", and has to be written anew. The tests most likely to notice run first, and then, if they don't, all of them.
The exit code is 1 if a fault was missed or does not apply.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ("falcon_numba", "tests", "bench", "pyproject.toml", "README.md", "CHANGELOG.md")
WAKE = 1.0  # seconds
PATIENCE = 1200  # wakes for one run of tests, since a fault may well hang; not by the clock: somebody may stop us

ENGINE = "tests/test_engine.py tests/test_fuzz.py"
THREADS = "tests/test_runtime.py tests/test_concurrency.py"
GUARD = "tests/test_nonfinite.py tests/test_accuracy.py tests/test_kernels.py"
API = "tests/test_api_gemm.py tests/test_api_matmul.py tests/test_fuzz.py"


class Fault(NamedTuple):
    name: str
    file: str  # in falcon_numba
    old: str
    new: str
    tests: str


FAULTS = [
    # The micro-kernel
    Fault(
        "sign in the portable kernel",
        "cpu/microkernel.py",
        "acc = fma(lane(x), lane(peek_packed(",
        "acc = fma(-lane(x), lane(peek_packed(",
        ENGINE,
    ),
    Fault(
        "sign in the kernel's sums",
        "cpu/microkernel.py",
        "v.load(at, v.width)) if accumulates else v.mul(coef, x)",
        "v.load(at, v.width)) if accumulates else v.mul(coef, v.mul(coef, x))",
        ENGINE,
    ),
    Fault(
        "the last steps of K left out",
        "cpu/microkernel.py",
        'state = loop("rest", builder.sub(K, mul(rounds, c64(unroll))), state, NV, 1)',
        'state = loop("rest", c64(0), state, NV, 1)',
        ENGINE,
    ),
    Fault(
        "wrong stride between chunks of A",
        "cpu/microkernel.py",
        "builder.select(last, c64((spec.MR - 1) * v.width), c64(0))",
        "builder.select(last, c64(spec.MR * v.width), c64(0))",
        ENGINE,
    ),
    Fault(
        "edge tiles of a full width skipped",
        "cpu/microkernel.py",
        "between(columns, (width - 1) * VL, width * VL))",
        "between(columns, (width - 1) * VL, width * VL - 1))",
        ENGINE,
    ),
    Fault(
        "beta forgotten where the kernel writes C",
        "cpu/microkernel.py",
        "v.store(v.fma(betas, v.load(at), y) if reading else y, at)",
        "v.store(builder.fadd(v.load(at), y) if reading else y, at)",
        ENGINE,
    ),
    # The five loops
    Fault(
        "stale accumulator",
        "cpu/worker.py",
        "adds = (inner_reached if nested or s == 0 else ones).ctypes.data",
        "adds = (inner_reached if nested else ones).ctypes.data",
        ENGINE,
    ),
    Fault(
        "beta in every pass over C",
        "cpu/worker.py",
        "out_scales = (alpha, one if pc > 0 else beta, 1 if pc > 0 or beta != 0 else 0)",
        "out_scales = (alpha, beta, 1 if pc > 0 or beta != 0 else 0)",
        "tests/test_accuracy.py tests/test_fuzz.py",
    ),
    Fault(
        "C read with beta = 0",
        "cpu/worker.py",
        "out_scales = (alpha, one if pc > 0 else beta, 1 if pc > 0 or beta != 0 else 0)",
        "out_scales = (alpha, one if pc > 0 else beta, 1)",
        "tests/test_api_gemm.py tests/test_engine.py",
    ),
    Fault(
        "C written before its sum is complete",
        "cpu/worker.py",
        "ends[t] = c if goes_on[t] == 0 else 0",
        "ends[t] = c",
        ENGINE,
    ),
    Fault(
        "rows beyond the last block written",
        "cpu/worker.py",
        "out_rows = max(0, min(rows, p[SIZE_M] - (m - 1) * h - ic)) // MR * MR if direct else 0",
        "out_rows = max(0, min(rows, p[SIZE_M] - ic)) // MR * MR if direct else 0",
        ENGINE,
    ),
    Fault(
        "scaling not undone",
        "cpu/worker.py",
        "direct = first_R == 1 and not nested and p[C_COL] == sum_size and p[A_EXPONENT] == 0",
        "direct = first_R == 1 and not nested and p[C_COL] == sum_size",
        "tests/test_accuracy.py",
    ),
    Fault(
        "columns of C taken for contiguous",
        "cpu/worker.py",
        "direct = first_R == 1 and not nested and p[C_COL] == sum_size and p[A_EXPONENT] == 0",
        "direct = first_R == 1 and not nested and p[A_EXPONENT] == 0",
        ENGINE,
    ),
    Fault(
        "one tile too few in a thread's share",
        "cpu/worker.py",
        "x0, x1 = share(tiles, tid, threads)",
        "x0, x1 = share(max(tiles - 1, 1), tid, threads)",
        ENGINE,
    ),
    Fault(
        "the last piece of work lost",
        "cpu/worker.py",
        "if ticket >= rows * columns:",
        "if ticket >= rows * columns - (threads > 1):",
        THREADS,
    ),
    Fault(
        "tickets not reset",
        "cpu/worker.py",
        "reset_tickets(sync, tid, threads)\n                        rows_cut",
        "rows_cut",
        THREADS,
    ),
    Fault(
        "barrier that waits for nobody",
        "cpu/sync.py",
        "while atomic_load(sync + ARRIVED) < (passed + 1) * threads:",
        "while atomic_load(sync + ARRIVED) < passed * threads:",
        THREADS,
    ),
    Fault(
        "share off by one",
        "cpu/sync.py",
        "return count * part // parts, count * (part + 1) // parts",
        "return count * part // parts, (count * (part + 1) - 1) // parts",
        ENGINE,
    ),
    # From the sums to C
    Fault(
        "alpha for beta",
        "cpu/epilogue.py",
        "x = v.fma(beta, v.load_masked(at, mask) if mask else v.load(at), x)",
        "x = v.fma(alpha, v.load_masked(at, mask) if mask else v.load(at), x)",
        ENGINE,
    ),
    Fault(
        "mask of the last vectors too wide",
        "cpu/epilogue.py",
        "mask, go = v.lanes_below(builder.sub(rest, c64(j * VL))), c64(j * v.width)",
        "mask, go = v.lanes_below(rest), c64(j * v.width)",
        ENGINE,
    ),
    Fault(
        "exponent of another row",
        "cpu/epilogue.py",
        "e = peek_i32(row_exponents + 4 * i) if row_exponents != 0 else 0",
        "e = peek_i32(row_exponents) if row_exponents != 0 else 0",
        "tests/test_accuracy.py",
    ),
    # Packing
    Fault(
        "whole vectors read beyond the last row",
        "cpu/pack.py",
        "if valid_rows == VL and (row_step == size",
        "if valid_rows > 0 and (row_step == size",
        ENGINE + " tests/test_memory.py",
    ),
    Fault(
        "every other element taken one too late",
        "cpu/pack.py",
        "c64((VL - 1) * v.size)",
        "c64(VL * v.size)",
        ENGINE,
    ),
    Fault(
        "pairs of int16 not padded",
        "cpu/worker.py",
        "x_end = steps_of(kb) * DOT if x1 == kb and x0 < x1 else x1",
        "x_end = x1",
        "tests/test_integers.py",
    ),
    Fault(
        "signs of complex products",
        "cpu/opened.py",
        "((1, 1), (-1, 1))",
        "((1, 1), (1, 1))",
        "tests/test_lanes.py",
    ),
    Fault(
        "last strided element left out",
        "cpu/pack.py",
        "for y in range(y0, valid):",
        "for y in range(y0, valid - 1):",
        ENGINE,
    ),
    Fault(
        "last lane not scaled",
        "cpu/pack.py",
        "for y in range(whole * VL, lanes):\n                    poke(line",
        "for y in range(whole * VL, lanes - 1):\n                    poke(line",
        "tests/test_accuracy.py tests/test_kernels.py",
    ),
    Fault(
        "padding not zero",
        "cpu/pack.py",
        "for y in range(valid, width):",
        "for y in range(valid, width - VL):",
        ENGINE,
    ),
    Fault(
        "strip across the edge of the matrix",
        "cpu/pack.py",
        "staged = e - s < unit or s < edge < e",
        "staged = e - s < unit",
        ENGINE,
    ),
    # The guard
    Fault(
        "last element of a row not guarded",
        "cpu/guard.py",
        "for j in range(whole * VL, lanes):\n                    most",
        "for j in range(whole * VL, lanes - 1):\n                    most",
        GUARD,
    ),
    Fault(
        "guard of B dropped",
        "launching.py",
        "if not (rows.finite and columns.finite and math.isfinite(alpha)):",
        "if not (rows.finite and math.isfinite(alpha)):",
        GUARD,
    ),
    Fault(
        "guard of overflow dropped",
        "launching.py",
        "if rows.highest + columns.highest + 2 + growth >= launch.most:",
        "if rows.highest + columns.highest >= launch.most:",
        GUARD,
    ),
    Fault(
        "guard of subnormal rows dropped",
        "launching.py",
        "smallest = [x.lowest if balanced else x.highest for x",
        "smallest = [x.highest for x",
        GUARD,
    ),
    # Around the engine
    Fault(
        "forgotten transposition",
        "launching.py",
        "        scheme = scheme.transposed\n",
        "",
        ENGINE,
    ),
    Fault(
        "batches of negative steps",
        "problem.py",
        "offset = np.add.outer(offset, np.arange(count) * step)",
        "offset = np.add.outer(offset, np.arange(count) * abs(step))",
        "tests/test_api_matmul.py",
    ),
    Fault(
        "overlap of B and out not seen",
        "blas.py",
        "and (idle or not (overlap(out, a) or overlap(out, b)))",
        "and (idle or not overlap(out, a))",
        API,
    ),
    Fault(
        "transposed C taken for out itself",
        "operands.py",
        "        and x.strides == y.strides\n",
        "",
        API,
    ),
    Fault(
        "workspace shared by two runs",
        "cpu/workspace.py",
        "buffer = self._shelf.pop()",
        "buffer = self._shelf[0]",
        THREADS,
    ),
    Fault(
        "threads of the parent expected in a fork",
        "cpu/threads.py",
        "os.register_at_fork(after_in_child=pool.reset)",
        "os.register_at_fork(after_in_child=lambda: None)",
        "tests/test_concurrency.py",
    ),
    Fault(
        "threads left behind after an interrupt",
        "cpu/threads.py",
        "            self._wait_until_idle(threads - 1)\n",
        "",
        THREADS,
    ),
    Fault(
        "damaged cache files trusted",
        "diskcache.py",
        "if _checksum(file, payload) != checksum:",
        "if len(checksum) != 32:",
        "tests/test_runtime.py tests/test_caches.py",
    ),
    Fault(
        "stale code of changed options",
        "diskcache.py",
        'digest.update(path.name.encode() + b"\\0" + path.read_bytes())',
        'digest.update(path.name.encode() + b"\\0")',
        "tests/test_caches.py",
    ),
    Fault(
        "out overwritten before the memory is there",
        "launching.py",
        "    if len(runs) > 1:  # what can't be had",
        "    if len(runs) > 99:  # what can't be had",
        "tests/test_memory.py",
    ),
]


def _end(run: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def pytest(tree: Path, cache: Path, *tests: str) -> tuple[bool, str]:
    """Whether the tests pass, and the first that didn't."""
    environment = {
        **os.environ,
        "FALCON_CACHE_DIR": str(cache),
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryFile("w+") as output:
        run = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            for _ in range(PATIENCE):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(WAKE)
                    break
        finally:
            _end(run)  # and whatever the tests left behind
        if run.wait() < 0:
            return False, f"hangs, or killed by signal {-run.returncode}"
        output.seek(0)
        lines = output.read().splitlines()
    first = [line.split(" - ")[0].split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return run.returncode == 0, first[0] if first else f"exit code {run.returncode}"


def verdict(fault: Fault, tree: Path, cache: Path) -> str:
    file = tree / "falcon_numba" / fault.file
    source = file.read_text()
    if source.count(fault.old) != 1:
        return f"does not apply: its text stands {source.count(fault.old)} times in {fault.file}"
    file.write_text(source.replace(fault.old, fault.new))
    doubtful: list[str] = []  # failed once and then passed thrice: of tests that watch the clock on a busy machine
    try:
        for tests in (fault.tests, ""):
            while True:
                passed, first = pytest(tree, cache, *tests.split(), *(f"--deselect={test}" for test in doubtful))
                if passed:
                    break
                again = "::" in first and first not in doubtful and all(pytest(tree, cache, first)[0] for _ in range(3))
                if not again:
                    return f"caught by {first}"
                doubtful.append(first)
        return "MISSED" + "".join(f", {test} failed once" for test in doubtful)
    finally:
        file.write_text(source)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do the tests notice one-line faults?")
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--list", action="store_true", help="only show whether each applies")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the tests end as well
    chosen = [fault for fault in FAULTS if options.only in fault.name]
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        tree, cache = Path(temporary) / "tree", Path(temporary) / "cache"
        tree.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "mutations.py"))
            else:
                shutil.copy(ROOT / name, tree / name)
        for number, fault in enumerate(chosen, 1):
            start = time.monotonic()
            if options.list:
                count = (tree / "falcon_numba" / fault.file).read_text().count(fault.old)
                result = "applies" if count == 1 else f"does not apply: {count} times"
            else:
                result = verdict(fault, tree, cache)
                shutil.rmtree(cache, ignore_errors=True)
            good = good and result.startswith(("caught", "applies"))
            seconds = time.monotonic() - start
            print(f"{number:2d}/{len(chosen)}  {fault.name:44s} {seconds:5.0f} s  {result}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
