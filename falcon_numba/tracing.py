"""`trace`: which plans ran."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from .planning import Plan

_trace: ContextVar[list[Plan] | None] = ContextVar("falcon_numba_trace", default=None)


@contextlib.contextmanager
def trace() -> Iterator[list[Plan]]:
    """Collect the plan of every product computed in this context, as it really ran.

    Where the guard changed a plan, or NumPy computed again what failed its residual test (``check=True``), the one that
    ran stands in the list and its `reason` says why.

    Examples
    --------
    >>> with trace() as plans:
    ...     c = falcon_numba.gemm(a, b)
    >>> plans[0].depth
    2
    """
    plans: list[Plan] = []
    with _collected_in(plans):
        yield plans


def untraced() -> contextlib.AbstractContextManager[None]:
    """A context whose products no `trace` sees."""
    return _collected_in(None)


@contextlib.contextmanager
def _collected_in(plans: list[Plan] | None) -> Iterator[None]:
    token = _trace.set(plans)
    try:
        yield
    finally:
        _trace.reset(token)


def tracing() -> bool:
    """Whether a `trace` is active in this context."""
    return _trace.get() is not None


def record(plan: Plan) -> None:
    """Add a plan to the active `trace`, if there is one."""
    plans = _trace.get()
    if plans is not None:
        plans.append(plan)
