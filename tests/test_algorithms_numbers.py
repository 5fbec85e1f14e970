"""Growth, γ, chains and addition counts: published values and loop oracles."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_numba.algorithms import (
    Scheme,
    SchemeError,
    additions_cse,
    additions_naive,
    chain_length,
    classical,
    combination_lengths,
    compose,
    flat_chains,
    flatten,
    gamma,
    growth_factor,
    levels_chain,
    levels_growth,
    permute,
    schemes,
)
from falcon_numba.algorithms.straightline import additions_of, evaluate


@pytest.mark.parametrize(
    ("name", "e", "g", "naive", "cse", "chain", "speedup"),
    [
        ("classical", 1, 1, 0, 0, 0, 1),
        ("strassen", 12, 12 + 2 * math.sqrt(2), 18, 18, 3, Fraction(8, 7)),
        # γ of Winograd's form: Dumas, Pernet, Sedoglavic, ISSAC 2024, give 17.853.
        ("winograd", 18, 17.853, 24, 15, 3, Fraction(8, 7)),
        ("hk223", 12, 4 + 12 + 2 * math.sqrt(2), 20, 20, 3, Fraction(12, 11)),
        # 98 additions as Laderman prints it.
        ("laderman", None, None, 98, None, 6, Fraction(27, 23)),
    ],
)
def test_published_numbers(name, e, g, naive, cse, chain, speedup):
    s = schemes[name]
    if e is not None:
        assert growth_factor(s) == e
        assert gamma(s) == pytest.approx(g, abs=5e-4)
    assert additions_naive(s) == naive
    assert additions_cse(s) == cse or (cse is None and additions_cse(s) < naive)
    assert chain_length(s) == chain
    assert s.speedup == float(speedup)


@pytest.mark.parametrize("name", [*schemes, "hk223*strassen"])
def test_growth_factor_by_loops(name):
    s = schemes[name]
    worst = 0
    for i, j in np.ndindex(s.m, s.n):
        total = 0
        for r in range(s.rank):
            u = sum(abs(int(x)) for x in s.U[r].flat)
            v = sum(abs(int(x)) for x in s.V[r].flat)
            total += abs(int(s.W[r, i, j])) * u * v
        worst = max(worst, total)
    assert growth_factor(s) == worst
    assert type(growth_factor(s)) is int


@given(st.lists(st.sampled_from(["strassen", "winograd", "hk232", "hk323"]), min_size=1, max_size=2))
@settings(max_examples=20)
def test_levels_multiply(names):
    levels = [schemes[x] for x in names]
    whole = compose(*levels)
    assert growth_factor(whole) == math.prod(map(growth_factor, levels))
    assert gamma(whole) == pytest.approx(math.prod(map(gamma, levels)), rel=1e-12)
    assert levels_growth(levels) == Fraction(growth_factor(whole), whole.k)
    flat = flatten(tuple(levels))
    m, _, n = flat.grid
    lengths = np.diff(flat.U.ptr).max(), np.diff(flat.V.ptr).max(), np.diff(flat.W.by_block(m * n)[0]).max()
    assert combination_lengths(whole) == lengths
    assert flat_chains(levels) == tuple(x - 1 for x in lengths)
    assert levels_chain(levels) == max(map(chain_length, levels))


def test_no_levels_is_the_classical_product():
    assert levels_growth(()) == 1
    assert levels_chain(()) == 0
    assert flat_chains(()) == (0, 0, 0)
    assert (growth_factor(classical(2, 5, 3)), chain_length(classical(2, 5, 3))) == (5, 4)


def test_fractions_in_growth_and_chains():
    s = schemes["strassen"]
    third = Scheme("third", s.U * Fraction(1, 3), s.V, s.W * 3)
    assert growth_factor(third) == 12
    assert growth_factor(Scheme("x", s.U * Fraction(1, 7), s.V, s.W)) == Fraction(12, 7)
    assert gamma(third) == pytest.approx(gamma(s))
    assert chain_length(third) == 3 + 2
    assert chain_length(Scheme("x", 3 * s.U, s.V, s.W)) == 3 + 1
    assert chain_length(Scheme("x", s.U * Fraction(1, 4), s.V, 4 * s.W)) == 3
    assert flat_chains((third, s)) == (3 + 2, 3 + 2, 15 + 2)


def test_winograd_order_has_15_additions_and_computes_the_scheme():
    s = schemes["winograd"]
    assert additions_of(s.evaluation_order) == 15
    assert sum("*" in line for line in s.evaluation_order) == 7
    for got, expected in zip(evaluate(s.evaluation_order, s.grid), (s.U, s.V, s.W), strict=True):
        assert (got == expected).all()


def test_winograd_order_runs_on_matrices():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-99, 99, (2, 2)).astype(object) for _ in "ab")
    names = {f"{x}{i + 1}{j + 1}": y[i, j] for x, y in (("a", a), ("b", b)) for i in range(2) for j in range(2)}
    for line in schemes["winograd"].evaluation_order:
        exec(line, {}, names)
    assert [[names["c11"], names["c12"]], [names["c21"], names["c22"]]] == a.dot(b).tolist()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (["c11 a11"], "name = expression"),
        (["p1 = a11 * b11", "c11 = p1 p1"], "neither a sum nor a product"),
        (["p1 = a11 * b11 * b11", "c11 = p1"], "neither a sum nor a product"),
        (["p1 = x * b11", "c11 = p1"], "'x' in .* is not defined"),
        (["p1 = c11 * b11", "c11 = p1"], "'c11' in .* is not defined"),
        (["p1 = b11 * a11", "c11 = p1"], "must multiply"),
        (["p1 = a11 * b11", "p2 = p1 * b11", "c11 = p2"], "must multiply"),
        (["s1 = a11 + b11", "p1 = s1 * b11", "c11 = p1"], "mixes"),
        (["p1 = a11 * b11", "c11 = a11"], "mixes"),
        (["p1 = a11 * b11", "p1 = a11 * b11", "c11 = p1"], "again"),
        (["a11 = b11"], "again"),
        (["p1 = a12 * b11", "c11 = p1"], "outside the 1×1 grid"),
        (["p1 = a01 * b11", "c11 = p1"], "outside the 1×1 grid"),
        (["p1 = a11 * b11"], "0 of the 1 blocks"),
    ],
)
def test_bad_evaluation_orders_are_refused(program, message):
    with pytest.raises(SchemeError, match=message):
        evaluate(program, (1, 1, 1))


def test_evaluation_order_signs_names_and_wide_indices():
    program = ["s = -a11 − a1_10", "t = b1_1 + b10_1 - b11", "p = s * t", "q = - p", "c11 = -q"]
    U, V, W = evaluate(program, (1, 10, 1))
    assert U[0, 0].tolist() == [-1] + [0] * 8 + [-1]
    assert V[0, :, 0].tolist() == [0] * 9 + [1]
    assert W.tolist() == [[[1]]]


def combination_scheme(rows):
    """A (wrong) scheme whose U has these rows and whose other sums need no additions."""
    R, k = len(rows), len(rows[0])
    one = np.zeros((R, k, 1), dtype=int)
    one[:, 0] = 1
    W = np.zeros((R, 1, 1), dtype=int)
    W[0] = 1
    return Scheme("x", np.array(rows).reshape(R, 1, k), one, W)


@pytest.mark.parametrize(
    ("rows", "additions"),
    [
        ([[1, 1, 1, 0], [1, 1, 0, 1]], 3),
        ([[1, 1, 1, 0], [-1, -1, 0, 1]], 3),
        ([[1, -2, 1, 0], [-2, 4, 0, 1]], 3),
        ([[1, 1, 1, 0], [1, -1, 0, 1]], 4),
        ([[1, 1, 1, 1]] * 3, 3),
        ([[1, 1, 1, 1], [1, 1, -1, -1]], 4),
        ([[1, 0, 0, 0], [0, 0, 0, 1]], 0),
    ],
)
def test_common_subexpressions(rows, additions):
    assert additions_cse(combination_scheme(rows)) == additions


@pytest.mark.parametrize("name", schemes)
def test_cse_never_costs_more_and_is_symmetric_under_transposition(name):
    s = schemes[name]
    assert additions_cse(s) <= additions_naive(s)
    assert additions_naive(permute(s, "nkm")) == additions_naive(s)
