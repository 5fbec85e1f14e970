"""Linear combinations of blocks as straight-line programs: what the combine kernels compute, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np

from ..algorithms import Scheme, Terms, flatten

Sum = tuple[tuple[int, float], ...]  # (value, coefficient), added from left to right


@dataclass(frozen=True)
class Program:
    """`inputs` values, then one value for each of `temporaries`, then the sums that are the outputs.

    A shared part of sums is computed once. It is itself a part of each sum, so no value passes through more additions
    than its sum has terms, less one, and no partial sum is larger than the sum of magnitudes: the error bounds of the
    sums spelt out hold.
    """

    inputs: int
    temporaries: tuple[Sum, ...]
    outputs: tuple[Sum, ...]

    def run(self, values: Sequence[Any], combine: Callable[[list[tuple[Any, float]]], Any]) -> list[Any]:
        """The outputs for these inputs; `combine` adds up (value, coefficient) pairs."""
        known = list(values)
        for terms in self.temporaries:
            known.append(combine([(known[i], c) for i, c in terms]))
        return [combine([(known[i], c) for i, c in terms]) for terms in self.outputs]


def make_program(matrix: np.ndarray) -> Program:
    """Of ``matrix @ values``: the pair that most rows share, up to a factor, becomes a temporary, again and again."""
    rows = [{i: float(c) for i, c in enumerate(row) if c} for row in matrix.tolist()]
    temporaries: list[Sum] = []
    pairs: Counter[tuple[int, int, float]] = Counter()
    for row in rows:
        pairs.update(_pairs(row))
    while pairs:
        (i, j, ratio), count = pairs.most_common(1)[0]
        if count < 2:
            break
        fresh = matrix.shape[1] + len(temporaries)
        for row in rows:
            if i in row and j in row and row[j] == ratio * row[i]:
                pairs.subtract(_pairs(row))
                row[fresh] = row.pop(i)
                del row[j]
                pairs.update(_pairs(row))
        pairs = +pairs
        temporaries.append(((i, 1.0), (j, ratio)))
    return Program(matrix.shape[1], tuple(temporaries), tuple(tuple(sorted(row.items())) for row in rows))


def _pairs(row: dict[int, float]) -> list[tuple[int, int, float]]:
    # Only ratios that are powers of two: then a shared part times a coefficient is exact.
    found = [(i, j, row[j] / row[i]) for i, j in combinations(sorted(row), 2)]
    return [pair for pair in found if abs(np.frexp(pair[2])[0]) == 0.5]


@lru_cache(maxsize=64)
def programs(scheme: Scheme) -> tuple[Program, Program, Program]:
    """Of one level: the R sums of A's blocks, the R sums of B's, the m·n sums of products."""
    flat = flatten((scheme,))
    m, k, n = flat.grid
    U, V, W = (_dense(terms, size) for terms, size in ((flat.U, m * k), (flat.V, k * n), (flat.W, m * n)))
    return make_program(U), make_program(V), make_program(W.T)


def _dense(terms: Terms, blocks: int) -> np.ndarray:
    out = np.zeros((len(terms.ptr) - 1, blocks))
    out[np.repeat(np.arange(len(out)), np.diff(terms.ptr)), terms.block] = terms.coef
    return out
