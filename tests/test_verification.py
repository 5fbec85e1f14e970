"""verify_product: never a false alarm, always an alarm; integers exactly, NaN and Inf by their places."""

from __future__ import annotations

import numpy as np
import pytest
from families import FAMILIES, family
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import layouts

import falcon_numba as fn
from falcon_numba import verify_product
from falcon_numba.numerics.bounds import entry_bounds, error_bound
from falcon_numba.verification import classical_allowance

INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64", "complex64", "complex128")


def test_the_truth_value_is_the_verdict():
    a = np.ones((3, 3))
    right, wrong = verify_product(a, a, 3 * a), verify_product(a, a, 2 * a)
    assert right and right.ok and 0 <= right.ratio <= 1
    assert not wrong and not wrong.ok and wrong.ratio > 1
    assert wrong.error == 1 and "off by 1" in wrong.reason


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FAMILIES)
def test_no_false_alarm_for_any_family(name, dtype):
    rng = np.random.default_rng(11)
    a, b = family(name, rng, 150, dtype)
    with np.errstate(all="ignore"):
        assert verify_product(a, b, a @ b)
        assert verify_product(a, b, (a[:, ::-1] @ b[::-1]), rounds=5, rows=20)
    for accuracy in ("balanced", "normwise"):
        for scheme, depth in (("strassen", 0), ("strassen", 1), ("winograd", 2), ("hk223", 3), ("laderman", 1)):
            with fn.trace() as plans:
                c = fn.gemm(a, b, executor="cpu", scheme=scheme, depth=depth, accuracy=accuracy)
            found = verify_product(a, b, c, plan=plans[-1], rows=20)
            assert found, (accuracy, scheme, depth, found)


@settings(max_examples=60)
@given(st.data())
def test_no_false_alarm_and_one_wrong_element_is_found(data):
    """One element off by more than is allowed it, and than what the test may round in float64: it is named."""
    M, N, K = (data.draw(st.integers(1, 80)) for _ in range(3))
    dtype = data.draw(st.sampled_from(FLOATS))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a, b = (rng.standard_normal(s) * 10 ** rng.uniform(-9, 9, (s[0], 1)) for s in ((M, K), (N, K)))
    if dtype.startswith("c"):
        a, b = a + 1j * rng.standard_normal((M, K)), b - 1j
    a, b = a.astype(dtype), b.T.astype(dtype)
    alpha, beta = data.draw(st.sampled_from([(1, 0), (-2.5, 0), (0.5, 3.0), (1, -1)]))
    before = rng.standard_normal((M, N)).astype(dtype) if beta else None
    c = (alpha * (a @ b) + (0 if before is None else beta * before)).astype(dtype)
    scalars = {"alpha": alpha, "beta": beta, "c_in": before}
    assert verify_product(a, b, c, **scalars)
    i, j = rng.integers(M), rng.integers(N)
    u = float(np.finfo(dtype).eps) / 2
    allowed = classical_allowance(K, u, np.dtype(dtype)).roundings * (np.abs(a[i].astype("D")) @ np.abs(b[:, j]))
    allowed = abs(alpha) * allowed + 2 * u * abs(c[i, j]) + (0 if before is None else abs(beta * before[i, j])) * 2 * u
    c[i, j] += c.dtype.type(12 * allowed + 10 * float(np.finfo(dtype).tiny))
    found = verify_product(a, b, c, **scalars, rows=M)
    assert not found
    assert found.index == (i, j)


@pytest.mark.parametrize(("dtype", "depth"), [("float32", 1), ("float32", 2), ("float64", 3)])
def test_one_wrong_element_of_an_lcma_is_found(dtype, depth):
    """Within the contract's own bound, since the test's is made of norms instead of the largest elements."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((256, 256)).astype(dtype) for _ in range(2))
    with fn.trace() as plans:
        c = fn.gemm(a, b, depth=depth, executor="cpu")
    (plan,) = plans
    allowed = verify_product(a, b, c, plan=plan).allowed
    bound = error_bound(plan.levels, 256, plan.blocks.KC, dtype, "balanced")
    assert allowed < entry_bounds(bound, a, b, c).min()
    for _ in range(10):
        wrong, (i, j) = c.copy(), rng.integers(0, 256, 2)
        wrong[i, j] += 3 * allowed
        found = verify_product(a, b, wrong, plan=plan)
        assert not found and found.index == (i, j)


def test_a_small_unit_is_not_hidden_by_large_ones():
    """Rows and columns are tested in units of their own."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, 200, 200))
    a[5] *= 1e-200
    b[:, 7] *= 1e-90
    a[9] *= 1e250
    c = a @ b
    assert verify_product(a, b, c)
    for i, j in ((5, 7), (5, 8), (9, 7), (0, 7)):
        wrong = c.copy()
        wrong[i, j] *= 1 + 1e-9
        assert verify_product(a, b, wrong).index == (i, j)
    zeros = c.copy()
    a[3] = 0
    zeros[3] = 0
    assert verify_product(a, b, zeros)
    zeros[3, 4] = 1e-200
    assert verify_product(a, b, zeros).index == (3, 4)


