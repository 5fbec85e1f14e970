"""From a shape, a dtype and options to a plan: what the decision wants to know of the engine, and plans by product."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numba
import numpy as np

from .algorithms import flatten, resolve_scheme
from .config import Settings
from .cpu import boolean
from .cpu.blocking import Blocks, choose_blocks, default_limit
from .cpu.opened import opened_bytes
from .cpu.spec import SPECS, KernelSpec
from .cpu.threads import default_threads
from .decision.hardware import isa_family
from .decision.predict import Product, whole_products
from .decision.select import select
from .planning import Plan
from .problem import Inadmissible

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .algorithms.flatten import FlatScheme


def spec_for(dtype: str) -> KernelSpec:
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
    """`engine_blocks` of schemes whose combinations don't outgrow the operands."""
    grows = max(scheme.largest_sums[:2])
    if grows > max(headroom, 1):
        raise Inadmissible(
            f"{','.join(s.name for s in scheme.levels)} adds up blocks to {grows:.0f} times their numbers, which could "
            f"leave the range of {product.dtype}"
        )
    return engine_blocks(product, limit, threads, scheme)


def engine_blocks(product: Product, limit: int | None, threads: int, scheme: FlatScheme) -> tuple[Blocks, int]:
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
    spec = spec_for(dtype)
    teams = threads if whole_products(product, threads) else 1
    classical = 0 if limit is None or scheme.rank == 1 else engine_blocks(product, limit, threads, flatten(()))[1]
    if limit is None:
        limit = default_limit(M, N, K, spec.itemsize, threads)
    blocks = choose_blocks(spec, scheme, M, N, K, threads, teams, limit)
    turned = choose_blocks(spec, scheme.transposed, N, M, K, threads, teams, limit)
    return blocks, copies + max(blocks.workspace(threads, teams), turned.workspace(threads, teams), classical)
