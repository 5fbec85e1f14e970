"""Additions: spelt out, after sharing common subexpressions, and in a stored evaluation order.

An evaluation order is a straight-line program, one statement a line::

    s1 = a21 + a22        sums and differences of blocks of A, or of B, or of products
    p6 = s2 * t2          a product: the left side combines A, the right side B
    c11 = p1 + p2         blocks of C; a block a_il is written a11, from one, as in print

The r-th product statement is product r of the scheme. From ten blocks a side on, write row and column apart: ``a10_3``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np

from .scheme import Scheme, SchemeError

_STATEMENT = re.compile(r"^\s*([a-z]\w*)\s*=\s*(.+?)\s*$")
_PRODUCT = re.compile(r"^([a-z]\w*)\s*\*\s*([a-z]\w*)$")
_TERM = re.compile(r"\s*([+−-])\s*([a-z]\w*)")
_BLOCK = re.compile(r"^([abc])(?:(\d)(\d)|(\d+)_(\d+))$")

Form = dict[int, int]


def additions_naive(scheme: Scheme) -> int:
    """Block additions when every Ã_r, B̃_r and C_ij is summed term by term: ‖U‖₀ + ‖V‖₀ − 2R + ‖W‖₀ − m·n."""
    u, v, w = scheme.nonzeros
    return u + v - 2 * scheme.rank + w - scheme.m * scheme.n


@lru_cache(maxsize=128)
def additions_cse(scheme: Scheme) -> int:
    """Block additions after greedy common-subexpression elimination, or in the stored order where that needs fewer.

    The pair of terms that the most sums share, up to a common factor, becomes a temporary, until no two sums share one
    (the usual heuristic: A. R. Benson and G. Ballard, "A framework for practical parallel fast matrix multiplication",
    PPoPP 2015). An upper bound on what the scheme needs.
    """
    R = scheme.rank
    forms = (scheme.U.reshape(R, -1), scheme.V.reshape(R, -1), scheme.W.reshape(R, -1).T)
    greedy = sum(_greedy_additions(x) for x in forms)
    return min(greedy, additions_of(scheme.evaluation_order)) if scheme.evaluation_order else greedy


def additions_of(program: Iterable[str]) -> int:
    """Additions and subtractions in an evaluation order."""
    total = 0
    for line in program:
        _, right = _parse(line)
        if not _PRODUCT.match(right):
            total += len(_terms(right, line)) - 1
    return total


def evaluate(program: Sequence[str], grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run an evaluation order on symbols and read off the scheme it computes.

    Parameters
    ----------
    program : sequence of str
        One statement each, as the module describes.
    grid : tuple of int
        (m, k, n).

    Returns
    -------
    U, V, W : ndarray of int64, shapes (R, m, k), (R, k, n), (R, m, n)

    Raises
    ------
    SchemeError
        A statement that does not parse, uses an unknown name, defines a name twice, or mixes A, B and products in one
        sum; a block of C left undefined.
    """
    m, k, n = grid
    shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
    space: dict[str, str] = {}  # name -> "a", "b" or "p": what its form combines
    forms: dict[str, Form] = {}
    products: list[tuple[Form, Form]] = []
    outputs: dict[int, Form] = {}

    def look_up(name: str, line: str) -> tuple[str, Form]:
        if name in forms:
            return space[name], forms[name]
        block = _BLOCK.match(name)
        if block and block[1] != "c":
            return block[1], {_block_index(block, shapes, line): 1}
        raise SchemeError(f"evaluation order: {name!r} in {line!r} is not defined before")

    for line in program:
        target, right = _parse(line)
        block = _BLOCK.match(target)
        if target in forms or (block and block[1] != "c"):
            raise SchemeError(f"evaluation order: {line!r} defines {target!r} again")
        if product := _PRODUCT.match(right):
            (kind_a, u), (kind_b, v) = look_up(product[1], line), look_up(product[2], line)
            if (kind_a, kind_b) != ("a", "b"):
                raise SchemeError(
                    f"evaluation order: {line!r} must multiply a sum of blocks of A by one of blocks of B"
                )
            space[target], forms[target] = "p", {len(products): 1}
            products.append((u, v))
        else:
            parts = [(sign, *look_up(name, line)) for sign, name in _terms(right, line)]
            kinds = {kind for _, kind, _ in parts}
            if len(kinds) > 1 or (block and kinds != {"p"}):
                raise SchemeError(f"evaluation order: {line!r} mixes blocks of A, blocks of B or products")
            total: Counter[int] = Counter()
            for sign, _, form in parts:
                for index, coefficient in form.items():
                    total[index] += sign * coefficient
            space[target], forms[target] = kinds.pop(), dict(total)
        if block:
            outputs[_block_index(block, shapes, line)] = forms[target]
    if len(outputs) != m * n:
        raise SchemeError(f"evaluation order: defines {len(outputs)} of the {m * n} blocks of C")

    R = len(products)
    U = np.array([_dense(u, m * k) for u, _ in products], dtype=np.int64).reshape(R, m, k)
    V = np.array([_dense(v, k * n) for _, v in products], dtype=np.int64).reshape(R, k, n)
    W = np.array([_dense(outputs[q], R) for q in range(m * n)], dtype=np.int64).T.reshape(R, m, n)
    return U, V, W


def _parse(line: str) -> tuple[str, str]:
    match = _STATEMENT.match(line)
    if not match:
        raise SchemeError(f"evaluation order: {line!r} is not of the form 'name = expression'")
    return match[1], match[2]


def _terms(right: str, line: str) -> list[tuple[int, str]]:
    text = right if right[0] in "+-−" else "+" + right
    terms = [(1 if sign == "+" else -1, name) for sign, name in _TERM.findall(text)]
    if _TERM.sub("", text).strip():
        raise SchemeError(f"evaluation order: {line!r} is neither a sum nor a product of names")
    return terms


def _block_index(block: re.Match[str], shapes: dict[str, tuple[int, int]], line: str) -> int:
    row, column = int(block[2] or block[4]) - 1, int(block[3] or block[5]) - 1
    rows, columns = shapes[block[1]]
    if not (0 <= row < rows and 0 <= column < columns):
        raise SchemeError(f"evaluation order: {block[0]!r} in {line!r} lies outside the {rows}×{columns} grid")
    return row * columns + column


def _dense(form: Form, size: int) -> list[int]:
    return [form.get(index, 0) for index in range(size)]


def _greedy_additions(matrix: np.ndarray) -> int:
    rows = [{i: Fraction(c) for i, c in enumerate(row) if c} for row in matrix.tolist()]
    pairs: Counter[tuple[int, int, Fraction]] = Counter()
    for row in rows:
        pairs.update(_pairs(row))
    fresh = matrix.shape[1]
    temporaries = 0
    while pairs:
        (i, j, ratio), count = pairs.most_common(1)[0]
        if count < 2:
            break
        for row in rows:
            if i in row and j in row and row[j] == ratio * row[i]:
                pairs.subtract(_pairs(row))
                row[fresh] = row.pop(i)
                del row[j]
                pairs.update(_pairs(row))
        pairs = +pairs
        fresh += 1
        temporaries += 1
    return temporaries + sum(max(0, len(row) - 1) for row in rows)


def _pairs(row: dict[int, Fraction]) -> list[tuple[int, int, Fraction]]:
    return [(i, j, row[j] / row[i]) for i, j in combinations(sorted(row), 2)]
