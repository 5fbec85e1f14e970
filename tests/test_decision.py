"""The roofline model, the choice that follows from it, and its explanation."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.algorithms import flatten
from falcon_numba.cpu.spec import SPECS
from falcon_numba.decision import constants, roofline
from falcon_numba.decision.candidates import auto_candidates, candidates
from falcon_numba.decision.hardware import hardware
from falcon_numba.decision.predict import Product, Question, engine_times, in_order, numpy_seconds
from falcon_numba.decision.rates import default_rates
from falcon_numba.explanation import explain

SPEC = SPECS["avx512", "float32"]
sizes = st.integers(1, 20_000)


def question(M, N, K, batch=1, threads=1, with_numpy=True, **changes):
    rates = replace(default_rates("float32", threads, hardware()), **changes)
    single = default_rates("float32", 1, hardware())
    return Question(Product(M, N, K, batch, "float32"), auto_candidates(), with_numpy, SPEC, rates, single)


def seconds(q):
    return engine_times(q)[:, : len(roofline.STAGES)].sum(axis=1)


def test_the_table_of_candidates_counts_what_the_flattened_schemes_have():
    for levels, row in zip(*auto_candidates(), strict=True):
        flat = flatten(levels)
        assert tuple(row[[roofline.M_, roofline.K_, roofline.N_, roofline.R_]]) == (*flat.grid, flat.rank)
        assert row[roofline.LEVELS] == len(levels)


def test_a_split_counts_what_the_engine_does_with_strassens_levels():
    row = candidates(((fn.schemes["strassen"],) * 3,)).table[0]
    splits = [roofline.Split(*part) for part in row[roofline.SPLITS :].reshape(-1, roofline.SPLIT)]
    # Strassen's has 12 terms each in U, V and W, 7 products, 4 blocks a matrix.
    assert splits[0] == roofline.Split(
        together=49,
        a_terms=12 * 16 + 7 * 144,
        b_terms=12 * 16 + 7 * 144,
        a_blocks=12 * 16,
        b_blocks=12 * 16,
        inner=4,
        inner_sums=49 * 12,
        outer_sums=7 * 12 * 4,
        c_blocks=12 * 16,
    )
    assert splits[1]._replace(a_terms=0, b_terms=0) == roofline.Split(7, 0, 0, 144 * 4, 144 * 4, 4, 49 * 12, 0, 144 * 4)
    assert splits[2]._replace(a_terms=0, b_terms=0) == roofline.Split(1, 0, 0, 1728, 1728, 1, 343, 0, 1728)
    classical = candidates(((),)).table[0][roofline.SPLITS :].reshape(-1, roofline.SPLIT)
    assert (classical == roofline.Split(1, 1, 1, 1, 1, 1, 1, 0, 1)).all()


@given(sizes, sizes, sizes, st.sampled_from([1, 2, 7, 200]), st.sampled_from([1, 2, 16]))
def test_predictions_are_finite_and_no_faster_than_the_machine(M, N, K, batch, threads):
    q = question(M, N, K, batch, threads)
    times = engine_times(q)
    assert np.isfinite(times).all()
    assert (times >= 0).all()
    assert (times.sum(axis=1) > 0).all()
    multiplications = times[:, roofline.KERNEL] * q.rates.fma
    for levels, flops in zip(q.candidates.levels, multiplications, strict=True):
        (m, k, n), rank = flatten(levels).grid, flatten(levels).rank
        assert flops >= 0.999 * batch * 2 * M * N * K * rank / (m * k * n)
    assert 0 < numpy_seconds(q.product, q.rates, q.single) < math.inf


@given(sizes, sizes, sizes)
def test_more_work_takes_longer_and_faster_machines_less(M, N, K):
    now = seconds(question(M, N, K))
    assert (seconds(question(2 * M, N, K)) >= now).all()
    assert (seconds(question(M, N, K, batch=3)) >= now).all()
    fast = seconds(question(M, N, K, fma=1e15, add=1e15, read=1e15, copy=1e15, l2=1e15, l3=1e15))
    assert (fast <= now).all()


def test_infinite_bandwidth_leaves_the_multiplications_the_paper_counts():
    n = 6144  # a multiple of everything
    q = question(n, n, n, add=1e30, read=1e30, copy=1e30, l2=1e30, l3=1e30, call=1e-30)
    for levels, time in zip(q.candidates.levels, seconds(q), strict=True):
        flat = flatten(levels)
        m, k, nn = flat.grid
        exact = 2 * n**3 * flat.rank / (m * k * nn) / q.rates.fma
        assert time == pytest.approx(exact, rel=0.03)  # virtual padding


def test_slow_additions_forbid_levels_and_slow_multiplications_ask_for_them():
    slow_addition = question(3000, 3000, 3000, with_numpy=False, add=1e8)
    slow_multiplication = question(3000, 3000, 3000, with_numpy=False, fma=1e9)
    assert len(in_order(slow_addition)[0][1]) == 0
    assert len(in_order(slow_multiplication)[0][1]) == 3


def test_the_order_prefers_few_levels_among_equals():
    (first, levels), *others = in_order(question(2000, 2000, 2000))
    assert [t for t, _ in others] == sorted(t for t, _ in others)
    fastest = min(first, others[0][0])
    assert first <= constants.LEVEL_MUST_GAIN * fastest
    for time, other in others:
        if time < first:
            assert len(other or ()) >= len(levels or ())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (700, 3000, 900), (5000, 400, 600), (448, 448, 448)])
def test_the_plan_is_the_first_of_its_ranking(dtype, shape):
    plan = fn.plan_for(*shape, dtype)
    first, *others = plan.ranking.entries()
    assert first.verdict == "chosen"
    assert (first.levels or ()) == plan.levels
    assert first.seconds == plan.seconds > 0
    assert first.error_bound == plan.error_bound
    assert first.workspace_bytes == plan.workspace_bytes
    assert {x.name for x in (first, *others)} >= {"NumPy", "classical", "strassen"}
    assert all(x.verdict and x.verdict != "chosen" for x in others)
    for x in others:
        assert x.name in str(plan)
        assert x.name in plan._repr_html_()


def test_limits_of_error_and_workspace_make_way_for_the_next():
    free = fn.plan_for(6000, 6000, 6000, "float32")
    exact = fn.plan_for(6000, 6000, 6000, "float32", max_error=free.error_bound / 2)
    assert exact.error_bound <= free.error_bound / 2
    assert exact.seconds > free.seconds
    assert free.scheme in exact.reason
    refused = [x for x in exact.ranking.entries() if x.verdict.startswith("can't run")]
    assert free.scheme in {x.name for x in refused}
    small = fn.plan_for(6000, 6000, 6000, "float32", workspace_limit="40 MiB")
    assert small.workspace_bytes <= 40 * 2**20


def test_a_named_scheme_and_a_contract_restrict_the_candidates():
    named = fn.plan_for(4000, 4000, 4000, "float32", scheme="laderman")
    assert set(named.levels) == {fn.schemes["laderman"]}
    assert len(named.ranking.entries()) > 1
    assert fn.plan_for(4000, 4000, 4000, "float32", accuracy="componentwise").depth == 0
    forced = fn.plan_for(4000, 4000, 4000, "float32", depth=2)
    assert (forced.depth, forced.reason) == (2, "as asked for")
    assert forced.seconds > 0


def test_reproducible_plans_depend_on_neither_threads_nor_measurements(monkeypatch):
    from falcon_numba.decision import select

    plans = {fn.plan_for(1111, 2222, 3333, reproducible=True, threads=t).levels for t in (1, 2, 5, 16)}
    assert len(plans) == 1
    monkeypatch.setattr(select, "rates_for", lambda *_: pytest.fail("measured rates were asked for"))
    assert fn.plan_for(1111, 2222, 3334, reproducible=True).levels in plans


def test_plans_pickle_with_their_ranking():
    plan = fn.plan_for(3000, 2000, 1000, "float32")
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert again.seconds == plan.seconds
    assert [x.name for x in again.ranking.entries()] == [x.name for x in plan.ranking.entries()]


def test_explain_runs_the_best_and_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((500, 600)), rng.standard_normal((600, 700))
    shown = explain(a, b, top=2, threads=1)
    assert 2 <= len(shown) <= 3
    assert "NumPy" in {row.name for row in shown}
    assert sum(row.chosen for row in shown) == 1
    assert all(row.measured > 0 for row in shown)
    for text in (str(shown), shown._repr_html_()):
        assert "predicted" in text
        assert "NumPy" in text
    with pytest.raises(ValueError, match="top=0"):
        explain(a, b, top=0)


def test_one_candidate_of_forced_levels():
    levels = (fn.schemes["winograd"],) * 2
    assert candidates((levels,)).table.shape == (1, roofline.CANDIDATE_COLUMNS)


def test_tuning_runs_near_candidates_once_and_keeps_the_fastest(monkeypatch):
    from falcon_numba import dispatch, tuning

    tuning.forget()
    ran = []
    real = dispatch._run

    def run(problem, plan):
        ran.append((plan.executor, plan.levels, problem.c))
        return real(problem, plan)

    monkeypatch.setattr(dispatch, "_run", run)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((700, 800), (800, 900), (700, 900)))
    out = c.copy()
    monkeypatch.setattr(tuning, "NEAR", 10.0)
    with fn.trace() as plans:
        fn.gemm(a, b, out, beta=2.0, out=out, tune=True)
    assert np.array_equal(out, a @ b + 2 * c)
    assert len(ran) == tuning.MOST * (tuning.REPEATS + 1) + 1
    assert len({(executor, levels) for executor, levels, _ in ran}) == tuning.MOST
    assert all(not np.shares_memory(x, out) for _, _, x in ran[:-1])
    assert len(plans) == 1
    assert "measured" in plans[0].reason
    ran.clear()
    fn.gemm(a, b, tune=True)
    assert len(ran) == 1
    assert (ran[0][0], ran[0][1]) == (plans[0].executor, plans[0].levels)
    with pytest.raises(ValueError, match="reproducible"):
        fn.gemm(a, b, tune=True, reproducible=True)
    tuning.forget()


def test_a_matrix_and_its_transpose():
    """The plan says that something else runs; `explain` compares like with like."""
    x = np.random.default_rng(0).standard_normal((600, 600), dtype=np.float32)
    assert "half of C is computed" in fn.plan(x, x.T).reason
    assert "half" not in fn.plan(x, x.T.copy()).reason and "half" not in fn.plan(x, x.T, depth=1).reason
    shown = explain(x, x.T, top=1, threads=1)
    assert {row.name for row in shown} >= {"NumPy"}


def test_what_cannot_be_promised_is_told_with_what_could():
    with pytest.raises(ValueError, match=r"proven error bound of depth 0.*smallest there is"):
        fn.plan_for(2000, 2000, 2000, "float32", max_error=1e-6)
    with pytest.raises(ValueError, match=r"classical product, which data may ask for, on 1500×1400"):
        fn.plan_for(1500, 1500, 1400, "float32", depth=2, workspace_limit="1 KiB")
    with pytest.raises(TypeError, match="K='float64': must be an integer"):
        fn.plan_for(4096, 4096, "float64")
    with pytest.raises(TypeError, match="modulus is an argument of gemm only"):
        fn.matmul(np.ones((2, 2)), np.ones((2, 2)), modulus=7)
