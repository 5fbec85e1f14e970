"""The GPU engine: programs exactly, kernels compiled offline, and plans on a GPU where there is one."""

import importlib.util

import numpy as np
import pytest

from falcon_numba import schemes
from falcon_numba.algorithms import flatten

if not all(importlib.util.find_spec(name) for name in ("numba_cuda", "cuda")):
    pytest.skip("needs numba-cuda", allow_module_level=True)

import itertools

from falcon_numba.gpu import combine, guard
from falcon_numba.gpu.compiled import cuda
from falcon_numba.gpu.engine import Layout, Matrix, prepare
from falcon_numba.gpu.linear import programs

SCHEMES = ["strassen", "winograd", "laderman", "hk223", "hk233"]


def summed(terms):
    return sum(value * coef for value, coef in terms)


@pytest.mark.parametrize("name", SCHEMES)
def test_programs_multiply_blocks(name):
    """Combine A, Combine B, products, Combine H on integers give the classical product."""
    scheme = schemes[name]
    a_program, b_program, c_program = programs(scheme)
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (scheme.m, scheme.k, 2, 3)), rng.integers(-9, 9, (scheme.k, scheme.n, 3, 4))
    left = a_program.run([*a.reshape(-1, 2, 3).astype(float)], summed)
    right = b_program.run([*b.reshape(-1, 3, 4).astype(float)], summed)
    c = c_program.run([x @ y for x, y in zip(left, right, strict=True)], summed)
    expected = np.einsum("ilxz,ljzy->ijxy", a, b)
    assert np.array_equal(np.reshape(c, expected.shape), expected)


@pytest.mark.parametrize("name", SCHEMES)
def test_programs_save_additions(name):
    for program, size in zip(programs(schemes[name]), schemes[name].nonzeros, strict=True):
        added = sum(len(terms) - 1 for terms in program.temporaries + program.outputs)
        assert added <= size - len(program.outputs)


@pytest.mark.parametrize("shape", [(1, 1, 1), (100, 75, 33), (4096, 4096, 4096)])
@pytest.mark.parametrize("levels", [("winograd",), ("strassen", "hk223")])
def test_layout(shape, levels):
    """Leaf blocks cover the product, and no parts of the workspace overlap."""
    M, N, K = shape
    layout = Layout(M, N, K, tuple(schemes[x] for x in levels), "bfloat16")
    m, k, n = flatten(tuple(schemes[x] for x in levels)).grid
    rows, inner, columns = layout.leaf
    assert rows * m >= M and inner * k >= K and columns * n >= N
    assert inner % 8 == columns % 8 == 0
    parts = []
    for level, (rows, inner, columns) in enumerate(layout.blocks):
        count = layout.counts[level]
        parts += [(layout.a[level], 2 * count * rows * inner), (layout.b[level], 2 * count * inner * columns)]
        parts += [(layout.h[level], 4 * count * rows * columns), *((t, 40 * count) for t in layout.tables[level])]
    parts += [(layout.maxima, 4 * (M + N)), (layout.verdict, 4)]
    parts.sort()
    assert all(at + size <= after for (at, size), (after, _) in itertools.pairwise(parts))
    assert sum(parts[-1]) <= layout.workspace_bytes


def test_bad_operands():
    x, y = Matrix(0, 4, 4, 4, "float32"), Matrix(0, 5, 4, 4, "float32")
    levels = (schemes["strassen"],)
    for operands, chosen, accuracy, message in [
        ((x, y, x), levels, "balanced", "shapes"),
        ((x, x, Matrix(0, 4, 4, 4, "float64")), levels, "balanced", "dtypes"),
        ((x, x, x), levels, "componentwise", "accuracy"),
        ((x, x, x), (), "balanced", "level"),
    ]:
        with pytest.raises(ValueError, match=message):
            prepare(*operands, chosen, None, None, accuracy=accuracy)


