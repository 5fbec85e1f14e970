"""Which types are operands: subclasses, masked arrays, ufunc overrides, other libraries' arrays."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from falcon_numba import operands
from falcon_numba.api import gemm, matmul

ENGINES = pytest.mark.parametrize("options", [{}, {"executor": "cpu"}], ids=["auto", "cpu"])
pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass", "ignore:__array_wrap__ must accept")


class Unit(np.ndarray):
    """Records how NumPy's protocol was followed."""

    __array_priority__ = 5.0
    calls: list = []  # noqa: RUF012 one log for the class is what the tests read

    def __array_finalize__(self, obj):
        self.unit = getattr(obj, "unit", "none")

    def __array_wrap__(self, array, context=None, return_scalar=False):
        if context is not None:
            function, arguments, position = context
            names = [type(x).__name__ for x in arguments]
            self.calls.append((self.unit, type(array).__name__, array.shape, function, names, position, return_scalar))
        return super().__array_wrap__(array, context, return_scalar)


class Plain(np.ndarray):
    pass


class High(np.ndarray):
    __array_priority__ = 10.0


class Low(np.ndarray):
    __array_priority__ = -3.0


class OldWrap(np.ndarray):
    def __array_wrap__(self, array, context=None):
        return array.view(type(self))


class OldestWrap(np.ndarray):
    def __array_wrap__(self, array):
        return array.view(type(self))


def make(kind, shape=(3, 3)):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    return x.tolist() if kind is list else x.view(kind)


KINDS = [np.ndarray, np.matrix, Plain, High, Low, OldWrap, OldestWrap, Unit, list]


@ENGINES
@pytest.mark.parametrize("subok", [True, False])
@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_result_type_is_numpys(first, second, subok, options):
    a, b = make(first), make(second)
    with warnings.catch_warnings(record=True) as ours:
        warnings.filterwarnings("always", message="__array_wrap__")
        got = matmul(a, b, subok=subok, **options)
    with warnings.catch_warnings(record=True) as numpys:
        warnings.filterwarnings("always", message="__array_wrap__")
        expected = np.matmul(a, b, subok=subok)
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    assert len(ours) == len(numpys) and all("__array_wrap__" in str(w.message) for w in ours)


@ENGINES
@pytest.mark.parametrize("kind", [Plain, Unit, OldWrap])
def test_vectors_of_a_subclass(kind, options):
    v = make(kind, (3,))
    for pair in ((v, v), (make(kind), v), (np.ones((2, 3)), v), (v, np.ones(3))):
        got, expected = matmul(*pair, **options), np.matmul(*pair)
        assert type(got) is type(expected)
        np.testing.assert_array_equal(got, expected)


@ENGINES
def test_matrix_times_vector_is_a_row(options):
    m = np.matrix([[1.0, 2.0], [3.0, 4.0]])
    got = matmul(m, np.ones(2), **options)
    assert type(got) is np.matrix and got.tolist() == [[3.0, 7.0]]


@ENGINES
@pytest.mark.parametrize("kind", [np.ndarray, np.matrix, Plain, Unit])
@pytest.mark.parametrize("dtype", ["f8", ">f8", "c16"])
def test_out_of_a_subclass_is_returned(kind, dtype, options):
    out, reference = (np.zeros((3, 3), dtype).view(kind) for _ in range(2))
    a = make(np.ndarray)
    got = matmul(a, a, out=out, **options)
    expected = np.matmul(a, a, out=reference)
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    if kind is not Unit:
        assert (got is out) == (expected is reference)
    np.testing.assert_array_equal(out, reference)


@ENGINES
def test_array_wrap_is_called_as_numpy_calls_it(options):
    a, out = make(Unit), np.zeros((3, 3)).view(Unit)
    a.unit, out.unit = "m", "s"
    v = make(np.ndarray, (3,))
    logs = []
    for function, keywords in ((np.matmul, {}), (matmul, options)):
        Unit.calls.clear()
        function(a, v, **keywords)
        function(a[0], v, **keywords)
        function(v, a, **keywords)
        function(a, a, out=out, **keywords)
        logs.append([(*call[:3], call[3].__name__, *call[4:]) for call in Unit.calls])
        assert matmul(a, a, **options).unit == "m"
    assert logs[0] == logs[1][: len(logs[0])]