def test_errors_that_cancel_in_a_row_are_seen():
    """Freivalds' vectors are random: two errors of a row would need the right ones to cancel."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 64, 64))
    c = a @ b
    c[:, 3] += 1
    c[:, 5] -= 1
    missed = sum(bool(verify_product(a, b, c, rounds=1, rows=0, seed=seed)) for seed in range(200))
    assert missed == 0
    swapped = (a @ b)[:, ::-1]
    assert not verify_product(a, b, swapped)


@settings(max_examples=80)
@given(st.data())
def test_integers_are_exact_in_their_ring(data):
    dtype = np.dtype(data.draw(st.sampled_from(INTEGERS)))
    M, N, K = (data.draw(st.integers(1, 30)) for _ in range(3))
    a, b = data.draw(layouts((M, K), dtype)), data.draw(layouts((K, N), dtype))
    rng = np.random.default_rng(0)
    a = a * dtype.type(rng.integers(0, 127))
    alpha, beta = data.draw(st.sampled_from([(1, 0), (-3, 0), (7, -2)]))
    before = rng.integers(0, 100, (M, N)).astype(dtype)
    bits = 8 * dtype.itemsize
    exact = alpha * (a.astype(object) @ b.astype(object)) + beta * before.astype(object)
    c = (exact % 2**bits).astype(f"uint{bits}").view(dtype if dtype.isnative else dtype.newbyteorder("="))
    scalars = {"alpha": alpha, "beta": beta, "c_in": before}
    assert verify_product(a, b, c, **scalars)
    i, j, bit = rng.integers(M), rng.integers(N), data.draw(st.integers(0, bits - 1))
    wrong = c.copy()
    wrong.view(f"uint{bits}")[i, j] ^= np.uint64(1 << bit).astype(f"uint{bits}")
    found = verify_product(a, b, wrong, **scalars)
    assert not found
    assert found.index == (i, j) and found.ratio == np.inf and found.error == 2.0**bit


def test_pairs_of_high_bits_are_seen_by_uniform_vectors():
    """Two errors of 2^(bits−1) in a row: odd multiples of both cancel always, uniform ones half the time."""
    a = b = np.zeros((4, 4), np.int8)
    c = a.copy()
    c[1, 1:3] = -128
    missed = [bool(verify_product(a, b, c, rounds=9, seed=seed)) for seed in range(200)]
    assert sum(missed) <= 6  # 200/2^8 expected
    assert all(verify_product(a, b, c, rounds=1, seed=seed) for seed in range(20))


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(("float32", "float64")), beta=st.sampled_from((0, -2.0)))
def test_patterns_of_nan_and_inf(seed, dtype, beta):
    rng = np.random.default_rng(seed)
    M, N, K = rng.integers(1, 30, 3)
    a, b, before = (rng.standard_normal(s).astype(dtype) for s in ((M, K), (K, N), (M, N)))
    for x in (a, b, before):
        for _ in range(rng.integers(0, 3)):
            x[tuple(rng.integers(0, x.shape))] = rng.choice([np.nan, np.inf, -np.inf, 0])
    alpha = rng.choice([1.0, -3.0])
    with np.errstate(all="ignore"):
        c = (alpha * (a @ b) + (beta * before if beta else 0)).astype(dtype)
    scalars = {"alpha": alpha, "beta": beta, "c_in": before}
    assert verify_product(a, b, c, **scalars)
    i, j = rng.integers(M), rng.integers(N)
    wrong = c.copy()
    wrong[i, j] = rng.choice([np.nan, np.inf, -np.inf]) if np.isfinite(c[i, j]) else rng.choice([0.0, 1.0])
    if np.isinf(c[i, j]) and rng.random() < 0.5:
        wrong[i, j] = rng.choice([np.nan, -c[i, j]])
    found = verify_product(a, b, wrong, **scalars)
    assert not found
    assert found.index == (i, j)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_overflow_is_no_fault_and_what_must_not_overflow_is(dtype):
    big = np.finfo(dtype).max / 4
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(0.5, 1, (40, 40)).astype(dtype) for _ in range(2))
    a[3] *= big
    with np.errstate(all="ignore"):
        c = a @ b
    assert np.isinf(c[3]).any()
    assert verify_product(a, b, c)
    c[3, 2] = 1
    assert verify_product(a, b, c).index == (3, 2)
    c = (a[4:] @ b).astype(dtype)
    c[20, 7] = np.inf
    found = verify_product(a[4:], b, c)
    assert not found and found.index == (20, 7) and "finite" in found.reason


@settings(max_examples=60)
@given(st.data())
def test_any_layout_and_shape(data):
    batch = data.draw(st.sampled_from([(), (3,), (2, 1)]))
    M, N, K = (data.draw(st.integers(1, 8)) for _ in range(3))
    dtype = data.draw(st.sampled_from(("float32", "float64", "int16", "complex64", "float16")))
    a = data.draw(layouts((M, K) if data.draw(st.booleans()) else (K,), dtype))
    b = data.draw(layouts((*batch, K, N) if data.draw(st.booleans()) else (K,), dtype))
    c = np.asarray(np.matmul(a, b))
    out = data.draw(layouts(c.shape, c.dtype, writeable=True))
    out[...] = c
    assert verify_product(a, b, out)
    index = tuple(data.draw(st.integers(0, size - 1)) for size in c.shape)
    out[index] += 3
    found = verify_product(a, b, out)
    assert not found and found.index == index


def test_short_floats_and_mixed_types():
    bfloat16 = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((2, 90, 90))
    for short in (np.dtype(np.float16), bfloat16):
        x, y = a.astype(short), b.astype(short)
        c = fn.gemm(x, y)
        assert c.dtype == short and verify_product(x, y, c)
        c[1, 2] += short.type(2)
        assert verify_product(x, y, c).index == (1, 2)
    single = a.astype(np.float32)
    assert verify_product(single, b, (single @ b).astype(np.float32))
    assert verify_product(single, single, (single @ single).astype(np.float64))
    assert verify_product(np.eye(90, dtype=bool), b, b)
    assert verify_product(np.eye(90, dtype=np.int64), b, b)


def test_products_of_other_fast_algorithms():
    """One level of Strassen's as in the textbook: refused as a classical product, right as one of its own bound."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 128, 128)).astype(np.float32)
    a[:64] *= 1e-6
    s, h = fn.schemes["strassen"], 64
    c = np.zeros_like(a)
    for u, v, w in zip(s.U, s.V, s.W, strict=True):
        p, q = (
            sum(k * x[h * i : h * i + h, h * j : h * j + h] for (i, j), k in np.ndenumerate(y))
            for x, y in ((a, u), (b, v))
        )
        for (i, j), k in np.ndenumerate(w):
            c[h * i : h * i + h, h * j : h * j + h] += k * (p @ q)
    assert not verify_product(a, b, c)
    assert verify_product(a, b, c, max_error=1e-6)
    c[100, 5] += 4e-6 * 128 * np.abs(a).max() * np.abs(b).max()
    assert verify_product(a, b, c, max_error=1e-6).index == (100, 5)


