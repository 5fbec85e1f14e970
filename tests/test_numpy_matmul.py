"""NumPy's own tests of matmul, run on this package's matmul.

The tests are read from the installed NumPy. Their source is taken as it is, except that every ``x @ y`` and
``x @= y`` becomes a call, and that they see this package's function where NumPy's would stand. Everything runs twice:
as a user would call it, and with the CPU engine forced wherever there is one for the loop's dtype; what such a call
computes must then have run there.

Left out, since neither is about the function but about which method Python's ``@`` operator asks:

- ``TestMatmulOperator.test_array_priority_override``: ``@`` defers to the other operand's ``__rmatmul__``.
- ``TestMatmulOperator.test_matmul_raises``: ``@`` on two scalars is a TypeError, the function's is a ValueError.
"""

from __future__ import annotations

import ast
import inspect
import types

import numpy as np
import pytest

from falcon_numba import dispatch, trace
from falcon_numba.api import matmul

suite = pytest.importorskip("numpy._core.tests.test_multiarray", reason="this NumPy came without its tests")

CLASSES = ("MatmulCommon", "TestMatmul", "TestMatmulOperator", "TestMatmulInplace")
FUNCTIONS = ("test_matmul_axes",)
LEFT_OUT = {"TestMatmulOperator": ("test_array_priority_override", "test_matmul_raises")}
numpy_matmul = np.matmul


class Stand:
    """Stands where np.matmul stood; like a ufunc it does not bind to the class it is an attribute of."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)

    def inplace(self, a, b):
        """What ``a @= b`` asks of matmul."""
        last = [(-1,), (-2, -1), (-1,)] if np.ndim(a) == 1 else [(-2, -1)] * 3
        return self(a, b, out=a, axes=last)


def forced(x1, x2, /, *args, **kwargs):
    try:
        loop = numpy_matmul.resolve_dtypes(
            (np.asarray(x1).dtype, np.asarray(x2).dtype, None), signature=(None, None, kwargs.get("dtype"))
        )[2]
    except TypeError:
        loop = None
    if loop is None or not (loop.kind in "biu" or loop.char in "efdFD"):
        return matmul(x1, x2, *args, **kwargs)
    with trace() as plans:
        result = matmul(x1, x2, *args, executor="cpu", **kwargs)
    assert all(plan.executor == "cpu" for plan in plans)
    if plans:  # not of empty products
        on_engine_dtypes.add(loop.name)
    return result


class Rewrite(ast.NodeTransformer):
    def visit_BinOp(self, node):
        self.generic_visit(node)
        return self.call("_stand", node.left, node.right) if isinstance(node.op, ast.MatMult) else node

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        assert isinstance(node.target, ast.Name)
        value = self.call("_stand.inplace", ast.Name(node.target.id, ast.Load()), node.value)
        return ast.Assign([node.target], value)

    @staticmethod
    def call(name, *arguments):
        return ast.Call(ast.parse(name, mode="eval").body, list(arguments), [])


class Namespace(types.ModuleType):
    """A module in which one name is replaced."""

    def __init__(self, module, **replaced):
        super().__init__(module.__name__)
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def numpy_tests(stand):
    tree = ast.parse(inspect.getsource(suite))
    tree.body = [node for node in tree.body if getattr(node, "name", None) in CLASSES + FUNCTIONS]
    assert [node.name for node in tree.body] == [*CLASSES, *FUNCTIONS]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            gone = LEFT_OUT.get(node.name, ())
            node.body = [
                part
                for part in node.body
                if getattr(part, "name", None) not in gone
                and not (isinstance(part, ast.Import) and part.names[0].name == "operator")  # ours is in the namespace
            ]
    code = compile(ast.fix_missing_locations(Rewrite().visit(tree)), inspect.getsourcefile(suite), "exec")
    names = dict(vars(suite), __name__=__name__, _stand=stand, np=Namespace(np, matmul=stand))
    names["operator"] = Namespace(names["operator"], matmul=stand)
    exec(code, names)
    return {name: names[name] for name in (*CLASSES, *FUNCTIONS)}


@pytest.fixture(autouse=True)
def count_engine_calls(monkeypatch):
    execute = dispatch.execute

    def counted(*args, **kwargs):
        engine_calls.append(1)
        return execute(*args, **kwargs)

    monkeypatch.setattr(dispatch, "execute", counted)


engine_calls: list[int] = []
on_engine_dtypes: set[str] = set()
plain, on_engine = Stand(matmul), Stand(forced)
for name, test in numpy_tests(plain).items():
    globals()[name] = test
for name, test in numpy_tests(on_engine).items():
    globals()[f"{name}_on_engine"] = test


@pytest.mark.parametrize("stand", [plain, on_engine], ids=["plain", "on_engine"])
def test_numpy_tests_called_this_package(stand):
    """Collected last: the tests above really went through the function under test."""
    if stand.calls < 500:
        pytest.skip("the tests above did not all run")
    assert len(engine_calls) > 100
    if stand is on_engine:
        assert on_engine_dtypes >= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
        assert on_engine_dtypes >= {"float16", "float32", "float64", "complex64", "complex128", "bool"}


def test_left_out_is_short_and_real():
    gone = [(cls, test) for cls, tests in LEFT_OUT.items() for test in tests]
    assert len(gone) <= 3
    assert all(hasattr(getattr(suite, cls), test) for cls, test in gone)
