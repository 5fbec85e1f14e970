"""SIMD kernels and their portable twins: the same bits; and every line of the kernel table on this machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_oracle import in_layout, integers

import falcon_numba as fn
from falcon_numba.algorithms import flatten
from falcon_numba.cpu.blocking import choose_blocks
from falcon_numba.cpu.engine import Engine, scaling_for, table_of
from falcon_numba.cpu.guard import ZERO_EXPONENT, magnitudes
from falcon_numba.cpu.spec import SPECS
from falcon_numba.decision.hardware import isa_family
from falcon_numba.problem import Problem

DTYPES = ("float32", "float64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("scheme", "depth"), [("classical", 0), ("strassen", 2), ("laderman", 1), ("hk522", 1)])
@pytest.mark.parametrize("units", [False, True], ids=["plain", "scaled"])
def test_simd_and_portable_give_the_same_bits(scheme, depth, dtype, units):
    rng = np.random.default_rng(1)
    for M, N, K in ((1, 1, 1), (45, 70, 33), (130, 131, 1100)):
        a, b = rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)
        c = rng.standard_normal((M, N)).astype(dtype)
        if units:
            a *= 10.0 ** rng.integers(-12, 12, (M, 1))
        for layout in ("C", "F", "strided"):
            x, y = in_layout(a, layout), in_layout(b, layout)
            results = []
            for leaf in ("simd", "portable"):
                out = in_layout(c, layout)
                fn.gemm(x, y, out, alpha=1.5, beta=-0.25, out=out, scheme=scheme, depth=depth, leaf=leaf)
                results.append(out)
            np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_does_not_change_the_bits(dtype):
    """Operands and results of any layout run through other loads and stores, not through other arithmetic."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((150, 140)).astype(dtype), rng.standard_normal((140, 130)).astype(dtype)
    for scheme in ("strassen", "hk323"):
        reference = fn.gemm(a, b, scheme=scheme, depth=2)
        for layout in ("F", "strided", "reversed", "transposed_strided", "unaligned"):
            np.testing.assert_array_equal(fn.gemm(in_layout(a, layout), b, scheme=scheme, depth=2), reference)
            np.testing.assert_array_equal(fn.gemm(a, in_layout(b, layout), scheme=scheme, depth=2), reference)
            out = in_layout(np.zeros_like(reference), layout)
            np.testing.assert_array_equal(fn.gemm(a, b, out=out, scheme=scheme, depth=2), reference)


def exercise(engine: Engine) -> None:
    """Exact products of awkward shapes through one engine."""
    spec = engine.spec
    rng = np.random.default_rng(3)
    combinations = [(), ("strassen",), ("strassen", "winograd"), ("hk233",)]
    for M, N, K in ((1, 1, 1), (5, 3, 7), (31, 65, 33), (100, 90, 700)):
        for names in combinations:
            levels = tuple(fn.schemes[name] for name in names)
            flat = flatten(levels)
            for layout in ("C", "F", "strided"):
                a, b = integers(rng, (M, K), spec.dtype), integers(rng, (K, N), spec.dtype)
                out = in_layout(np.full((M, N), 7 if spec.exact else np.nan, spec.sums), layout)
                for threads in (1, 3):
                    blocks = choose_blocks(spec, flat, M, N, K, threads, 1, 2**28)
                    x, y = in_layout(a, layout), in_layout(b, layout)
                    engine.run([Problem(x, y, out)], flat, blocks, threads)
                    np.testing.assert_array_equal(out, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(SPECS), ids="-".join)
def test_every_line_of_the_kernel_table(key):
    """LLVM lowers any vector length for the host, so the tables of other instruction sets can be tested here too."""
    exercise(Engine(SPECS[key]))


def rows_and_columns(x, spec, threads=1):
    """What the guard finds for the rows of x as A and, transposed, as columns of B."""
    M, K = x.shape
    blocks = choose_blocks(spec, flatten(()), M, M, K, 1, 1, 2**28)
    ((rows, columns),) = magnitudes(table_of([Problem(x, x.T, np.empty((M, M), x.dtype))], blocks), spec, threads)
    return rows, columns