def test_empty_and_idle_products():
    assert verify_product(np.ones((0, 3)), np.ones((3, 4)), np.ones((0, 4)))
    assert verify_product(np.ones((2, 0)), np.ones((0, 4)), np.zeros((2, 4)))
    assert not verify_product(np.ones((2, 0)), np.ones((0, 4)), np.ones((2, 4)))
    before = np.arange(8.0).reshape(2, 4)
    nan = np.full((2, 2), np.nan)
    assert verify_product(nan, np.ones((2, 4)), 2 * before, alpha=0, beta=2, c_in=before)
    assert verify_product(np.ones((2, 2)), np.ones((2, 4)), np.full((2, 4), 2.0), beta=0, c_in=np.full((2, 4), np.nan))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3))), {}, ValueError, "inner sizes differ"),
        ((np.ones((2, 2)), np.ones((2, 3)), np.ones((3, 2))), {}, ValueError, r"c has shape \(3, 2\)"),
        ((np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2), bool)), {}, TypeError, "OR of ANDs"),
        ((np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2), int)), {}, TypeError, "no product of integers"),
        ((np.ones((2, 2), object), np.ones((2, 2)), np.ones((2, 2))), {}, TypeError, "only numbers"),
        ((1.0, np.ones((2, 2)), np.ones((2, 2))), {}, ValueError, "at least one dimension"),
        ((np.ones((2, 2)),) * 3, {"beta": 1}, ValueError, "needs c_in"),
        ((np.ones((2, 2)),) * 3, {"alpha": np.nan}, ValueError, "alpha=nan: must be finite"),
        ((np.ones((2, 2)),) * 3, {"alpha": "x"}, TypeError, "must be a number"),
        ((np.ones((2, 2), int),) * 3, {"alpha": 0.5}, TypeError, "must be an integer"),
        ((np.ones((2, 2)),) * 3, {"max_error": -1}, ValueError, "max_error=-1"),
        ((np.ones((2, 2)),) * 3, {"rounds": 0}, ValueError, "at least one round"),
        ((np.ones((2, 2)),) * 3, {"plan": fn.plan_for(3, 2, 2)}, ValueError, "another product"),
        ((np.ones((2, 2)),) * 3, {"plan": fn.plan_for(2, 2, 2), "max_error": 1}, ValueError, "either plan or"),
    ],
)
def test_bad_calls(arguments, options, error, match):
    with pytest.raises(error, match=match):
        verify_product(*arguments, **options)


def test_masks_are_refused():
    masked = np.ma.masked_array(np.ones((3, 3)), mask=np.eye(3))
    for operands in ((masked, np.ones((3, 3))), (np.ones((3, 3)), masked)):
        with pytest.raises(TypeError, match="masked"):
            fn.verify_product(*operands, np.full((3, 3), 3.0))
