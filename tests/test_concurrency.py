"""Many threads, threading layers, forks and interrupts: right answers, no abort, no hang."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_oracle import LAYOUTS, in_layout
from processes import copy_kernels, exit_code_of, finish, python, start, start_file

import falcon_numba as fn
from falcon_numba.cpu import threads as threads_module

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


# --- Python threads --------------------------------------------------------------------------------------------------


def test_mixed_calls_from_eight_threads():
    """Dtypes, depths, layouts, batches, NaN, thread counts and options of a context: the bits of a call made alone."""
    rng = np.random.default_rng(1)
    calls = []
    for i in range(40):
        dtype = ("float32", "float64")[i % 2]
        M, N, K = (int(x) for x in rng.integers(1, 130, 3))
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        if i % 9 == 0:
            a[0, 0] = np.nan
        if i % 7 == 0:
            a *= 2.0 ** rng.integers(-20, 20, (M, 1))
        options = {"executor": "cpu", "depth": i % 4 % 3, "scheme": ("strassen", "hk233", "laderman")[i % 3]}
        x, y = in_layout(a, LAYOUTS[i % len(LAYOUTS)]), in_layout(b, LAYOUTS[i // 3 % len(LAYOUTS)])
        if i % 5 == 0:
            x = np.broadcast_to(x, (3, M, K))
            calls.append((fn.matmul, x, y, {k: options[k] for k in ("executor", "depth")}))
        else:
            calls.append((fn.gemm, x, y, options))
    expected = [function(a, b, threads=1, **options) for function, a, b, options in calls]

    def work(thread):
        for i in range(400):
            at = (7 * i + thread) % len(calls)
            function, a, b, options = calls[at]
            with fn.config_context(threads=1 + (i + thread) % 4):
                np.testing.assert_array_equal(function(a, b, **options), expected[at])
            if i % 50 == thread:
                fn.release_workspace()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_without_threads_to_be_had(monkeypatch):
    """A limit on threads, or an interpreter on its way out: the caller works alone."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    pool = threads_module.Pool()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert pool.run(3, lambda tid, threads, sync: None) == 1
    monkeypatch.setattr(threads_module.pool, "run", pool.run)
    a = np.arange(90_000.0).reshape(300, 300) % 7
    np.testing.assert_array_equal(fn.gemm(a, a, executor="cpu", depth=1, threads=3), a @ a)
    monkeypatch.undo()
    assert pool.run(3, lambda tid, threads, sync: None) == 3


