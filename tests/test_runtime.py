"""Threads, forks, caches, compilation and memory."""

from __future__ import annotations

import multiprocessing
import os
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from engine_oracle import LAYOUTS, in_layout
from processes import copy_kernels, python

import falcon_numba as fn
from falcon_numba.cpu import threads as threads_module
from falcon_numba.cpu.engine import engine_for
from falcon_numba.cpu.spec import SPECS
from falcon_numba.decision.hardware import isa_family

MIB = 2**20


# --- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_same_bits_for_any_number_of_threads(depth, dtype):
    """Tall, wide, short and square, so that threads split rows as well as columns."""
    rng = np.random.default_rng(0)
    for M, N, K in ((300, 280, 1300), (3000, 20, 50), (10, 3000, 70), (257, 255, 33)):
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        one = fn.gemm(a, b, executor="cpu", depth=depth, threads=1)
        for threads in (2, 3, 5, 8):
            np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth, threads=threads), one)


def test_many_python_threads_at_once():
    """https://github.com/numba/numba/issues/9327: Numba's workqueue layer aborts here; this engine doesn't use it."""
    rng = np.random.default_rng(1)
    work = [(rng.standard_normal((257, 255)), rng.standard_normal((255, 256)), d % 3) for d in range(24)]
    expected = [fn.gemm(a, b, executor="cpu", depth=d, threads=1) for a, b, d in work]

    def one(i):
        a, b, d = work[i % len(work)]
        return fn.gemm(a, b, executor="cpu", depth=d, threads=2)

    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(one, range(120))):
            np.testing.assert_array_equal(got, expected[i % len(work)])


def test_numba_thread_count_is_respected_and_restored():
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        assert fn.plan_for(1000, 1000, 1000).threads == 1
        a = np.ones((600, 600))
        with fn.trace() as plans:
            fn.gemm(a, a, executor="cpu")
        assert plans[0].threads == 1
        assert numba.get_num_threads() == 1
        assert fn.plan_for(1000, 1000, 1000, threads=3).threads == 3
    finally:
        numba.set_num_threads(before)


def test_a_failing_thread_is_reported_and_releases_the_others():
    pool = threads_module.Pool()
    from falcon_numba.cpu.sync import barrier

    wait = numba.njit(nogil=True)(lambda sync, threads: barrier(sync, 0, threads))
    wait(0, 1)

    def work(tid, threads, sync):
        if tid == 1:
            raise RuntimeError("thread 1")
        assert wait(sync, threads) == -1

    with pytest.raises(RuntimeError, match="thread 1"):
        pool.run(3, work)
    seen = []
    assert pool.run(3, lambda tid, threads, sync: seen.append(tid)) == 3
    assert sorted(seen) == [0, 1, 2]


def test_a_run_inside_a_run_works_alone():
    pool = threads_module.Pool()
    inner = []
    pool.run(2, lambda tid, threads, sync: inner.append(pool.run(2, lambda *_: None)) if tid == 0 else None)
    assert inner == [1]