@ENGINES
def test_memmap(tmp_path, options):
    disk = np.memmap(tmp_path / "x", dtype="f8", mode="w+", shape=(4, 4))
    disk[...] = np.arange(16).reshape(4, 4)
    disk.flush()
    read = np.memmap(tmp_path / "x", dtype="f8", mode="r", shape=(4, 4))
    got, expected = matmul(read, read, **options), np.matmul(read, read)
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(gemm(read, read, **options), expected)
    out = np.memmap(tmp_path / "out", dtype="f8", mode="w+", shape=(4, 4))
    assert matmul(read, read, out=out, **options) is out
    np.testing.assert_array_equal(out, expected)


masked = np.ma.masked_array(np.ones((3, 3)), mask=np.eye(3, dtype=bool))


@pytest.mark.parametrize("function", [matmul, gemm])
@pytest.mark.parametrize(
    "pair",
    [(masked, np.ones((3, 3))), (np.ones((3, 3)), masked), ([masked[0], masked[1]], np.ones((3, 3)))],
    ids=["left", "right", "in a list"],
)
def test_masked_arrays_are_refused(function, pair):
    with pytest.raises(TypeError, match=r"masked arrays.*numpy\.ma\.dot"):
        function(*pair)


@pytest.mark.parametrize("function", [matmul, gemm])
@pytest.mark.parametrize("out", [masked.copy(), (masked.copy(),)], ids=["out", "tuple"])
def test_masked_out_is_refused(function, out):
    with pytest.raises(TypeError, match="masked arrays"):
        function(np.ones((3, 3)), np.ones((3, 3)), out=out)


def test_masked_c_is_refused():
    with pytest.raises(TypeError, match="masked arrays"):
        gemm(np.ones((3, 3)), np.ones((3, 3)), masked, beta=1)


class Override:
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        assert ufunc is np.matmul and method == "__call__"
        return "override", kwargs


class Refuses:
    __array_ufunc__ = None


def test_array_ufunc_overrides_are_numpys_business():
    a = np.ones((3, 3))
    assert matmul(a, Override()) == ("override", {})
    assert matmul(Override(), a, order="F") == ("override", {"order": "F"})
    out = Override()
    assert matmul(a, a, out=out) == ("override", {"out": (out,)})
    with pytest.raises(TypeError):
        matmul(a, Refuses())
    with pytest.raises(TypeError, match="executor='cpu' cannot be honoured"):
        matmul(a, Override(), executor="cpu")


class Subclass(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return f"{ufunc.__name__} by {type(self).__name__}"


def test_override_of_a_subclass():
    assert matmul(np.ones((2, 2)), np.ones((2, 2)).view(Subclass)) == "matmul by Subclass"
    assert matmul(np.ones((2, 2)), np.ones((2, 2)), out=np.ones((2, 2)).view(Subclass)) == "matmul by Subclass"


class Foreign:
    def __array__(self, dtype=None, copy=None):
        raise AssertionError("converted without being asked")


class OnAnotherDevice:
    __cuda_array_interface__ = None


@pytest.mark.parametrize("function", [matmul, gemm])
@pytest.mark.parametrize("kind", [Foreign, OnAnotherDevice])
def test_foreign_arrays_are_refused_by_name(function, kind):
    a = np.ones((3, 3))
    for pair, keywords in (((a, kind()), {}), ((kind(), a), {}), ((a, a), {"out": kind()})):
        with pytest.raises(TypeError, match=rf"{kind.__name__} are not supported; convert to numpy\.ndarray"):
            function(*pair, **keywords)


def test_registered_types_are_handed_over(monkeypatch):
    monkeypatch.setattr(operands, "_handlers", [])
    seen = []

    def handler(function, args, kwargs):
        seen.append((function, args, kwargs))
        return "handled"

    operands.register_array_type(lambda kind: issubclass(kind, Foreign), handler)
    a, x = np.ones((3, 3)), Foreign()
    assert matmul(a, x, order="F", depth=0) == "handled"
    assert gemm(x, a, alpha=2) == "handled"
    assert matmul(a, a, out=x) == "handled"
    assert seen[0] == (matmul, (a, x), {"order": "F", "depth": 0})
    assert seen[1][0] is gemm and seen[1][1] == (x, a, None) and seen[1][2]["alpha"] == 2
    assert seen[2][2] == {"out": x}
    assert matmul(a, a).shape == (3, 3)
    with pytest.raises(TypeError, match="unknown option"):
        matmul(a, x, dept=0)


def test_buffers_are_sequences_to_numpy():
    np.testing.assert_array_equal(matmul(memoryview(np.ones((2, 2))), range(2)), [1.0, 1.0])
