"""``check=True``: the residual test after a product, and what happens when it fails."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .decision.predict import has_blas
from .numerics.bounds import error_bound
from .numerics.residual import Finding, residual_test
from .numerics.ring import ring_test
from .planning import Plan
from .problem import Problem
from .verification import ROUNDS, ROWS, allowance_of

_lock = threading.Lock()
_products = _failures = 0


class ProductCheckWarning(RuntimeWarning):
    """A product failed its residual test (``check=True``) and was computed again by NumPy; the result is NumPy's."""


class CheckCounts(NamedTuple):
    """Products that ``check=True`` has tested in this process, and those that failed and were computed again."""

    products: int
    failures: int


def check_counts() -> CheckCounts:
    """How many products ``check=True`` has tested in this process, and how many failed.

    Examples
    --------
    >>> check_counts().failures
    0
    """
    with _lock:
        return CheckCounts(_products, _failures)


def _count(products: int, failures: int) -> None:
    global _failures, _products
    with _lock:
        _products += products
        _failures += failures


def repaired(
    problem: Problem, before: np.ndarray | None, ran: list[Plan], by_numpy: Callable[[Problem], None]
) -> list[Plan]:
    """Test every product of a problem, compute anew those that fail, and warn once of all; the plans that hold now.

    Parameters
    ----------
    problem : Problem
        Computed.
    before : ndarray, shape as C, or None
        What C was, where beta is not 0.
    ran : list of Plan
        One for each product, or one for all.
    by_numpy : callable (problem)
        Computes one product.
    """
    if not (math.isfinite(problem.alpha) and math.isfinite(problem.beta)):
        return [replace(plan, reason=f"{plan.reason}; not tested, since alpha or beta is not finite") for plan in ran]
    if problem.c.dtype.kind == "b":
        return [replace(plan, reason=f"{plan.reason}; not tested: OR of ANDs has no residual") for plan in ran]
    batch = math.prod(problem.c.shape[:-2])
    plans = ran if len(ran) == batch else ran * batch
    failures: dict[int, str] = {}
    rng = np.random.default_rng()
    for number, index in enumerate(np.ndindex(problem.c.shape[:-2])):
        one, old = problem.at(index), None if before is None else before[index]
        failure = _failure(one, old, plans[number], rng)
        if failure:
            failures[number] = failure
            if old is not None:
                np.copyto(one.c, old)
            by_numpy(one)
    _count(batch, len(failures))
    if not failures:
        return ran
    products = "the product" if batch == 1 else f"{len(failures)} of {batch} products"
    first = next(iter(failures.values()))
    warnings.warn(
        f"{products} failed the residual test ({first}) and {'was' if len(failures) == 1 else 'were'} computed again "
        "by NumPy. Please report it: this is a fault of falcon_numba, or of the machine",
        ProductCheckWarning,
        stacklevel=_frames_to_caller(),
    )
    return [_numpy_plan(plan, failures[i]) if i in failures else plan for i, plan in enumerate(plans)]


def _frames_to_caller() -> int:
    """The `stacklevel` of whoever has called this package."""
    package, frame, level = __name__.partition(".")[0], sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level


def _failure(one: Problem, old: np.ndarray | None, plan: Plan, rng: np.random.Generator) -> str:
    """What the test of a product says; nothing where it passes."""
    if one.c.dtype.kind == "i":
        c = one.c.astype(one.a.dtype) if one.headroom == math.inf else one.c  # what wraps, counts as it was given
        wrong = ring_test(one.a, one.b, c, int(one.alpha), int(one.beta), old, ROUNDS, rng)
        return "" if wrong is None else f"C[{wrong[0]}, {wrong[1]}] is off by {wrong[2]}"
    found = residual_test(one.a, one.b, one.c, one.alpha, one.beta, old, allowance_of(plan), ROUNDS, ROWS, rng)
    return "" if found.ratio <= 1 else _told(found)


def _numpy_plan(plan: Plan, failure: str) -> Plan:
    """What has computed the product in the end."""
    return replace(
        plan,
        executor="numpy",
        levels=(),
        grid=(1, 1, 1),
        rank=1,
        leaf="blas" if has_blas(plan.dtype) else "loops",
        blocks=None,
        whole_products=False,
        workspace_bytes=0,
        error_bound=error_bound((), plan.K, plan.K, plan.dtype, "componentwise").relative,
        reason=f"{plan.scheme} on the engine failed the residual test ({failure}): computed again by NumPy",
        seconds=math.nan,
        ranking=None,
        error_estimate=math.nan,
    )


def _told(found: Finding) -> str:
    if found.what:
        return f"C[{found.row}, {found.column}] {found.what}"
    where = f"C[{found.row}, {found.column}]" if found.column >= 0 else f"the residual of row {found.row}"
    return f"{where} is off by {found.error:.2g}, {found.allowed:.2g} would be allowed"
