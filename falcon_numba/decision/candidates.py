"""The schemes and depths that the decision chooses from, as a table of what the model needs to know of them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..algorithms import Scheme, flatten, resolve_scheme
from . import roofline as r

# Strassen's scheme needs the fewest additions for what it saves; ⟨2,3,3;15⟩ saves more than one level of it and less
# than two, and its grids fit other shapes. Schemes of higher rank in the catalogue lose everywhere on a CPU: what
# ⟨3,3,3;23⟩ saves beside ⟨2,3,3;15⟩ is less than what its 51 terms a side cost.
# In front of it one level of Strassen's pays; a third level only where all three are Strassen's: hundreds of products
# of many terms were measured to be slower than predicted.
SINGLE = ("strassen", "hk233", "hk323", "hk332")
AUTO = ((), *((name,) for name in SINGLE), *(("strassen", name) for name in SINGLE), ("strassen",) * 3)


INNER, OUTER = (r.INNER_R, r.INNER_MN, r.INNER_W), (r.OUTER_R, r.OUTER_MN, r.OUTER_W)


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
    x = [1.0] * r.CANDIDATE_COLUMNS
    x[r.LEVELS] = len(levels)
    x[r.FIRST_R] = flatten(levels[:1]).rank
    for i, scheme in enumerate(levels):
        flat = flatten((scheme,))
        m, k, n = flat.grid
        for column, factor in ((r.M_, m), (r.K_, k), (r.N_, n), (r.R_, flat.rank)):
            x[column] *= factor
        x[r.U_] *= len(flat.U.block)
        x[r.V_] *= len(flat.V.block)
        rank, blocks, terms = INNER if i == len(levels) - 1 else OUTER
        x[rank] *= flat.rank
        x[blocks] *= m * n
        x[terms] *= len(flat.W.block)
    return x
