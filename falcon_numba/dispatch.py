"""From a normalised product to its result: plan it, look at the data, run it, test it."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import symmetric
from .checking import repaired
from .config import Settings
from .cpu import boolean
from .cpu.engine import table_of
from .cpu.guard import magnitudes
from .cpu.opened import is_open, opened, pieces
from .cpu.threads import default_threads
from .decision.predict import Product
from .estimation import fastest_within
from .lanes import lane_of
from .launching import Found, launch_for, run_guarded
from .operands import convert
from .planner import plan_product, spec_for
from .planning import Plan
from .problem import Problem
from .tracing import record, trace, untraced
from .tuning import tuned

if TYPE_CHECKING:
    pass


def execute(problem: Problem, settings: Settings, plan: Plan | None = None) -> Plan:
    """Compute C ← alpha·A·B + beta·C in place.

    Parameters
    ----------
    problem : Problem
        M, N, K ≥ 1 and alpha ≠ 0.
    settings : Settings
    plan : Plan, optional
        To follow instead of the settings; the guard still applies.

    Returns
    -------
    Plan
        What really ran (of the last product of a batch, where the guard treated them differently).

    Raises
    ------
    ValueError
        A `plan` for another product, or options that can't be met; nothing was written.
    """
    if plan is None and symmetric.is_symmetric(problem) and symmetric.is_free(settings):
        ran = symmetric.run(problem, settings, plan_product, execute_general)
        if ran is not None:
            return ran
        M, N, K = problem.mnk
        plan = plan_product(M, N, K, problem.c.dtype, replace(settings, executor="numpy"))
        plan = replace(plan, reason="NumPy's product of a matrix and its transpose, which computes half of it")
    return execute_general(problem, settings, plan)


def execute_general(problem: Problem, settings: Settings, plan: Plan | None = None) -> Plan:
    """`execute` that doesn't look whether B is Aᵀ."""
    if not is_open(problem):
        complex_ = lane_of(problem.c.dtype).parts > 1
        if not complex_ or (plan is None and settings.accuracy == "estimated"):
            return _execute_opened(problem, settings, plan)
    return _execute(problem, settings, plan)


def _execute_opened(problem: Problem, settings: Settings, plan: Plan | None) -> Plan:
    """`execute` for operands that are converted whatever will compute the product."""
    ran: list[Plan] = []
    threads = settings.threads or default_threads() if plan is None else plan.threads
    for piece in pieces(problem):
        with trace() as plans, opened(piece, threads) as real:
            _execute(real, settings, plan)
        ran += plans
    for one in ran:
        record(_of_complex(one) if lane_of(problem.c.dtype).parts > 1 else one)
    return ran[-1]


def _execute(problem: Problem, settings: Settings, plan: Plan | None) -> Plan:
    M, N, K = problem.mnk
    batch = math.prod(problem.c.shape[:-2])
    dtype, headroom = problem.a.dtype, problem.headroom
    found = None
    if plan is None and settings.accuracy == "estimated" and dtype.kind == "f":
        plan, found = _estimated(problem, settings)
    elif plan is None:
        plan = plan_product(M, N, K, dtype, settings, batch, headroom)
        if settings.tune:
            plan = tuned(plan, problem, _run_untraced, functools.partial(_with_options, settings))
    else:
        plan.check(M, N, K, batch, dtype.name, headroom)
    if not plan.checked and math.isnan(plan.error_estimate):
        return _run(problem, plan)

    before = problem.c.copy() if plan.checked and problem.beta != 0 else None
    with trace() as ran:
        _run(problem, replace(plan, error_estimate=math.nan), found)  # what is kept by plan must not keep an estimate
    ran = [replace(x, error_estimate=plan.error_estimate) if x.levels == plan.levels else x for x in ran]
    if plan.checked:
        ran = repaired(problem, before, ran, _run_numpy)
    for one in ran:
        record(one)
    return ran[-1]


def plan_for_data(problem: Problem, settings: Settings) -> Plan:
    """The plan that `execute` would follow for these operands; C is not read."""
    if settings.accuracy == "estimated":
        if is_open(problem):
            return _estimated(problem, settings)[0]
        with opened(problem, settings.threads or default_threads(), only_reads=True) as real:
            plan = _estimated(real, settings)[0]
        return _of_complex(plan) if lane_of(problem.c.dtype).parts > 1 else plan
    M, N, K = problem.mnk
    return plan_product(M, N, K, problem.c.dtype, settings, math.prod(problem.c.shape[:-2]))


