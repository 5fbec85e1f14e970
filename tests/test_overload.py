"""`gemm` inside functions compiled by numba.njit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from engine_oracle import in_layout, integers
from numba.core.errors import TypingError

import falcon_numba as fn
from falcon_numba import gemm
from falcon_numba.cpu.engine import engine_for
from falcon_numba.cpu.kernel import kernel_for

njit = numba.njit
DTYPES = ("float32", "float64")


@njit(nogil=True)
def product(a, b):
    return gemm(a, b)


@njit
def update(a, b, c, alpha, beta, out):
    return fn.gemm(a, b, c, alpha=alpha, beta=beta, out=out)


def expected(a, b, c=None, **given):
    return gemm(a, b, c, executor="cpu", depth=0, threads=1, **given)


def python(code: str, folder, *arguments: str, **environment: str) -> str:
    """Run code, as a file, in a fresh interpreter; its standard output."""
    script = folder / "script.py"
    text = textwrap.dedent(code)
    if not script.exists() or script.read_text() != text:
        script.write_text(text)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(folder)]), **environment}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "of_a", "of_b", "of_c", "of_out"),
    [
        ("float32", "C", "C", "C", "C"),
        ("float64", "C", "C", "C", "C"),
        ("float32", "F", "readonly", "F", "F"),
        ("float64", "strided", "F", "readonly", "reversed"),
        ("float32", "unaligned", "broadcast", "transposed_strided", "strided"),
    ],
)
def test_exact_over_layouts(dtype, of_a, of_b, of_c, of_out):
    rng = np.random.default_rng(0)
    for M, N, K in ((1, 1, 1), (1, 9, 5), (7, 1, 3), (13, 33, 17), (65, 31, 129), (40, 50, 1100)):
        a, b, c = integers(rng, (M, K), dtype), integers(rng, (K, N), dtype), integers(rng, (M, N), dtype)
        x, y, z = in_layout(a, of_a), in_layout(b, of_b), in_layout(c, of_c)
        got = product(x, y)
        np.testing.assert_array_equal(got, x @ y)
        assert got.flags.c_contiguous
        assert got.dtype == dtype
        for alpha, beta in ((1.0, 0.0), (-2.0, 3.0), (0.0, 2.0), (0.0, 0.0)):
            out = in_layout(np.full((M, N), np.nan, dtype), of_out)
            assert np.shares_memory(update(x, y, z, alpha, beta, out), out)
            np.testing.assert_array_equal(out, alpha * (x @ y) + beta * z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_from_python(dtype):
    """K on both sides of every limit that decides the order of additions."""
    rng = np.random.default_rng(1)
    KC = kernel_for(dtype).spec.KC
    for M, N, K in ((60, 70, 50), (5, 300, KC), (300, 5, KC + 1), (9, 40, 8 * KC + 3), (31, 17, 17 * KC - 5)):
        a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((M, K), (K, N), (M, N)))
        np.testing.assert_array_equal(product(a, b), expected(a, b))
        given = {"alpha": 1 / 3, "beta": -0.7}
        np.testing.assert_array_equal(update(a, b, c, 1 / 3, -0.7, np.empty_like(c)), expected(a, b, c, **given))
        of_columns = np.asfortranarray(c)
        np.testing.assert_array_equal(update(a, b, of_columns, 1 / 3, -0.7, of_columns), expected(a, b, c, **given))


def test_large_product_in_many_blocks():
    """Sizes beyond every block size."""
    rng = np.random.default_rng(2)
    a, b = integers(rng, (700, 300), "float32"), integers(rng, (300, 9000), "float32")
    np.testing.assert_array_equal(product(a, b), a @ b)


def test_transposition():
    a, b = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(5, 4)
    np.testing.assert_array_equal(njit(lambda a, b: gemm(a, b, trans_b="T"))(a, b), a @ b.T)
    np.testing.assert_array_equal(njit(lambda a, b: gemm(b, a, trans_a=False, trans_b=True))(a, b), b @ a.T)
    both = njit(lambda a, b: gemm(a, b, alpha=2, trans_a="t", trans_b="C"))
    np.testing.assert_array_equal(both(a.T.copy(), b), 2 * (a @ b.T))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_read_in_vain(dtype):
    nan, c = np.full((3, 3), np.nan, dtype), np.arange(9, dtype=dtype).reshape(3, 3)
    one = np.ones_like(c)
    np.testing.assert_array_equal(update(nan, nan, c, 0.0, 2.0, np.empty_like(c)), 2 * c)
    np.testing.assert_array_equal(update(one, one, nan, 1.0, 0.0, np.full_like(c, np.nan)), 3 * one)
    np.testing.assert_array_equal(update(nan, nan, nan, 0.0, 0.0, np.full_like(c, np.nan)), 0 * c)
    assert np.isnan(update(one, one, nan, 1.0, 1.0, np.empty_like(c))).all()


def test_empty():
    for M, N, K in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)):
        a, b, c = np.ones((M, K)), np.ones((K, N)), np.full((M, N), 5.0)
        np.testing.assert_array_equal(product(a, b), a @ b)
        np.testing.assert_array_equal(update(a, b, c, 1.0, 2.0, np.empty_like(c)), 2 * c + a @ b)


def test_temporaries_live_long_enough():
    @njit
    def chain(a, n):
        total = np.zeros_like(a)
        for i in range(n):
            total += gemm(a + i, gemm(a * i, a.T.copy(), trans_b=True), a - i, beta=2.0)
        return total

    a = np.arange(400.0).reshape(20, 20) % 7
    want = sum((a + i) @ ((a * i) @ a) + 2 * (a - i) for i in range(50))
    np.testing.assert_array_equal(chain(a, 50), want)


def test_out_may_overlap():
    rng = np.random.default_rng(3)
    square, b = integers(rng, (30, 30), "float64"), integers(rng, (30, 30), "float64")
    for given in (lambda x: (x, b, x), lambda x: (b, x, x), lambda x: (x, x, x), lambda x: (b, b, x[::-1])):
        for beta in (0.0, 2.0):
            x = square.copy()
            a_, b_, c_ = given(x)
            want = expected(*(y.copy() for y in (a_, b_, c_)), beta=beta)
            update(a_, b_, c_, 1.0, beta, x)
            np.testing.assert_array_equal(x, want)
    buffer = np.zeros(8 * 30 + 30)
    out = np.lib.stride_tricks.as_strided(buffer, (30, 30), (64, 8))  # rows overlap: the last one written stays
    a, b = np.ones((30, 2)), np.ones((2, 30))
    update(a, b, np.zeros((30, 30)), 1.0, 0.0, out)
    np.testing.assert_array_equal(out, np.full((30, 30), 2.0))


def test_options_of_the_caller_do_not_reach_the_kernel():
    a = np.array([[np.nan, np.inf, 1.0]])
    got = njit(lambda a, b: gemm(a, b), fastmath=True, error_model="numpy", boundscheck=True)(a, np.eye(3))
    np.testing.assert_array_equal(got, [[np.nan, np.nan, np.nan]])
    assert len(engine_for(kernel_for("float64").spec, False)._worker.signatures) == 1


# --- errors --------------------------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit():
    a, c = np.ones((2, 3)), np.ones((3, 3))
    with pytest.raises(ValueError, match="inner sizes"):
        product(a, a)
    with pytest.raises(ValueError, match="c has not"):
        update(a, c, c, 1.0, 1.0, a)
    with pytest.raises(ValueError, match="out has not"):
        update(a, c, a, 1.0, 1.0, c)
    with pytest.raises(ValueError, match="beta needs c"):
        njit(lambda a, b: gemm(a, b, beta=2.0))(a, c)
    x = np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match="overflows"):
        update(x, x, x, 1e60, 0.0, x)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda a, b: gemm(a, b), (np.ones((2, 2), np.int64), np.ones((2, 2))), "a must be a 2-D array of float32"),
        (lambda a, b: gemm(a, b), (np.ones((2, 2)), np.ones((2, 2), np.float32)), "b must be float64 like a"),
        (lambda a, b: gemm(a, b), (np.ones((2, 2)), np.ones(2)), "b must be a 2-D array"),
        (lambda a, b: gemm(a, a, b), (np.ones((2, 2)), np.ones((2, 2), complex)), "c must be a 2-D array"),
        (lambda a, b: gemm(a, a, alpha=b), (np.ones((2, 2)), 1j), "alpha must be a real number"),
        (lambda a, b: gemm(a, a, trans_a=b), (np.ones((2, 2)), True), "trans_a must be a literal"),
        (lambda a, b: gemm(a, a, trans_b="X"), (np.ones((2, 2)), 0), "trans_b must be a literal"),
        (lambda a, b: gemm(a, a, out=b), (np.ones((2, 2)), in_layout(np.ones((2, 2)), "readonly")), "out is read-only"),
        (lambda a, b: gemm(a, a, depth=1), (np.ones((2, 2)), 0), "depth"),
    ],
)
def test_wrong_types_are_refused_when_compiled(function, arguments, message):
    with pytest.raises(TypingError, match=message):
        njit(function)(*arguments)


# --- threads -------------------------------------------------------------------------------------------------------


def test_from_many_python_threads():
    rng = np.random.default_rng(4)
    work = [(rng.standard_normal((50 + i, 90)), rng.standard_normal((90, 60))) for i in range(8)]
    want = [expected(a, b) for a, b in work]
    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(lambda i: product(*work[i % 8]), range(200))):
            np.testing.assert_array_equal(got, want[i % 8])


PARALLEL = """
    import numba, numpy as np
    from falcon_numba import gemm

    @numba.njit(parallel=True, cache=True)
    def products(a, b, out):
        for i in numba.prange(len(a)):
            gemm(a[i], b[i], trans_b="T", out=out[i])
            out[i] += gemm(a[i], a[i], trans_b=True, alpha=i)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 40, 50, 60)).astype(np.float32)
    out = np.empty((40, 50, 50), np.float32)
    for _ in range(3):
        out.fill(np.nan)
        products(a, b, out)
        want = a @ b.transpose(0, 2, 1) + np.arange(40)[:, None, None] * (a @ a.transpose(0, 2, 1))
        np.testing.assert_array_equal(out, want)
    print(numba.threading_layer(), numba.get_num_threads(), sum(products.stats.cache_hits.values()))
