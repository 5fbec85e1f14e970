"""The schemes and depths that the decision chooses from, as a table of what the model needs to know of them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..algorithms import FlatScheme, Scheme, flatten, resolve_scheme
from . import roofline as r
from .constants import MOST_TOGETHER

# Strassen's scheme needs the fewest additions for what it saves; ⟨2,3,3;15⟩ saves more than one level of it and less
# than two, and its grids fit other shapes. Schemes of higher rank in the catalogue lose everywhere on a CPU: what
# ⟨3,3,3;23⟩ saves beside ⟨2,3,3;15⟩ is less than what its 51 terms a side cost.
# In front of it one level of Strassen's pays; with a third level it gains at most 2 % over three of Strassen's, and
# loses more often.
SINGLE = ("strassen", "hk233", "hk323", "hk332")
AUTO = ((), *((name,) for name in SINGLE), *(("strassen", name) for name in SINGLE), ("strassen",) * 3)


class Candidates(NamedTuple):
    """Levels (outermost first) of every candidate, the classical product first, and their table for `roofline`."""

    levels: tuple[tuple[Scheme, ...], ...]
    table: np.ndarray


@functools.cache
def auto_candidates() -> Candidates:
    """What is chosen from where neither a scheme nor a depth is asked for."""
    return candidates(tuple(tuple(map(resolve_scheme, names)) for names in AUTO))


@functools.lru_cache(maxsize=256)
def candidates(levels: tuple[tuple[Scheme, ...], ...]) -> Candidates:
    """The table of these candidates."""
    return Candidates(levels, np.array([_row(one) for one in levels]))


def _row(levels: tuple[Scheme, ...]) -> list[float]:
    flat, count = flatten(levels), len(levels)
    firsts = (min(count, max(0, count - MOST_TOGETHER) + i) for i in range(r.SPLIT_COUNT))
    return [*map(float, (*flat.grid, flat.rank, count)), *(x for first in firsts for x in _split(flat, first))]


def _split(scheme: FlatScheme, levels: int) -> r.Split:
    first, others = scheme.split(levels)
    outer, inner = others.split(max(0, len(scheme.levels) - levels - 1))
    m, k, n = others.grid
    a, b, c = (len(x.block) for x in (first.U, first.V, first.W))
    combined = levels > 0  # by the first levels, before the others
    inner_mn = inner.grid[0] * inner.grid[2]
    return r.Split(
        together=others.rank,
        a_terms=first.rank * len(others.U.block) + combined * a * m * k,
        b_terms=first.rank * len(others.V.block) + combined * b * k * n,
        a_blocks=a * m * k,
        b_blocks=b * k * n,
        inner=inner_mn,
        inner_sums=first.rank * outer.rank * len(inner.W.block),
        outer_sums=first.rank * len(outer.W.block) * inner_mn if outer.levels else 0.0,
        c_blocks=c * m * n,
    )
