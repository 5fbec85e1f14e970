"""`Plan`: everything decided for one product, frozen, and its explanation."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .algorithms import Scheme
    from .cpu.blocking import Blocks

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs for one product (or a batch of equal ones), and why.

    Attributes
    ----------
    M, N, K, batch : int
        (M × K) by (K × N), `batch` times.
    dtype : str
        Of the arithmetic and the result.
    executor : {"cpu", "numpy"}
        This library's engine, or NumPy's BLAS.
    levels : tuple of Scheme
        Outermost first; empty for the classical product.
    grid : (m, k, n)
        Blocks of all levels together.
    rank : int
        Block products of all levels together.
    leaf : {"simd", "portable", "blas", "loops"}
        Which micro-kernel, or whether NumPy has a BLAS for the dtype.
    blocks : Blocks or None
        Block sizes of the five loops, None for NumPy.
    threads : int
    whole_products : bool
        Each thread takes whole products of the batch instead of sharing each.
    workspace_bytes : int
        Memory used beside the operands and the result.
    workspace_limit : int or None
        What the caller allowed.
    accuracy : str
        The contract.
    error_bound : float
        Proven: every |Ĉ − C| is at most this times |alpha|·K·max|A|·max|B|, the last rounding aside.
    reason : str
    """

    M: int
    N: int
    K: int
    batch: int
    dtype: str
    executor: str
    levels: tuple[Scheme, ...]
    grid: tuple[int, int, int]
    rank: int
    leaf: str
    blocks: Blocks | None
    threads: int
    whole_products: bool
    workspace_bytes: int
    workspace_limit: int | None
    accuracy: str
    error_bound: float
    reason: str

    @property
    def depth(self) -> int:
        """Levels of recursion."""
        return len(self.levels)

    @property
    def scheme(self) -> str:
        """The levels' names, outermost first, as a comma list; "classical" for depth 0."""
        return ",".join(s.name for s in self.levels) or "classical"

    @property
    def passes(self) -> int:
        """How often C is passed over: the chunks of K, and of the products, that are added to it one by one."""
        if self.blocks is None:
            return 1
        b = self.blocks
        inner = -(-self.K // self.grid[1])
        return math.ceil(inner / (b.KC * b.CHUNKS)) * math.ceil(self.rank / b.PRODUCTS)

    def check(self, M: int, N: int, K: int, batch: int, dtype: str) -> None:
        """Refuse a product that this plan wasn't made for.

        Raises
        ------
        ValueError
            Naming what differs.
        """
        made_for = {"M": self.M, "N": self.N, "K": self.K, "batch": self.batch, "dtype": self.dtype}
        given = {"M": M, "N": N, "K": K, "batch": batch, "dtype": dtype}
        wrong = [f"{key}={given[key]} (plan: {made_for[key]})" for key in given if given[key] != made_for[key]]
        if wrong:
            raise ValueError(f"this plan was made for another product: {', '.join(wrong)}")

    def rows(self) -> list[tuple[str, str]]:
        """The explanation as (topic, text) pairs."""
        times = f"{self.batch} × " if self.batch > 1 else ""
        rows = [
            ("product", f"{times}({self.M} × {self.K}) · ({self.K} × {self.N}), {self.dtype}"),
            ("executor", self._executor()),
            ("scheme", self._scheme()),
        ]
        if self.blocks is not None:
            b = self.blocks
            passes = f", {b.PRODUCTS} of the {self.rank} products at a time" if self.rank > b.PRODUCTS else ""
            rows += [
                ("blocks", f"A {b.MC} × {b.KC}, B {b.KC} × {b.NC}, C {b.MC} × {b.N2} (MC, KC, NC, N2){passes}"),
                ("workspace", f"{self.workspace_bytes / MIB:.1f} MiB"),
            ]
        return [*rows, ("accuracy", self._accuracy()), ("why", self.reason)]

    def _executor(self) -> str:
        if self.executor == "numpy":
            return f"NumPy{'' if self.leaf == 'blas' else ', which has no BLAS for ' + self.dtype}"
        return f"cpu engine, {self.leaf} micro-kernel, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def _scheme(self) -> str:
        if not self.levels:
            return "classical, depth 0"
        m, k, n = self.grid
        h, d, w = -(-self.M // m), -(-self.K // k), -(-self.N // n)
        name = self.levels[0].name if len(set(self.levels)) == 1 else self.scheme
        return (
            f"{name}, depth {self.depth}: ⟨{m},{k},{n};{self.rank}⟩, {self.rank} products of "
            f"{h} × {d} by {d} × {w} blocks instead of {m * k * n}"
        )

    def _accuracy(self) -> str:
        if self.error_bound == 0:
            return "exact modulo 2^bits"
        if math.isnan(self.error_bound):
            return "whatever the objects' own arithmetic gives"
        return f"{self.accuracy}: proven |error| ≤ {self.error_bound:.2g} · K · max|A| · max|B| (the worst case)"

    def __str__(self) -> str:
        return "\n".join(f"{topic:<10} {text}" for topic, text in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{topic}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for topic, text in self.rows()
        )
        return f"<table>{cells}</table>"