"""


def test_inside_prange(tmp_path):
    threads = {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "4"}
    assert python(PARALLEL, tmp_path, **threads) == "workqueue 4 0"
    assert python(PARALLEL, tmp_path, **threads) == "workqueue 4 1"


# --- caches and imports ----------------------------------------------------------------------------------------------

INNER = """
import numba, falcon_numba as fn

@numba.njit(cache=True)
def inner(a):
    return fn.gemm(a, a)
"""
OUTER = """
import numba
from inner import inner

@numba.njit(cache=True)
def outer(a):
    return inner(a) + 1
"""
CALL = """
    import sys, numpy as np
    from falcon_numba.cpu import kernel
    if len(sys.argv) > 2:
        kernel.source_hash = lambda: sys.argv[2]
    name = sys.argv[1]
    function = getattr(__import__(name), name)
    np.testing.assert_array_equal(function(np.eye(3)), np.eye(3) + (name == "outer"))
    print(sum(function.stats.cache_hits.values()), "falcon_numba.api" in sys.modules)
"""


def test_functions_kept_on_disk(tmp_path):
    """Numba's cache loads whole functions: none of the module that holds `gemm` may be needed then."""
    (tmp_path / "inner.py").write_text(INNER)
    (tmp_path / "outer.py").write_text(OUTER)
    assert python(CALL, tmp_path, "inner") == "0 True"
    assert python(CALL, tmp_path, "inner") == "1 False"
    assert python(CALL, tmp_path, "outer") == "0 False"  # compiled around what was loaded
    assert python(CALL, tmp_path, "outer") == "1 False"
    assert python(CALL, tmp_path, "inner", "another version") == "0 True"
    assert python(CALL, tmp_path, "inner", "another version") == "1 False"


@pytest.mark.parametrize(
    "imports",
    [
        "import numba; from falcon_numba import gemm",
        "from falcon_numba import gemm; import numba",
        "import falcon_numba, numba; gemm = None",  # its module is first imported while Numba compiles
    ],
)
def test_in_any_order_of_imports(imports, tmp_path):
    code = f"""
    {imports}
    import sys, numpy as np
    if gemm is None:
        assert "falcon_numba.api" not in sys.modules
        function = numba.njit(lambda a: falcon_numba.gemm(a, a))
    else:
        function = numba.njit(lambda a: gemm(a, a))
    print(function(np.eye(3)).sum())
    """
    assert python(code, tmp_path) == "3.0"