@pytest.mark.parametrize("dtype", DTYPES)
def test_magnitudes_shared_between_threads(dtype):
    """Operands so large that more than one thread reads them; a few rows more than threads; a batch."""
    spec = SPECS[isa_family(), dtype]
    rng = np.random.default_rng(8)
    for M, N, K in ((700, 3, 2000), (4, 900, 1500), (640, 640, 640)):
        a, b = (rng.standard_normal((3, *shape)).astype(dtype) for shape in ((M, K), (K, N)))
        a[1, 1:] = 0
        blocks = choose_blocks(spec, flatten(()), M, N, K, 1, 1, 2**28)
        products = table_of([Problem(a, b, np.empty((3, M, N), dtype))], blocks)
        one, many = magnitudes(products, spec, 1), magnitudes(products, spec, 5)
        for i, pair in enumerate(zip(one, many, strict=True)):
            for x, y in zip(*pair, strict=True):
                np.testing.assert_array_equal(x.exponents, y.exponents)
                assert x[1:] == y[1:]
            rows, columns = pair[1]
            np.testing.assert_array_equal(
                rows.exponents, np.where(a[i].any(axis=1), np.frexp(abs(a[i]).max(axis=1))[1] - 1, ZERO_EXPONENT)
            )
            np.testing.assert_array_equal(columns.exponents, np.frexp(abs(b[i]).max(axis=0))[1] - 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed", "unaligned"])
def test_magnitudes(layout, dtype):
    spec = SPECS[isa_family(), dtype]
    rng = np.random.default_rng(4)
    for shape in ((1, 1), (3, 200), (200, 3), (67, 131)):
        x = rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape)
        x[rng.integers(shape[0])] = 0
        x = in_layout(x.astype(dtype), layout)
        found, again = rows_and_columns(x, spec, 3)
        np.testing.assert_array_equal(found.exponents, again.exponents)
        assert found.finite
        assert again.finite
        most = np.abs(x).max(axis=1)
        with np.errstate(divide="ignore"):
            expected = np.where(most > 0, np.floor(np.log2(most, dtype=np.float64)), ZERO_EXPONENT)
        np.testing.assert_array_equal(found.exponents, expected)
        lowest = min(expected[most > 0], default=ZERO_EXPONENT)
        assert found[2:] == again[2:] == (expected.max(), lowest, expected.min())
        for bad in (np.nan, np.inf, -np.inf):
            y = x.copy()
            y[-1, -1] = bad
            assert not any(found.finite for found in rows_and_columns(y, spec))


def test_scaling_covers_the_whole_range():
    spec = SPECS[isa_family(), "float64"]
    x = np.array([[0.0], [5e-324], [2.0**-1022], [1.0], [1.7e308]])
    scaling = scaling_for(*rows_and_columns(x, spec), spec)
    assert rows_and_columns(x, spec)[0].exponents.tolist() == [ZERO_EXPONENT, -1074, -1022, 0, 1023]
    scaled = x[:, 0] * scaling.rows
    assert (scaled[2:] >= 1).all()
    assert (scaled < 2).all()
    assert scaled[0] == 0
    assert np.isfinite(scaling.rows).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_list_of_different_problems_is_one_run(dtype):
    spec = SPECS[isa_family(), dtype]
    from falcon_numba.cpu.engine import engine_for

    rng = np.random.default_rng(5)
    flat = flatten((fn.schemes["strassen"],))
    for whole in (False, True):
        problems, expected = [], []
        for M, N, K in ((40, 50, 60), (1, 1, 1), (17, 64, 5), (64, 64, 64)):
            a, b = integers(rng, (2, M, K), dtype), integers(rng, (2, K, N), dtype)
            problems.append(Problem(a, b, np.full((2, M, N), np.nan, dtype)))
            expected.append(a.astype(np.int64) @ b.astype(np.int64))
        blocks = choose_blocks(spec, flat, 64, 64, 64, 3, 3 if whole else 1, 2**28)
        engine_for(spec, False).run(problems, flat, blocks, 3, whole_products=whole)
        for problem, right in zip(problems, expected, strict=True):
            np.testing.assert_array_equal(problem.c, right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_b_gives_the_same_bits(dtype):
    """The engine's other B source: combined and packed once, used by products with any number of rows."""
    from falcon_numba.cpu.engine import engine_for

    spec = SPECS[isa_family(), dtype]
    engine = engine_for(spec, False)
    rng = np.random.default_rng(6)
    for names, (K, N) in ((("strassen", "hk232"), (150, 333)), ((), (2500, 70))):
        levels = tuple(fn.schemes[name] for name in names)
        flat = flatten(levels)
        b = in_layout(rng.standard_normal((K, N)).astype(dtype), "strided")
        blocks = choose_blocks(spec, flat, 200, N, K, 2, 1, 2**28)
        blocks = replace(blocks, NC=2 * spec.NR)  # several blocks of columns
        packed = engine.pack_b(b, flat, blocks, 2)
        for M in (1, 130, 200):
            a = rng.standard_normal((M, K)).astype(dtype)
            plain, reused = np.empty((2, M, N), dtype)
            engine.run([Problem(a, b, plain)], flat, blocks, 2)
            engine.run([Problem(a, b, reused)], flat, blocks, 3, packed=packed)
            np.testing.assert_array_equal(reused, plain)
    with pytest.raises(ValueError, match="packed for another"):
        engine.run([Problem(a, b, plain)], flat, replace(blocks, KC=spec.VL), 1, packed=packed)
