"""``accuracy="estimated"``: the fastest plan whose error, estimated on the operands, is small enough."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from .algorithms import levels_growth
from .cpu.guard import ZERO_EXPONENT, Magnitudes
from .numerics.estimate import estimate_error
from .planning import Plan
from .problem import Inadmissible, Problem

MOST_PRODUCTS = 8  # of a batch, from which samples are taken
RunSample = Callable[[Plan, np.ndarray, np.ndarray], np.ndarray]
_Sample = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


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
    run_sample : callable (plan, a, b) -> c
        A smaller product, as the plan would compute it.

    Raises
    ------
    Inadmissible
        None of the plans will do.
    """
    shape = problem.c.shape[:-2]
    numbers = np.unique(np.linspace(0, max(0, int(np.prod(shape)) - 1), MOST_PRODUCTS).astype(int)).tolist()
    samples: list[_Sample] = []
    finite = True
    for number in numbers:
        one = problem.at(tuple(map(int, np.unravel_index(number, shape)))) if shape else problem
        rows, columns = _magnitudes(one) if found is None else found[number]
        finite = finite and rows.finite and columns.finite
        samples.append((one.a, one.b, rows.exponents, columns.exponents))
    smallest, reason = np.inf, None
    for plan in choice:
        if not finite:
            return replace(plan, reason=f"{plan.reason}; nothing could be estimated, since the data are not finite")
        growth, run = float(levels_growth(plan.levels)), functools.partial(run_sample, plan)
        estimate = max(estimate_error(*sample, plan.grid, growth, run) for sample in samples)
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


def _magnitudes(problem: Problem) -> tuple[Magnitudes, Magnitudes]:
    """What the guard would find, where there is none."""
    return _lines(problem.a, -1), _lines(problem.b, -2)


def _lines(x: np.ndarray, axis: int) -> Magnitudes:
    most = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    exponents = np.where(most == 0, ZERO_EXPONENT, np.frexp(most)[1] - 1)
    lowest = exponents[most > 0].min(initial=int(exponents.max()))
    return Magnitudes(exponents, bool(np.isfinite(most).all()), int(exponents.max()), int(lowest), int(exponents.min()))
