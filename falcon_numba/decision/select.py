"""Which executor, scheme and depth: every candidate's time by the roofline model, the fastest admissible one wins.

NumPy's product is a candidate with its own measured curve. A deeper plan must be faster by a margin, since it costs
accuracy and workspace; what breaks `max_error` or the workspace limit makes way for the next one.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algorithms import FlatScheme, Scheme, flatten, levels_growth, resolve_scheme
from ..lanes import lane_of
from ..numerics.bounds import error_bound, unit_roundoff
from ..planning import Plan
from ..problem import Inadmissible
from .candidates import Candidates, auto_candidates, candidates
from .hardware import hardware
from .predict import (
    Kernel,
    Product,
    Question,
    has_blas,
    in_order,
    numpy_is_surely_faster,
    opening_seconds,
    whole_products,
)
from .ranking import Ranking, name_of
from .rates import default_rates, rates_for

if TYPE_CHECKING:
    from ..config import Settings
    from ..cpu.blocking import Blocks

AUTO_SCHEME = "strassen"
MOST_AUTO_DEPTH = 4  # of a named scheme
MOST_RANK = 2**15  # leaf products; beyond it tables and packing outweigh any matrix that fits into memory
MOST_GRID = 1024  # blocks along one dimension
MOST_DEPTH = 16

BlocksFor = Callable[[FlatScheme], "tuple[Any, int]"]


def levels_for(scheme, depth: str | int) -> tuple[Scheme, ...] | None:
    """The levels that the options `scheme` and `depth` force, or None where depth is left to the rule.

    Raises
    ------
    ValueError
        A depth that contradicts a tuple of schemes, or that makes no sense.
    """
    if isinstance(scheme, tuple):
        levels = tuple(resolve_scheme(s) for s in scheme)
        if depth not in ("auto", len(levels)):
            raise ValueError(f"depth={depth} contradicts the {len(levels)} levels of scheme={scheme!r}")
        return _sensible(levels)
    if scheme != "auto":
        resolve_scheme(scheme)
    if depth == "auto":
        return None
    one = resolve_scheme(AUTO_SCHEME if scheme == "auto" else scheme)
    if int(depth) > MOST_DEPTH:
        raise ValueError(_too_deep(one.name, int(depth), f"{one.rank}^{depth} block products"))
    return _sensible((one,) * int(depth))


def _too_deep(name: str, depth: int, what: str) -> str:
    limits = f"at most {MOST_RANK} products and {MOST_GRID} blocks a side"
    return f"depth={depth} of scheme {name!r} makes no sense: {what}; {limits}"


def _sensible(levels: tuple[Scheme, ...]) -> tuple[Scheme, ...]:
    rank, grid = 1, (1, 1, 1)
    for s in levels:
        rank, grid = rank * s.rank, (grid[0] * s.m, grid[1] * s.k, grid[2] * s.n)
    if rank > MOST_RANK or max(grid) > MOST_GRID:
        name = "*".join(s.name for s in levels)
        raise ValueError(_too_deep(name, len(levels), f"{rank} block products of a {grid[0]}×{grid[1]}×{grid[2]} grid"))
    # Levels of one block are the classical product.
    return tuple(s for s in levels if s.rank > 1)


def select(
    product: Product, settings: Settings, threads: int, blocks_for: BlocksFor, kernel: Kernel | None = None
) -> Plan:
    """The plan for a product.

    Parameters
    ----------
    product : Product
    settings : Settings
    threads : int
        That may be used.
    blocks_for : callable (FlatScheme) -> (Blocks, workspace bytes)
        Block sizes of the engine; raises Inadmissible where they don't fit the workspace allowed.
    kernel : Kernel
        The engine's for this dtype, None where it has none.

    Raises
    ------
    Inadmissible
        A ValueError: forced options, or all candidates, break `max_error` or the workspace limit.
    ValueError
        Options that contradict each other.
    """
    if product.dtype == "bool":
        return _bool_plan(product, settings, threads, blocks_for)
    if kernel is None:
        return _numpy_plan(product, settings, threads, f"the engine has no {product.dtype} yet")
    exact = np.dtype(product.dtype).kind == "i"
    if settings.accuracy == "estimated" and settings.max_error is None and not exact:
        raise ValueError("accuracy='estimated' needs max_error, the largest error that the estimate may have")
    forced = levels_for(settings.scheme, settings.depth)
    if settings.executor == "numpy":
        clashes = {
            _levels(len(forced or ())): forced,
            f"leaf={settings.leaf!r}": settings.leaf != "auto",
            "reproducible=True": settings.reproducible,
        }
        for clash, there in clashes.items():
            if there:
                raise ValueError(
                    f"executor='numpy' runs the classical product of NumPy's BLAS: it can't honour {clash}"
                )
        return _numpy_plan(product, settings, threads, "executor='numpy'")
    if settings.tune and settings.accuracy == "estimated":
        raise ValueError("accuracy='estimated' forbids tune=True: the data decide, not the time alone")
    if settings.tune and settings.reproducible:
        raise ValueError("reproducible=True forbids tune=True: what is fastest may change from run to run")
    if forced and settings.accuracy == "componentwise" and not exact:
        raise ValueError(f"accuracy='componentwise' allows depth 0 only, not {_levels(len(forced))}")
    named = settings.scheme != "auto"
    numpy_will_do = not (forced or named or settings.needs_engine)
    if numpy_will_do and numpy_is_surely_faster(product.M, product.N, product.K, np.dtype(product.dtype).kind):
        with contextlib.suppress(Inadmissible):
            reason = "NumPy is faster for small products"
            if has_blas(product.dtype):
                reason = "NumPy is faster for thin results, and where M·N·K is below 128³"
            return _numpy_plan(product, settings, threads, reason)

    if forced is not None:
        choice = candidates((forced,))
    elif settings.accuracy == "componentwise" and not exact:
        choice = candidates(((),))
    elif named:
        choice = _depths_of(resolve_scheme(settings.scheme))
    else:
        choice = auto_candidates()
    # What is reproducible must not depend on what this machine measured, nor on the number of threads.
    lane = product.lane
    if settings.reproducible:
        rates = single = default_rates(lane.dtype, 1, hardware())
    else:
        rates, single = rates_for(lane.dtype, threads), rates_for(lane.dtype, 1)
    opening = opening_seconds(product, rates)
    question = Question(lane, choice, numpy_will_do, kernel, rates, single, opening)
    check = functools.partial(_check, product, settings, blocks_for)
    make = functools.partial(_plan, product, settings, threads, blocks_for, Ranking(question, check))
    order = in_order(question)
    if forced is not None:
        asked = settings.depth if isinstance(settings.depth, int) else len(settings.scheme)
        reason = "as asked for" if asked == len(forced) else "levels of one block are the classical product"
        return make(*order[0], reason)
    reason = f"the fastest of {len(order)} candidates, by the model"
    refused: list[Inadmissible] = []
    for seconds, levels in order:
        try:
            return make(seconds, levels, reason)
        except Inadmissible as error:
            if not refused:
                reason = f"{name_of(levels)} would be faster, but {error}"
            refused.append(error)
    inaccurate = [error for error in refused if isinstance(error, TooInaccurate)]
    if len(inaccurate) < len(refused):
        raise refused[0]
    least = min(inaccurate, key=lambda error: error.bound)
    raise Inadmissible(
        f"{least}, and is the smallest there is; accuracy='estimated' judges by the error on the operands instead"
    )


def _levels(count: int) -> str:
    return f"{count} level{'' if count == 1 else 's'}"


class TooInaccurate(Inadmissible):
    """A plan whose proven bound is too large."""

    def __init__(self, message: str, bound: float):
        super().__init__(message)
        self.bound = bound


def _admit(bound: float, settings: Settings, what: str) -> None:
    if settings.max_error is not None and bound > settings.max_error and settings.accuracy != "estimated":
        raise TooInaccurate(
            f"the proven error bound of {what}, {bound:.2g} (relative to K·max|A|·max|B|), exceeds "
            f"max_error={settings.max_error:g}",
            bound,
        )


def _depths_of(scheme: Scheme) -> Candidates:
    """One level of a scheme and more, as far as they make sense."""
    if scheme.rank == 1:
        return candidates(((),))
    most = min(math.log(MOST_RANK, scheme.rank), math.log(MOST_GRID, max(scheme.grid)), MOST_AUTO_DEPTH)
    return candidates(tuple((scheme,) * depth for depth in range(1, max(1, math.floor(most)) + 1)))


def _check(
    product: Product, settings: Settings, blocks_for: BlocksFor, levels: tuple[Scheme, ...] | None
) -> tuple[float, int]:
    """Error bound and workspace of a candidate; raises Inadmissible."""
    if levels is None:
        return _numpy_bound(product, settings), 0
    bound, _, workspace = _engine_facts(product, settings, blocks_for, levels)
    return bound, workspace


def _engine_facts(
    product: Product, settings: Settings, blocks_for: BlocksFor, levels: tuple[Scheme, ...]
) -> tuple[float, Blocks, int]:
    lane, parts = product.lane, lane_of(product.dtype).parts
    flat = _meaningful(levels, lane.dtype)
    blocks, workspace = blocks_for(flat)
    bound = parts * error_bound(levels, lane.K, blocks.KC, lane.dtype, settings.accuracy).relative
    _admit(bound, settings, f"depth {len(levels)}")
    return bound, blocks, workspace


@functools.lru_cache(maxsize=256)
def _meaningful(levels: tuple[Scheme, ...], dtype: str) -> FlatScheme:
    """The flattened levels; Inadmissible where they leave the range of the dtype, or none of its digits."""
    _sensible(levels)
    if np.dtype(dtype).kind == "i":
        flat = flatten(levels, integral=True)
        if not flat.fits(dtype):
            raise Inadmissible(
                f"{'*'.join(s.name for s in levels)} has coefficients that are no integers: products of integers are "
                "exact, and it can't compute them"
            )
        return flat
    flat = flatten(levels)
    if not flat.fits(dtype):
        raise Inadmissible(f"coefficients of {'*'.join(s.name for s in levels)} leave the range of {dtype}")
    growth = float(levels_growth(levels)) * flat.grid[1]
    if growth * unit_roundoff(dtype) >= 1:
        raise Inadmissible(
            f"{_levels(len(levels))} make no sense: a growth factor of {growth:.2g} leaves no digit of {dtype}"
        )
    return flat


def _plan(
    product: Product,
    settings: Settings,
    threads: int,
    blocks_for: BlocksFor,
    ranking: Ranking,
    seconds: float,
    levels: tuple[Scheme, ...] | None,
    reason: str,
) -> Plan:
    if levels is None:
        return _numpy_plan(product, settings, threads, reason, seconds, ranking)
    bound, blocks, workspace = _engine_facts(product, settings, blocks_for, levels)
    flat = flatten(levels)
    return Plan(
        *product,
        executor="cpu",
        levels=levels,
        grid=flat.grid,
        rank=flat.rank,
        leaf="portable" if settings.leaf == "portable" else "simd",
        blocks=blocks,
        threads=threads,
        whole_products=whole_products(product.lane, threads),
        workspace_bytes=workspace,
        workspace_limit=settings.workspace_limit,
        accuracy=settings.accuracy,
        error_bound=bound,
        reason=reason,
        seconds=seconds,
        ranking=ranking,
        checked=settings.check,
    )


def _bool_plan(product: Product, settings: Settings, threads: int, blocks_for: BlocksFor) -> Plan:
    """The plan for OR of ANDs, where there are no levels."""
    if settings.executor == "numpy":
        return _numpy_plan(product, settings, threads, "executor='numpy'")
    if settings.executor == "auto":
        if numpy_is_surely_faster(product.M, product.N, product.K, "b"):
            return _numpy_plan(product, settings, threads, "NumPy is faster for small products")
        try:
            blocks_for(flatten(()))
        except Inadmissible as error:
            return _numpy_plan(product, settings, threads, str(error))
    return Plan(
        *product,
        executor="cpu",
        levels=(),
        grid=(1, 1, 1),
        rank=1,
        leaf="simd",
        blocks=None,
        threads=threads,
        whole_products=False,
        workspace_bytes=blocks_for(flatten(()))[1],
        workspace_limit=settings.workspace_limit,
        accuracy=settings.accuracy,
        error_bound=0.0,
        reason="64 truth values in a word",
    )


def _numpy_bound(product: Product, settings: Settings) -> float:
    kind = np.dtype(product.dtype).kind
    if kind in "fc":
        bound = error_bound((), product.K, product.K, product.dtype, "componentwise").relative
    else:
        bound = math.nan if kind == "O" else 0.0  # integers are exact in their ring; who knows what objects do
    _admit(bound, settings, "NumPy's product")
    return bound


def _numpy_plan(
    product: Product,
    settings: Settings,
    threads: int,
    reason: str,
    seconds: float = math.nan,
    ranking: Ranking | None = None,
) -> Plan:
    return Plan(
        *product,
        executor="numpy",
        levels=(),
        grid=(1, 1, 1),
        rank=1,
        leaf="blas" if has_blas(product.dtype) else "loops",
        blocks=None,
        threads=threads,
        whole_products=False,
        workspace_bytes=0,
        workspace_limit=settings.workspace_limit,
        accuracy=settings.accuracy,
        error_bound=_numpy_bound(product, settings),
        reason=reason,
        seconds=seconds,
        ranking=ranking,
    )