def ptx_of(source):
    from numba import types
    from numba.cuda.compiler import compile_cuda, kernel_fixup

    made = compile_cuda(source.function, types.void, tuple(source.arguments), nvvm_options={"opt": 3}, cc=(8, 0))
    kernel = made.library.get_function(made.fndesc.llvm_func_name)
    made.library._entry_name = made.fndesc.llvm_func_name
    kernel_fixup(kernel, False)
    return made.library.get_asm_str(cc=(8, 0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_kernels_compile(dtype):
    """Without a GPU: 16-byte loads and stores are there, as many as blocks and results."""
    scheme = schemes["winograd"]
    U, _, W = programs(scheme)
    word = {"float64": "v2.f64", "float32": "v4.f32"}.get(dtype, "v4.b32")
    ptx = ptx_of(combine.input_source(U, (2, 2), dtype, "row"))
    assert ptx.count(f"ld.global.L1::no_allocate.{word}") == 4
    assert ptx.count(f"st.global.{word}") == 7
    products = "float64" if dtype == "float64" else "float32"
    ptx = ptx_of(combine.output_source(W, (2, 2), products, dtype, True, True))
    assert ptx.count(f"st.global.{word}") == 4
    for source in (guard.scan_source(dtype, True), guard.scan_source(dtype, False), guard.judge_source(dtype)):
        assert ".entry" in ptx_of(source)


gpu = pytest.mark.gpu


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not cuda.is_available() or not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return torch


def matrix(x):
    return Matrix(x.data_ptr(), *x.shape, x.stride(0), str(x.dtype).removeprefix("torch."))


def multiply(torch, a, b, c, names, **options):
    from falcon_numba.gpu.vendor import torch_leaf

    kept = []

    def allocate(size):
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return kept[0].data_ptr()

    levels = tuple(schemes[name] for name in names)
    launch = prepare(matrix(a), matrix(b), matrix(c), levels, torch_leaf, allocate, **options)
    launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return launch, kept


def integers(torch, rows, columns, dtype, skip, low=-2):
    """Small integers in a part of a larger matrix that is NaN elsewhere."""
    around = torch.full((rows + 2, columns + skip), float("nan"), device="cuda", dtype=dtype)
    part = around[1:-1, skip // 2 : skip // 2 + columns]
    part.copy_(torch.randint(low, 3, (rows, columns), device="cuda"))
    return around, part


@gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("names", [("strassen",), ("winograd", "winograd"), ("hk223", "strassen"), ("laderman",)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 9), (64, 256, 128), (130, 1037, 75), (256, 2056, 520)])
@pytest.mark.parametrize("skip", [0, 3, 16])
def test_exact(torch, dtype, names, shape, skip):
    """Integers small enough to be exact: any shape, alignment and scheme; nothing beside C is written."""
    M, N, K = shape
    kind = getattr(torch, dtype)
    if dtype in ("float16", "bfloat16"):
        K = min(K, 9)  # products of halves stay below 2^8, which bfloat16 holds exactly
    (_, a), (_, b) = (integers(torch, *size, kind, skip) for size in ((M, K), (K, N)))
    around, c = integers(torch, M, N, kind, skip)
    if dtype in ("float16", "bfloat16"):
        c.zero_()
    before, expected = around.clone(), 2 * (a.double() @ b.double()) - c.double()
    multiply(torch, a, b, c, names, alpha=2.0, beta=-1.0)
    assert torch.equal(c.double(), expected)
    c.copy_(before[1:-1, skip // 2 : skip // 2 + N])
    assert torch.equal(torch.nan_to_num(around.double(), 99), torch.nan_to_num(before.double(), 99))


@gpu
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_dangerous_data_take_the_classical_product(torch, value):
    a, b = torch.randn(100, 90, device="cuda"), torch.randn(90, 110, device="cuda")
    a[3, 4] = value
    b[5, 6] = value
    c = torch.full((100, 110), 7.0, device="cuda")
    multiply(torch, a, b, c, ("winograd", "strassen"))
    reference = a.double() @ b.double()
    finite = torch.isfinite(reference.float())
    assert torch.equal(finite, torch.isfinite(c))
    assert torch.equal(torch.isnan(c), torch.isnan(reference.float()))
    size = (a.abs().double() @ b.abs().double())[finite]
    assert bool(((c.double() - reference)[finite].abs() <= 90 * 2.0**-23 * size).all())


@gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_badly_scaled_rows_keep_their_digits(torch, dtype):
    """Balanced: powers of two in rows of A and columns of B come out exactly."""
    kind = getattr(torch, dtype)
    a, b = torch.randn(96, 64, device="cuda", dtype=kind), torch.randn(64, 80, device="cuda", dtype=kind)
    a /= 1.001 * a.abs().amax(1, keepdim=True)  # every row and column has one exponent
    b /= 1.001 * b.abs().amax(0, keepdim=True)
    plain, scaled = (torch.empty(96, 80, device="cuda", dtype=kind) for _ in range(2))
    multiply(torch, a, b, plain, ("strassen", "strassen"))
    rows = torch.randint(-40, 40, (96, 1), device="cuda").to(kind).exp2()
    columns = torch.randint(-40, 40, (1, 80), device="cuda").to(kind).exp2()
    multiply(torch, a * rows, b * columns, scaled, ("strassen", "strassen"))
    assert torch.equal(scaled, plain * rows * columns)


@gpu
def test_capture(torch):
    a, b = (torch.randint(-3, 3, (256, 256), device="cuda").float() for _ in range(2))
    c = torch.empty_like(a)
    launch, kept = multiply(torch, a, b, c, ("winograd",))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(torch.cuda.current_stream().cuda_stream)
    a.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert kept and torch.equal(c, a @ b)
