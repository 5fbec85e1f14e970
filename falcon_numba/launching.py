"""How the engine runs a plan, and what runs in its place where the data forbid it.

The guard looks at the data before an LCMA runs. Data that are not finite, or whose products could overflow, take the
classical product, so that NaN and Inf stand exactly where the classical product has them. Under the balanced contract
rows of A and columns of B whose magnitudes differ too much are scaled by powers of two.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .algorithms import flatten
from .cpu.blocking import Blocks
from .cpu.engine import Engine, Scaling, change_blocks, engine_for, scale, scaling_for
from .cpu.guard import ZERO_EXPONENT, Magnitudes
from .cpu.workspace import reserve
from .decision.predict import Product
from .numerics.bounds import SCALED, SPREAD, error_bound
from .planner import engine_blocks, spec_for
from .planning import Plan
from .tracing import record

if TYPE_CHECKING:
    from .algorithms.flatten import FlatScheme

Found = list[tuple[Magnitudes, Magnitudes]]  # of the rows of A and the columns of B of every product


class Launch(NamedTuple):
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
def launch_for(plan: Plan, turned: bool) -> Launch:
    exact = np.dtype(plan.dtype).kind == "i"
    scheme, blocks = flatten(plan.levels, exact), plan.blocks
    assert blocks is not None, "a plan of the engine has block sizes"
    if turned:  # the schedule is made anew; what shapes the arithmetic (KC, CHUNKS, FIRST, OUTER) is the same
        scheme = scheme.transposed
        product = Product(plan.N, plan.M, plan.K, plan.batch, plan.dtype)
        blocks, _ = engine_blocks(product, plan.workspace_limit, plan.threads, scheme)
    engine = engine_for(spec_for(plan.dtype), plan.leaf == "portable")
    if exact:  # no data are dangerous
        return Launch(plan, turned, engine, scheme, blocks, 0, 0, 0, (0, 0))
    info = np.finfo(plan.dtype)
    u, v, weight = scheme.largest_sums
    growth = 2 * weight * plan.K
    return Launch(
        plan, turned, engine, scheme, blocks, int(info.minexp), int(info.maxexp), growth, (math.log2(u), math.log2(v))
    )


def run_guarded(products: np.ndarray, alpha: float, beta: float, launch: Launch, found: Found) -> Plan:
    """Run the products of a plan with levels, or what the data allow instead, and return the last one's plan."""
    plan, spec = launch.plan, launch.engine.spec
    verdicts = [_verdict(launch, alpha, rows, columns) for rows, columns in found]
    runs: list[tuple[Launch, np.ndarray, Plan, list[Scaling]]] = []  # the scalings are only kept alive
    first = 0
    for (danger, scales), alike in itertools.groupby(verdicts):  # one run for all that follow each other
        last = first + len(list(alike))
        part, chosen, plan, scalings = products[first:last], launch, launch.plan, []
        if danger:
            plan = _classical(launch.plan, danger)
            chosen = launch_for(plan, launch.turned)
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


def _verdict(launch: Launch, alpha: float, rows: Magnitudes, columns: Magnitudes) -> tuple[str, bool]:
    """Why the data forbid the plan's levels (or ""), and whether its rows and columns must be scaled.

    A row of exponent x has magnitudes below 2^(x+1). A combination of blocks of A is then below ‖U_r‖₁·2^(x+1), a block
    product with its weight below K·‖U_r‖₁·‖V_r‖₁·max(1, |W|)·2^(x+y+2), and the sum of products below e·K·2^(x+y+2).
    """
    if not (rows.finite and columns.finite and math.isfinite(alpha)):
        return "the data are not finite", False
    balanced = launch.plan.accuracy in SCALED
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
    blocks, workspace = engine_blocks(product, plan.workspace_limit, plan.threads, flatten(()))
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
