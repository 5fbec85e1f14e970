"""The ways to compute one product that a benchmark compares: what each runs, and how each is checked and timed."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numba
import numpy as np
from peers import Peer, Product

import falcon_numba as fn
from falcon_numba.cpu.threads import default_threads

SAMPLE_SECONDS = 0.005  # shorter products are repeated within one timing
WORDS_OF_A_PLAN = ("reason", "seconds", "ranking")  # differ between plans that run the same

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]  # A, B and C


class Judge(Protocol):
    """Something that knows the right result."""

    def error(self, c: np.ndarray) -> float: ...


@dataclass(slots=True)
class Contender:
    """One way to compute C = A·B, and what was measured of it.

    `depth` is what ours must run, None for its choice; `calls` are the products within one timing.
    """

    name: str
    product: Product
    ours: bool
    depth: int | None = None
    plan: Any = None
    calls: int = 1
    error: float = math.nan
    estimate: float = math.nan
    samples: list[float] = field(default_factory=list)
    unpaused: list[float] = field(default_factory=list)


def ours(name: str, options: dict[str, Any], batched: bool) -> Contender:
    """Our product with these options of `falcon_numba.config_context`."""
    function = fn.matmul if batched else fn.gemm
    return Contender(name, lambda a, b, c: function(a, b, out=c, **options), True, options.get("depth"))


def work(plan: Any) -> list[Any]:
    """All of a plan but its words: the guard, too, has its say in these, after it has seen the data."""
    return [getattr(plan, x.name) for x in fields(plan) if x.name not in WORDS_OF_A_PLAN]


def checked_run(contender: Contender, arrays: Arrays, calls: int = 1) -> float:
    """Seconds of one call. A single call of ours is traced, and must run the same plan as ever.

    Not so where the plan is NumPy's product: a trace goes past the short cut that its users take.
    """
    a, b, c = arrays
    if not contender.ours or calls > 1 or (contender.plan is not None and contender.plan.executor == "numpy"):
        start = time.perf_counter()
        for _ in range(calls):
            contender.product(a, b, c)
        return (time.perf_counter() - start) / calls
    with fn.trace() as plans:
        start = time.perf_counter()
        contender.product(a, b, c)
        seconds = time.perf_counter() - start
    if not plans or any(p.levels != plans[0].levels or p.executor != plans[0].executor for p in plans):
        raise RuntimeError(f"{contender.name}: {len(plans)} plans ran: {[p.scheme for p in plans]}")
    plan = plans[0]
    if contender.depth is not None and (plan.executor != "cpu" or plan.depth != contender.depth):
        raise RuntimeError(f"{contender.name}: {plan.scheme} on executor {plan.executor} ran instead")
    if contender.plan is not None and work(contender.plan) != work(plan):
        raise RuntimeError(f"{contender.name}: another plan ran than the first time:\n{plan}\n\n{contender.plan}")
    contender.plan = plan
    return seconds


def first_run(contender: Contender, arrays: Arrays, reference: Judge, long: float = 1.0) -> None:
    """Touch the memory, check the result, and estimate how long a call takes: by a second one unless it is `long`."""
    c = arrays[2]
    c.fill(np.nan)  # what an earlier contender left here must not pass for a result
    seconds = checked_run(contender, arrays)
    contender.error = reference.error(c)
    bound = math.inf if contender.plan is None else contender.plan.error_bound + np.finfo(c.dtype).eps
    if not contender.error <= bound:
        raise RuntimeError(f"{contender.name}: wrong result, error {contender.error:.2g}, bound {bound:.2g}")
    contender.estimate = min(seconds, checked_run(contender, arrays)) if seconds < long else seconds


def one_round(
    contenders: Sequence[Contender],
    arrays: Arrays,
    order: random.Random,
    after: Callable[[Contender], object] | None = None,
    unpaused: bool = False,
) -> None:
    """One timing of each contender, in a new random order; `after` is called after each, with who ran."""
    for contender in order.sample(contenders, len(contenders)):
        timings = contender.unpaused if unpaused else contender.samples
        timings.append(checked_run(contender, arrays, contender.calls))
        if after is not None:
            after(contender)


def set_threads(threads: int, peers: Sequence[Peer]) -> None:
    """The same number of threads for everybody, without an option in our calls: options have a price in small ones."""
    numba.config.NUMBA_NUM_THREADS = threads  # Numba's own threads don't run, so this is what our default follows
    assert default_threads() == threads
    for peer in peers:
        peer.set_threads(threads)


def compile_engine(dtype: str) -> None:
    """Everything that products of any depth need."""
    ones = np.ones((64, 64), dtype)
    for depth in (0, 1):
        fn.gemm(ones, ones, depth=depth, executor="cpu")
