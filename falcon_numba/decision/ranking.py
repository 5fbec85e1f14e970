"""Why a plan was chosen: all candidates with what the model says of them, made only when somebody asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..algorithms import Scheme
from ..planning import milliseconds
from ..problem import Inadmissible
from . import roofline
from .predict import Question, engine_times, in_order

Check = Callable[["tuple[Scheme, ...] | None"], "tuple[float, int]"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate.

    Attributes
    ----------
    name : str
        "NumPy", "classical", or the levels, outermost first.
    levels : tuple of Scheme, or None for NumPy
    seconds : float
        Predicted.
    stages : dict of str to float
        Seconds of every stage of the model; empty for NumPy.
    moved, operations : float
        Bytes to and from memory, floating-point operations; NaN for NumPy.
    error_bound : float
        As in `Plan`; NaN where the candidate can't run.
    workspace_bytes : int
    verdict : str
        Why it was chosen, or lost.
    """

    name: str
    levels: tuple[Scheme, ...] | None
    seconds: float
    stages: dict[str, float]
    moved: float
    operations: float
    error_bound: float
    workspace_bytes: int
    verdict: str

    @property
    def runs(self) -> bool:
        """Whether it is admissible."""
        return not math.isnan(self.error_bound)

    @property
    def options(self) -> dict[str, Any]:
        """The options that force it."""
        if self.levels is None:
            return {"executor": "numpy", "scheme": "auto"}
        return {"executor": "cpu", "scheme": self.levels or "auto", "depth": len(self.levels)}


@dataclass(frozen=True, slots=True)
class Ranking:
    """What was asked of the model, and how to find out whether a candidate is admissible.

    Attributes
    ----------
    question : Question
    check : callable (levels or None) -> (error bound, workspace bytes)
        Raises Inadmissible.
    """

    question: Question
    check: Check

    def entries(self) -> list[Entry]:
        """All candidates: the chosen one first, then by predicted time, those that can't run last."""
        question = self.question
        times = dict(zip(question.candidates.levels, engine_times(question), strict=True))
        entries: list[Entry] = []
        refused: list[Entry] = []
        best: Entry | None = None
        for seconds, levels in in_order(question):
            x = None if levels is None else times[levels]
            stages = {} if x is None else dict(zip(roofline.STAGES, x.tolist(), strict=False))
            moved, operations = (math.nan,) * 2 if x is None else (float(x[roofline.MOVED]), float(x[roofline.FLOPS]))
            try:
                bound, workspace = self.check(levels)
                verdict = "chosen" if best is None else _why_lost(best, seconds, stages)
            except Inadmissible as error:
                bound, workspace, verdict = math.nan, 0, f"can't run: {error}"
            entry = Entry(name_of(levels), levels, seconds, stages, moved, operations, bound, workspace, verdict)
            (entries if entry.runs else refused).append(entry)
            best = entries[0] if entries else None
        return entries + refused


def name_of(levels: tuple[Scheme, ...] | None) -> str:
    """How a candidate is called."""
    return "NumPy" if levels is None else ",".join(s.name for s in levels) or "classical"


def _why_lost(best: Entry, seconds: float, stages: dict[str, float]) -> str:
    slower = seconds / best.seconds - 1
    if slower <= 0:
        return "as fast, but of more levels: it would cost accuracy for nothing"
    text = f"{slower:.1%} slower"
    if not stages or not best.stages:
        return text
    worst = max(stages, key=lambda stage: stages[stage] - best.stages[stage])
    here, there = milliseconds(stages[worst]), milliseconds(best.stages[worst])
    return f"{text}, chiefly {worst}: {here} instead of {there}"
