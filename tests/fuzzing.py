"""Random products of every kind, each with an oracle: what `fuzz.py` runs by the thousand and the tests in samples.

A product is drawn from a `numpy.random.Generator` alone, so a seed reproduces it. Kinds:

- exact: integer-valued data, compared with the product in int64
- bound: random or badly scaled data, compared with an exact product under the proven bound of every entry
- pattern: NaN, infinities and overflow, compared with the pattern of NumPy's product
- batch: as exact, through `matmul`, with broadcast batches
- integers: dtypes without engine, modulo 2^bits
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from engine_oracle import LAYOUTS, SIZES, exact_limit, in_layout
from guards import FENCED_LAYOUTS, OUT_LAYOUTS, Output, fenced

import falcon_numba as fn
from falcon_numba.algorithms import flatten, levels_growth
from falcon_numba.numerics.bounds import entry_bounds, error_bound

KINDS = ("exact", "bound", "pattern", "batch", "integers")
WEIGHTS = (0.45, 0.2, 0.15, 0.15, 0.05)
DTYPES = ("float32", "float64")
SCALARS = ((1, 0), (1, 0), (1, 1), (2, -1), (-1, 0.5), (3, 2))
LIMITS = (None, None, None, 400_000, 2**20, 2**23)
MOST_RANK = 800
MOST = 3  # magnitude of integer data


@dataclass
class Drawn:
    """What was drawn, for the report."""

    kind: str
    M: int = 0
    N: int = 0
    K: int = 0
    dtype: str = "float32"
    options: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    ran: str = ""


class Fault(AssertionError):
    """A wrong product, with what was drawn."""


def draw_and_check(rng: np.random.Generator, drawn: Drawn | None = None) -> Drawn:
    """Draw one product, run it, compare it. `drawn` is filled on the way.

    Raises
    ------
    Fault
        From whatever went wrong.
    """
    drawn = drawn or Drawn("")
    drawn.kind = str(rng.choice(KINDS, p=WEIGHTS))
    drawn.dtype = _pick(rng, DTYPES)
    drawn.M, drawn.N, drawn.K = sizes(rng)
    try:
        with fn.trace() as plans, warnings.catch_warnings():
            warnings.simplefilter("error", fn.ProductCheckWarning)
            _CHECKS[drawn.kind](rng, drawn)
        drawn.ran = ", ".join(sorted({f"{p.executor} {p.scheme}" for p in plans}))
    except Exception as error:
        raise Fault(f"{drawn}: {type(error).__name__}: {error}") from error
    return drawn


def sizes(rng: np.random.Generator) -> tuple[int, int, int]:
    """M, N, K: mostly small and around the edges of tiles and vectors, some long in one direction, a few large."""
    style = rng.random()
    if style < 0.5:
        return tuple(int(x) for x in rng.choice(SIZES, 3))
    if style < 0.9:
        return tuple(int(x) for x in rng.integers(1, 150, 3))
    if style < 0.99:
        M, N, K = (int(x) for x in rng.integers(1, 40, 3))
        long = int(rng.integers(200, 3000))
        return ((long, N, K), (M, long, K), (M, N, long))[rng.integers(3)]
    return tuple(int(x) for x in rng.integers(200, 700, 3))


def levels_for(rng: np.random.Generator, K: int, dtype: str, exact: bool) -> tuple[str, ...]:
    """Names of schemes whose intermediate sums of integer data stay exact, where that matters."""
    names = sorted(fn.schemes)
    levels = tuple(_pick(rng, names) for _ in range(rng.integers(0, 4)))
    while levels:
        schemes = tuple(fn.schemes[name] for name in levels)
        flat = flatten(schemes)
        largest = float(levels_growth(schemes)) * -(-K // flat.grid[1]) * MOST * MOST
        if flat.rank <= MOST_RANK and not (exact and largest >= exact_limit(dtype)):
            break
        levels = levels[1:]
    return levels


def options_for(rng: np.random.Generator, drawn: Drawn, exact: bool) -> dict[str, Any]:
    """Options of the engine."""
    levels = levels_for(rng, drawn.K, drawn.dtype, exact)
    options: dict[str, Any] = {"executor": "cpu", "threads": int(rng.integers(1, 5))}
    options |= {"scheme": levels, "depth": len(levels)} if levels else {"depth": 0}
    if rng.random() < 0.1:
        options["leaf"] = "portable"
    if rng.random() < 0.1:
        options["check"] = True  # never finds anything: a warning is a fault
    options["accuracy"] = _pick(rng, ("balanced", "normwise")) if levels else "componentwise"
    limit = _pick(rng, LIMITS)
    if limit is not None:
        try:
            fn.plan_for(drawn.M, drawn.N, drawn.K, drawn.dtype, workspace_limit=limit, **options)
            options["workspace_limit"] = limit
        except ValueError:  # needs more: refused, and by the number
            pass
    drawn.options = options
    return options


def _pick(rng: np.random.Generator, things: tuple | list) -> Any:
    return things[rng.integers(len(things))]


def _whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(-MOST, MOST + 1, shape).astype(dtype)


def _placed(rng: np.random.Generator, x: np.ndarray, drawn: Drawn, name: str) -> np.ndarray:
    """A matrix in a random layout; every other one between pages that nobody may read."""
    if rng.random() < 0.5:
        layout, at_end = _pick(rng, FENCED_LAYOUTS), bool(rng.integers(2))
        drawn.details[name] = layout, "fenced", at_end
        return fenced(x, layout, at_end)
    layout = _pick(rng, LAYOUTS)
    drawn.details[name] = layout
    return in_layout(x, layout)


def _output(rng: np.random.Generator, shape: tuple[int, ...], drawn: Drawn) -> Output:
    layout = _pick(rng, OUT_LAYOUTS)
    drawn.details["out"] = layout
    return Output(shape, drawn.dtype, layout)


def _product(rng: np.random.Generator, a: np.ndarray, b: np.ndarray, drawn: Drawn, exact: bool):
    """alpha·A·B + beta·C into a guarded output: the result, C, alpha, beta and the options."""
    options = options_for(rng, drawn, exact)
    alpha, beta = _pick(rng, SCALARS)
    drawn.details["scalars"] = alpha, beta
    a, b = _placed(rng, a, drawn, "a"), _placed(rng, b, drawn, "b")
    if rng.random() < 0.2:
        a, drawn.details["trans_a"] = a.T, True
        b, drawn.details["trans_b"] = b.T, True
        options = {**options, "trans_a": "T", "trans_b": "T"}
    out = _output(rng, (drawn.M, drawn.N), drawn)
    c = _whole(rng, (drawn.M, drawn.N), drawn.dtype)
    aliased = bool(beta and rng.integers(2))
    drawn.details["out is c"] = aliased
    out.array[...] = c if aliased else np.nan
    given = out.array if aliased else c if beta or rng.integers(2) else None
    returned = fn.gemm(a, b, given, alpha=alpha, beta=beta, out=out.array, **options)
    assert returned is out.array
    result = out.array.copy()
    out.check()
    if drawn.details.get("trans_a"):
        a, b = a.T, b.T
    return a, b, result, c, alpha, beta


def _exact(rng: np.random.Generator, drawn: Drawn) -> None:
    a, b = _whole(rng, (drawn.M, drawn.K), drawn.dtype), _whole(rng, (drawn.K, drawn.N), drawn.dtype)
    a, b, result, c, alpha, beta = _product(rng, a, b, drawn, exact=True)
    expected = alpha * (a.astype("f8") @ b.astype("f8")) + beta * (c.astype("f8") if beta else 0)
    np.testing.assert_array_equal(result, expected)


def _hostile(rng: np.random.Generator, shape: tuple[int, int], axis: int, drawn: Drawn) -> np.ndarray:
    x = rng.standard_normal(shape)
    style = _pick(rng, ("normal", "units", "zero lines", "sparse", "equal", "large", "small"))
    drawn.details[f"data of axis {axis}"] = style
    reach = 30 if drawn.dtype == "float32" else 250
    if style == "units":
        lines = [1, 1]
        lines[axis] = shape[axis]
        x *= 2.0 ** rng.integers(-reach, reach, lines)
    elif style == "zero lines":
        x[tuple(slice(None, None, 3) if i == axis else slice(None) for i in range(2))] = 0
    elif style == "sparse":
        x = np.abs(x) * (rng.random(shape) < 0.05)
    elif style == "equal":
        x[...] = 0.1
    elif style in ("large", "small"):
        x *= 2.0 ** (reach if style == "large" else -reach)
    return x.astype(drawn.dtype)


def _bound(rng: np.random.Generator, drawn: Drawn) -> None:
    a, b = _hostile(rng, (drawn.M, drawn.K), 0, drawn), _hostile(rng, (drawn.K, drawn.N), 1, drawn)
    with fn.trace() as plans:
        a, b, result, c, alpha, beta = _product(rng, a, b, drawn, exact=False)
    (plan,) = plans
    wide = np.float64 if drawn.dtype == "float32" else np.longdouble
    expected = wide(alpha) * (a.astype(wide) @ b.astype(wide)) + wide(beta) * c.astype(wide)
    bound = error_bound(plan.levels, drawn.K, plan.blocks.KC, drawn.dtype, plan.accuracy)
    given = {"alpha": alpha, "beta": beta, "c_in": c, "passes": plan.passes}
    allowed = entry_bounds(bound, a, b, result, accuracy=plan.accuracy, **given)
    over = np.abs(result.astype(wide) - expected) - allowed
    assert (over <= 0).all(), f"error beyond the bound by {over.max()} in {(over > 0).sum()} entries"


def pattern(x: np.ndarray) -> np.ndarray:
    """NaN and infinities where they stand, zero elsewhere."""
    return np.where(np.isfinite(x), x.dtype.type(0), x)


def spoil(rng: np.random.Generator, x: np.ndarray, most: int) -> None:
    """Put up to `most` NaN, infinities and zeros somewhere, sometimes a whole row or column of them."""
    for _ in range(rng.integers(0, most + 1)):
        value = _pick(rng, (np.nan, np.inf, -np.inf, np.inf, 0.0))
        at: list[Any] = [int(i) for i in rng.integers(0, x.shape)]
        if rng.random() < 0.1:
            at[rng.integers(-2, 0)] = slice(None)
        x[tuple(at)] = value


def _pattern(rng: np.random.Generator, drawn: Drawn) -> None:
    a = rng.standard_normal((drawn.M, drawn.K)).astype(drawn.dtype)
    b = rng.standard_normal((drawn.K, drawn.N)).astype(drawn.dtype)
    spoil(rng, a, 3)
    spoil(rng, b, 3)
    with np.errstate(all="ignore"):
        a, b, result, c, alpha, beta = _product(rng, a, b, drawn, exact=False)
        expected = alpha * np.matmul(a, b) + (beta * c if beta else 0)
    np.testing.assert_array_equal(pattern(result), pattern(expected))


def _batch(rng: np.random.Generator, drawn: Drawn) -> None:
    batch = tuple(int(x) for x in rng.integers(1, 4, rng.integers(1, 3)))
    first = tuple(x if rng.integers(3) else 1 for x in batch)
    second = batch[rng.integers(len(batch) + 1) :]
    drawn.details["batches"] = first, second
    drawn.M, drawn.N, drawn.K = (min(x, 70) for x in (drawn.M, drawn.N, drawn.K))
    options = options_for(rng, drawn, exact=True)
    options.pop("workspace_limit", None)
    a = _whole(rng, (*first, drawn.M, drawn.K), drawn.dtype)
    b = _whole(rng, (*second, drawn.K, drawn.N), drawn.dtype)
    if rng.integers(2):
        a = a.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    expected = np.matmul(a.astype("f8"), b.astype("f8"))
    out = _output(rng, expected.shape, drawn)
    fn.matmul(a, b, out=out.array, **options)
    result = out.array.copy()
    out.check()
    np.testing.assert_array_equal(result, expected)


def _integers(rng: np.random.Generator, drawn: Drawn) -> None:
    drawn.dtype = dtype = _pick(rng, ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"))
    drawn.M, drawn.N, drawn.K = (min(x, 40) for x in (drawn.M, drawn.N, drawn.K))
    info = np.iinfo(dtype)
    a, b = (
        rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        for shape in ((drawn.M, drawn.K), (drawn.K, drawn.N))
    )
    modulus = 2**info.bits
    exact = a.astype(object) @ b.astype(object) % modulus
    for got in (fn.gemm(a, b), fn.matmul(a, b)):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.astype(object) % modulus, exact)


_CHECKS = {"exact": _exact, "bound": _bound, "pattern": _pattern, "batch": _batch, "integers": _integers}
