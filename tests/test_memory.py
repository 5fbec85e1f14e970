"""Workspace limits, memory that can't be had, and indices beyond 32 bits."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from guards import FENCED_LAYOUTS
from processes import python

import falcon_numba as fn
from falcon_numba.cpu import workspace

MIB = 2**20


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tighter_limits_give_shallower_plans(dtype):
    """A limit too small for the deepest plan chooses another one, as long as there is any."""
    given = {"executor": "cpu", "threads": 2}

    def depth_under(limit, depth):
        try:
            plan = fn.plan_for(8192, 8192, 8192, dtype, workspace_limit=limit, depth=depth, **given)
        except ValueError as error:
            assert "workspace_limit" in str(error)
            return -1
        assert plan.workspace_bytes <= limit
        return plan.depth

    deepest = fn.plan_for(8192, 8192, 8192, dtype, **given).depth
    limits = np.geomspace(16 * MIB, MIB // 5, 80).astype(int).tolist()
    chosen = [depth_under(limit, "auto") for limit in limits]
    possible = [max(depth_under(limit, depth) for depth in range(deepest + 1)) for limit in limits]
    assert chosen[0] == deepest
    assert chosen[-1] == -1
    # Refused only where every depth is; hybrids, which only "auto" tries, may still fit where Strassen's levels don't.
    assert all(depth >= 0 or most < 0 for depth, most in zip(chosen, possible, strict=True))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("threads", [1, 4])
def test_what_the_limit_admits_runs_whatever_the_data_are(threads):
    """The classical product that the guard may fall back to fits as well."""
    rng = np.random.default_rng(0)
    admitted = refused = 0
    for limit in np.geomspace(60_000, 2 * MIB, 30).astype(int):
        M, N, K = (int(x) for x in rng.integers(1, 200, 3))
        a, b = rng.standard_normal((M, K)), rng.standard_normal((K, N))
        a[0, 0] = np.nan
        options = {"workspace_limit": int(limit), "threads": threads, "scheme": ("hk225", "strassen")}
        try:
            plan = fn.plan(a, b, **options)
        except ValueError as error:
            assert "workspace_limit" in str(error)
            refused += 1
            continue
        admitted += 1
        for order in "CF":
            out = np.empty((M, N), order=order)
            with fn.trace() as plans:
                fn.gemm(a, b, out=out, plan=plan)
            assert plans[0].workspace_bytes <= limit
            assert np.isnan(out).sum() == N
    assert admitted and refused


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_many_passes_over_c(depth, order):
    """beta counts in the first one only, alpha in each; without beta the first one reads nothing."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(-3, 4, (40, 30_000)).astype("f8"), rng.integers(-3, 4, (30_000, 50)).astype("f8")
    c, product = rng.integers(-3, 4, (40, 50)).astype("f8"), a @ b
    options = {"depth": depth, "executor": "cpu", "workspace_limit": "1 MiB"}
    assert fn.plan(a, b, **options).passes > 4
    for alpha, beta in ((1, 0), (2, -3), (1, 1), (-1, 0.5)):
        out = np.asarray(c if beta else np.full_like(c, np.nan), order=order).copy(order)
        fn.gemm(a, b, out, alpha=alpha, beta=beta, out=out, **options)
        np.testing.assert_array_equal(out, alpha * product + beta * c)


# --- memory that can't be had ----------------------------------------------------------------------------------------


