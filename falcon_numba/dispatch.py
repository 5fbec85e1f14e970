"""From a normalised product to its result: plan it, guard it, run it.

The guard looks at the data before an LCMA runs. Data that are not finite, or whose products could overflow, take the
classical product, so that NaN and Inf stand exactly where the classical product has them. Under the balanced contract
rows of A and columns of B whose magnitudes differ too much are scaled by powers of two.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .algorithms import flatten, levels_growth
from .config import Settings
from .decision.hardware import isa_family
from .decision.select import Product, select
from .numerics.bounds import SPREAD
from .planning import Plan
from .problem import Problem

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .cpu.engine import Scaling
    from .cpu.spec import KernelSpec

DTYPES = ("float32", "float64")

_trace: ContextVar[list[Plan] | None] = ContextVar("falcon_numba_trace", default=None)


@contextlib.contextmanager
def trace() -> Iterator[list[Plan]]:
    """Collect the plan of every product computed in this context, as it really ran.

    Where the guard changed a plan, the one that ran stands in the list and its `reason` says why.

    Examples
    --------
    >>> with trace() as plans:
    ...     c = falcon_numba.gemm(a, b)
    >>> plans[0].depth
    2
    """
    plans: list[Plan] = []
    token = _trace.set(plans)
    try:
        yield plans
    finally:
        _trace.reset(token)


def tracing() -> bool:
    """Whether a `trace` is active in this context."""
    return _trace.get() is not None


def record(plan: Plan) -> None:
    """Add a plan to the active `trace`, if there is one."""
    plans = _trace.get()
    if plans is not None:
        plans.append(plan)


def _spec(dtype: str) -> KernelSpec:
    from .cpu.spec import SPECS

    return SPECS[isa_family(), dtype]


def plan_product(M: int, N: int, K: int, dtype: DTypeLike, settings: Settings, batch: int = 1) -> Plan:
    """The plan that `execute` would follow for finite, well scaled data.

    Parameters
    ----------
    M, N, K : int
        At least 1.
    dtype : dtype_like
        float32 and float64 may run on the engine, others run through NumPy.
    settings : Settings
    batch : int
        Equal products.

    Raises
    ------
    ValueError
        Options that can't be met, see `decision.select.select`.
    """
    from .cpu.threads import default_threads

    return _plan(Product(M, N, K, batch, np.dtype(dtype).name), settings, settings.threads or default_threads())


@functools.lru_cache(maxsize=4096)
def _plan(product: Product, settings: Settings, threads: int) -> Plan:
    return select(product, settings, threads, functools.partial(_blocks, product, settings.workspace_limit, threads))


def _blocks(product: Product, limit: int | None, threads: int, grid: tuple[int, int, int], ranks: tuple[int, ...]):
    """Block sizes and workspace of the engine for one product, whatever order C has."""
    from .cpu.blocking import choose_blocks, default_limit
    from .decision.select import whole_products

    M, N, K, _, dtype = product
    spec = _spec(dtype)
    teams = threads if whole_products(product, threads) else 1
    if limit is None:
        limit = default_limit(M, N, K, spec.itemsize, threads)
    blocks = choose_blocks(spec, grid, ranks, M, N, K, threads, teams, limit)
    return blocks, blocks.workspace(threads, teams)


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
    M, N, K = problem.mnk
    batch = math.prod(problem.c.shape[:-2])
    dtype = problem.c.dtype.name
    if plan is None:
        plan = plan_product(M, N, K, dtype, settings, batch)
    else:
        plan.check(M, N, K, batch, dtype)
    if plan.executor == "numpy":
        _run_numpy(problem)
    elif plan.levels:
        for index in np.ndindex(problem.c.shape[:-2]):
            plan = _run_guarded(problem.at(index), plan)
            record(plan)
        return plan
    else:
        _run_engine(problem, plan, None)
    record(plan)
    return plan


def _run_numpy(problem: Problem) -> None:
    a, b, c, alpha, beta = problem.a, problem.b, problem.c, problem.alpha, problem.beta
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


def _run_engine(problem: Problem, plan: Plan, scaling: Scaling | None) -> None:
    from .cpu.engine import engine_for

    scheme, blocks = flatten(plan.levels), plan.blocks
    assert blocks is not None, "a plan of the engine has block sizes"
    if problem.column_major:
        # Cᵀ = Bᵀ·Aᵀ by the transposed scheme: the same products and sums, and the engine writes rows. M and N change
        # roles, so the schedule is made anew; what shapes the arithmetic (KC, CHUNKS, PRODUCTS) is the same.
        problem, scheme = problem.transposed, scheme.transposed
        scaling = None if scaling is None else scaling.transposed
        product = Product(plan.N, plan.M, plan.K, plan.batch, plan.dtype)
        blocks, _ = _blocks(product, plan.workspace_limit, plan.threads, scheme.grid, plan.ranks)
    engine = engine_for(_spec(plan.dtype), plan.leaf == "portable")
    engine.run([problem], scheme, blocks, plan.threads, whole_products=plan.whole_products, scaling=scaling)


def _run_guarded(problem: Problem, plan: Plan) -> Plan:
    """Run one product of a plan with levels, or what the data allow instead."""
    from .cpu.engine import scaling_for
    from .cpu.guard import magnitudes

    spec = _spec(plan.dtype)
    info = np.finfo(plan.dtype)
    rows, columns = magnitudes(problem.a, spec), magnitudes(problem.b.T, spec)
    scaling = None
    danger = ""
    if not (rows.finite and columns.finite):
        danger = "the data are not finite"
    else:
        # A row of exponent x has magnitudes below 2^(x+1). Sums of products are then below factor·2^(x+y+2), and any
        # combination of one operand's blocks, whose coefficients add up to less than the growth factor, below
        # factor·2^(x+1). A product near the end of the range is left to depth 0; where only a combination could
        # overflow, scaling cures it.
        factor = float(levels_growth(plan.levels)) * plan.K * 2 * max(abs(problem.alpha), 1.0)
        room = info.maxexp - 1
        if rows.highest + columns.highest + 2 + math.log2(factor) >= room:
            danger = "the product could overflow"
        elif max(rows.highest, columns.highest) + 1 + math.log2(factor) >= room:
            if plan.accuracy == "normwise":
                danger = "a combination of blocks could overflow"
            else:
                scaling = scaling_for(rows, columns, spec)
        elif plan.accuracy == "balanced" and max(rows.spread, columns.spread) > SPREAD:
            scaling = scaling_for(rows, columns, spec)
    if danger:
        plan = replace(
            plan, levels=(), grid=(1, 1, 1), rank=1, reason=f"{plan.scheme} planned, but {danger}: classical product"
        )
    elif scaling is not None:
        plan = replace(plan, reason=f"{plan.reason}; rows of A and columns of B scaled by powers of two")
    _run_engine(problem, plan, scaling)
    return plan
