"""Schemes as text and HTML: the catalogue's table and one scheme's formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape

import numpy as np

from .scheme import Scheme
from .stability import gamma, growth_factor
from .straightline import additions_cse, additions_naive

HEADINGS = ("name", "format", "classical", "speed-up", "ω", "non-zeros", "additions", "CSE", "e", "γ", "source")
_NUMERIC = range(2, 10)
_SOURCE_WIDTH = 60
# A scheme of higher rank is summarised without its formulas.
_MAX_FORMULAS = 64
# Beyond these non-zeros the search for common subexpressions takes seconds: no figure.
_MAX_CSE = 2000


LEGEND = (
    "classical: block products of the classical algorithm, m·k·n; speed-up: classical/R; ω: exponent of full recursion",
    "non-zeros: of U, V and W; additions: of blocks, a level; CSE: the same after common-subexpression elimination",
    "e: growth factor, max Σ|W|·‖U‖₁·‖V‖₁, in the error bounds; γ: Σ ‖U‖₂·‖V‖₂·‖W‖₂, smaller is more accurate",
)


def schemes_text(schemes: Sequence[Scheme], *, long: bool = False) -> str:
    """A table with one scheme a line and a legend; sources are cut unless `long`."""
    rows = [row if long else (*row[:-1], _cut(row[-1])) for row in map(_row, schemes)]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]

    def line(cells: Iterable[str]) -> str:
        return " │ ".join(
            cell.rjust(w) if i in _NUMERIC else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    rule = "─┼─".join("─" * w for w in widths)
    return "\n".join([line(HEADINGS), rule, *map(line, rows), rule, *LEGEND])


def schemes_html(schemes: Sequence[Scheme]) -> str:
    """The table of `schemes_text` as HTML, sources in full."""
    return _html_table(map(_row, schemes))


def scheme_html(scheme: Scheme) -> str:
    """One scheme as HTML: its line of the table and, up to rank 64, its formulas."""
    lines = formulas(scheme) if scheme.rank <= _MAX_FORMULAS else []
    return _html_table([_row(scheme)]) + (f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else "")


def formulas(scheme: Scheme) -> list[str]:
    """The scheme in print: a line for each product H_r and each block of C, indices from one."""
    lines = [f"H{r + 1} = {_factor(scheme.U[r], 'A')} · {_factor(scheme.V[r], 'B')}" for r in range(scheme.rank)]
    for i, j in np.ndindex(scheme.m, scheme.n):
        terms = [(f"H{r + 1}", scheme.W[r, i, j]) for r in np.flatnonzero(scheme.W[:, i, j])]
        lines.append(f"C{_index(i, j, scheme.m, scheme.n)} = {_signed(terms)}")
    return lines


def _row(scheme: Scheme) -> tuple[str, ...]:
    return (
        scheme.name,
        scheme.format,
        str(scheme.m * scheme.k * scheme.n),
        f"{scheme.speedup:.3f}",
        f"{scheme.omega:.4f}",
        str(sum(scheme.nonzeros)),
        str(additions_naive(scheme)),
        str(additions_cse(scheme)) if sum(scheme.nonzeros) <= _MAX_CSE else "–",
        str(growth_factor(scheme)),
        f"{gamma(scheme):.2f}",
        scheme.source,
    )


def _html_table(rows: Iterable[tuple[str, ...]]) -> str:
    def cells(tag: str, texts: Iterable[str]) -> str:
        return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', HEADINGS)}</tr></thead><tbody>{body}</tbody></table>"


def _cut(text: str) -> str:
    return text if len(text) <= _SOURCE_WIDTH else text[: _SOURCE_WIDTH - 1].rstrip() + "…"


def _factor(matrix: np.ndarray, letter: str) -> str:
    rows, columns = matrix.shape
    text = _signed([(f"{letter}{_index(i, j, rows, columns)}", c) for (i, j), c in np.ndenumerate(matrix) if c])
    return text if text.isalnum() else f"({text})"


def _signed(terms: Sequence[tuple[str, int | Fraction]]) -> str:
    text = ""
    for name, c in terms:
        sign = "−" if c < 0 else "+"
        size = "" if abs(c) == 1 else f"{abs(c)}·"
        text += f" {sign} {size}{name}" if text else f"{'−' if c < 0 else ''}{size}{name}"
    return text or "0"


def _index(i: int, j: int, rows: int, columns: int) -> str:
    return f"{i + 1}{j + 1}" if max(rows, columns) < 10 else f"{i + 1},{j + 1}"
