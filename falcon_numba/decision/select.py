"""Which executor, scheme and depth: candidates in the order of expected speed, the first that is admissible wins.

A first, simple rule: NumPy where a product is too small for the engine's overhead, else as many levels of Strassen as
its size pays for. Thresholds come from interleaved measurements against OpenBLAS on a 2-core Zen 4.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..algorithms import FlatScheme, Scheme, flatten, levels_growth, resolve_scheme
from ..numerics.bounds import error_bound, unit_roundoff
from ..planning import Plan
from ..problem import Inadmissible

if TYPE_CHECKING:
    from ..config import Settings
    from ..cpu.blocking import Blocks

# The size (see `size_of`) from which the engine pays: where every thread takes whole products of a batch, where one
# thread works alone, and where two share a product; and from which each level pays.
ENGINE_PAYS_WHOLE, ENGINE_PAYS_ALONE, ENGINE_PAYS_SHARED = 512, 640, 768
LEVELS_PAY = {"float32": (640, 896, 6144), "float64": (640, 1152, 6144)}
BLAS_DTYPES = ("float32", "float64", "complex64", "complex128")
AUTO_SCHEME = "strassen"
MOST_RANK = 2**15  # leaf products; beyond it tables and packing outweigh any matrix that fits into memory
MOST_GRID = 1024  # blocks along one dimension
MOST_DEPTH = 16


class Product(NamedTuple):
    """The product to plan for."""

    M: int
    N: int
    K: int
    batch: int
    dtype: str


BlocksFor = Callable[[FlatScheme], "tuple[Blocks, int]"]


def size_of(M: int, N: int, K: int) -> float:
    """The harmonic mean of the dimensions: passes over A, B and C cost 1/N + 1/M + 1/K of the multiplications.

    0 where a dimension is.
    """
    elements = M * N + N * K + K * M
    return 3 * M * N * K / elements if elements else 0.0


def numpy_is_surely_faster(M: int, N: int, K: int) -> bool:
    """Whether NumPy's product is the faster one for any batch and number of threads."""
    return size_of(M, N, K) < ENGINE_PAYS_WHOLE


def engine_pays(product: Product, threads: int) -> int:
    """The size (`size_of`) from which the engine is faster than NumPy's product."""
    if whole_products(product, threads):
        return ENGINE_PAYS_WHOLE
    if threads == 1:
        return ENGINE_PAYS_ALONE
    return round(ENGINE_PAYS_SHARED * math.sqrt(threads / 2))  # waking many threads takes longer than waking one


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


def select(product: Product, settings: Settings, threads: int, blocks_for: BlocksFor) -> Plan:
    """The plan for a product.

    Parameters
    ----------
    product : Product
    settings : Settings
    threads : int
        That may be used.
    blocks_for : callable (FlatScheme) -> (Blocks, workspace bytes)
        Block sizes of the engine; raises Inadmissible where they don't fit the workspace allowed.

    Raises
    ------
    Inadmissible
        A ValueError: forced options, or all candidates, break `max_error` or the workspace limit.
    ValueError
        Options that contradict each other.
    """
    if product.dtype not in LEVELS_PAY:
        return _numpy_plan(product, settings, threads, f"the engine has no {product.dtype} yet")
    forced = levels_for(settings.scheme, settings.depth)
    size = size_of(product.M, product.N, product.K)
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
    if forced and settings.accuracy == "componentwise":
        raise ValueError(f"accuracy='componentwise' allows depth 0 only, not {_levels(len(forced))}")
    named = settings.scheme != "auto"
    engine_asked_for = settings.executor == "cpu" or settings.leaf != "auto" or settings.reproducible
    numpy_will_do = not (forced or named or engine_asked_for)
    if numpy_will_do and size < (least := engine_pays(product, threads)):
        reason = f"NumPy is faster where the harmonic mean of M, N and K is below {least}; it is {size:.0f}"
        with contextlib.suppress(Inadmissible):
            return _numpy_plan(product, settings, threads, reason)
    if forced is not None:
        asked = settings.depth if isinstance(settings.depth, int) else len(settings.scheme)
        reason = "as asked for" if asked == len(forced) else "levels of one block are the classical product"
        return _engine_plan(product, settings, threads, blocks_for, forced, reason)

    scheme = resolve_scheme(settings.scheme if named else AUTO_SCHEME)
    depth = sum(size >= least for least in LEVELS_PAY[product.dtype])
    reason = f"the harmonic mean of M, N and K, {size:.0f}, pays for {_levels(depth)}"
    if named and depth == 0:
        depth, reason = 1, "a scheme was named"
    if settings.accuracy == "componentwise":
        depth, reason = 0, "accuracy='componentwise' allows depth 0 only"
    while True:
        try:
            return _engine_plan(product, settings, threads, blocks_for, _sensible((scheme,) * depth), reason)
        except Inadmissible as refused:
            if depth == 0 and numpy_will_do:
                return _numpy_plan(product, settings, threads, f"the engine can't run: {refused}")
            if depth == 0:
                raise
            reason = f"{_levels(depth)} would pay, but {refused}"
            depth -= 1


