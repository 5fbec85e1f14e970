"""From a normalised product to its result: plan it, guard it, run it.

The guard looks at the data before an LCMA runs. Data that are not finite, or whose products could overflow, take the
classical product, so that NaN and Inf stand exactly where the classical product has them. Under the balanced contract
rows of A and columns of B whose magnitudes differ too much are scaled by powers of two.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numba
import numpy as np

from . import symmetric
from .algorithms import FlatScheme, flatten, resolve_scheme
from .checking import repaired
from .config import Settings
from .cpu import boolean
from .cpu.blocking import Blocks, choose_blocks, default_limit
from .cpu.engine import Engine, Scaling, change_blocks, engine_for, scale, scaling_for, table_of
from .cpu.guard import ZERO_EXPONENT, Magnitudes, magnitudes
from .cpu.opened import is_open, opened, opened_bytes, pieces
from .cpu.spec import SPECS, KernelSpec
from .cpu.threads import default_threads
from .cpu.workspace import reserve
from .decision.hardware import isa_family
from .decision.predict import Product, whole_products
from .decision.select import select
from .estimation import fastest_within
from .lanes import lane_of
from .numerics.bounds import SPREAD, error_bound
from .operands import convert
from .planning import Plan
from .problem import Inadmissible, Problem
from .tracing import record, trace, untraced
from .tuning import tuned

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .algorithms.flatten import FlatScheme

Found = list[tuple[Magnitudes, Magnitudes]]  # of the rows of A and the columns of B of every product


def _spec(dtype: str) -> KernelSpec:
    return SPECS[isa_family(), dtype]


def plan_product(
    M: int, N: int, K: int, dtype: DTypeLike, settings: Settings, batch: int = 1, headroom: float = math.inf
) -> Plan:
    """The plan that `execute` would follow for finite, well scaled data.

    Parameters
    ----------
    M, N, K : int
        At least 1.
    dtype : dtype_like
        Of the arithmetic: real and complex numbers of single and double precision, int64, int32, int16 (results of 32
        bits) and bool may run on the engine, others run through NumPy.
    settings : Settings
    batch : int
        Equal products.
    headroom : float
        See `integers.Lane`.

    Raises
    ------
    ValueError
        Options that can't be met, see `decision.select.select`.
    """
    if settings.scheme != "auto":  # names may be given to other schemes later: plans are kept by content
        one = not isinstance(settings.scheme, tuple)
        schemes = tuple(resolve_scheme(s) for s in ((settings.scheme,) if one else settings.scheme))
        settings = replace(settings, scheme=schemes[0] if one else schemes)
    return _plan(M, N, K, batch, cast(Any, dtype), settings, settings.threads or default_threads(), headroom)


@functools.lru_cache(maxsize=4096)
def _plan(M: int, N: int, K: int, batch: int, dtype: Any, settings: Settings, threads: int, headroom: float) -> Plan:
    product = Product(M, N, K, batch, np.dtype(dtype).name)
    blocks_for: Any = functools.partial(_blocks_within, headroom, product, settings.workspace_limit, threads)
    if product.dtype == "bool":
        blocks_for = functools.partial(_bool_workspace, product, settings.workspace_limit, threads)
    plan = select(product, settings, threads, blocks_for, SPECS.get((isa_family(), product.lane.dtype)))
    return plan if headroom == math.inf else replace(plan, headroom=headroom)


def _bool_workspace(product: Product, limit: int | None, threads: int, _scheme: FlatScheme) -> tuple[None, int]:
    """What a product of truth values needs."""
    _need_compiler()
    of_b, each = boolean.workspace_bytes(product.M, product.N, product.K)
    nbytes = of_b + threads * each
    if limit is not None and nbytes > limit:
        raise Inadmissible(f"B as bits needs {nbytes} bytes, more than workspace_limit allows")
    return None, nbytes


def _need_compiler() -> None:
    if numba.config.DISABLE_JIT:
        raise Inadmissible("NUMBA_DISABLE_JIT is set, and the engine needs the compiler")


def _blocks_within(
    headroom: float, product: Product, limit: int | None, threads: int, scheme: FlatScheme
) -> tuple[Blocks, int]:
    """`_blocks` of schemes whose combinations don't outgrow the operands."""
    grows = max(scheme.largest_sums[:2])
    if grows > max(headroom, 1):
        raise Inadmissible(
            f"{','.join(s.name for s in scheme.levels)} adds up blocks to {grows:.0f} times their numbers, which could "
            f"leave the range of {product.dtype}"
        )
    return _blocks(product, limit, threads, scheme)


