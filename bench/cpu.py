"""Products of this library beside those of other libraries, on the CPU, in one process.

    python bench/cpu.py --set squares --dtype float32 --threads 1 2 -o squares.json

README.md in this folder says what is measured and how.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import must
import numba
import numpy as np
from measure import PAUSE, Reference, fma_peak, operands, record, refuse_pinned_blas, say, write_json
from peers import Peer, Product, available
from shapes import SETS, Shape

import falcon_numba as fn
from falcon_numba.cpu.threads import default_threads

SAMPLE_SECONDS = 0.005  # shorter products are repeated within one timing
FEWEST, MOST = 3, 31  # timings of one contender


@dataclass(slots=True)
class Contender:
    """One way to compute C = A·B, and what was measured of it. `depth` is what ours must run, None for its choice."""

    name: str
    product: Product
    ours: bool
    depth: int | None = None
    plan: Any = None
    error: float = math.nan
    estimate: float = math.nan
    samples: list[float] = field(default_factory=list)
    unpaused: list[float] = field(default_factory=list)


def ours(depths: list[int], workspace: str | None, batched: bool) -> list[Contender]:
    """Our variants: everything on auto, forced depths, everything on auto within a workspace."""
    function = fn.matmul if batched else fn.gemm

    def product_with(given: dict[str, Any]) -> Product:
        return lambda a, b, c: function(a, b, out=c, **given)

    options: dict[str, dict[str, Any]] = {"auto": {}}
    options |= {f"depth {depth}": {"depth": depth, "executor": "cpu"} for depth in depths}
    if workspace is not None:
        options[f"auto, {workspace}"] = {"workspace_limit": workspace}
    return [Contender(name, product_with(given), True, given.get("depth")) for name, given in options.items()]


def checked_run(contender: Contender, a: np.ndarray, b: np.ndarray, c: np.ndarray, calls: int = 1) -> float:
    """Seconds of one call. A single call of ours is traced, and must run the same plan as ever.

    Not so where the plan is NumPy's product: a trace goes past the short cut that its users take.
    """
    if not contender.ours or calls > 1 or (contender.plan is not None and contender.plan.executor == "numpy"):
        start = time.perf_counter()
        for _ in range(calls):
            contender.product(a, b, c)
        return (time.perf_counter() - start) / calls
    with fn.trace() as plans:
        start = time.perf_counter()
        contender.product(a, b, c)
        seconds = time.perf_counter() - start
    if not plans or any(p.levels != plans[0].levels or p.executor != plans[0].executor for p in plans):
        raise RuntimeError(f"{contender.name}: {len(plans)} plans ran: {[p.scheme for p in plans]}")
    plan = plans[0]
    if contender.depth is not None and (plan.executor != "cpu" or plan.depth != contender.depth):
        raise RuntimeError(f"{contender.name}: {plan.scheme} on executor {plan.executor} ran instead")
    if contender.plan is not None and contender.plan != plan:
        raise RuntimeError(f"{contender.name}: another plan ran than the first time:\n{plan}\n\n{contender.plan}")
    contender.plan = plan
    return seconds


def first_run(contender: Contender, a: np.ndarray, b: np.ndarray, c: np.ndarray, reference: Reference) -> None:
    """Touch the memory, see that the result is right, and estimate how long a call takes."""
    c.fill(np.nan)  # what an earlier contender left here must not pass for a result
    seconds = checked_run(contender, a, b, c)
    contender.error = reference.error(c)
    bound = math.inf if contender.plan is None else contender.plan.error_bound + np.finfo(c.dtype).eps
    if not contender.error <= bound:
        raise RuntimeError(f"{contender.name}: wrong result, error {contender.error:.2g}, bound {bound:.2g}")
    contender.estimate = min(seconds, checked_run(contender, a, b, c)) if seconds < 1 else seconds


def measure(contenders: list[Contender], shape: Shape, dtype: str, pause: float, seconds: float, unpaused: bool) -> int:
    """Fill in the timings, interleaved, in a new random order each round; returns calls per timing."""
    a, b, c = operands(shape, dtype)
    reference = Reference(a, b)
    for contender in contenders:
        first_run(contender, a, b, c, reference)
    calls = max(1, math.ceil(SAMPLE_SECONDS / min(x.estimate for x in contenders)))
    one_round = sum(calls * x.estimate + pause for x in contenders)
    repetitions = max(FEWEST, min(MOST, int(seconds / one_round))) // 2 * 2 + 1
    order = random.Random(0)
    for paused in (True, False) if unpaused else (True,):
        for _ in range(repetitions):
            for contender in order.sample(contenders, len(contenders)):
                if paused and pause:
                    time.sleep(pause)
                timings = contender.samples if paused else contender.unpaused
                timings.append(checked_run(contender, a, b, c, calls))
    return calls


def row(contender: Contender, shape: Shape) -> dict[str, Any]:
    """What the JSON file says of one contender on one line."""
    median = statistics.median(contender.samples)
    data: dict[str, Any] = {
        "ours": contender.ours,
        "seconds": median,
        "gflops": shape.operations / median / 1e9,
        "error": contender.error,
        "samples": contender.samples,
    }
    if contender.unpaused:
        data["unpaused_seconds"] = statistics.median(contender.unpaused)
        data["unpaused_samples"] = contender.unpaused
    if contender.plan is not None:
        plan = contender.plan
        data |= {"executor": plan.executor, "scheme": plan.scheme, "depth": plan.depth}
        data |= {"error_bound": plan.error_bound, "workspace_bytes": plan.workspace_bytes, "plan": str(plan)}
    return data


def set_threads(threads: int, peers: list[Peer]) -> None:
    """The same number of threads for everybody, without an option in our calls: options have a price in small ones."""
    numba.config.NUMBA_NUM_THREADS = threads  # Numba's own threads don't run, so this is what our default follows
    assert default_threads() == threads
    for peer in peers:
        peer.set_threads(threads)


def run(args: argparse.Namespace, data: dict[str, Any]) -> None:
    """All lines of the command line, appended to data["results"] as they are done."""
    peers = available(tuple(args.peers) if args.peers else None)
    data["peers"] = {peer.name: peer.label for peer in peers}
    shapes = [Shape.parse(text) for text in args.shapes] if args.shapes else SETS[args.set]
    for dtype in args.dtype:
        say(f"{dtype}: compiling, the first time only")
        ones = np.ones((64, 64), dtype)
        for depth in (0, 1):
            fn.gemm(ones, ones, depth=depth, executor="cpu")
        for threads in args.threads:
            set_threads(threads, peers)
            peak = fma_peak(dtype, threads, min(0.5, args.seconds))
            data["peak"].setdefault(dtype, {})[str(threads)] = peak
            say(f"{dtype}, {threads} threads: FMA peak {peak:.1f} GFLOP/s")
            for shape in shapes:
                contenders = [Contender(peer.name, peer.product, False) for peer in peers]
                contenders += ours(args.depths, args.workspace, shape.batch > 1 or args.set == "small")
                pause = PAUSE if threads > 1 else 0.0
                calls = measure(contenders, shape, dtype, pause, args.seconds, args.unpaused and threads > 1)
                line = {
                    "set": args.set,
                    **shape._asdict(),
                    "dtype": dtype,
                    "threads": threads,
                    "pause": pause,
                    "calls": calls,
                    "contenders": {x.name: row(x, shape) for x in contenders},
                }
                data["results"].append(line)
                say(must.describe(line, peak))
                if args.output:
                    write_json(args.output, data)
            again = fma_peak(dtype, threads, min(0.5, args.seconds))  # a virtual machine's clock drifts
            data["peak"][dtype][str(threads)] = max(peak, again)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="quick", help="shapes, see shapes.py")
    parser.add_argument("--shapes", nargs="+", metavar="N|MxNxK|B*MxNxK", help="these shapes of the set instead of all")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"), default=["float32"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--depths", nargs="*", type=int, default=None, help="forced depths (default: 0 for squares)")
    parser.add_argument("--workspace", help='also measure auto within this workspace, such as "256 MiB"')
    parser.add_argument("--peers", nargs="+", choices=("numpy", "mkl", "torch"), help="default: all there are")
    parser.add_argument("--seconds", type=float, default=20.0, help="about so long for each line (at least 3 timings)")
    parser.add_argument("--unpaused", action="store_true", help="with several threads, also measure without the pause")
    parser.add_argument("--check", choices=("must",), help="print what is asked of every line, and whether it is met")
    parser.add_argument("--from", dest="source", nargs="+", metavar="JSON", help="measure nothing: check these files")
    parser.add_argument("-o", "--output", help="JSON file, rewritten after every line")
    args = parser.parse_args(arguments)
    if args.depths is None:
        args.depths = [0] if args.set in ("squares", "large", "quick") else []
    return args


def main() -> int:
    args = parse()
    if args.source:
        return must.report(must.load(args.source))
    refuse_pinned_blas()
    data = record() | {"peak": {}, "results": []}
    if data["options"]:
        say(f"options that are not at their defaults: {data['options']}")
    if data["load_average"][0] > 0.3:
        say(f"load average {data['load_average'][0]:.1f}: others use this machine, don't trust the times")
    code = 0
    try:
        run(args, data)
    except KeyboardInterrupt:
        say("interrupted; what was measured is kept")
        code = 130
    if args.output:
        write_json(args.output, data)
    if args.check:
        return max(code, must.report(data))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
