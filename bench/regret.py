"""Judges the lines that `decision.py` measures: regret of the choice, loss against NumPy, error of the prediction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from must import Line, shape_of
from shapes import DECISION_MUST, Shape

LARGE_PRODUCT = 2 * 256**3  # operations from which NumPy's time counts
LARGE_SIZE = 1024  # harmonic mean of M, N and K from which predictions count
CHOICE = "auto"


class Verdict(NamedTuple):
    """One line, judged. Times are medians; NaN where something was not measured or predicted.

    Attributes
    ----------
    line : dict
    chosen : str
        The candidate that ran the same plan as "auto", or "auto" where none did.
    best : str
        The fastest candidate; "auto" is one only where no other has its plan.
    regret : float
        Time of `chosen` / time of `best`: noise of a plan that was timed twice counts once.
    own : float
        Time of "auto" itself / time of `best`, with the cost of the decision.
    loss : float
        Time of "auto" itself / NumPy's time.
    error : float
        |predicted − measured| / measured of the chosen plan.
    """

    line: Line
    chosen: str
    best: str
    regret: float
    own: float
    loss: float
    error: float

    @property
    def shape(self) -> Shape:
        return shape_of(self.line)

    @property
    def where(self) -> str:
        return f"{self.shape}, {self.line['dtype']}, {threads_text(self.line['threads'])}"

    def described(self, name: str) -> str:
        """A contender with what it ran."""
        x = self.line["contenders"][name]
        what = (
            "NumPy" if x["executor"] == "numpy" else f"{x['scheme']}, depth {x['depth']}" if x["depth"] else "depth 0"
        )
        return f"{what} ({1e3 * x['seconds']:.3g} ms)"


def threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def size_of(shape: Shape) -> float:
    """The harmonic mean of the dimensions."""
    return statistics.harmonic_mean(shape[:3])


def prediction_error(contender: dict[str, Any]) -> float:
    predicted = contender["predicted"]
    return math.nan if predicted is None else abs(predicted - contender["seconds"]) / contender["seconds"]


def judge(line: Line) -> Verdict:
    contenders = line["contenders"]
    chosen = line["chosen"]
    times = {name: x["seconds"] for name, x in contenders.items() if name != CHOICE or chosen == CHOICE}
    best = min(times, key=times.__getitem__)
    auto = contenders[CHOICE]["seconds"]
    numpy = times.get("numpy", math.nan)
    error = prediction_error(contenders[CHOICE] | {"seconds": times[chosen]})
    return Verdict(line, chosen, best, times[chosen] / times[best], auto / times[best], auto / numpy, error)


def _known(values: Iterable[float]) -> list[float]:
    return [x for x in values if not math.isnan(x)]


def _over(values: Iterable[float], function: Callable[[list[float]], float]) -> float:
    known = _known(values)
    return function(known) if known else math.nan


def percentile(values: list[float]) -> float:
    """The 95th, a value that occurs."""
    return float(np.percentile(values, 95, method="higher"))


def _large(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.shape.operations >= LARGE_PRODUCT]


def quantities(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """What `shapes.DECISION_MUST` speaks of, by its names."""
    regrets = [v.regret for v in verdicts]
    found = (
        _over(regrets, statistics.geometric_mean),
        _over(regrets, percentile),
        _over(regrets, max),
        _over((v.loss for v in _large(verdicts)), max),
        _over((v.error for v in verdicts if size_of(v.shape) >= LARGE_SIZE), statistics.median),
    )
    return dict(zip((limit.quantity for limit in DECISION_MUST), found, strict=True))


def worst(verdicts: Sequence[Verdict], key: Callable[[Verdict], float], count: int) -> list[Verdict]:
    """Those of the largest values, largest first."""
    return sorted((v for v in verdicts if not math.isnan(key(v))), key=key, reverse=True)[:count]


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{_over(values, f):>7.3f}" for f in (statistics.geometric_mean, percentile, max))


def _percent(values: Iterable[float], function: Callable[[list[float]], float]) -> str:
    return f"{100 * _over(values, function):>6.1f}%".replace("nan%", "  –")


def _group(name: str, verdicts: Sequence[Verdict]) -> str:
    large = _large(verdicts)
    losses = [v.loss for v in large]
    errors = [v.error for v in verdicts if size_of(v.shape) >= LARGE_SIZE]
    regrets = f"{_numbers([v.regret for v in verdicts])}   {_numbers([v.own for v in large])}"
    over = f"{_over(losses, max):>7.3f} {sum(x > 1.03 for x in losses):>5}"
    return f"{name:<20} {len(verdicts):>5}  {regrets}  {over}    {_percent(errors, statistics.median)}"


def _groups(verdicts: Sequence[Verdict]) -> list[str]:
    groups: dict[str, list[Verdict]] = {}
    for v in verdicts:
        groups.setdefault(f"{v.line['dtype']}, {threads_text(v.line['threads'])}", []).append(v)
    if len(groups) > 1:
        groups["all"] = list(verdicts)
    three = f"{'mean':>7} {'95 %':>7} {'worst':>7}"
    return [
        f"{'':<20} {'':>5}  {'regret of the plan':^23}   {'by its own timing*':^23}  {'time / NumPy*':^13}  prediction",
        f"{'':<20} lines  {three}   {three}  {'worst':>7} {'> 3 %':>5}  off, n ≥ 1024",
        *(_group(name, found) for name, found in groups.items()),
        "* of products with 2MNK ≥ 2·256³",
    ]


def _errors(verdicts: Sequence[Verdict]) -> list[str]:
    """The errors of the predictions, of each candidate."""
    names = dict.fromkeys(name for v in verdicts for name in v.line["contenders"])
    rows = []
    for name in names:
        lines = [v for v in verdicts if name in v.line["contenders"]]
        found = [(size_of(v.shape), prediction_error(v.line["contenders"][name])) for v in lines]
        if every := _known(error for _, error in found):
            large = [error for size, error in found if size >= LARGE_SIZE]
            texts = (f"{_percent(x, statistics.median)} {_percent(x, percentile)}" for x in (large, every))
            rows.append(f"{name:<20} {'    '.join(texts)}")
    if not rows:
        return ["no plan here predicts its time"]
    two = f"{'median':>7} {'95 %':>7}"
    return [f"{'prediction off by':<20} {'n ≥ 1024':^15}    {'all':^15}", f"{'':<20} {two}    {two}", *rows]


def _table(verdicts: Sequence[Verdict], key: Callable[[Verdict], float], pair: Callable[[Verdict], tuple[str, str]]):
    """The worst ten as text, as far as they are bad at all."""
    rows = sorted((v for v in verdicts if key(v) > 1.005), key=key, reverse=True)[:10]
    found = []
    for v in rows:
        ran, better = map(v.described, pair(v))
        found.append(f"  {key(v):.3f}  {v.where}: {ran}, not {better}")
    return found or ["  none above 1.005"]


def summary(verdicts: Sequence[Verdict]) -> str:
    """All of it as text."""
    return "\n".join(
        [
            *_groups(verdicts),
            "",
            *_errors(verdicts),
            "",
            "largest regrets of the plan:",
            *_table(verdicts, lambda v: v.regret, lambda v: (v.chosen, v.best)),
            "",
            "largest times over NumPy's, 2MNK ≥ 2·256³:",
            *_table(_large(verdicts), lambda v: v.loss, lambda v: (CHOICE, "numpy")),
        ]
    )


def check(verdicts: Sequence[Verdict]) -> int:
    """Print every limit of `shapes.DECISION_MUST`; 1 where one is not kept."""
    found = quantities(verdicts)
    missed = 0
    for quantity, most in DECISION_MUST:
        value = found[quantity]
        missed += value > most
        word = "none" if math.isnan(value) else "MISS" if value > most else "met "
        print(f"{word}  {quantity}: {value:.3f} (asked ≤ {most:g})")
    print(f"{missed} missed; {sum(map(math.isnan, found.values()))} of {len(found)} speak of nothing measured here")
    return min(missed, 1)
