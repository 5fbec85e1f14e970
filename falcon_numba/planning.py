"""`Plan`: everything decided for one product, frozen, and its explanation."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .algorithms import Scheme
    from .cpu.blocking import Blocks

MIB = 2**20


class Inadmissible(ValueError):
    """A plan breaks a rule that the caller set: the largest error, or the workspace allowed."""


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
    leaf : {"simd", "portable", "blas"}
        Which micro-kernel.
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
    def ranks(self) -> tuple[int, ...]:
        """The levels' ranks, outermost first."""
        return tuple(s.rank for s in self.levels)

    @property
    def scheme(self) -> str:
        """The levels' names, outermost first, joined by "*"; "classical" for depth 0."""
        return "*".join(s.name for s in self.levels) or "classical"

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
        m, k, n = self.grid
        times = f"{self.batch} × " if self.batch > 1 else ""
        product = f"{times}({self.M} × {self.K}) · ({self.K} × {self.N}), {self.dtype}"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        who = "NumPy's BLAS" if self.executor == "numpy" else f"cpu engine, {self.leaf} micro-kernel, {threads}"
        if self.levels:
            size = " × ".join(str(-(-x // y)) for x, y in zip((self.M, self.K, self.N), (m, k, n), strict=True))
            scheme = (
                f"{self.scheme}, depth {self.depth}: ⟨{m},{k},{n};{self.rank}⟩, {self.rank} block products of "
                f"{size} (M × K × N) instead of {m * k * n}, {100 * (1 - self.rank / (m * k * n)):.1f} % fewer"
            )
        else:
            scheme = "classical, depth 0"
        rows = [("product", product), ("executor", who), ("scheme", scheme)]
        if self.blocks is not None:
            b = self.blocks
            passes = f"; {b.PRODUCTS} products at a time" if self.rank > b.PRODUCTS else ""
            rows.append(("blocks", f"MC {b.MC}, KC {b.KC} (× {b.CHUNKS}), NC {b.NC}, targets {b.MC} × {b.N2}{passes}"))
            rows.append(("workspace", f"{self.workspace_bytes / MIB:.1f} MiB"))
        rows.append(("accuracy", f"{self.accuracy}: |error| ≤ {self.error_bound:.2g} · K · max|A| · max|B| (proven)"))
        rows.append(("why", self.reason))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{topic:<10} {text}" for topic, text in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{topic}</th><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for topic, text in self.rows()
        )
        return f"<table>{cells}</table>"