def test_products_while_the_interpreter_ends():
    out = python(
        """
        import atexit, threading, time
        import numpy as np
        import falcon_numba as fn
        a = np.arange(90_000.0).reshape(300, 300) % 7
        def product(where):
            assert (fn.gemm(a, a, executor="cpu", depth=1, threads=3) == a @ a).all()
            print(where, flush=True)
        def late():
            time.sleep(0.3)
            product("thread")
        atexit.register(product, "atexit")
        threading.Thread(target=late).start()
        """
    )
    assert sorted(out.split()) == ["atexit", "thread"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
@pytest.mark.parametrize("numba_threads", ["1", "7"])
def test_more_threads_than_cpus(numba_threads):
    out = python(
        """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import numpy as np
        import falcon_numba as fn
        a = np.arange(90_000, dtype=np.float32).reshape(300, 300) % 7
        for threads in (None, 1, 4):
            for depth in (0, 1):
                assert (fn.gemm(a, a, executor="cpu", depth=depth, threads=threads) == a @ a).all()
        print(fn.plan_for(300, 300, 300, executor="cpu").threads)
        """,
        NUMBA_NUM_THREADS=numba_threads,
    )
    assert out == numba_threads


# --- threading layers ------------------------------------------------------------------------------------------------

LAYERS = """
    import sys, threading
    import numba, numpy as np
    sys.path.insert(0, sys.argv[1])
    try:
        numba.config.THREADING_LAYER = sys.argv[2]
        numba.set_num_threads(2)
        from layer_functions import products
        import falcon_numba as fn
        rng = np.random.default_rng(0)
        a, b = rng.integers(-3, 4, (2, 12, 40, 50)).astype(np.float32)
        b = b.transpose(0, 2, 1)
        out, want = np.empty((12, 40, 40), np.float32), a @ b
        products(a, b, out)
    except ValueError as error:
        assert "threading layer" in str(error), error
        print("missing")
        sys.exit()

    def multiply():
        for i in range(100):
            got = fn.gemm(a[i % 12], b[i % 12], executor="cpu", depth=i % 3, threads=2)
            assert (got == want[i % 12]).all()
        done.append(True)

    done = []
    threads = [threading.Thread(target=multiply) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):  # workqueue aborts when two threads run Numba's parallel code
        out.fill(np.nan)
        products(a, b, out)
        assert (out == want).all()
    assert len(done) == 4
    assert numba.get_num_threads() == 2
    print(numba.threading_layer())
"""
LAYER_FUNCTIONS = """
import numba
from falcon_numba import gemm

@numba.njit(parallel=True, cache=True)
def products(a, b, out):
    for i in numba.prange(len(a)):
        gemm(a[i], b[i], out=out[i])
"""


@pytest.fixture(scope="module")
def layer_functions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    (folder / "layer_functions.py").write_text(LAYER_FUNCTIONS)
    return str(folder)


@pytest.mark.parametrize("layer", ["workqueue", "omp", "tbb"])
def test_threading_layers(layer, layer_functions):
    """Inside of a user's prange, and beside it from four other threads.

    https://github.com/numba/numba/issues/8563, https://github.com/dask/dask/issues/5132
    """
    paths = os.pathsep.join([f"{sys.prefix}/lib", os.environ.get("LD_LIBRARY_PATH", "")])  # of `pip install tbb`
    got = python(LAYERS, layer_functions, layer, NUMBA_NUM_THREADS="2", LD_LIBRARY_PATH=paths)
    if got == "missing":
        pytest.skip(f"no threading layer {layer} here")
    assert got == layer


# --- processes -------------------------------------------------------------------------------------------------------

POOLS = """
import multiprocessing, sys, warnings
import numpy as np
import falcon_numba as fn
warnings.simplefilter("ignore", DeprecationWarning)

def product(n):
    a = np.arange(n * n, dtype=np.float32).reshape(n, n) % 7
    return all((fn.gemm(a, a, executor="cpu", depth=d, threads=2) == a @ a).all() for d in (0, 1))

if __name__ == "__main__":
    assert product(300)  # threads are running
    for method in sys.argv[1:]:
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map_async(product, [7, 8, 31, 128, 300, 64]).get(300) == [True] * 6
        assert product(301)
    print("right")
"""


@needs_fork
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pools(method, tmp_path):
    """https://github.com/numba/numba/issues/7872, https://github.com/joblib/joblib/pull/951"""
    script = tmp_path / "pools.py"  # a file, since spawned processes import the main module
    script.write_text(POOLS)
    assert finish(start_file(script, method)) == "right"


@needs_fork
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forks_of_forks_while_threads_multiply():
    """Forks at any moment of other threads' products, locks and queues included."""
    a = np.arange(10_000.0).reshape(100, 100) % 7
    want = a @ a
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            assert (fn.gemm(a, a, executor="cpu", depth=1, threads=2) == want).all()

    def right():
        return all((fn.gemm(a, a, executor="cpu", depth=d, threads=2) == want).all() for d in (0, 1, 0, 1))

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = 0 if right() else 2
                    grandchild = os.fork()
                    if grandchild == 0:
                        os._exit(0 if right() else 3)
                    code = code or (exit_code_of(grandchild) != 0)
                finally:
                    os._exit(code)
            assert exit_code_of(pid) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert right()


COLD = """
    import numpy as np
    import falcon_numba as fn
    for dtype in DTYPES:
        a = np.arange(40_000).reshape(200, 200) % 7
        a = a.astype(dtype)
        for depth in (0, 1):
            assert (fn.gemm(a, a, executor="cpu", depth=depth, threads=2) == a @ a).all()
    print("right")
"""


def race(folder, dtypes, count=6):
    code = COLD.replace("DTYPES", repr(dtypes))
    runs = [start(code, FALCON_CACHE_DIR=str(folder)) for _ in range(count)]
    assert [finish(run) for run in runs] == ["right"] * count
    left = [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]
    assert not left


@pytest.mark.slow
def test_six_processes_race_for_a_cold_cache(tmp_path):
    race(tmp_path, ["float32", "float64"])


def test_six_processes_race_for_a_cold_guard(tmp_path):
    """As above with the small kernel alone: all else lies ready."""
    copy_kernels(tmp_path, "float32")
    (guard,) = tmp_path.glob("guard-*.bin")
    guard.unlink()
    race(tmp_path, ["float32"])
    assert guard.exists()


# --- interrupts ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_keyboard_interrupts():
    """At any moment: nobody writes any more when it arrives, and the next product is right and has all its threads."""
    out = python(
        """
        import os, random, signal, threading, time
        import numpy as np
        import falcon_numba as fn
        from falcon_numba.cpu.threads import pool
        a = np.arange(250_000, dtype=np.float32).reshape(500, 500) % 7
        want = a @ a
        out = np.empty_like(a)
        fn.gemm(a, a, out=out, executor="cpu", depth=1, threads=3)
        draw, interrupts = random.Random(1), 0
        for i in range(150):
            delay = draw.random() * 0.004
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                while True:
                    out.fill(-1)
                    fn.gemm(a, a, out=out, executor="cpu", depth=i % 3, threads=3)
                    assert (out == want).all()
            except KeyboardInterrupt:
                interrupts += 1
            seen = out.copy()
            time.sleep(0.002)
            assert (seen == out).all(), "a thread still writes"
            assert not pool._busy.locked()
            assert (fn.gemm(a, a, executor="cpu", depth=i % 3, threads=3) == want).all()
            assert pool.run(3, lambda tid, threads, sync: None) == 3
        print(interrupts)
        """
    )
    assert out == "150"
