"""matmul against np.matmul: values, dtypes, shapes, memory order, out, axes, errors."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from layouts import layouts, significant_strides

from falcon_numba import dispatch, trace
from falcon_numba.api import matmul

FLOATS = ("f4", "f8")
shapes = mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=3, min_side=1, max_side=5)
dtype_pairs = pytest.mark.parametrize(
    "dtypes", ["f4 f4", "f8 f8", "f4 f8", "i2 f4", "f8 i8", "u1 u1", "? f4", "f2 f2", "c8 f8", "g f4"]
)
examples = settings(max_examples=40)


@pytest.fixture
def engine(monkeypatch):
    """The problems that reached the engine."""
    problems = []
    execute = dispatch.execute

    def spy(problem, *args, **kwargs):
        problems.append(problem)
        return execute(problem, *args, **kwargs)

    monkeypatch.setattr(dispatch, "execute", spy)
    return problems


def loop_dtype(a, b):
    return np.matmul.resolve_dtypes((a.dtype, b.dtype, None))[2]


def forced(a, b):
    """Options that put this product on the engine, where it can run there."""
    return {"executor": "cpu"} if loop_dtype(a, b).name in ("float32", "float64") else {}


def assert_same(got, expected):
    assert type(got) is type(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@dtype_pairs
@pytest.mark.parametrize("order", "KCFA")
@examples
@given(st.data(), shapes)
def test_any_layout_gives_numpys_answer(dtypes, order, data, shapes):
    a, b = (data.draw(layouts(shape, dtype)) for shape, dtype in zip(shapes.input_shapes, dtypes.split(), strict=True))
    expected = np.matmul(a.copy(), b.copy())
    for options in ({}, forced(a, b)):
        got = matmul(a, b, order=order, **options)
        assert_same(got, expected)
        assert significant_strides(got) == significant_strides(np.matmul(a, b, order=order))


@dtype_pairs
@pytest.mark.parametrize("out_dtype", ["f4", "f8", "c16"])
@examples
@given(st.data(), shapes)
def test_out_of_any_layout(dtypes, out_dtype, data, shapes):
    a, b = (data.draw(layouts(shape, dtype)) for shape, dtype in zip(shapes.input_shapes, dtypes.split(), strict=True))
    shape = shapes.result_shape
    if data.draw(st.booleans()) and len(shape) < 4 and a.ndim > 1 and b.ndim > 1:
        shape = (2, *shape)  # out may have batch axes that the inputs lack
    out = data.draw(layouts(shape, out_dtype, writeable=True))
    try:
        expected = np.matmul(a.copy(), b.copy(), out=np.full(shape, 7, out_dtype))
    except TypeError as error:
        before = out.copy()
        with pytest.raises(type(error)):
            matmul(a, b, out=out)
        np.testing.assert_array_equal(out, before)
        return
    for options in ({}, forced(a, b)):
        out[...] = 7
        assert matmul(a, b, out, **options) is out
        np.testing.assert_array_equal(out, expected)


@settings(max_examples=100)
@given(st.data())
def test_out_between_its_neighbours(data):
    """Nothing outside out is written."""
    frame = np.full((4, 9, 11), -7.0)
    out = frame[::2, 1:7:2, -2:1:-2]
    a, b = data.draw(layouts((2, 3, 6), "f8")), data.draw(layouts((6, 4), "f8"))
    matmul(a, b, out=out, executor="cpu")
    np.testing.assert_array_equal(out, np.matmul(a.copy(), b.copy()))
    mask = np.ones(frame.shape, bool)
    mask[::2, 1:7:2, -2:1:-2] = False
    assert (frame[mask] == -7).all()


@settings(max_examples=300)
@given(st.data(), st.sampled_from(FLOATS), st.booleans())
def test_overlap_reads_as_if_copied_first(data, dtype, batched):
    """Operands and out are windows, possibly transposed or reversed, on the same memory."""
    ndim = 3 if batched else 2
    memory = np.arange(8.0**ndim, dtype=dtype).reshape((8,) * ndim) % 5

    def window():
        low = [data.draw(st.integers(0, 3)) for _ in range(ndim)]
        step = [data.draw(st.sampled_from((1, -1))) for _ in range(ndim)]
        x = memory[tuple(slice(i, i + 4) for i in low)][tuple(slice(None, None, s) for s in step)]
        return x.swapaxes(-1, -2) if data.draw(st.booleans()) else x

    a, b, out = window(), window(), window()
    expected = memory.copy()
    result = np.matmul(a.copy(), b.copy())
    at = out.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    np.ndarray(out.shape, out.dtype, expected, at, out.strides)[...] = result
    matmul(a, b, out=out, executor="cpu")
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("strides", [(8, 8), (0, 8), (8, 0), (16, 8)])
def test_an_element_twice_in_out_never_reaches_the_engine(engine, strides):
    a = np.arange(9.0).reshape(3, 3)
    out = np.lib.stride_tricks.as_strided(np.zeros(9), (3, 3), strides)
    got = matmul(a, a, out=out, executor="cpu")
    assert got is out and {*out.ravel()} <= {*(a @ a).ravel()}
    assert not np.shares_memory(engine[0].c, out)


@pytest.mark.parametrize("order", [None, "c", "f", "a", "k"])
def test_spellings_of_order(order, engine):
    a = np.asfortranarray(np.ones((2, 3, 3)))
    assert significant_strides(matmul(a, a, order=order, executor="cpu")) == significant_strides(
        np.matmul(a, a, order=order)
    )
    assert engine


@pytest.mark.parametrize("options", [{}, {"executor": "cpu"}], ids=["auto", "cpu"])
@pytest.mark.parametrize("shape", [(3, 3), (1, 3), (3, 1), (2, 3, 3), (2, 4, 3, 3), (3,)])
def test_order_of_contiguous_operands(shape, options):
    layouts = [lambda x: x, np.asfortranarray, lambda x: np.asfortranarray(x.swapaxes(0, -2)).swapaxes(0, -2)]
    for first, second, order in itertools.product(layouts[: len(shape)], layouts[: len(shape)], "KACF"):
        a = first(np.ones(shape))
        for b in (second(np.ones(shape[:-2] + shape[:-3:-1])), np.ones(shape[-1])):
            got, expected = matmul(a, b, order=order, **options), np.matmul(a, b, order=order)
            assert_same(got, expected)
            assert significant_strides(got) == significant_strides(expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_broadcast_operands_are_views(engine, dtype):
    a = np.broadcast_to(np.ones((8, 8), dtype), (1000, 8, 8))
    b = np.ones((1000, 8, 8), dtype)
    matmul(a, b, executor="cpu")
    matmul(a.astype(dtype)[:1], b, executor="cpu")
    for problem in engine:
        assert problem.a.strides[0] == 0 and problem.a.shape == problem.b.shape == (1000, 8, 8)
    assert engine[0].a.base is not None and np.shares_memory(engine[0].a, a)


def test_conversion_keeps_broadcast_axes(engine):
    a = np.broadcast_to(np.ones((8, 8), "i2"), (1000, 8, 8))
    matmul(a, np.ones((8, 8), ">f4"), executor="cpu")
    (problem,) = engine
    assert problem.a.strides[0] == problem.b.strides[0] == 0
    assert problem.a.dtype == problem.b.dtype == np.float32


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("offset", [0, 1])
def test_native_views_reach_the_engine_without_a_copy(engine, step, offset):
    memory = np.zeros(40 * 40 * 8 + 8, np.uint8)[offset:]
    x = memory[: 40 * 40 * 8].view("f8").reshape(40, 40)[::step, ::step]
    out = np.empty(x.shape)
    matmul(x, x.T, out=out, executor="cpu")
    (problem,) = engine
    assert np.shares_memory(problem.a, x) and np.shares_memory(problem.b, x) and problem.c is out


@pytest.mark.parametrize("dtype", ["f4", "f8", np.float32, np.dtype("f8"), float, "i4", "c16", ">f8"])
@pytest.mark.parametrize("casting", ["no", "equiv", "safe", "same_kind", "unsafe"])
@pytest.mark.parametrize("out", [None, "f4", "f8", ">f8", "i8", "c16"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_dtype_and_casting(dtype, casting, out):
    for pair in itertools.product(("f4", "f8", "i2", ">f4"), repeat=2):
        a, b = (np.arange(4).reshape(2, 2).astype(x) for x in pair)
        target = None if out is None else np.zeros((2, 2), out)
        try:
            expected = np.matmul(a, b, dtype=dtype, casting=casting, out=None if out is None else np.zeros((2, 2), out))
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                matmul(a, b, dtype=dtype, casting=casting, out=target)
            assert target is None or not target.any()
        else:
            assert_same(matmul(a, b, dtype=dtype, casting=casting, out=target), expected)


@settings(max_examples=200)
@given(st.data(), shapes)
def test_axes(data, shapes):
    a, b = (np.arange(np.prod(s), dtype="f8").reshape(s) % 7 for s in shapes.input_shapes)
    result = np.matmul(a, b)
    dims = [(a.ndim, min(a.ndim, 2)), (b.ndim, min(b.ndim, 2)), (result.ndim, (a.ndim > 1) + (b.ndim > 1))]
    axes = []
    for position, (ndim, core) in enumerate(dims):
        place = tuple(data.draw(st.permutations(range(-ndim, 0)))[:core])
        if position < 2:
            x = np.moveaxis((a, b)[position], range(-core, 0), place)
            a, b = (x, b) if position == 0 else (a, x)
        axes.append(place[0] if core == 1 and data.draw(st.booleans()) else place)
    expected = np.matmul(a, b, axes=axes)
    for options in ({}, {"executor": "cpu"}):
        got = matmul(a, b, axes=axes, **options)
        assert_same(got, expected)
        assert significant_strides(got) == significant_strides(expected)
        out = np.zeros(result.shape).T.copy().T if result.ndim else np.zeros(())
        out = np.moveaxis(out, range(-dims[2][1], 0), axes[2] if isinstance(axes[2], tuple) else (axes[2],))
        assert matmul(a, b, out=out, axes=axes, **options) is out
        np.testing.assert_array_equal(out, expected)


BAD_CALLS = {
    "inner sizes": ((4, 1), (3,), {}),
    "row times matrix": ((3,), (1, 4), {}),
    "vectors": ((3,), (1,), {}),
    "scalar left": ((), (3,), {}),
    "scalar right": ((2, 2), (), {}),
    "batch": ((2, 3, 3), (4, 3, 3), {}),
    "order": ((2, 2), (2, 2), {"order": "Z"}),
    "order type": ((2, 2), (2, 2), {"order": 3}),
    "casting": ((2, 2), (2, 2), {"casting": "sometimes"}),
    "casting type": ((2, 2), (2, 2), {"casting": 1}),
    "dtype": ((2, 2), (2, 2), {"dtype": "nonsense"}),
    "dtype without loop": ((2, 2), (2, 2), {"dtype": "M8[s]"}),
    "subok": ((2, 2), (2, 2), {"subok": 1}),
    "axis": ((2, 2), (2, 2), {"axis": 0}),
    "axis None": ((2, 2), (2, 2), {"axis": None}),
    "axes None": ((2, 2), (2, 2), {"axes": None}),
    "axes tuple": ((2, 2), (2, 2), {"axes": ((0, 1), (0, 1), (0, 1))}),
    "axes short": ((2, 2), (2, 2), {"axes": [(0, 1), (0, 1)]}),
    "axes lists": ((2, 2), (2, 2), {"axes": [[0, 1], (0, 1), (0, 1)]}),
    "axes repeated": ((2, 2), (2, 2), {"axes": [(0, 0), (0, 1), (0, 1)]}),
    "axes repeated in out": ((2, 2), (2, 2), {"axes": [(0, 1), (0, 1), (1, -1)]}),
    "axes beyond": ((2, 2), (2, 2), {"axes": [(0, 1), (0, 2), (0, 1)]}),
    "axes beyond in out": ((2, 2), (2, 2), {"axes": [(0, 1), (0, 1), (0, 2)]}),
    "axes float": ((2, 2), (2, 2), {"axes": [(0, 1.0), (0, 1), (0, 1)]}),
    "out shape": ((2, 3), (3, 2), {"out": np.full((2, 3), 7.0)}),
    "out too flat": ((2, 3), (3, 2), {"out": np.full(2, 7.0)}),
    "out must not broadcast": ((5, 2, 3), (3, 2), {"out": np.full((1, 2, 2), 7.0)}),
    "out dtype": ((2, 3), (3, 2), {"out": np.full((2, 2), 7)}),
    "out read-only": ((2, 3), (3, 2), {"out": np.broadcast_to(7.0, (2, 2))}),
    "out list": ((2, 3), (3, 2), {"out": [[0.0, 0.0], [0.0, 0.0]]}),
    "out two": ((2, 3), (3, 2), {"out": (np.zeros((2, 2)), np.zeros((2, 2)))}),
    "out number": ((2, 3), (3, 2), {"out": 3.0}),
}


@pytest.mark.parametrize("options", [{}, {"executor": "cpu"}], ids=["auto", "cpu"])
@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_raise_what_numpy_raises(name, options, engine):
    shape1, shape2, keywords = BAD_CALLS[name]
    a, b = np.ones(shape1), np.ones(shape2)
    with pytest.raises((TypeError, ValueError)) as numpys:
        np.matmul(a, b, **keywords)
    with pytest.raises(numpys.type):
        matmul(a, b, **keywords, **options)
    out = keywords.get("out")
    assert not isinstance(out, np.ndarray) or (out == 7).all()
    assert not engine


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dept": 1}, TypeError, "unknown option 'dept'; did you mean 'depth'"),
        ({"depth": -1}, ValueError, "depth=-1"),
        ({"scheme": "strasen"}, ValueError, "strasen"),
        ({"executor": "gpu"}, ValueError, "executor='gpu'"),
        ({"accuracy": "estimated"}, ValueError, "needs max_error"),
    ],
)
def test_bad_options_leave_out_untouched(options, error, message):
    out = np.full((2, 2), 7.0)
    with pytest.raises(error, match=message):
        matmul(np.ones((2, 2)), np.ones((2, 2)), out=out, **options)
    assert (out == 7).all()


@pytest.mark.parametrize("dtype", ["g", "G", object])
@pytest.mark.parametrize("option", [{"executor": "cpu"}, {"depth": 1}, {"scheme": "strassen"}, {"leaf": "simd"}])
def test_dtypes_without_engine_refuse_to_pretend(dtype, option):
    a = np.ones((3, 3), dtype)
    (value,) = option.values()
    with pytest.raises(TypeError, match=f"{next(iter(option))}=.*cannot be honoured for dtype"):
        matmul(a, a, **option)
    assert matmul(a, a, depth=0, executor="numpy").dtype == a.dtype, value


def test_max_error_holds_for_exact_types_only():
    ones = np.ones((3, 3), "i8")
    np.testing.assert_array_equal(matmul(ones, ones, max_error=1e-9), 3 * ones)
    with pytest.raises(TypeError, match="max_error"):
        matmul(ones.astype("G"), ones, max_error=1e-9)


@pytest.mark.parametrize("dtype", ["f2", "c8", "c16", "i4", "G"])
def test_reproducible_never_is_a_vendors_product(dtype):
    a = np.ones((3, 3), dtype)
    with trace() as plans:
        assert_same(matmul(a, a, reproducible=True), np.matmul(a, a))
    assert (plans[0].executor == "cpu") == (dtype != "G")


def test_lists_scalars_and_vectors():
    assert_same(matmul([[1.0, 2.0], [3.0, 4.0]], [1, 1]), np.array([3.0, 7.0]))
    assert_same(matmul((1.0, 2.0), [3.0, 4.0]), np.float64(11))
    assert type(matmul([1, 2], [3, 4])) is np.int64
    assert matmul([Fraction(2, 3), Fraction(5, 7)], [Fraction(2, 3), Fraction(5, 7)]) == Fraction(421, 441)
    out = np.zeros(())
    assert matmul([1.0, 2.0], [3.0, 4.0], out=out, executor="cpu") is out and out == 11
    with pytest.raises(ValueError, match="inhomogeneous"):
        matmul([[1.0, 2.0], [3.0]], [1.0, 1.0])


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "c16", "?", object])
@pytest.mark.parametrize("sizes", [(0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("batch", [(), (0,), (5,)])
def test_empty(dtype, sizes, batch):
    M, K, N = sizes
    a, b = np.ones((*batch, M, K), dtype), np.ones((K, N), dtype)
    assert_same(matmul(a, b), np.matmul(a, b))
    out = np.full((*batch, M, N), 7, dtype)
    matmul(a, b, out=out)
    assert_same(out, np.matmul(a, b))


def test_in_place_accumulates_nothing():
    a = np.ones((64, 64))
    for _ in range(3):
        matmul(a, a, out=a, executor="cpu")
        a /= 64
    assert (a == 1).all()


def test_second_call_of_the_same_product_is_bit_equal():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 130, 130))
    assert_same(matmul(a, b), matmul(a, b))