def _child(results, n):
    a = np.arange(n * n, dtype=np.float64).reshape(n, n) % 7
    got = fn.gemm(a, a, executor="cpu", depth=1, threads=2)
    results.put(bool((got == a @ a).all()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_after_use():
    """https://github.com/OpenMathLib/OpenBLAS/issues/294: a child of a threaded parent must not hang."""
    a = np.ones((400, 400))
    fn.gemm(a, a, executor="cpu", threads=2)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    for n in (7, 8, 300):
        child = context.Process(target=_child, args=(results, n))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert results.get(timeout=10)
    np.testing.assert_array_equal(fn.gemm(a, a, executor="cpu", threads=2), a @ a)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_while_another_thread_multiplies():
    """The child has its own pool, also where the parent's was taken at the moment of the fork."""
    pool = threads_module.pool
    assert pool._busy.acquire(timeout=10)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if pool.run(2, lambda *_: None) == 2 else 1)
        _, status = os.waitpid(pid, 0)
    finally:
        pool._busy.release()
    assert os.waitstatus_to_exitcode(status) == 0


# --- compilation and caches -----------------------------------------------------------------------------------------


def test_import_compiles_nothing_and_is_light():
    seconds = float(
        python(
            """
            import time, numba
            compiled = []
            import numba.core.event as event
            class Listener(event.Listener):
                def on_start(self, e): compiled.append(e)
                def on_end(self, e): pass
            event.register("numba:compile", Listener())
            start = time.perf_counter()
            import falcon_numba
            elapsed = time.perf_counter() - start
            assert not compiled
            import falcon_numba.api
            assert not compiled
            print(elapsed)
            """
        )
    )
    assert seconds < 0.15


def test_one_compilation_for_all_shapes_and_layouts():
    """The engine of a dtype is compiled once, whatever comes."""
    from numba.core import event

    a = np.ones((20, 20), np.float32)
    fn.gemm(a, a, depth=1, leaf="simd")  # compiled or loaded by now
    compiled = []

    class Listener(event.Listener):
        def on_start(self, e):
            compiled.append(e)

        def on_end(self, e):
            pass

    listener = Listener()
    event.register("numba:compile", listener)
    try:
        rng = np.random.default_rng(0)
        for i in range(50):
            M, N, K = rng.integers(1, 200, 3)
            x = in_layout(rng.standard_normal((M, K)).astype(np.float32), LAYOUTS[i % len(LAYOUTS)])
            y = in_layout(rng.standard_normal((K, N)).astype(np.float32), LAYOUTS[i // 3 % len(LAYOUTS)])
            fn.gemm(x, y, executor="cpu", depth=i % 3, scheme=["strassen", "hk233", "laderman"][i % 3])
    finally:
        event.unregister("numba:compile", listener)
    assert not compiled
    assert len(engine_for(SPECS[isa_family(), "float32"], False)._worker.signatures) == 1


FIRST_PRODUCT = """
    import time, numba, numpy as np
    import falcon_numba as fn
    start = time.perf_counter()
    a = np.ones((64, 64))
    assert (fn.gemm(a, a, depth=1) == 64).all()
    print(time.perf_counter() - start)
"""


def test_second_process_starts_fast(tmp_path):
    python(FIRST_PRODUCT, FALCON_CACHE_DIR=str(tmp_path))
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(files) == 3  # the engine and the guard of float64, the model
    assert float(python(FIRST_PRODUCT, FALCON_CACHE_DIR=str(tmp_path))) < 1
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == files


def test_compiling_is_announced_and_loading_is_not(tmp_path):
    code = "import sys; sys.stderr = sys.stdout\n" + textwrap.dedent(FIRST_PRODUCT)
    compiled, loaded = (python(code, FALCON_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert compiled.count("compiling the") == 1
    assert "float64" in compiled
    assert "compiling" not in loaded


def test_kernels_compiled_in_different_processes_work_together(tmp_path):
    """Their machine code must not share names; float64's would call parts of float32's."""
    code = """
        import sys, numpy as np
        import falcon_numba as fn
        for dtype in sys.argv[1:]:
            a, b = np.arange(97 * 40).reshape(97, 40) % 5, np.arange(40 * 95).reshape(40, 95) % 7
            a, b = a.astype(dtype), b.astype(dtype)
            for depth in (0, 1):
                np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth), a @ b)
    """
    for dtypes in (["float32"], ["float64"], ["float32", "float64"], ["float64", "float32"]):
        python(f"import sys; sys.argv[1:] = {dtypes}\n" + textwrap.dedent(code), FALCON_CACHE_DIR=str(tmp_path))


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    copy_kernels(folder, "float64")
    return folder


@pytest.mark.parametrize("damage", ["truncate", "garbage", "empty", "wrong payload"])
def test_damaged_cache_files_are_ignored(warm_cache, damage):
    (guard,) = warm_cache.glob("guard-*.bin")  # the small one: quickly compiled again
    data = guard.read_bytes()
    wrong = {
        "truncate": data[: len(data) // 2],
        "garbage": b"\x80garbage" * 100,
        "empty": b"",
        "wrong payload": data[:100] + bytes([data[100] ^ 255]) + data[101:],
    }
    guard.write_bytes(wrong[damage])
    python(FIRST_PRODUCT, FALCON_CACHE_DIR=str(warm_cache))
    assert guard.read_bytes() != wrong[damage]


def test_cache_key_follows_the_source(tmp_path, monkeypatch):
    """A changed helper anywhere in the kernels' package means another file, so stale code is never found."""
    from numba.core.registry import cpu_target

    from falcon_numba import diskcache as cache

    codegen = cpu_target.target_context.codegen()
    before = cache.DiskCache("x")._file("sig", codegen)
    assert cache.DiskCache("x")._file("other", codegen) != before
    monkeypatch.setattr(cache, "source_hash", lambda: "changed")
    assert cache.DiskCache("x")._file("sig", codegen) != before


def test_works_without_a_writable_cache_folder(tmp_path):
    """https://github.com/numba/numba/issues/1771"""
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    out = python(
        """
        import warnings, numpy as np
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import falcon_numba as fn
            a = np.ones((64, 64))
            assert (fn.gemm(a, a, depth=1) == 64).all()
        print(len([w for w in caught if "kept" in str(w.message)]))
        """,
        FALCON_CACHE_DIR=str(blocked / "below"),
    )
    assert out == "1"


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_peak_memory_is_what_the_plan_says(depth):
    """4096² float64 on two threads: at most 320 MiB beside operands and result, and no more than stated."""
    out = python(
        f"""
        import numpy as np, threading
        import falcon_numba as fn
        def status(key):
            with open("/proc/self/status") as f:
                return next(int(line.split()[1]) for line in f if line.startswith(key)) / 1024
        small = np.ones((64, 64))
        fn.gemm(small, small, depth={depth}, threads=2, executor="cpu")
        fn.release_workspace()
        rng = np.random.default_rng(0)
        a, b = rng.random((2, 4096, 4096))
        c = np.zeros_like(a)
        c.fill(1)
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
        before = status("VmRSS")
        with fn.trace() as plans:
            fn.gemm(a, b, out=c, depth={depth}, threads=2, executor="cpu")
        print(status("VmHWM") - before, plans[0].workspace_bytes / 2**20, plans[0].depth)
        """
    )
    used, stated, ran = (float(x) for x in out.split())
    assert ran == depth
    assert stated <= 320
    assert used <= stated + 16


@pytest.mark.parametrize("limit", [8 * MIB, 32 * MIB])
def test_workspace_limit_is_kept(limit):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 900, 900)).astype(np.float32)
    with fn.config_context(workspace_limit=limit, executor="cpu"):
        for depth in (0, 1, 2):
            plan = fn.plan(a, b, depth=depth)
            assert plan.workspace_bytes <= limit
            np.testing.assert_array_equal(fn.gemm(a, b, plan=plan), a @ b)
            c = a.copy()
            np.testing.assert_array_equal(fn.gemm(a, b, c, alpha=2, beta=-3, out=c, plan=plan), 2 * (a @ b) - 3 * a)
        assert plan.rank > plan.blocks.PRODUCTS  # several passes over C
    with pytest.raises(ValueError, match="workspace"):
        fn.gemm(a, b, depth=2, workspace_limit=10_000)


def test_steps_beyond_32_bits():
    """Rows more than 2^31 elements apart; only a few pages of the address space are ever touched."""
    wide = np.zeros((3, 2**29 + 8), np.float32)
    a = wide[:, :64]
    a[...] = np.arange(192).reshape(3, 64) % 5
    b = np.arange(64 * 5, dtype=np.float32).reshape(64, 5) % 3
    for depth in (0, 1):
        np.testing.assert_array_equal(fn.gemm(a, b, executor="cpu", depth=depth), a.copy() @ b)
        out = np.zeros((3, 2**29 + 8), np.float32)[:, :5]
        np.testing.assert_array_equal(fn.gemm(a, b, out=out, executor="cpu", depth=depth), a.copy() @ b)


def test_interrupted_workspace_is_not_shared():
    """Two products at once never borrow the same workspace."""
    from falcon_numba.cpu.workspace import borrow

    with borrow(1000) as first, borrow(1000) as second:
        assert abs(first - second) >= 1000
        assert first % 64 == second % 64 == 0
    got = []
    thread = threading.Thread(target=lambda: got.append(fn.gemm(np.ones((9, 9)), np.ones((9, 9)), executor="cpu")))
    with borrow(10):
        thread.start()
        thread.join(60)
    np.testing.assert_array_equal(got[0], np.full((9, 9), 9.0))
