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
from typing import Any

import must
from contenders import SAMPLE_SECONDS, Contender, compile_engine, first_run, one_round, ours, set_threads
from measure import PAUSE, Reference, begin, fma_peak, operands, say, write_json
from peers import available
from shapes import SETS, Shape

from falcon_numba.lanes import lane_of

FEWEST, MOST = 3, 31  # timings of one contender
REAL, OTHERS = ("float32", "float64"), ("float16", "complex64", "complex128")


def variants(depths: list[int], workspace: str | None, batched: bool) -> list[Contender]:
    """Ours: everything on auto, forced depths, everything on auto within a workspace."""
    options: dict[str, dict[str, Any]] = {"auto": {}}
    options |= {f"depth {depth}": {"depth": depth, "executor": "cpu"} for depth in depths}
    if workspace is not None:
        options[f"auto, {workspace}"] = {"workspace_limit": workspace}
    return [ours(name, given, batched) for name, given in options.items()]


def measure(contenders: list[Contender], shape: Shape, dtype: str, pause: float, seconds: float, unpaused: bool) -> int:
    """Fill in the timings, interleaved, in a new random order each round; returns calls per timing."""
    arrays = operands(shape, dtype)
    reference = Reference(*arrays[:2])
    for contender in contenders:
        first_run(contender, arrays, reference)
    calls = max(1, math.ceil(SAMPLE_SECONDS / min(x.estimate for x in contenders)))
    for contender in contenders:
        contender.calls = calls
    each_round = sum(calls * x.estimate + pause for x in contenders)
    repetitions = max(FEWEST, min(MOST, int(seconds / each_round))) // 2 * 2 + 1
    order = random.Random(0)
    time.sleep(pause)
    for _ in range(repetitions):
        one_round(contenders, arrays, order, (lambda _: time.sleep(pause)) if pause else None)
    for _ in range(repetitions if unpaused else 0):
        one_round(contenders, arrays, order, unpaused=True)
    return calls


def row(contender: Contender, shape: Shape, dtype: str) -> dict[str, Any]:
    """What the JSON file says of one contender on one line."""
    median = statistics.median(contender.samples)
    data: dict[str, Any] = {
        "ours": contender.ours,
        "seconds": median,
        "gflops": lane_of(dtype).parts ** 2 * shape.operations / median / 1e9,
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


def run(args: argparse.Namespace, data: dict[str, Any]) -> None:
    """All lines of the command line, appended to data["results"] as they are done."""
    numpy_alone = not {*args.dtype} <= {*REAL}  # the other peers are called for these alone
    peers = available(tuple(args.peers) if args.peers else ("numpy",) if numpy_alone else None)
    data["peers"] = {peer.name: peer.label for peer in peers}
    shapes = [Shape.parse(text) for text in args.shapes] if args.shapes else SETS[args.set]
    for dtype in args.dtype:
        say(f"{dtype}: compiling, the first time only")
        compile_engine(dtype)
        for threads in args.threads:
            set_threads(threads, peers)
            peak = fma_peak(lane_of(dtype).dtype, threads, min(0.5, args.seconds))
            data["peak"].setdefault(dtype, {})[str(threads)] = peak
            say(f"{dtype}, {threads} threads: FMA peak {peak:.1f} GFLOP/s")
            for shape in shapes:
                contenders = [Contender(peer.name, peer.product, False) for peer in peers]
                contenders += variants(args.depths, args.workspace, shape.batch > 1 or args.set == "small")
                pause = PAUSE if threads > 1 else 0.0
                calls = measure(contenders, shape, dtype, pause, args.seconds, args.unpaused and threads > 1)
                line = {
                    "set": args.set,
                    **shape._asdict(),
                    "dtype": dtype,
                    "threads": threads,
                    "pause": pause,
                    "calls": calls,
                    "contenders": {x.name: row(x, shape, dtype) for x in contenders},
                }
                data["results"].append(line)
                say(must.describe(line, peak))
                if args.output:
                    write_json(args.output, data)
            again = fma_peak(lane_of(dtype).dtype, threads, min(0.5, args.seconds))  # a virtual machine's clock drifts
            data["peak"][dtype][str(threads)] = max(peak, again)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="quick", help="shapes, see shapes.py")
    parser.add_argument("--shapes", nargs="+", metavar="N|MxNxK|B*MxNxK", help="these shapes of the set instead of all")
    parser.add_argument("--dtype", nargs="+", choices=REAL + OTHERS, default=["float32"])
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
    data = begin()
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
