"""From a normalised product to its result: plan it, guard it, run it.

The guard looks at the data before an LCMA runs. Data that are not finite, or whose products could overflow, take the
classical product, so that NaN and Inf stand exactly where the classical product has them. Under the balanced contract
rows of A and columns of B whose magnitudes differ too much are scaled by powers of two.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numba
import numpy as np

from .algorithms import FlatScheme, flatten, resolve_scheme
from .config import Settings
from .cpu.blocking import Blocks, choose_blocks, default_limit
from .cpu.engine import Engine, change_blocks, engine_for, scale, scaling_for, table_of
from .cpu.guard import Magnitudes, magnitudes
from .cpu.spec import SPECS, KernelSpec
from .cpu.threads import default_threads
from .decision.hardware import isa_family
from .decision.predict import Product, whole_products
from .decision.select import select
from .numerics.bounds import SPREAD, error_bound
from .planning import Plan
from .problem import Inadmissible, Problem
from .tuning import tuned

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .algorithms.flatten import FlatScheme

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
    return _plan(M, N, K, batch, cast(Any, dtype), settings, settings.threads or default_threads())


@functools.lru_cache(maxsize=4096)
def _plan(M: int, N: int, K: int, batch: int, dtype: Any, settings: Settings, threads: int) -> Plan:
    product = Product(M, N, K, batch, np.dtype(dtype).name)
    blocks_for = functools.partial(_blocks, product, settings.workspace_limit, threads)
    return select(product, settings, threads, blocks_for, SPECS.get((isa_family(), product.dtype)))


def _blocks(product: Product, limit: int | None, threads: int, scheme: FlatScheme) -> tuple[Blocks, int]:
    """Block sizes of the engine for a row-major C, and the workspace that suffices for any order of C."""
    if numba.config.DISABLE_JIT:
        raise Inadmissible("NUMBA_DISABLE_JIT is set, and the engine needs the compiler")
    M, N, K, _, dtype = product
    spec = _spec(dtype)
    teams = threads if whole_products(product, threads) else 1
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
    dtype = problem.c.dtype
    if plan is None:
        plan = plan_product(M, N, K, dtype, settings, batch)
        if settings.tune:
            plan = tuned(plan, problem, _run_untraced, functools.partial(_with_options, settings))
    else:
        plan.check(M, N, K, batch, dtype.name)
    return _run(problem, plan)


def _with_options(settings: Settings, plan: Plan, options: dict[str, Any]) -> Plan:
    """The plan for the same product with other options, under the same limits."""
    settings = replace(settings, tune=False, **options)
    return plan_product(plan.M, plan.N, plan.K, np.dtype(plan.dtype), settings, plan.batch)


def _run_untraced(problem: Problem, plan: Plan) -> None:
    token = _trace.set(None)
    try:
        _run(problem, plan)
    finally:
        _trace.reset(token)


def _run(problem: Problem, plan: Plan) -> Plan:
    if plan.executor == "numpy":
        _run_numpy(problem)
        record(plan)
        return plan
    # Of a column-major C the engine computes Cᵀ = Bᵀ·Aᵀ by the transposed scheme: the same products and sums, and it
    # writes rows.
    turned = problem.column_major
    if turned:
        problem = problem.transposed
    launch = _launch(plan, turned)
    table = table_of([problem], launch.blocks)
    if plan.levels:
        return _run_guarded(table, problem.alpha, problem.beta, launch)
    launch.run(table, problem.alpha, problem.beta)
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


class _Launch(NamedTuple):
    """How the engine runs a plan, and the limits of the data that its levels can take (see `_verdict`)."""

    plan: Plan
    turned: bool  # for the transposed product, where M and N change roles
    engine: Engine
    scheme: FlatScheme
    blocks: Blocks
    least: int  # exponent of normal numbers
    most: int  # exponent of overflow
    growth: float  # of the products
    sums: tuple[float, float]  # growth of the combinations of A and of B, as powers of two

    def run(self, table: np.ndarray, alpha: float, beta: float) -> None:
        self.engine.run_table(table, alpha, beta, self.scheme, self.blocks, self.plan.threads, self.plan.whole_products)


@functools.lru_cache(maxsize=4096)
def _launch(plan: Plan, turned: bool) -> _Launch:
    scheme, blocks = flatten(plan.levels), plan.blocks
    assert blocks is not None, "a plan of the engine has block sizes"
    if turned:  # the schedule is made anew; what shapes the arithmetic (KC, CHUNKS, FIRST, OUTER) is the same
        scheme = scheme.transposed
        product = Product(plan.N, plan.M, plan.K, plan.batch, plan.dtype)
        blocks, _ = _blocks(product, plan.workspace_limit, plan.threads, scheme)
    engine = engine_for(_spec(plan.dtype), plan.leaf == "portable")
    info = np.finfo(plan.dtype)
    u, v, weight = scheme.largest_sums
    growth = 2 * weight * plan.K
    return _Launch(
        plan, turned, engine, scheme, blocks, int(info.minexp), int(info.maxexp), growth, (math.log2(u), math.log2(v))
    )


def _run_guarded(products: np.ndarray, alpha: float, beta: float, launch: _Launch) -> Plan:
    """Run the products of a plan with levels, or what the data allow instead, and return the last one's plan."""
    plan, spec = launch.plan, launch.engine.spec
    found = magnitudes(products, spec, plan.threads)
    verdicts = [_verdict(launch, alpha, rows, columns) for rows, columns in found]
    first = 0
    for (danger, scales), alike in itertools.groupby(verdicts):  # one run for all that follow each other
        last = first + len(list(alike))
        part = products[first:last]
        if danger:
            plan = _classical(launch.plan, danger)
            classical = _launch(plan, launch.turned)
            change_blocks(part, classical.blocks)
            classical.run(part, alpha, beta)
        elif scales:
            plan = _scaled(launch.plan)
            scalings = [scaling_for(rows, columns, spec) for rows, columns in found[first:last]]
            scale(part, scalings)
            launch.run(part, alpha, beta)
        else:
            plan = launch.plan
            launch.run(part, alpha, beta)
        for _ in range(first, last):
            record(plan)
        first = last
    return plan