def _levels(count: int) -> str:
    return f"{count} level{'' if count == 1 else 's'}"


def _admit(bound: float, settings: Settings, what: str) -> None:
    if settings.max_error is not None and bound > settings.max_error:
        raise Inadmissible(
            f"the proven error bound of {what}, {bound:.2g} (relative to K·max|A|·max|B|), exceeds "
            f"max_error={settings.max_error:g}"
        )


def _engine_plan(
    product: Product,
    settings: Settings,
    threads: int,
    blocks_for: BlocksFor,
    levels: tuple[Scheme, ...],
    reason: str,
) -> Plan:
    flat = flatten(levels)
    if not flat.fits(product.dtype):
        raise Inadmissible(f"coefficients of {'*'.join(s.name for s in levels)} leave the range of {product.dtype}")
    blocks, workspace = blocks_for(flat)
    growth = float(levels_growth(levels)) * flat.grid[1]
    if growth * unit_roundoff(product.dtype) >= 1:
        raise Inadmissible(
            f"{_levels(len(levels))} make no sense: a growth factor of {growth:.2g} leaves no digit of {product.dtype}"
        )
    bound = error_bound(levels, product.K, blocks.KC, product.dtype, settings.accuracy).relative
    _admit(bound, settings, f"depth {len(levels)}")
    return Plan(
        *product,
        executor="cpu",
        levels=levels,
        grid=flat.grid,
        rank=flat.rank,
        leaf="portable" if settings.leaf == "portable" else "simd",
        blocks=blocks,
        threads=threads,
        whole_products=whole_products(product, threads),
        workspace_bytes=workspace,
        workspace_limit=settings.workspace_limit,
        accuracy=settings.accuracy,
        error_bound=bound,
        reason=reason,
    )


def whole_products(product: Product, threads: int) -> bool:
    """Whether each thread takes whole products: enough of them, and each too small to share."""
    return product.batch >= 2 * threads and product.M * product.N * product.K < 1024**3


def _numpy_plan(product: Product, settings: Settings, threads: int, reason: str) -> Plan:
    kind = np.dtype(product.dtype).kind
    if kind in "fc":
        bound = error_bound((), product.K, product.K, product.dtype, "componentwise").relative
    else:
        bound = math.nan if kind == "O" else 0.0  # integers are exact in their ring; who knows what objects do
    _admit(bound, settings, "NumPy's product")
    return Plan(
        *product,
        executor="numpy",
        levels=(),
        grid=(1, 1, 1),
        rank=1,
        leaf="blas" if product.dtype in BLAS_DTYPES else "loops",
        blocks=None,
        threads=threads,
        whole_products=False,
        workspace_bytes=0,
        workspace_limit=settings.workspace_limit,
        accuracy=settings.accuracy,
        error_bound=bound,
        reason=reason,
    )
