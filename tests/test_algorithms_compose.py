"""compose, power, direct_sum, classical and flatten against dense and naive references."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from algorithms_oracle import multiply, random_integers
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_numba.algorithms import (
    Scheme,
    SchemeError,
    classical,
    compose,
    direct_sum,
    flatten,
    power,
    schemes,
    transpose,
)
from falcon_numba.algorithms.brent import first_violation

LEVELS = [
    (),
    ("strassen",),
    ("laderman",),
    ("hk233", "winograd"),
    ("strassen", "hk322", "classical"),
    ("hk225", "hk332"),
    ("strassen",) * 3,
]


def levels_of(names):
    return tuple(schemes[name] for name in names)


def dense(terms, grid):
    out = np.zeros((len(terms.ptr) - 1, grid[0] * grid[1]))
    for r in range(len(out)):
        part = slice(terms.ptr[r], terms.ptr[r + 1])
        assert len(np.unique(terms.block[part])) == len(terms.block[part])
        out[r, terms.block[part]] = terms.coef[part]
    return out.reshape(-1, *grid)


@pytest.mark.parametrize("name", schemes)
@pytest.mark.parametrize("second", [None, "strassen", "hk323"])
def test_naive_evaluation_is_exact(name, second):
    rng = np.random.default_rng(1)
    outer = schemes[name]
    inner = schemes[second] if second else None
    (m, k, n), (m2, k2, n2) = outer.grid, inner.grid if inner else (2, 3, 1)
    a, b = random_integers(rng, (m * m2, k * k2)), random_integers(rng, (k * k2, n * n2))
    block = (lambda x, y: multiply(inner, x, y)) if inner else None
    assert (multiply(outer, a, b, block) == a.dot(b)).all()


@given(st.lists(st.sampled_from(["strassen", "winograd", "hk223", "hk232", "hk322", "hk233"]), min_size=2, max_size=2))
@settings(max_examples=20)
def test_composition_verifies_and_multiplies(names):
    rng = np.random.default_rng(2)
    outer, inner = levels_of(names)
    both = compose(outer, inner)
    assert both.grid == tuple(x * y for x, y in zip(outer.grid, inner.grid, strict=True))
    assert both.rank == outer.rank * inner.rank
    assert both.name == "*".join(names)
    assert first_violation(both.U, both.V, both.W) is None
    m, k, n = both.grid
    a, b = random_integers(rng, (m, k)), random_integers(rng, (k, n))
    assert (multiply(both, a, b) == a.dot(b)).all()


def test_composition_puts_the_outer_level_first():
    outer, inner = schemes["hk223"], schemes["winograd"]
    both = compose(outer, inner)
    for r, i, j in [(0, 0, 0), (30, 1, 5), (76, 3, 2)]:
        assert both.V[r, i, j] == outer.V[r // 7, i // 2, j // 2] * inner.V[r % 7, i % 2, j % 2]


def test_composition_of_three_is_associative():
    a, b, c = (schemes[x] for x in ("strassen", "hk223", "classical"))
    assert compose(a, b, c) == compose(compose(a, b), c) == compose(a, compose(b, c))
    assert compose(a, name="mine").name == "mine"
    assert compose(a) == a


def test_composition_is_exact_beyond_int64():
    s = schemes["strassen"]
    scaled = Scheme("s", s.U * 2**40, s.V, s.W * Fraction(1, 2**40))
    assert compose(scaled, scaled).U[0, 0, 0] == 2**80
    assert compose(scaled, scaled).verify()
    whole = Scheme("w", s.U * 2**40, s.V, s.W)  # no multiplication, but its composition must not wrap
    assert compose(whole, whole).U[0, 0, 0] == 2**80


def test_an_invalid_part_makes_an_invalid_whole():
    bad = Scheme("bad", [[[2]]], [[[1]]], [[[1]]])
    for made in (compose(schemes["strassen"], bad), direct_sum(classical(1, 1, 1), bad, "n"), power(bad, 2)):
        with pytest.raises(SchemeError):
            made.verify()


def test_compose_refuses_nothing_and_too_much():
    with pytest.raises(ValueError, match="at least one"):
        compose()
    with pytest.raises(ValueError, match="give the schemes as levels"):
        compose(*[schemes["laderman"]] * 4)


def test_power():
    s = schemes["hk223"]
    assert power(s, 2) == compose(s, s)
    assert power(s, 1) == s
    assert power(s, 0).format == "⟨1,1,1;1⟩"
    with pytest.raises(ValueError, match="-1"):
        power(s, -1)


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 3, 4), (3, 1, 2)])
def test_classical(grid):
    s = classical(*grid)
    assert s.grid == grid
    assert s.rank == np.prod(grid)
    assert s.nonzeros == (s.rank,) * 3
    assert first_violation(s.U, s.V, s.W) is None


@pytest.mark.parametrize(("axis", "extra"), [("m", (1, 2, 2)), ("k", (2, 1, 2)), ("n", (2, 2, 1))])
def test_direct_sum(axis, extra):
    both = direct_sum(schemes["strassen"], classical(*extra), axis)
    assert both.rank == 11
    assert dict(zip("mkn", both.grid, strict=True))[axis] == 3
    assert first_violation(both.U, both.V, both.W) is None
    with pytest.raises(ValueError, match="side by side"):
        direct_sum(schemes["strassen"], classical(3, 3, 3), axis)
    with pytest.raises(ValueError, match="axis"):
        direct_sum(both, both, "r")


@pytest.mark.parametrize("names", LEVELS)
def test_flatten_equals_the_dense_kronecker_product(names):
    levels = levels_of(names)
    flat = flatten(levels)
    whole = compose(*levels) if levels else classical(1, 1, 1)
    assert (flat.grid, flat.rank) == (whole.grid, whole.rank)
    m, k, n = flat.grid
    for terms, x, grid in ((flat.U, whole.U, (m, k)), (flat.V, whole.V, (k, n)), (flat.W, whole.W, (m, n))):
        assert (terms.ptr.dtype, terms.block.dtype, terms.coef.dtype) == (np.int64, np.int64, np.float64)
        assert len(terms.block) == len(terms.coef) == terms.ptr[-1] == np.count_nonzero(x)
        assert (dense(terms, grid) == x).all()
        ascending = np.diff(terms.block) > 0
        ascending[terms.ptr[1:-1] - 1] = True  # where the next product begins
        assert ascending.all()


@pytest.mark.parametrize("names", LEVELS)
def test_flat_transposed(names):
    levels = levels_of(names)
    flat = flatten(levels)
    expected = flatten(tuple(transpose(s) for s in levels))
    got = flat.transposed
    assert got.grid == expected.grid == flat.grid[::-1]
    n, k, m = got.grid
    for letter, grid, original in (("U", (n, k), flat.V), ("V", (k, m), flat.U), ("W", (n, m), flat.W)):
        terms = getattr(got, letter)
        assert (dense(terms, grid) == dense(getattr(expected, letter), grid)).all()
        assert (terms.coef == original.coef).all()  # the same order of additions
    assert (got.transposed.U.block == flat.U.block).all()
    assert flat.transposed is got


def test_flat_terms_by_block():
    flat = flatten(levels_of(["strassen", "hk323"]))
    m, _, n = flat.grid
    ptr, product, coef = flat.W.by_block(m * n)
    w = dense(flat.W, (m, n)).reshape(flat.rank, -1)
    for q in range(m * n):
        part = slice(ptr[q], ptr[q + 1])
        assert (product[part] == np.flatnonzero(w[:, q])).all()
        assert (coef[part] == w[product[part], q]).all()


def test_flatten_is_cached_read_only_and_fast():
    laderman = schemes["laderman"]
    flatten.cache_clear()
    start = time.perf_counter()
    flat = flatten((laderman,) * 3)
    assert time.perf_counter() - start < 0.3
    assert flat.rank == 23**3
    assert flatten((laderman.renamed("laderman"),) * 3) is flat
    for terms in (flat.U, flat.V, flat.W, flat.transposed.U):
        for x in (terms.ptr, terms.block, terms.coef):
            assert not x.flags.writeable


def test_flatten_fractions():
    s = schemes["strassen"]
    half = Scheme("half", s.U * Fraction(1, 2), s.V, 2 * s.W)
    flat = flatten((half, half))
    whole = flatten((schemes["strassen"], schemes["strassen"]))
    for letter in "UVW":  # powers of two are moved to where they cancel
        assert (getattr(flat, letter).coef == getattr(whole, letter).coef).all()


def test_names_stand_for_schemes():
    assert compose("strassen", "hk223") == schemes["strassen*hk223"]
    assert compose(schemes["strassen"], "<2,2,3>") == schemes["strassen*hk223"]
    assert power("strassen", 2) == power(schemes["strassen"], 2)
    assert direct_sum("strassen", "strassen", "n") == direct_sum(schemes["strassen"], schemes["strassen"], "n")
    with pytest.raises(ValueError, match="did you mean 'strassen'"):
        compose("strasen")
    for bad in (7, schemes["strassen"].U):
        with pytest.raises(
            TypeError, match=f"a scheme is a Scheme or a name in the catalogue, got {type(bad).__name__}"
        ):
            compose("strassen", bad)
