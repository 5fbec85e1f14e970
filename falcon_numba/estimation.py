"""``accuracy="estimated"``: the fastest plan whose error, estimated on the operands, is small enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from .algorithms import levels_growth
from .cpu.guard import ZERO_EXPONENT, Magnitudes
from .numerics.estimate import estimate_error
from .planning import Plan
from .problem import Inadmissible, Problem

MOST_PRODUCTS = 8  # of a batch, from which samples are taken
RunSample = Callable[[np.ndarray, np.ndarray, Plan], np.ndarray]


def fastest_within(
    max_error: float,
    problem: Problem,
    choice: Iterable[Plan],
    found: list[tuple[Magnitudes, Magnitudes]] | None,
    run_sample: RunSample,
) -> Plan:
    """The first plan whose estimated error is at most `max_error`, with its `error_estimate`.

    Parameters
    ----------
    max_error : float
        Relative to K·max|A|·max|B|.
    problem : Problem
        C is not read.
    choice : iterable of Plan
        The preferred one first.
    found : list of (rows of A, columns of B), or None
        What the guard says of every product; None is for products that have no engine.
    run_sample : callable (a, b, plan) -> c
        A smaller product, as the plan would compute it.

    Raises
    ------
    Inadmissible
        None of the plans will do.
    """
    shape = problem.c.shape[:-2]
    numbers = np.unique(np.linspace(0, max(0, int(np.prod(shape)) - 1), MOST_PRODUCTS).astype(int)).tolist()
    samples = []
    for number in numbers:
        one = problem.at(tuple(map(int, np.unravel_index(number, shape)))) if shape else problem
        samples.append((one.a, one.b, *(_exponents(one) if found is None else _exponents_of(*found[number]))))
    smallest, reason = np.inf, None
    for plan in choice:
        if any(rows is None or columns is None for _, _, rows, columns in samples):
            return replace(plan, reason=f"{plan.reason}; nothing could be estimated, since the data are not finite")
        growth = float(levels_growth(plan.levels))
        estimate = max(
            estimate_error(a, b, rows, columns, plan.grid, growth, lambda x, y, plan=plan: run_sample(x, y, plan))
            for a, b, rows, columns in samples
        )
        estimate = min(estimate, plan.error_bound)
        if estimate <= max_error:
            return replace(plan, error_estimate=estimate, reason=reason or plan.reason)
        smallest = min(smallest, estimate)
        if reason is None:
            reason = f"{plan.scheme} would be faster, but its estimated error is {estimate:.2g}, above max_error"
    raise Inadmissible(
        f"the smallest error estimated on these data, {smallest:.2g} (relative to K·max|A|·max|B|), exceeds "
        f"max_error={max_error:g}"
    )


Exponents = tuple[np.ndarray | None, np.ndarray | None]


def _exponents_of(rows: Magnitudes, columns: Magnitudes) -> Exponents:
    return rows.exponents if rows.finite else None, columns.exponents if columns.finite else None


def _exponents(problem: Problem) -> Exponents:
    return _line_exponents(problem.a, -1), _line_exponents(problem.b, -2)


def _line_exponents(x: np.ndarray, axis: int) -> np.ndarray | None:
    most = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    if not np.isfinite(most).all():
        return None
    return np.where(most == 0, ZERO_EXPONENT, np.frexp(most)[1] - 1)
