"""`Plan`: everything decided for one product, frozen, and its explanation."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .lanes import lane_of

if TYPE_CHECKING:
    from .algorithms import Scheme
    from .cpu.blocking import Blocks
    from .decision.ranking import Ranking

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs for one product (or a batch of equal ones), and why.

    Attributes
    ----------
    M, N, K, batch : int
        (M × K) by (K × N), `batch` times.
    dtype : str
        Of the arithmetic and the result; of complex products `grid`, `blocks` and `threads` are those of the real
        product (M × 2K) by (2K × 2N) that the engine computes.
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
        Proven: every |Ĉ − C| is at most this times |alpha|·K·max|A|·max|B|, the last rounding aside. For complex
        numbers it holds for real and imaginary parts, by magnitudes of real and imaginary parts.
    reason : str
    seconds : float
        Predicted by the roofline model; NaN where nothing was predicted.
    ranking : Ranking or None
        The candidates that it was chosen from: ``ranking.entries()``.
    checked : bool
        Whether the residual test follows the product.
    headroom : float
        Factor by which combinations of blocks of A or B may exceed the operands, where integers are multiplied into
        wider ones.
    error_estimate : float
        With ``accuracy="estimated"``: the largest error to be expected on the data, relative to K·max|A|·max|B|. NaN
        where nothing was estimated, as without data.
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
    seconds: float = field(default=math.nan, compare=False)
    ranking: Ranking | None = field(default=None, compare=False, repr=False)
    checked: bool = False
    headroom: float = math.inf
    error_estimate: float = field(default=math.nan, compare=False)

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
        inner = -(-lane_of(self.dtype).parts * self.K // self.grid[1])
        return math.ceil(inner / (b.KC * b.CHUNKS)) * math.ceil(self.rank / b.PRODUCTS)

    def check(self, M: int, N: int, K: int, batch: int, dtype: str, headroom: float = math.inf) -> None:
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
        if self.headroom > headroom:
            raise ValueError("this plan was made for another product: its levels may leave the range of the operands")

    def rows(self) -> list[tuple[str, str]]:
        """The explanation as (topic, text) pairs."""
        times = f"{self.batch} × " if self.batch > 1 else ""
        rows = [
            ("product", f"{times}A (M × K = {self.M} × {self.K}) · B (K × N = {self.K} × {self.N}), {self.dtype}"),
            ("executor", self._executor()),
            ("scheme", self._scheme()),
        ]
        if self.blocks is not None:
            b = self.blocks
            passes = f", {b.PRODUCTS} of the {self.rank} products at a time" if self.rank > b.PRODUCTS else ""
            packed = f"A {b.MC} × {b.KC} (MC × KC), B {b.KC} × {b.NC} (KC × NC), sums {b.MC} × {b.N2} (MC × N2)"
            rows += [
                ("in cache", packed + passes),
                ("workspace", f"{self.workspace_bytes / MIB:.1f} MiB beside A, B and C"),
            ]
        rows.append(("accuracy", self._accuracy()))
        if self.checked:
            rows.append(("check", "residual test after the product, in O(n²); NumPy computes again what fails it"))
        if not math.isnan(self.seconds):
            each = 2 * lane_of(self.dtype).parts ** 2
            rate = each * self.M * self.N * self.K * self.batch / self.seconds / 1e9
            what = f"{rate:.0f} GFLOP/s effective ({each}·M·N·K / time)"
            rows.append(("predicted", f"{milliseconds(self.seconds)}, {what}"))
        return [*rows, ("why", self.reason)]

    def others(self) -> list[tuple[str, ...]]:
        """The candidates of `ranking` as rows of text, a heading first; empty where there was no choice."""
        entries = self.ranking.entries() if self.ranking is not None else []
        if len(entries) < 2:
            return []
        table: list[tuple[str, ...]] = [("candidate", "predicted", "Gflop", "moved", "error bound", "workspace", "")]
        for x in entries:
            bound = "" if math.isnan(x.error_bound) else f"{x.error_bound:.1e}"
            space = f"{x.workspace_bytes / MIB:.0f} MiB" if x.workspace_bytes else ""
            work = ("", "") if x.levels is None else (f"{x.operations / 1e9:.1f}", f"{x.moved / MIB:.0f} MiB")
            table.append((x.name, milliseconds(x.seconds), *work, bound, space, x.verdict))
        return table

    def _executor(self) -> str:
        if self.executor == "numpy":
            return f"NumPy{'' if self.leaf == 'blas' else ', which has no BLAS for ' + self.dtype}"
        return f"cpu engine, {self.leaf} micro-kernel, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def _scheme(self) -> str:
        if not self.levels:
            return "classical, depth 0"
        m, k, n = self.grid
        parts = lane_of(self.dtype).parts
        h, d, w = -(-self.M // m), -(-parts * self.K // k), -(-parts * self.N // n)
        real = "real " if parts > 1 else ""
        return (
            f"{self.scheme} (depth {self.depth}), ⟨{m},{k},{n};{self.rank}⟩: A in {m} × {k} blocks, B in {k} × {n}; "
            f"{self.rank} products of {h} × {d} by {d} × {w} {real}blocks instead of {m * k * n}"
        )

    def _accuracy(self) -> str:
        if self.error_bound == 0:
            return "exact modulo 2^bits"
        if math.isnan(self.error_bound):
            return "whatever the objects' own arithmetic gives"
        if self.accuracy == "estimated":
            known = "nothing without data" if math.isnan(self.error_estimate) else f"{self.error_estimate:.2g}"
            return (
                f"estimated |error| / (K · max|A| · max|B|): {known}; proven: ≤ {self.error_bound:.2g} (the worst case)"
            )
        text = f"{self.accuracy}: proven |error| ≤ {self.error_bound:.2g} · K · max|A| · max|B| for the worst data"
        if not self.levels:
            return text
        return f"{text}; usual errors are thousands to millions of times smaller (max_error= asks for a tighter bound)"

    def __str__(self) -> str:
        lines = [f"{topic:<10} {text}" for topic, text in self.rows()]
        table = self.others()
        if table:
            widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
            lines += ["", self._heading()]
            for name, *numbers, verdict in table:
                cells = [f"{x:>{w}}" for x, w in zip(numbers, widths[1:], strict=True)]
                lines.append("  ".join([f"{name:<{widths[0]}}", *cells, verdict]).rstrip())
        return "\n".join(lines)

    def _heading(self) -> str:
        """Of the table of candidates."""
        assert self.ranking is not None
        speeds = "measured on this machine"
        if self.ranking.question.rates.source == "default":
            speeds = "assumed of such a CPU (`falcon-numba calibrate` measures this one)"
        return f"all candidates, predicted by the roofline model from speeds {speeds}:"

    def _repr_html_(self) -> str:
        def cell(text: str, tag: str = "td") -> str:
            return f"<{tag} style='text-align:left'>{html.escape(text)}</{tag}>"

        about = "".join(f"<tr>{cell(topic, 'th')}{cell(text)}</tr>" for topic, text in self.rows())
        rows = ["".join(cell(text, "th" if i == 0 else "td") for text in row) for i, row in enumerate(self.others())]
        others = "".join(f"<tr>{row}</tr>" for row in rows)
        heading = f"<p>{html.escape(self._heading())}</p>" if others else ""
        return f"<table>{about}</table>" + (f"{heading}<table>{others}</table>" if others else "")


def milliseconds(seconds: float) -> str:
    """A time for people."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