def _verdict(launch: _Launch, alpha: float, rows: Magnitudes, columns: Magnitudes) -> tuple[str, bool]:
    """Why the data forbid the plan's levels (or ""), and whether its rows and columns must be scaled.

    A row of exponent x has magnitudes below 2^(x+1). A combination of blocks of A is then below ‖U_r‖₁·2^(x+1), a block
    product with its weight below K·‖U_r‖₁·‖V_r‖₁·max(1, |W|)·2^(x+y+2), and the sum of products below e·K·2^(x+y+2).
    """
    if not (rows.finite and columns.finite and math.isfinite(alpha)):
        return "the data are not finite", False
    balanced = launch.plan.accuracy == "balanced"
    if (min(rows.lowest, columns.lowest) if balanced else min(rows.highest, columns.highest)) < launch.least:
        return "a row or column is subnormal", False  # no power of two would bring it into the normal range
    growth = math.log2(launch.growth * max(abs(alpha), 1.0))
    if rows.highest + columns.highest + 2 + growth >= launch.most:
        return "the product could overflow", False
    sums = max(rows.highest + launch.sums[0], columns.highest + launch.sums[1]) + 2
    if sums >= launch.most and not balanced:
        return "a combination of blocks could overflow", False
    return "", balanced and (sums >= launch.most or max(rows.spread, columns.spread) > SPREAD)


@functools.lru_cache(maxsize=256)
def _scaled(plan: Plan) -> Plan:
    return replace(plan, reason=f"{plan.reason}; rows of A and columns of B scaled by powers of two")


@functools.lru_cache(maxsize=256)
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
        seconds=math.nan,
        ranking=None,
    )
