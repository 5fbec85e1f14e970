"""check=True: faults are caught, computed again, told once and counted; right products are left alone."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import falcon_numba as fn
from falcon_numba import launching

PLAIN = {"executor": "cpu", "depth": 1, "threads": 1, "check": True}


def operands(dtype="float64", n=100, batch=()):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((*batch, n, n)).astype(dtype) for _ in range(2))


@pytest.fixture
def fault(monkeypatch):
    """An engine that spoils one element of the results given to the fixture."""
    results = []
    run = launching.Launch.run

    def faulty(self, *arguments):
        run(self, *arguments)
        for c in results:
            c[3, 5] += 1

    monkeypatch.setattr(launching.Launch, "run", faulty)
    return results


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_right_products_pass(depth, dtype):
    a, b = operands(dtype)
    options = {"executor": "cpu", "depth": depth}
    before = fn.check_counts()
    with warnings.catch_warnings(), fn.trace() as plans:
        warnings.simplefilter("error")
        c = fn.gemm(a, b, b, beta=0.5, alpha=-2, check=True, **options)
        batch = fn.matmul(np.stack([a, b]), b, check=True, **options)
    np.testing.assert_array_equal(c, fn.gemm(a, b, b, beta=0.5, alpha=-2, **options))
    np.testing.assert_array_equal(batch[0], fn.matmul(a, b, **options))
    after = fn.check_counts()
    assert (after.products - before.products, after.failures - before.failures) == (3, 0)
    assert all(p.checked and p.depth == depth and p.executor == "cpu" for p in plans)
    assert "residual test" in str(plans[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (2, 0), (1, 1), (-0.5, 3)])
def test_a_fault_is_computed_again(fault, alpha, beta, dtype):
    a, b = operands(dtype)
    a[7, 7] = 0
    for out in (np.ones((100, 100), dtype), np.ones((100, 100), dtype, order="F")):
        fault[:] = [out]
        before = out.copy()
        failures = fn.check_counts().failures
        with pytest.warns(fn.ProductCheckWarning, match=r"C\[3, 5\] is off by 1") as told, fn.trace() as plans:
            got = fn.gemm(a, b, out if beta else None, alpha=alpha, beta=beta, out=out, **PLAIN)
        assert got is out
        np.testing.assert_allclose(out, alpha * (a.astype("g") @ b) + beta * before, rtol=0, atol=2e-4)
        assert len(told) == 1 and told[0].filename == __file__
        assert fn.check_counts().failures == failures + 1
        (plan,) = plans
        assert (plan.executor, plan.depth) == ("numpy", 0)
        assert "strassen on the engine failed the residual test (C[3, 5]" in plan.reason


def test_only_the_faulty_products_of_a_batch_are_computed_again(fault):
    a, b = operands(batch=(2, 3))
    out = np.empty((2, 3, 100, 100))
    right = fn.matmul(a, b, executor="cpu", depth=1)
    fault[:] = [out[0, 1], out[1, 2]]
    with pytest.warns(fn.ProductCheckWarning, match="2 of 6 products failed") as told, fn.trace() as plans:
        fn.matmul(a, b, out=out, **PLAIN)
    assert len(told) == 1 and told[0].filename == __file__
    assert [p.executor for p in plans] == ["cpu", "numpy", "cpu", "cpu", "cpu", "numpy"]
    for i, (index, plan) in enumerate(zip(np.ndindex(2, 3), plans, strict=True)):
        expected = right[index] if plan.executor == "cpu" else a[index] @ b[index]
        np.testing.assert_array_equal(out[index], expected, err_msg=str(i))


def test_the_result_is_right_where_warnings_are_errors(fault):
    a, b = operands()
    out = np.ones((100, 100))
    fault[:] = [out]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(fn.ProductCheckWarning):
            fn.gemm(a, b, out, beta=1, out=out, **PLAIN)
    np.testing.assert_allclose(out, a @ b + 1, rtol=0, atol=1e-12)


def test_without_check_nobody_notices(fault):
    a, b = operands()
    out = np.empty((100, 100))
    fault[:] = [out]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fn.gemm(a, b, out=out, executor="cpu", depth=1)
    assert abs(out - a @ b).max() > 0.9


def test_check_is_an_option_like_the_others(fault, monkeypatch):
    a, b = operands()
    plan = fn.plan(a, b, **PLAIN)
    assert plan.checked and not replace(plan, checked=False).checked
    out = np.empty((100, 100))
    fault[:] = [out]
    with pytest.warns(fn.ProductCheckWarning):
        fn.gemm(a, b, out=out, plan=plan)
    with fn.config_context(check=True), pytest.warns(fn.ProductCheckWarning):
        fn.matmul(a, b, out=out, executor="cpu", depth=1)
    monkeypatch.setenv("FALCON_CHECK", "yes")
    fn.set_config(reset=True)
    try:
        with pytest.warns(fn.ProductCheckWarning):
            fn.gemm(a, b, out=out, executor="cpu", depth=1)
    finally:
        monkeypatch.undo()
        fn.set_config(reset=True)


def test_what_numpy_computes_is_not_tested():
    before = fn.check_counts()
    assert not fn.plan_for(10, 10, 10, check=True).checked
    fn.matmul(np.ones((3, 3)), np.ones((3, 3)), check=True)
    fn.matmul(np.ones((3, 3), int), np.ones((3, 3), int), check=True)
    fn.gemm(np.ones((3, 3)), np.ones((3, 3)), executor="numpy", check=True)
    assert fn.check_counts() == before


def test_data_that_the_guard_sends_elsewhere_pass():
    a, b = operands()
    a *= 10 ** np.random.default_rng(1).uniform(-8, 8, (100, 1))
    spoilt = a.copy()
    spoilt[2, 3], spoilt[50, 50] = np.nan, np.inf
    tiny = a * 1e-306
    with warnings.catch_warnings(), fn.trace() as plans:
        warnings.simplefilter("error")
        for x in (a, spoilt, tiny):
            fn.gemm(x, b, **PLAIN)
        fn.gemm(a, b, alpha=np.inf, **PLAIN)
    assert "scaled" in plans[0].reason and "not finite" in plans[1].reason
    assert "not tested" in plans[3].reason


def test_a_wrong_kernel_is_caught(monkeypatch):
    """Not only one element: a sign in one of the scheme's products."""
    a, b = operands("float32", 300)
    s = fn.schemes["strassen"]
    w = s.W.copy()
    w[2] = -w[2]
    wrong = fn.Scheme("wrong", s.U, s.V, w)
    monkeypatch.setattr(fn.Scheme, "verify", lambda self: self)
    with pytest.warns(fn.ProductCheckWarning):
        c = fn.gemm(a, b, scheme=wrong, depth=1, executor="cpu", check=True)
    np.testing.assert_array_equal(c, a @ b)


def test_command_line(fault, tmp_path, capsys):
    from falcon_numba.cli import main

    a, b = operands()
    for name, x in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", x)
    files = [str(tmp_path / name) for name in ("a.npy", "b.npy")]
    before = fn.check_counts().products
    assert not main(["matmul", *files, "-o", str(tmp_path / "c.npy"), "--depth", "1", "--check"])
    assert fn.check_counts().products == before + 1
    assert not main(["plan", "3000", "3000", "3000", "--check"])
    assert "residual test" in capsys.readouterr().out
