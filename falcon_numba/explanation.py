"""Predicted beside measured: the best candidates of a plan, run on the caller's own operands."""

from __future__ import annotations

import functools
import html
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .api import gemm, matmul
from .preview import plan as plan_of

FEWEST, ENOUGH = 3, 0.2  # timings of each candidate; seconds after which no more are made


class Row(NamedTuple):
    """One candidate: its name, predicted and measured seconds (medians), and whether it is the plan's choice."""

    name: str
    predicted: float
    measured: float
    chosen: bool


class Explanation(tuple[Row, ...]):
    """Rows in the order of their predicted times; prints as a table."""

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text, a heading first."""
        best = min((row.measured for row in self), default=1.0)
        table: list[tuple[str, ...]] = [
            ("candidate", "predicted", "measured", "model off by", "slower than the best", "")
        ]
        for name, predicted, measured, chosen in self:
            off = "" if predicted != predicted else f"{predicted / measured - 1:+.1%}"
            shown = "" if predicted != predicted else f"{predicted * 1e3:.3g} ms"
            slower = f"{measured / best - 1:.1%}"
            table.append((name, shown, f"{measured * 1e3:.3g} ms", off, slower, "chosen" if chosen else ""))
        return table

    def __str__(self) -> str:
        table = self.table()
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        lines = []
        for name, *cells in table:
            padded = [f"{x:>{w}}" for x, w in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([f"{name:<{widths[0]}}", *padded]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = ("".join(f"<td style='text-align:left'>{html.escape(x)}</td>" for x in row) for row in self.table())
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def explain(a: Any, b: Any, *, top: int = 4, **options: Any) -> Explanation:
    """Run the candidates that the model puts first for a·b, interleaved, and show predicted beside measured times.

    Parameters
    ----------
    a, b : array_like, shapes (..., M, K) and (..., K, N)
        Of a dtype that the engine has; two matrices, or batches as for `matmul`.
    top : int
        Candidates to run, the chosen one first; NumPy's product runs in any case.
    **options
        See `config_context`; what they rule out does not run.

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        `top` below 1, or as the product would.
    """
    if top < 1:
        raise ValueError(f"top={top}: must be >= 1")
    a, b = np.asarray(a), np.asarray(b)
    if np.may_share_memory(a, b):
        b = b.copy()  # a matrix times its own transpose has ways of its own, here as in NumPy
    plan = plan_of(a, b, **options)
    entries = plan.ranking.entries() if plan.ranking is not None else []
    run = gemm if a.ndim == b.ndim == 2 else matmul
    products: dict[str, tuple[float, Callable[[], Any]]] = {}
    limits: dict[str, Any] = {
        "threads": plan.threads,
        "workspace_limit": plan.workspace_limit,
        "accuracy": plan.accuracy,
    }
    for x in entries:
        if x.runs and x.levels is not None and len(products) < top:
            products[x.name] = x.seconds, functools.partial(run, a, b, **x.options, **limits)
        elif x.runs and x.levels is None:
            products[x.name] = x.seconds, functools.partial(np.matmul, a, b)
    products.setdefault("NumPy", (math.nan, functools.partial(np.matmul, a, b)))
    chosen = entries[0].name if entries else "NumPy"
    samples: dict[str, list[float]] = {name: [] for name in products}
    for _, product in products.values():
        product()
    start = time.perf_counter()
    while time.perf_counter() - start < ENOUGH * len(products) or len(samples["NumPy"]) < FEWEST:
        for name, (_, product) in products.items():
            before = time.perf_counter()
            product()
            samples[name].append(time.perf_counter() - before)
    return Explanation(
        Row(name, predicted, statistics.median(samples[name]), name == chosen)
        for name, (predicted, _) in products.items()
    )