def _estimated(problem: Problem, settings: Settings) -> tuple[Plan, Found | None]:
    """The fastest plan whose error, estimated on the data, is within `max_error`, and what the guard has found."""
    M, N, K = problem.mnk
    plan = plan_product(M, N, K, problem.c.dtype, settings, math.prod(problem.c.shape[:-2]))
    choice = _choice(plan, settings)
    blocks = next((x.blocks for x in choice if x.blocks is not None), None)
    found = None
    if blocks is not None:
        found = magnitudes(table_of([problem], blocks), spec_for(plan.dtype), plan.threads)
    assert settings.max_error is not None, "plan_product has seen to it"
    return fastest_within(settings.max_error, problem, choice, found, _run_sample), found


@functools.lru_cache(maxsize=4096)
def _choice(plan: Plan, settings: Settings) -> tuple[Plan, ...]:
    """All admissible plans where there is a choice, the preferred one first."""
    if settings.depth != "auto" or isinstance(settings.scheme, tuple) or plan.ranking is None:
        return (plan,)
    others = [x.options for x in plan.ranking.entries()[1:] if x.runs]
    return plan, *(_with_options(settings, plan, options) for options in others)


def _run_sample(plan: Plan, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A smaller product of the same inner size, as a plan would compute it."""
    if plan.executor == "numpy":
        return np.matmul(a, b)
    c = np.empty((len(a), b.shape[1]), a.dtype)
    scheme = plan.levels or "auto"
    one = Settings(
        plan.depth, scheme, "balanced", executor="cpu", leaf=plan.leaf, threads=1, workspace_limit=plan.workspace_limit
    )
    _run_untraced(Problem(a, b, c), plan_product(len(c), c.shape[1], len(b), c.dtype, one))
    return c


def _with_options(settings: Settings, plan: Plan, options: dict[str, Any]) -> Plan:
    """The plan for the same product with other options, under the same limits."""
    settings = replace(settings, tune=False, **options)
    return plan_product(plan.M, plan.N, plan.K, np.dtype(plan.dtype), settings, plan.batch, plan.headroom)


def _run_untraced(problem: Problem, plan: Plan) -> None:
    with untraced():
        _run(problem, plan)


def _run(problem: Problem, plan: Plan, found: Found | None = None) -> Plan:
    """Run a plan; `found` is what the guard says of the problem's data, if it has been asked before."""
    if plan.executor == "numpy":
        _run_numpy(problem)
        record(plan)
        return plan
    if lane_of(plan.dtype).parts > 1:
        return _run_complex(problem, plan)
    if plan.dtype == "bool":
        boolean.run(problem, plan.threads)
        record(plan)
        return plan
    # Of a column-major C the engine computes Cᵀ = Bᵀ·Aᵀ by the transposed scheme: the same products and sums, and it
    # writes rows.
    turned = problem.column_major
    if turned:
        problem = problem.transposed
    launch = launch_for(plan, turned)
    table = table_of([problem], launch.blocks)
    if plan.levels and not launch.engine.spec.exact:
        if found is None:
            found = magnitudes(table, launch.engine.spec, plan.threads)
        elif turned:
            found = [(columns, rows) for rows, columns in found]
        return run_guarded(table, problem.alpha, problem.beta, launch, found)
    launch.run(table, problem.alpha, problem.beta)
    record(plan)
    return plan


def _run_complex(problem: Problem, plan: Plan) -> Plan:
    """Run a plan of the engine as that of a real product; see `cpu.convert`."""
    last = plan
    for piece in pieces(problem):
        real_plan = _of_real(plan, math.prod(piece.c.shape[:-2]))
        with trace() as ran, opened(piece, plan.threads) as real:
            _run(real, real_plan)
        for one in ran:
            last = plan if one is real_plan else _of_complex(one)
            record(last)
    return last


@functools.lru_cache(maxsize=1024)
def _of_real(plan: Plan, batch: int) -> Plan:
    """The plan for the real product of a complex one, the ranking aside."""
    lane = Product(plan.M, plan.N, plan.K, batch, plan.dtype).lane
    return replace(plan, **lane._asdict(), error_bound=plan.error_bound / lane_of(plan.dtype).parts, ranking=None)


@functools.lru_cache(maxsize=1024)
def _of_complex(plan: Plan) -> Plan:
    """The inverse of `_of_real`."""
    dtype = "complex64" if plan.dtype == "float32" else "complex128"
    return replace(plan, N=plan.N // 2, K=plan.K // 2, dtype=dtype, error_bound=2 * plan.error_bound)


def _run_numpy(problem: Problem) -> None:
    c, alpha, beta = problem.c, problem.alpha, problem.beta
    a, b = convert(problem.a, c.dtype), convert(problem.b, c.dtype)
    dtype = c.dtype.type
    if beta == 0:
        np.matmul(a, b, out=c)
        if alpha != 1:
            np.multiply(c, dtype(alpha), out=c)
        return
    product = np.matmul(a, b)
    if alpha != 1:
        product *= dtype(alpha)
    if beta != 1:
        np.multiply(c, dtype(beta), out=c)
    np.add(c, product, out=c)
