"""Run-time tuning: the candidates nearest to the model's choice are timed on first use of a shape."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .planning import Plan
from .problem import Problem

NEAR = 1.1  # candidates predicted to take at most so many times the chosen one's time
MOST = 3  # candidates
REPEATS = 3  # timings of each, interleaved

Run = Callable[[Problem, Plan], object]
MakePlan = Callable[[Plan, "dict[str, Any]"], Plan]

_lock = threading.Lock()
_winners: dict[Plan, Plan] = {}


def tuned(plan: Plan, problem: Problem, run: Run, make_plan: MakePlan) -> Plan:
    """The fastest of the candidates near to `plan`, measured on this problem unless it has been before.

    Parameters
    ----------
    plan : Plan
        The model's choice.
    problem : Problem
        Its operands are read; `c` is left alone: timings write to an array of their own.
    run : callable (problem, plan)
    make_plan : callable (plan, options) -> Plan
        For the same product, with these options.
    """
    found = _winners.get(plan)
    if found is not None or plan.ranking is None:
        return found or plan
    entries = [x for x in plan.ranking.entries() if x.runs]
    near = [x for x in entries if x.seconds <= NEAR * plan.seconds][:MOST]
    winner = plan
    if len(near) > 1:
        plans = [make_plan(plan, x.options) for x in near]
        spare = _into(np.empty_like(problem.c), problem)
        samples: list[list[float]] = [[] for _ in plans]
        for _ in range(REPEATS + 1):
            for candidate, seconds in zip(plans, samples, strict=True):
                start = time.perf_counter()
                run(spare, candidate)
                seconds.append(time.perf_counter() - start)
        medians = [statistics.median(seconds[1:]) for seconds in samples]
        best = min(range(len(plans)), key=medians.__getitem__)
        shown = ", ".join(f"{x.name} {m * 1e3:.3g} ms" for x, m in zip(near, medians, strict=True))
        winner = replace(plans[best], reason=f"the fastest of those measured: {shown}", ranking=plan.ranking)
    with _lock:
        if len(_winners) >= 4096:
            _winners.clear()
        return _winners.setdefault(plan, winner)


def _into(c: np.ndarray, problem: Problem) -> Problem:
    """The product of the same operands into another array, which is not read."""
    return replace(problem, c=c, beta=0.0)


def forget() -> None:
    """Measure anew."""
    with _lock:
        _winners.clear()
