"""The command ``falcon-numba calibrate``: measures this machine, keeps the figures and shows them."""

from __future__ import annotations

from collections.abc import Sequence

from .decision.calibrate import Report, calibrate
from .decision.hardware import hardware
from .decision.numpy_speed import NumpySquares
from .decision.rates import Rates, save

# Attribute of Rates, label, unit, what one unit is.
ROWS = (
    ("fma", "micro-kernel", "GFLOP/s", 1e9),
    ("add", "combinations", "G terms/s", 1e9),
    ("l2", "L2 cache", "GB/s", 1e9),
    ("l3", "L3 cache", "GB/s", 1e9),
    ("read", "memory, read", "GB/s", 1e9),
    ("write", "memory, written", "GB/s", 1e9),
    ("copy", "memory, copied", "GB/s", 1e9),
    ("pack", "packing from memory", "GB/s", 1e9),
    ("start", "starting threads", "µs", 1e-6),
    ("call", "a call of the engine", "µs", 1e-6),
    ("numpy_call", "a call of NumPy", "µs", 1e-6),
)


def run(
    dtypes: Sequence[str], threads: Sequence[int] | None, *, dry_run: bool = False, report: Report | None = None
) -> str:
    """Measure, save everything at the end (so that Ctrl-C changes nothing), and return the figures as text.

    Parameters
    ----------
    dtypes : sequence of {"float32", "float64"}
    threads : sequence of int, optional
        Numbers of threads; by default 1 and as many as the engine would use.
    dry_run : bool
        Save nothing.
    report : callable (done, total), optional
        Told about the progress.

    Raises
    ------
    ValueError
        More threads than CPUs, or fewer than 1; a figure that can't be true.
    OSError
        When the file can't be written.
    """
    from .api import gemm
    from .cpu.runners import EngineRunners
    from .cpu.threads import default_threads

    most = hardware().usable_cpus
    counts = sorted(set(threads or (1, min(default_threads(), most))))
    if not 1 <= counts[0] <= counts[-1] <= most:
        raise ValueError(f"--threads {' '.join(map(str, counts))}: this process may use 1 to {most} CPUs")
    names = list(dict.fromkeys(dtypes))
    measured: list[Rates] = []
    for index, dtype in enumerate(names):
        measured += calibrate(EngineRunners(dtype, gemm), counts, _part(report, index, len(names)))
    text = table(measured)
    if not NumpySquares(names[0], (2,)).limited:
        text += (
            "\n\nNumPy's product ran with the number of threads that its BLAS chose, other numbers are in proportion "
            "(`pip install threadpoolctl` to measure them)."
        )
    if busy(measured):
        text += (
            "\n\nSomething else kept the CPUs busy, so that these figures are too low: better repeat this when idle."
        )
    return f"{text}\n\n{'not saved' if dry_run else 'saved in ' + save(measured)}"


def busy(measured: Sequence[Rates]) -> bool:
    """Whether the micro-kernel gained far less from more threads than the cores should give."""
    cores = hardware().physical_cores

    def each(rates: Rates) -> float:
        return rates.fma / min(rates.threads, cores)

    by_dtype = ([each(r) for r in measured if r.dtype == dtype] for dtype in {r.dtype for r in measured})
    return any(min(speeds) < 0.8 * max(speeds) for speeds in by_dtype)


def _part(report: Report | None, index: int, parts: int) -> Report | None:
    """The report of one of several equal parts."""
    if report is None:
        return None
    return lambda done, total: report(index * total + done, parts * total)


def table(measured: Sequence[Rates]) -> str:
    """The figures in columns, one for each dtype and number of threads."""
    heads = [(r.dtype, f"{r.threads} thread{'' if r.threads == 1 else 's'}") for r in measured]
    lines = [("", *(head[0] for head in heads)), ("", *(head[1] for head in heads))]
    lines += [
        (f"{label} ({unit})", *(f"{getattr(r, name) / scale:.3g}" for r in measured))
        for name, label, unit, scale in ROWS
    ]
    curves = [dict(r.numpy) for r in measured]
    for n in sorted(set().union(*curves)):
        speeds = (f"{curve[n] / 1e9:.3g}" if n in curve else "" for curve in curves)
        lines.append((f"NumPy, size {n:.0f} (GFLOP/s)", *speeds))
    wide = max(len(line[0]) for line in lines)
    return "\n".join(f"{line[0]:<{wide}}" + "".join(f"{cell:>12}" for cell in line[1:]) for line in lines)
