"""A·Aᵀ and A·Aᴴ: half of the result is computed, the other half is its mirror image.

The result is divided into halves again and again, until the diagonal blocks are small; those below the diagonal are
ordinary products, each with a plan of its own, LCMAs included (J.-G. Dumas, C. Pernet & A. Sedoglavic, "On fast
multiplication of a matrix by its transpose", ISSAC 2020, has the recursion). Of diagonal blocks the engine's classical
product leaves out the tiles above the diagonal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .cpu.mirror import mirror
from .cpu.threads import default_threads
from .cpu.workspace import reserve
from .decision.predict import Product, numpy_seconds
from .decision.rates import rates_for
from .operands import same_view
from .problem import Inadmissible, Problem

if TYPE_CHECKING:
    from .config import Settings
    from .planning import Plan

LEAST = 512  # rows of a result that is divided
LEAST_BLOCK = 128  # rows of a diagonal block
MOST_HALVINGS = 6
ALIGN = 96  # rows: whole tiles of the micro-kernels
HALF = 0.6  # of the time of a diagonal block, where only its lower half is computed
SYRK = 0.62  # of the time of NumPy's product of different operands, for that of a matrix and its transpose

Block = tuple[int, int, int, int]  # rows and columns of the result, first and last of each


def is_symmetric(problem: Problem) -> bool:
    """Whether B is Aᵀ in the same memory, of matrices worth dividing, and nothing is added to the product."""
    a, b, c = problem.a, problem.b, problem.c
    return (
        c.ndim == 2
        and c.shape[0] == c.shape[1] >= LEAST
        and problem.beta == 0
        and a.dtype == c.dtype
        and c.dtype.char in "fdFD"
        and same_view(a, b.T)
    )


def is_free(settings: Settings) -> bool:
    """Whether the options leave open how a product is computed."""
    return (
        settings.depth == settings.scheme == "auto"
        and settings.accuracy != "estimated"
        and settings.executor != "numpy"
        and not settings.tune
    )


def run(
    problem: Problem,
    settings: Settings,
    make_plan: Callable[..., Plan],
    execute: Callable[..., Plan],
    hermitian: bool = False,
) -> Plan | None:
    """Compute the lower half by blocks and mirror it; the last block's plan, None where NumPy is to do it all.

    Parameters
    ----------
    problem : Problem
        Of one matrix and its transpose, or conjugate transpose.
    settings : Settings
        That `is_free` allows.
    make_plan : callable
        `dispatch.plan_product`.
    execute : callable
        `dispatch.execute`, for different operands.
    hermitian : bool
        Of the conjugate transpose, where the matrix is complex.

    Raises
    ------
    ValueError
        A block that can't be planned under these settings; nothing was written.
    """
    M, _, K = problem.mnk
    c = problem.c
    threads = settings.threads or default_threads()
    try:
        halvings, on_numpy = _decide(M, K, c.dtype, settings, threads, make_plan, 1.0 if hermitian else SYRK)
    except Inadmissible:
        if settings.needs_engine:
            raise
        on_numpy = True
    if on_numpy:
        return None
    if abs(c.strides[0]) < abs(c.strides[1]) and not hermitian:
        c = c.T  # the same in the end
    inside = replace(settings, executor="cpu")
    parts = []
    for r0, r1, c0, c1 in blocks(M, halvings):
        lower = r0 == c0 and _halves_blocks(settings)
        part = Problem(problem.a[r0:r1], problem.b[:, c0:c1], c[r0:r1, c0:c1], problem.alpha, lower=int(lower))
        parts.append((part, replace(inside, depth=0) if lower else inside))
    # What can't be had must be known before the first of them writes.
    reserve(max(make_plan(*part.mnk, c.dtype, how).workspace_bytes for part, how in parts))
    plan = None
    for part, how in parts:
        plan = execute(part, how)
    mirror(c, threads, hermitian)
    return plan


def _halves_blocks(settings: Settings) -> bool:
    """Whether of diagonal blocks only the lower half is computed, which the classical product can do."""
    return settings.depth in ("auto", 0) and settings.scheme == "auto" and not settings.check


def blocks(size: int, halvings: int, first: int = 0) -> Iterator[Block]:
    """The blocks on and below the diagonal, large ones first."""
    half = -(-size // (2 * ALIGN)) * ALIGN
    if halvings == 0 or not 0 < half < size:
        yield first, first + size, first, first + size
        return
    yield first + half, first + size, first, first + half
    yield from blocks(half, halvings - 1, first)
    yield from blocks(size - half, halvings - 1, first + half)


@functools.lru_cache(maxsize=1024)
def _decide(
    M: int,
    K: int,
    dtype: np.dtype,
    settings: Settings,
    threads: int,
    make_plan: Callable[..., Plan],
    numpys_share: float,
) -> tuple[int, bool]:
    """How often to divide, and whether NumPy's own A·Aᵀ is faster."""
    inside = replace(settings, executor="cpu")
    times = {}
    for halvings in range(MOST_HALVINGS):
        if halvings and M >> halvings < LEAST_BLOCK:
            break
        times[halvings] = 0.0
        for r0, r1, c0, c1 in blocks(M, halvings):
            halved = r0 == c0 and _halves_blocks(settings)
            one = make_plan(r1 - r0, c1 - c0, K, dtype, replace(inside, depth=0) if halved else inside)
            times[halvings] += HALF * one.seconds if halved else one.seconds
    best = min(times, key=times.__getitem__)
    if settings.needs_engine:
        return best, False
    lane = Product(M, M, K, 1, dtype.name).lane
    seconds = numpy_seconds(lane, rates_for(lane.dtype, threads), rates_for(lane.dtype, 1))
    return best, numpys_share * seconds < times[best]
