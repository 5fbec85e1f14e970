"""The candidates that `decision.py` compares: which make sense for a shape, and how their times are taken."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

import regret
from contenders import SAMPLE_SECONDS, Arrays, Contender, first_run, one_round, ours, work
from measure import AgainstNumPy, settle
from peers import Peer
from shapes import Shape

import falcon_numba as fn
from falcon_numba.problem import Inadmissible

FEWEST, MOST = 5, 31  # timings of one contender
HOPELESS, HOPELESS_AFTER = 1.3, 2  # times the fastest: not timed any more after so many timings
CONTESTED = 1.02  # regret or loss from which the contenders concerned are timed as long again
LEAST_BLOCK = 64  # levels of smaller blocks aren't tried


def options_of(candidate: str) -> tuple[str, dict[str, Any]]:
    """Name and options of one of `--candidates`: "numpy", a depth, or a scheme for each level with commas between."""
    if candidate == "numpy":
        return candidate, {"executor": "numpy"}
    if candidate.isdecimal():
        return f"depth {candidate}", {"depth": int(candidate), "executor": "cpu"}
    return candidate, {"scheme": tuple(candidate.split(",")), "executor": "cpu"}


def plan_of(shape: Shape, dtype: str, options: dict[str, Any]) -> Any:
    return fn.plan_for(shape.M, shape.N, shape.K, dtype, batch=shape.batch, **options)


def contenders_for(shape: Shape, dtype: str, candidates: list[str], numpy: Peer) -> list[Contender]:
    """The choice, and all candidates that make sense, each with its plan."""
    batched = shape.batch > 1
    found = []
    for name, options in [(regret.CHOICE, {}), *map(options_of, candidates)]:
        try:
            plan = plan_of(shape, dtype, options)
        except Inadmissible:  # doesn't fit into the workspace
            if name == regret.CHOICE:
                raise
            continue
        m, k, n = plan.grid
        if options and plan.levels and min(shape.M // m, shape.N // n, shape.K // k) < LEAST_BLOCK:
            continue
        peer = Contender(name, numpy.product, False)
        found.append(peer if name == numpy.name else ours(name, options, batched))
        found[-1].plan = plan
    return found


def same_work(contenders: list[Contender]) -> str:
    """The candidate that runs what the choice runs, or the choice itself."""
    choice, *others = contenders
    return next((x.name for x in others if work(x.plan) == work(choice.plan)), choice.name)


def measure(
    contenders: list[Contender],
    chosen: str,
    arrays: Arrays,
    reference: AgainstNumPy,
    shape: Shape,
    threads: int,
    seconds: float,
) -> None:
    """Fill in the timings, interleaved, in a new random order each round.

    Those that can't win any more are left out after two rounds. Where the choice seems to lose, it and what it loses to
    are timed as long again: of hundreds of lines the worst would otherwise be the noisiest.
    """

    def rest(x: Contender) -> None:
        if threads > 1 and x.plan.executor == "numpy":  # our own threads sleep at once
            settle()

    settle()
    for x in contenders:
        first_run(x, arrays, reference, 0.1)
        if x.estimate < SAMPLE_SECONDS:  # of one call, maybe with cold caches
            x.estimate = one_timing(x, arrays, min(100, math.ceil(SAMPLE_SECONDS / x.estimate)))
        rest(x)
    fastest = min(x.estimate for x in contenders)
    for x in contenders:  # as often as the fastest, but no longer than four times as long
        x.calls = max(1, math.ceil(SAMPLE_SECONDS / max(fastest, x.estimate / 4)))
    order = random.Random(0)

    def rounds(running: list[Contender], fewest: int, seconds: float) -> None:
        end, done = time.perf_counter() + seconds, 0
        while done < fewest or (done < MOST and time.perf_counter() < end):
            one_round(running, arrays, order, rest)
            done += 1

    rounds(contenders, HOPELESS_AFTER, 0.0)
    limit = HOPELESS * min(min(x.samples) for x in contenders)
    concerned = {regret.CHOICE, chosen, "numpy"}
    rounds([x for x in contenders if min(x.samples) <= limit or x.name in concerned], FEWEST - HOPELESS_AFTER, seconds)
    medians = {x.name: statistics.median(x.samples) for x in contenders}
    best = min((name for name in medians if name != regret.CHOICE or chosen == name), key=medians.__getitem__)
    loss = medians[regret.CHOICE] / medians.get("numpy", math.inf)
    if medians[chosen] > CONTESTED * medians[best] or (shape.operations >= regret.LARGE_PRODUCT and loss > CONTESTED):
        rounds([x for x in contenders if x.name in concerned | {best}], FEWEST, seconds)


def one_timing(contender: Contender, arrays: Arrays, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        contender.product(*arrays)
    return (time.perf_counter() - start) / calls


def row(contender: Contender) -> dict[str, Any]:
    """What the JSON file says of one contender on one line."""
    low, median, high = (float(f"{x:.6g}") for x in quartiles(contender.samples))
    plan = contender.plan
    return {
        "ours": contender.ours,
        "seconds": median,
        "quartiles": [low, high],
        "timings": len(contender.samples),
        "calls": contender.calls,
        "executor": plan.executor,
        "scheme": plan.scheme,
        "depth": plan.depth,
        "predicted": prediction(plan),
    }


def quartiles(samples: list[float]) -> list[float]:
    return statistics.quantiles(samples, n=4, method="inclusive")


def prediction(plan: Any) -> float | None:
    """Seconds that a plan expects, None where it doesn't say."""
    seconds = getattr(plan, "seconds", math.nan)
    return float(seconds) if math.isfinite(seconds) else None
