"""How good the choice between NumPy, depths and schemes is: regret and prediction error on random and real shapes.

    python bench/decision.py --threads 1 2 --check must -o regret.json

README.md in this folder says what is measured and how.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import must
import regret
from candidates import contenders_for, measure, options_of, plan_of, prediction, row, same_work
from contenders import compile_engine, set_threads
from measure import AgainstNumPy, begin, operands, say, write_json
from peers import available
from shapes import Shape, random_shapes, workload_shapes

from falcon_numba.cpu.threads import default_threads

MOST_BYTES = 2**31  # of A, B and C
WRITE_SECONDS = 10.0


class Job(NamedTuple):
    set: str
    shape: Shape
    dtype: str
    threads: int


def jobs(args: argparse.Namespace) -> list[Job]:
    """Shape after shape, so that any prefix has all dtypes and threads."""
    if args.shapes:
        sets = [("given", Shape.parse(text)) for text in args.shapes]
    else:
        sets = [("random", shape) for shape in random_shapes(args.random, args.most_flops)]
        sets += [("workload", shape) for shape in workload_shapes(args.workload, args.most_flops)]
        random.Random(0).shuffle(sets)  # the time that is left is easier to tell
    return [Job(*x, dtype, threads) for x, dtype, threads in itertools.product(sets, args.dtype, args.threads)]


def describe(line: must.Line) -> str:
    """A measured line in one line of text, times in milliseconds."""
    times = ", ".join(f"{name} {1e3 * x['seconds']:.3g}" for name, x in line["contenders"].items())
    v = regret.judge(line)
    return f"{v.where}: {times} ms; chose {v.chosen}, regret {v.regret:.3f}"


def key_of(line: must.Line) -> tuple[Shape, str, int]:
    return must.shape_of(line), line["dtype"], line["threads"]


def cost(job: Job, seconds: float) -> float:
    """Seconds that a line takes, roughly: to tell how much is left."""
    rate = (4e10 if job.dtype == "float64" else 8e10) * job.threads
    return seconds + (0.2 if job.threads == 1 else 0.7) + 30 * job.shape.operations / rate


def run(args: argparse.Namespace, data: dict[str, Any]) -> Iterator[must.Line]:
    """Every line of the command line that isn't in `data` yet."""
    (numpy,) = available(("numpy",))
    done = {key_of(line) for line in data["results"]}
    todo = [x for x in jobs(args) if (x.shape, x.dtype, x.threads) not in done]
    say(f"{len(todo)} lines to measure, {len(done)} are done")
    for dtype in args.dtype if todo else ():
        say(f"{dtype}: compiling, the first time only")
        compile_engine(dtype)
    left, start = sum(cost(x, args.seconds) for x in todo), time.perf_counter()
    total, last = left, None
    for number, job in enumerate(todo, 1):
        if job[:3] != last:
            last = job[:3]
            if sum(math.prod(x) for x in itertools.combinations(job.shape[:3], 2)) * job.shape.batch * 8 > MOST_BYTES:
                raise SystemExit(f"{job.shape} needs more than {MOST_BYTES >> 20} MiB")
            arrays = operands(job.shape, job.dtype)
            reference = AgainstNumPy(*arrays[:2])
        set_threads(job.threads, [numpy])
        contenders = contenders_for(job.shape, job.dtype, args.candidates, numpy)
        chosen = same_work(contenders)
        measure(contenders, chosen, arrays, reference, job.shape, job.threads, args.seconds)
        line = {"set": job.set, **job.shape._asdict(), "dtype": job.dtype, "threads": job.threads, "chosen": chosen}
        yield line | {"contenders": {x.name: row(x) for x in contenders}}
        left -= cost(job, args.seconds)
        spent = time.perf_counter() - start
        minutes = spent / (total - left) * left / 60
        say(f"[{number}/{len(todo)}, {max(0.0, minutes):.1f} min left] {describe(data['results'][-1])}")


