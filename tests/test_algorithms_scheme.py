"""Scheme: construction, exactness of verify, identity, symmetry."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from algorithms_oracle import brent_delta, brent_equations, brent_sum, multiply, random_integers
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_numba.algorithms import Scheme, SchemeError, classical, permutations, permute, schemes, transpose
from falcon_numba.algorithms.brent import first_violation

ALL = [*schemes, "strassen*hk223", "hk332*winograd"]


def number(value):
    """A 1×1×1 scheme of rank 1 from three coefficients."""
    return Scheme("number", *([[[x]]] for x in value))


@pytest.mark.parametrize("name", schemes)
def test_every_equation_holds_by_the_oracle(name):
    s = schemes[name]
    assert all(brent_sum(s.U, s.V, s.W, eq) == brent_delta(eq) for eq in brent_equations(*s.grid))
    assert first_violation(s.U, s.V, s.W) is None


@pytest.mark.parametrize("name", ALL)
def test_all_six_permutations_verify_and_multiply(name):
    rng = np.random.default_rng(0)
    scheme = schemes[name]
    sizes = dict(zip("mkn", scheme.grid, strict=True))
    for order, permuted in permutations(scheme).items():
        assert permuted.grid == tuple(sizes[x] for x in order)
        assert permuted.rank == scheme.rank
        assert first_violation(permuted.U, permuted.V, permuted.W) is None
        m, k, n = permuted.grid
        a, b = random_integers(rng, (m, k)), random_integers(rng, (k, n))
        assert (multiply(permuted, a, b) == a.dot(b)).all()


@given(st.data())
@settings(max_examples=200)
def test_perturbing_any_coefficient_breaks_a_named_equation(data):
    # Adding δ to U[r,i,l] adds δ·V[r,l',j]·W[r,i',j'] to the equations (i, l, l', j, i', j'). Over the rationals that
    # vanishes for all (l', j, i', j') only if δ = 0, V_r = 0 or W_r = 0; likewise for V and W. So any δ ≠ 0 breaks a
    # scheme in which no U_r, V_r or W_r is zero, and every scheme here is such a one.
    scheme = schemes[data.draw(st.sampled_from(ALL))]
    arrays = {"U": scheme.U, "V": scheme.V, "W": scheme.W}
    assert all(x.any(axis=(1, 2)).all() for x in arrays.values())
    letter = data.draw(st.sampled_from("UVW"))
    changed = arrays[letter].astype(object)
    at = data.draw(st.integers(0, changed.size - 1))
    delta = data.draw(st.one_of(st.integers(-5, 5), st.fractions(-2, 2, max_denominator=7)).filter(bool))
    changed.flat[at] = changed.flat[at] + delta
    broken = Scheme("broken", **{**arrays, letter: changed})

    with pytest.raises(SchemeError, match=r"'broken' .* violates a Brent equation: Σ_r U\[r,\d+,\d+\]") as caught:
        broken.verify()
    violation = caught.value.violation
    assert violation.expected == brent_delta(violation.equation)
    assert violation.got == brent_sum(broken.U, broken.V, broken.W, violation.equation) != violation.expected
    assert f"= {violation.got}, expected {violation.expected}" in str(caught.value)
    if scheme.rank <= 11:  # the named equation is the first one, by loops
        earlier = iter(brent_equations(*scheme.grid))
        for equation in iter(lambda: next(earlier), violation.equation):
            assert brent_sum(broken.U, broken.V, broken.W, equation) == brent_delta(equation)


def test_verify_is_not_fooled_by_wrap_around():
    third = pow(3, -1, 2**64) - 2**64  # 3·third = 1 modulo 2^64, not over the integers
    with pytest.raises(SchemeError):
        number((3, third, 1)).verify()
    with pytest.raises(SchemeError):
        number((2**32, 2**32, 1)).verify()  # 0 modulo 2^64


def test_verify_is_not_fooled_by_rounding():
    almost = 1 + Fraction(1, 2**80)
    with pytest.raises(SchemeError, match=str(almost)):
        number((almost, 1, 1)).verify()
    with pytest.raises(SchemeError):
        number((0.1, 10, 1)).verify()  # the double nearest 0.1 is not a tenth
    assert number(("0.1", 10, 1)).verify()


def test_verify_takes_coefficients_of_any_size():
    s = schemes["strassen"]
    big = 2**70
    scaled = Scheme("scaled", s.U.astype(object) * big, s.V.astype(object) * big, s.W * Fraction(1, big**2))
    assert scaled.verify().U[0, 0, 0] == big
    with pytest.raises(SchemeError):
        Scheme("scaled", s.U.astype(object) * big, s.V.astype(object) * big, s.W).verify()


def test_verify_in_several_chunks(monkeypatch):
    monkeypatch.setattr("falcon_numba.algorithms.brent._CHUNK", 1)
    s = schemes["laderman"]
    assert first_violation(s.U, s.V, s.W) is None
    w = s.W.copy()
    w[22, 2, 2] = 2
    violation = first_violation(s.U, s.V, w)
    assert violation.equation == (2, 2, 2, 2, 2, 2)
    assert (violation.got, violation.expected) == (2, 1)


def test_coefficients_are_int64_or_fractions_and_read_only():
    s = schemes["strassen"]
    for x in (s.U, s.V, s.W):
        assert x.dtype == np.int64
        with pytest.raises(ValueError):
            x[0, 0, 0] = 5
    same = Scheme("strassen", s.U.astype(float), s.V.astype(np.int8).tolist(), s.W.astype(str))
    assert same == s
    assert same.U.dtype == same.W.dtype == np.int64
    half = Scheme("half", s.U * Fraction(1, 2), s.V, 2 * s.W)
    assert all(isinstance(c, Fraction) for x in (half.U, half.V, half.W) for c in x.flat)
    assert half.verify() is half


def test_the_caller_keeps_its_arrays():
    u = np.ones((1, 1, 1), dtype=np.int64)
    s = Scheme("one", u, u, u)
    u[0, 0, 0] = 7
    assert s.U[0, 0, 0] == 1


@pytest.mark.parametrize(
    ("U", "V", "W"),
    [
        ([[1]], [[1]], [[1]]),
        (np.ones((2, 1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))),
        (np.ones((1, 1, 2)), np.ones((1, 1, 1)), np.ones((1, 1, 1))),
        (np.ones((1, 2, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1))),
        (np.ones((1, 1, 1)), np.ones((1, 1, 2)), np.ones((1, 1, 1))),
        (np.ones((0, 1, 1)), np.ones((0, 1, 1)), np.ones((0, 1, 1))),
        ([[[1], [1, 2]]], [[[1]]], [[[1]]]),
        ([[[float("nan")]]], [[[1]]], [[[1]]]),
        ([[[float("inf")]]], [[[1]]], [[[1]]]),
        ([[["x"]]], [[[1]]], [[[1]]]),
        ([[["1/0"]]], [[[1]]], [[[1]]]),
        ([[[1j]]], [[[1]]], [[[1]]]),
        ([[[None]]], [[[1]]], [[[1]]]),
    ],
)
def test_malformed_schemes_are_refused(U, V, W):
    with pytest.raises(SchemeError, match="'bad'") as caught:
        Scheme("bad", U, V, W)
    assert caught.value.violation is None
    assert isinstance(caught.value, ValueError)


def test_identity_is_content():
    s = schemes["strassen"]
    again = Scheme("strassen", s.U, s.V, s.W, "another source")
    assert again == s
    assert hash(again) == hash(s)
    assert s != Scheme("other", s.U, s.V, s.W)
    assert s != schemes["winograd"].renamed("strassen")
    assert s != "strassen"
    assert len({s, again, schemes["winograd"]}) == 2


@pytest.mark.parametrize("name", ["winograd", "half"])
def test_pickle(name):
    s = schemes["winograd"]
    s = s if name == "winograd" else Scheme("half", s.U * Fraction(1, 2), s.V, 2 * s.W)
    back = pickle.loads(pickle.dumps(s))
    assert back == s
    assert hash(back) == hash(s)
    assert back.evaluation_order == s.evaluation_order
    assert not back.U.flags.writeable


def test_errors_pickle():
    try:
        number((1, 1, 2)).verify()
    except SchemeError as error:
        back = pickle.loads(pickle.dumps(error))
        assert str(back) == str(error)
        assert back.violation == error.violation == ((0, 0, 0, 0, 0, 0), 2, 1)


def test_repr_and_counts():
    s = schemes["strassen"]
    assert repr(s) == "Scheme 'strassen' ⟨2,2,2;7⟩"
    assert (s.m, s.k, s.n, s.rank, s.grid) == (2, 2, 2, 7, (2, 2, 2))
    assert s.nonzeros == (12, 12, 12)
    assert s.speedup == 8 / 7
    assert s.omega == pytest.approx(np.log2(7), rel=1e-15)
    assert schemes["laderman"].omega == pytest.approx(2.8540, abs=5e-5)
    assert classical(1, 1, 1).omega == 3
    assert classical(2, 3, 4).omega == pytest.approx(3)


def test_permutations_form_the_group():
    s = schemes["hk233"]
    assert transpose(transpose(s), "hk233") == s
    rotated = permute(permute(permute(s, "knm"), "knm"), "knm", "hk233")
    assert rotated == s
    assert permute(permute(s, "knm"), "nmk", "hk233") == s
    assert permute(permute(s, "knm"), "nkm", "x") == permute(s, "mnk", "x")
    assert permute(s, "mkn") is s
    assert (s.V.transpose(0, 2, 1) == transpose(s).U).all()
    assert (s.W.transpose(0, 2, 1) == transpose(s).W).all()
    for bad in ("mk", "mkx", "", "mmkn"):
        with pytest.raises(ValueError, match="permutation of 'mkn'"):
            permute(s, bad)


def test_derived_schemes_of_an_invalid_one_are_still_checked():
    bad = number((1, 1, 2))
    with pytest.raises(SchemeError):
        transpose(bad).verify()
