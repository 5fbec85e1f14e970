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

import numba
import numpy as np

from .algorithms import FlatScheme, flatten, levels_growth, resolve_scheme
from .config import Settings
from .cpu.blocking import Blocks, choose_blocks, default_limit
from .cpu.engine import Scaling, engine_for, scaling_for
from .cpu.guard import Magnitudes, magnitudes
from .cpu.spec import SPECS, KernelSpec
from .cpu.threads import default_threads
from .decision.hardware import isa_family
from .decision.select import Product, select, whole_products
from .numerics.bounds import SPREAD, error_bound
from .planning import Plan
from .problem import Inadmissible, Problem

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


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
    if settings.scheme != "auto":  # names may be given to other schemes later: plans are kept by content
        one = not isinstance(settings.scheme, tuple)
        schemes = tuple(resolve_scheme(s) for s in ((settings.scheme,) if one else settings.scheme))
        settings = replace(settings, scheme=schemes[0] if one else schemes)
    return _plan(Product(M, N, K, batch, np.dtype(dtype).name), settings, settings.threads or default_threads())


@functools.lru_cache(maxsize=4096)
def _plan(product: Product, settings: Settings, threads: int) -> Plan:
    return select(product, settings, threads, functools.partial(_blocks, product, settings.workspace_limit, threads))


def _blocks(product: Product, limit: int | None, threads: int, scheme: FlatScheme) -> tuple[Blocks, int]:
    """Block sizes of the engine for a row-major C, and the workspace that suffices for any order of C."""
    if numba.config.DISABLE_JIT:
        raise Inadmissible("NUMBA_DISABLE_JIT is set, and the engine needs the compiler")
    M, N, K, _, dtype = product
    spec = _spec(dtype)
    teams = threads if whole_products(product, threads, scheme.ranks) else 1
    if limit is None:
        limit = default_limit(M, N, K, spec.itemsize, threads)
    blocks = choose_blocks(spec, scheme, M, N, K, threads, teams, limit)
    turned = choose_blocks(spec, scheme.transposed, N, M, K, threads, teams, limit)
    return blocks, max(blocks.workspace(threads, teams), turned.workspace(threads, teams))


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
        ran = plan
        for index in np.ndindex(problem.c.shape[:-2]):
            ran = _run_guarded(problem.at(index), plan)
            record(ran)
        return ran
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
    scheme, blocks = flatten(plan.levels), plan.blocks
    assert blocks is not None, "a plan of the engine has block sizes"
    if problem.column_major:
        # Cᵀ = Bᵀ·Aᵀ by the transposed scheme: the same products and sums, and the engine writes rows. M and N change
        # roles, so the schedule is made anew; what shapes the arithmetic (KC, CHUNKS, PRODUCTS) is the same.
        problem, scheme = problem.transposed, scheme.transposed
        scaling = None if scaling is None else scaling.transposed
        product = Product(plan.N, plan.M, plan.K, plan.batch, plan.dtype)
        blocks, _ = _blocks(product, plan.workspace_limit, plan.threads, scheme)
    engine = engine_for(_spec(plan.dtype), plan.leaf == "portable")
    engine.run([problem], scheme, blocks, plan.threads, whole_products=plan.whole_products, scaling=scaling)


def _run_guarded(problem: Problem, plan: Plan) -> Plan:
    """Run one product of a plan with levels, or what the data allow instead."""
    spec = _spec(plan.dtype)
    rows, columns = magnitudes((problem.a, problem.b.T), spec, plan.threads)
    danger, scales = _verdict(plan, problem.alpha, rows, columns)
    if danger:
        plan = _classical(plan, danger)
    elif scales:
        plan = replace(plan, reason=f"{plan.reason}; rows of A and columns of B scaled by powers of two")
    _run_engine(problem, plan, scaling_for(rows, columns, spec) if scales else None)
    return plan


def _verdict(plan: Plan, alpha: float, rows: Magnitudes, columns: Magnitudes) -> tuple[str, bool]:
    """Why the data forbid the plan's levels (or ""), and whether its rows and columns must be scaled.

    A row of exponent x has magnitudes below 2^(x+1). A combination of blocks of A is then below ‖U_r‖₁·2^(x+1), a block
    product with its weight below K·‖U_r‖₁·‖V_r‖₁·max(1, |W|)·2^(x+y+2), and the sum of products below e·K·2^(x+y+2).
    """
    if not (rows.finite and columns.finite and math.isfinite(alpha)):
        return "the data are not finite", False
    info = np.finfo(plan.dtype)
    balanced = plan.accuracy == "balanced"
    if (rows.lowest if balanced else rows.highest) < info.minexp or (
        columns.lowest if balanced else columns.highest
    ) < info.minexp:
        return "a row or column is subnormal", False  # no power of two would bring it into the normal range
    u, v, weight = flatten(plan.levels).largest_sums
    weight = max(weight, float(levels_growth(plan.levels)) * plan.grid[1])
    growth = math.log2(2 * weight * plan.K * max(abs(alpha), 1.0))
    if rows.highest + columns.highest + 2 + growth >= info.maxexp:
        return "the product could overflow", False
    sums = max(rows.highest + math.log2(u), columns.highest + math.log2(v)) + 2
    if sums >= info.maxexp and not balanced:
        return "a combination of blocks could overflow", False
    return "", balanced and (sums >= info.maxexp or max(rows.spread, columns.spread) > SPREAD)


def _classical(plan: Plan, why: str) -> Plan:
    """The depth-0 plan for the same product."""
    product = Product(plan.M, plan.N, plan.K, plan.batch, plan.dtype)
    blocks, workspace = _blocks(product, plan.workspace_limit, plan.threads, flatten(()))
    return replace(
        plan,
        levels=(),
        grid=(1, 1, 1),
        rank=1,
        blocks=blocks,
        workspace_bytes=workspace,
        error_bound=error_bound((), plan.K, blocks.KC, plan.dtype, plan.accuracy).relative,
        reason=f"{plan.scheme} planned, but {why}: classical product",
    )