def replan(data: dict[str, Any]) -> int:
    """Decide anew for every line, by the code as it is now; returns how many lines lack what is chosen now.

    Those lines are left out.
    """
    kept = []
    for line in data["results"]:
        set_threads(line["threads"], [])
        shape, contenders = must.shape_of(line), line["contenders"]
        for name, x in contenders.items():
            options = {} if name == regret.CHOICE else options_of(name.removeprefix("depth "))[1]
            plan = plan_of(shape, line["dtype"], options)
            x |= {"executor": plan.executor, "scheme": plan.scheme, "depth": plan.depth, "predicted": prediction(plan)}
        ran = {(x["executor"], x["scheme"]): name for name, x in contenders.items() if name != regret.CHOICE}
        choice = contenders[regret.CHOICE]
        chosen = ran.get((choice["executor"], choice["scheme"]))
        if chosen is not None:
            line["chosen"] = chosen
            choice["seconds"] = contenders[chosen]["seconds"]  # its own timing was of what it chose then
            kept.append(line)
    missing = len(data["results"]) - len(kept)
    data["results"] = kept
    return missing


def resumed(path: str, data: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run on this machine left in the file, or `data` where there is none."""
    if not Path(path).exists():
        return data
    earlier = must.load([path])
    for what, now, then in (
        ("machine", data["machine"]["cpu"], earlier["machine"]["cpu"]),
        ("versions", data["versions"], earlier["versions"]),
    ):
        if now != then:
            raise SystemExit(f"{path} is from other {what} ({then}, not {now}): give another file")
    return earlier


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"), default=["float32", "float64"])
    parser.add_argument("--threads", nargs="+", type=int, help="default: 1 and all")
    parser.add_argument("--random", type=int, metavar="N", help="random shapes (200)")
    parser.add_argument("--workload", type=int, metavar="N", help="shapes of real programs (100)")
    parser.add_argument("--shapes", nargs="+", metavar="N|MxNxK|B*MxNxK", help="these shapes instead")
    parser.add_argument("--most-flops", type=float, help="2MNK of all shapes but --shapes, at most (8e9)")
    parser.add_argument("--seconds", type=float, help="about so long for each line, at least 5 timings (0.2)")
    parser.add_argument("--quick", action="store_true", help="16 and 8 shapes up to 4e9, 0.1 s, unless given")
    parser.add_argument(
        "--candidates",
        nargs="+",
        default=["numpy", "0", "1", "2", "3", "hk233", "hk332", "strassen,hk233", "strassen,hk332"],
        help="numpy, depths, and schemes: winograd, or one for each level as in strassen,hk223",
    )
    parser.add_argument("--check", choices=("must",), help="print what is asked, and whether it is met")
    parser.add_argument("--from", dest="source", nargs="+", metavar="JSON", help="measure nothing: judge these files")
    parser.add_argument("--replan", action="store_true", help="with --from: judge what the code would choose now")
    parser.add_argument("-o", "--output", help="JSON file; lines that are in it already are not measured again")
    args = parser.parse_args(arguments)
    defaults = {"random": 16, "workload": 8, "most_flops": 4e9, "seconds": 0.1}
    if not args.quick:
        defaults = {"random": 200, "workload": 100, "most_flops": 8e9, "seconds": 0.2}
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.threads is None:
        args.threads = sorted({1, default_threads()})
    return args


def main() -> int:
    args = parse()
    code = 0
    if args.source:
        data = must.load(args.source)
        if args.replan and (missing := replan(data)):
            say(f"{missing} lines are left out: what is chosen now was not measured")
    else:
        data = begin()
        if args.output:
            data = resumed(args.output, data)
        written = time.perf_counter()
        try:
            for line in run(args, data):
                data["results"].append(line)
                if args.output and time.perf_counter() - written > WRITE_SECONDS:
                    write_json(args.output, data)
                    written = time.perf_counter()
        except KeyboardInterrupt:
            say("interrupted; what was measured is kept")
            code = 130
        finally:
            if args.output:
                write_json(args.output, data)
    verdicts = [regret.judge(line) for line in data["results"]]
    print(regret.summary(verdicts))
    return max(code, regret.check(verdicts)) if args.check else code


if __name__ == "__main__":
    raise SystemExit(main())