def _blocks(product: Product, limit: int | None, threads: int, scheme: FlatScheme) -> tuple[Blocks, int]:
    """Block sizes of the engine for a row-major C, and the workspace that suffices for any order of C.

    Data may ask for the classical product instead of the levels, so levels are only admitted where that fits as well;
    without a limit of the user's it does.
    """
    _need_compiler()
    copies = opened_bytes(product)
    if limit is not None and (limit := limit - copies) <= 0:
        raise Inadmissible(f"the real copies of complex operands need {copies} bytes, more than workspace_limit allows")
    product = product.lane
    M, N, K, _, dtype = product
    spec = _spec(dtype)
    teams = threads if whole_products(product, threads) else 1
    classical = 0 if limit is None or scheme.rank == 1 else _blocks(product, limit, threads, flatten(()))[1]
    if limit is None:
        limit = default_limit(M, N, K, spec.itemsize, threads)
    blocks = choose_blocks(spec, scheme, M, N, K, threads, teams, limit)
    turned = choose_blocks(spec, scheme.transposed, N, M, K, threads, teams, limit)
    return blocks, copies + max(blocks.workspace(threads, teams), turned.workspace(threads, teams), classical)


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
        plan = replace(plan, reason="NumPy's product of a matrix and its transpose computes half of it, and is faster")
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
        found = magnitudes(table_of([problem], blocks), _spec(plan.dtype), plan.threads)
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
        plan.depth, scheme, "normwise", executor="cpu", leaf=plan.leaf, threads=1, workspace_limit=plan.workspace_limit
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
    launch = _launch(plan, turned)
    table = table_of([problem], launch.blocks)
    if plan.levels and not launch.engine.spec.exact:
        if found is None:
            found = magnitudes(table, launch.engine.spec, plan.threads)
        elif turned:
            found = [(columns, rows) for rows, columns in found]
        return _run_guarded(table, problem.alpha, problem.beta, launch, found)
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

    @property
    def workspace(self) -> int:
        """Bytes that `run` borrows."""
        return self.blocks.workspace(self.plan.threads, self.plan.threads if self.plan.whole_products else 1)

    def run(self, table: np.ndarray, alpha: float, beta: float) -> None:
        self.engine.run_table(table, alpha, beta, self.scheme, self.blocks, self.plan.threads, self.plan.whole_products)


@functools.lru_cache(maxsize=4096)
def _launch(plan: Plan, turned: bool) -> _Launch:
    exact = np.dtype(plan.dtype).kind == "i"
    scheme, blocks = flatten(plan.levels, exact), plan.blocks
    assert blocks is not None, "a plan of the engine has block sizes"
    if turned:  # the schedule is made anew; what shapes the arithmetic (KC, CHUNKS, FIRST, OUTER) is the same
        scheme = scheme.transposed
        product = Product(plan.N, plan.M, plan.K, plan.batch, plan.dtype)
        blocks, _ = _blocks(product, plan.workspace_limit, plan.threads, scheme)
    engine = engine_for(_spec(plan.dtype), plan.leaf == "portable")
    if exact:  # no data are dangerous
        return _Launch(plan, turned, engine, scheme, blocks, 0, 0, 0, (0, 0))
    info = np.finfo(plan.dtype)
    u, v, weight = scheme.largest_sums
    growth = 2 * weight * plan.K
    return _Launch(
        plan, turned, engine, scheme, blocks, int(info.minexp), int(info.maxexp), growth, (math.log2(u), math.log2(v))
    )


def _run_guarded(products: np.ndarray, alpha: float, beta: float, launch: _Launch, found: Found) -> Plan:
    """Run the products of a plan with levels, or what the data allow instead, and return the last one's plan."""
    plan, spec = launch.plan, launch.engine.spec
    verdicts = [_verdict(launch, alpha, rows, columns) for rows, columns in found]
    runs: list[tuple[_Launch, np.ndarray, Plan, list[Scaling]]] = []  # the scalings are only kept alive
    first = 0
    for (danger, scales), alike in itertools.groupby(verdicts):  # one run for all that follow each other
        last = first + len(list(alike))
        part, chosen, plan, scalings = products[first:last], launch, launch.plan, []
        if danger:
            plan = _classical(launch.plan, danger)
            chosen = _launch(plan, launch.turned)
            change_blocks(part, chosen.blocks)
        elif scales:
            plan = _scaled(launch.plan)
            scalings = [scaling_for(rows, columns, spec) for rows, columns in found[first:last]]
            scale(part, scalings)
        runs.append((chosen, part, plan, scalings))
        first = last
    if len(runs) > 1:  # what can't be had must be known before the first of them writes
        reserve(max(chosen.workspace for chosen, *_ in runs))
    for chosen, part, plan, _ in runs:
        chosen.run(part, alpha, beta)
        for _ in part:
            record(plan)
    return plan


def _verdict(launch: _Launch, alpha: float, rows: Magnitudes, columns: Magnitudes) -> tuple[str, bool]:
    """Why the data forbid the plan's levels (or ""), and whether its rows and columns must be scaled.

    A row of exponent x has magnitudes below 2^(x+1). A combination of blocks of A is then below ‖U_r‖₁·2^(x+1), a block
    product with its weight below K·‖U_r‖₁·‖V_r‖₁·max(1, |W|)·2^(x+y+2), and the sum of products below e·K·2^(x+y+2).
    """
    if not (rows.finite and columns.finite and math.isfinite(alpha)):
        return "the data are not finite", False
    balanced = launch.plan.accuracy == "balanced"
    smallest = [x.lowest if balanced else x.highest for x in (rows, columns) if x.highest != ZERO_EXPONENT]
    if min(smallest, default=0) < launch.least:
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