def spoilt_batch():
    """A batch whose products run one after the other in different ways: levels, levels with scaling, depth 0."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 6, 150, 150))
    a[1] *= 2.0 ** rng.integers(-30, 30, (150, 1))
    a[2, 0, 0] = np.nan
    a[4, 3, 3] = np.inf
    return a, b


@pytest.mark.parametrize("allowed", [0, 1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_memory_is_missed_before_out_is_touched(in_place, allowed, monkeypatch):
    """However many workspaces there is memory for, `out` is either as it was or finished."""
    made = []

    class Scarce(workspace._Buffer):
        def __init__(self, nbytes):
            if len(made) == allowed:
                raise MemoryError
            made.append(nbytes)
            super().__init__(nbytes)

    a, b = spoilt_batch()
    out = np.full((6, 150, 150), 7.0)
    calls = {
        "batch": lambda: fn.matmul(a, b, out=out, executor="cpu", depth=2),
        "one": lambda: fn.gemm(a[0], b[0], out[0], beta=2, out=out[0], depth=1),
        "classical": lambda: fn.gemm(a[2], b[0], out[0], beta=2, out=out[0], depth=1),
    }
    names = ["one", "classical"] if in_place else ["batch"]
    for name in names:
        made.clear()
        out.fill(7)
        fn.release_workspace()
        with monkeypatch.context() as scarce:
            scarce.setattr(workspace, "_Buffer", Scarce)
            try:
                calls[name]()
            except MemoryError:
                assert (out == 7).all(), name
                finished = False
            else:
                finished = True
        assert finished or allowed == 0 or name == "batch"
        if finished:
            got = out.copy()
            out.fill(7)
            calls[name]()
            np.testing.assert_array_equal(got, out)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space")
@pytest.mark.parametrize("depth", [0, 1])
def test_no_memory_from_the_system(depth):
    out = python(
        f"""
        import resource
        import numpy as np
        import falcon_numba as fn
        a = np.arange(1_440_000.0).reshape(1200, 1200) % 7
        out = np.full_like(a, 5)
        options = {{"executor": "cpu", "depth": {depth}, "threads": 2}}
        fn.gemm(a[:64, :64], a[:64, :64], **options)
        plan = fn.plan(a, a, **options)
        fn.release_workspace()
        with open("/proc/self/statm") as f:
            used = int(f.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + plan.workspace_bytes // 2, -1))
        try:
            fn.gemm(a, a, out, beta=1, out=out, plan=plan)
        except MemoryError:
            assert (out == 5).all()
            print("refused")
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        fn.gemm(a, a, out, beta=1, out=out, plan=plan)
        assert (out == a @ a + 5).all()
        """
    )
    assert out == "refused"


# --- nothing outside of the operands is read -------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_operands_between_forbidden_pages(dtype):
    """Sizes around every edge of vectors and tiles; a read outside of an operand kills the process."""
    out = python(
        f"""
        import faulthandler, itertools, sys
        faulthandler.enable()
        sys.path.insert(0, sys.argv[1])
        import numpy as np
        from guards import fenced
        import falcon_numba as fn
        rng = np.random.default_rng(0)
        sizes = (1, 2, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 100)
        layouts = {FENCED_LAYOUTS}
        for i in range(600):
            M, N, K = (int(x) for x in rng.choice(sizes, 3))
            a, b = rng.integers(-3, 4, (M, K)).astype({dtype!r}), rng.integers(-3, 4, (K, N)).astype({dtype!r})
            if i % 3 == 0:
                a *= np.ldexp(1, rng.integers(-9, 9, (M, 1))).astype({dtype!r})  # scaled while packing
            x = fenced(a, layouts[i % len(layouts)], i % 2 == 0)
            y = fenced(b, layouts[i // len(layouts) % len(layouts)], i // 2 % 2 == 0)
            got = fn.gemm(x, y, executor="cpu", depth=i % 3, threads=1 + i % 2, leaf="auto" if i % 9 else "portable")
            np.testing.assert_array_equal(got, x @ y)
        """,
        str(Path(__file__).parent),
    )
    assert out == ""


# --- beyond 32 bits --------------------------------------------------------------------------------------------------


MAP_NORESERVE = 0x4000  # of Linux; `mmap` knows it from Python 3.13 on


def far_apart(shape, dtype, step):
    """Zeros, neighbours along each axis of step[i] elements apart; only what is touched gets memory."""
    size = np.dtype(dtype).itemsize
    reach = sum((count - 1) * abs(s) for count, s in zip(shape, step, strict=True)) + 1
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        memory = mmap.mmap(-1, reach * size, flags=flags)
    except OSError:
        pytest.skip("the address space is limited")
    start = sum((count - 1) * -s for count, s in zip(shape, step, strict=True) if s < 0)
    return np.ndarray(shape, dtype, memory, start * size, [s * size for s in step])


FAR = 2**31 + 5  # elements


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs address space without memory")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("steps", [(FAR, 1), (1, FAR), (-FAR, 1), (1, -FAR), (FAR // 2, -FAR // 3), (-1, FAR)])
def test_huge_steps_along_either_axis(steps, dtype):
    """https://github.com/numpy/numpy/issues/5533, https://github.com/ml-explore/mlx/issues/1051"""
    rng = np.random.default_rng(2)
    a, b, out = (far_apart((7, 7), dtype, steps) for _ in range(3))
    a[...], b[...] = rng.integers(-3, 4, (2, 7, 7))
    expected = a.copy() @ b.copy()
    for depth in (0, 1, 2):
        np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth), expected)
        out[...] = 5
        fn.gemm(a, b, out, beta=2, out=out, executor="cpu", depth=depth, threads=2)
        np.testing.assert_array_equal(out, expected + 10)
    batch = np.broadcast_to(a, (2, 7, 7))
    np.testing.assert_array_equal(fn.matmul(batch, b, executor="cpu", depth=1)[1], expected)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 2, 2**31 + 9), (2**16 + 3, 1, 2**15 + 9), (1, 2**16 + 3, 2**15 + 9)])
def test_more_than_2_31_elements_in_a_product(sizes, depth):
    """Packed, guarded and multiplied: K, or M·K, beyond 2³¹. float64 ones are summed exactly."""
    M, N, K = sizes
    a, b = np.broadcast_to(1.0, (M, K)), np.broadcast_to(1.0, (K, N))
    np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth), np.full((M, N), float(K)))


@pytest.mark.slow
def test_slices_of_a_large_result():
    """https://github.com/pytorch/pytorch/issues/24016: rows of a result of more than 2³¹ elements."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(-3, 4, (50_000, 12)).astype("f4"), rng.integers(-3, 4, (12, 43_000)).astype("f4")
    c = fn.gemm(a, b, executor="cpu", depth=1)
    assert c.size > 2**31
    for rows in (slice(0, 5), slice(24_990, 25_010), slice(49_990, 50_000)):
        np.testing.assert_array_equal(c[rows], a[rows] @ b)
