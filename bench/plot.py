"""Draws what `cpu.py` measured.

    python bench/plot.py squares.json -o squares.svg

Squares: effective GFLOP/s against n, with the measured FMA peak as a line and the errors beneath. Other sets: one bar
for each shape, the best peer's time over ours.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import must
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

# Okabe & Ito's colours, which colour-blind people can tell apart; markers differ as well.
STYLES = {
    "auto": ("falcon_numba", "#D55E00", "o"),
    "numpy": ("NumPy", "#0072B2", "s"),
    "mkl": ("MKL", "#56B4E9", "D"),
    "torch": ("PyTorch", "#CC79A7", "P"),
}
DEPTHS = ("#E69F00", "v"), ("#009E73", "^"), ("#7F7F7F", "<"), ("#F0E442", ">")  # forced, from depth 0
WIDTH = 10.0  # inches; a page shows it about 830 pixels wide
Key = tuple[str, int]  # dtype, threads


def style(name: str) -> dict[str, Any]:
    """Label, colour and marker of a contender."""
    if name in STYLES:
        label, colour, marker = STYLES[name]
    elif name.startswith("depth "):
        depth = int(name.split()[1])
        colour, marker = DEPTHS[min(depth, len(DEPTHS) - 1)]
        label = "falcon_numba, classical" if depth == 0 else f"falcon_numba, {name}"
    else:  # a variant with a workspace limit
        label, colour, marker = f"falcon_numba, {name}", "black", "x"
    return {"label": label, "color": colour, "marker": marker, "lw": 2.2 if name == "auto" else 1.4, "ms": 5}


def panels(lines: list[must.Line]) -> dict[Key, list[must.Line]]:
    """Lines by dtype and threads."""
    found: dict[Key, list[must.Line]] = {}
    for line in lines:
        found.setdefault((line["dtype"], line["threads"]), []).append(line)
    return dict(sorted(found.items()))


def title(key: Key) -> str:
    return f"{key[0]}, {key[1]} thread{'s' if key[1] > 1 else ''}"


def footer(data: dict[str, Any]) -> str:
    """Machine, versions and date."""
    machine, v = data["machine"], data["versions"]
    peers = "; ".join(data["peers"].values())
    return (
        f"{machine['cpu']} ({machine['llvm_cpu']}), {machine['usable_cpus']} CPUs; falcon_numba {v['falcon_numba']}, "
        f"Python {v['python']}, Numba {v['numba']};\n{peers}; {data['date'][:10]}"
    )


def draw_squares(data: dict[str, Any], lines: list[must.Line]) -> Figure:
    """Speed above error, a column for each dtype and number of threads, two columns a band."""
    groups = list(panels(lines).items())
    columns = min(2, len(groups))
    bands = -(-len(groups) // columns)
    figure, axes = plt.subplots(
        2 * bands,
        columns,
        figsize=(WIDTH, 5.6 * bands + 0.7),
        height_ratios=[3, 1.4] * bands,
        squeeze=False,
        layout="constrained",
    )
    for index in range(bands * columns):
        row, column = 2 * (index // columns), index % columns
        speed, error = axes[row][column], axes[row + 1][column]
        if index >= len(groups):
            speed.axis("off")
            error.axis("off")
            continue
        key, group = groups[index]
        _draw_speed(speed, key, group, data["peak"][key[0]][str(key[1])])
        _draw_error(error, group)
    handles: dict[str, Artist] = {}
    for axis in axes[::2].flat:
        handles |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=4, frameon=False)
    figure.supxlabel(footer(data), fontsize=8, color="#444444")
    return figure


def _series(group: list[must.Line], quantity: str) -> dict[str, tuple[list[int], list[float]]]:
    """Per contender, peers first: sizes and the quantity."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for line in sorted(group, key=lambda x: x["M"]):
        for name, x in line["contenders"].items():
            sizes, values = found.setdefault(name, ([], []))
            sizes.append(line["M"])
            values.append(x[quantity])
    return found


def _draw_speed(axis: Axes, key: Key, group: list[must.Line], peak: float) -> None:
    for name, (sizes, values) in _series(group, "gflops").items():
        axis.plot(sizes, values, **style(name), zorder=3 if name == "auto" else 2)
    axis.axhline(peak, color="black", ls="--", lw=1.2, label="FMA peak, measured")
    axis.set_title(title(key))
    axis.set_ylabel("effective GFLOP/s\n(2·n³ / time)")
    axis.set_ylim(bottom=0)
    _sizes(axis, group)


def _draw_error(axis: Axes, group: list[must.Line]) -> None:
    for name, (sizes, values) in _series(group, "error").items():
        axis.plot(sizes, values, **style(name))
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0e}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_ylabel("largest error /\n(n·max|A|·max|B|)")
    axis.set_xlabel("n (A, B, C are n × n)")
    _sizes(axis, group)


def _sizes(axis: Axes, group: list[must.Line]) -> None:
    """A logarithmic axis that names sizes measured, as many as fit."""
    axis.set_xscale("log", base=2)
    shown: list[int] = []
    for n in sorted({line["M"] for line in group}):
        if not shown or n >= 1.45 * shown[-1]:
            shown.append(n)
    axis.xaxis.set_major_locator(FixedLocator(shown))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticks(shown, [str(n) for n in shown], rotation=45)
    axis.grid(color="#DDDDDD", lw=0.6)


def draw_bars(data: dict[str, Any], lines: list[must.Line]) -> Figure:
    """Ratio of times, best peer over ours: groups of shapes that differ in M alone, a band for dtype and threads."""
    groups = list(panels(lines).items())
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(WIDTH, 3.6 * len(groups) + 0.8), squeeze=False, layout="constrained"
    )
    for axis, (key, group) in zip(axes[:, 0], groups, strict=True):
        _draw_ratios(axis, key, group)
    figure.supxlabel(footer(data), fontsize=8, color="#444444")
    return figure


def _draw_ratios(axis: Axes, key: Key, group: list[must.Line]) -> None:
    families: dict[str, list[must.Line]] = {}
    for line in group:
        name = f"{line['N']}×{line['K']}" if line["batch"] == 1 else f"{must.shape_of(line)}"
        families.setdefault(name.replace("x", "×"), []).append(line)
    tokens = sorted({line["M"] for line in group})
    shades = matplotlib.colormaps["viridis_r"]
    ratios = [must.ratio(line) for line in group]
    each = 0.84 / max(len(family) for family in families.values())
    seen = set()
    for place, family in enumerate(families.values()):
        family = sorted(family, key=lambda x: x["M"])
        for i, line in enumerate(family):
            M = line["M"]
            shade = shades(0.1 + 0.85 * tokens.index(M) / max(1, len(tokens) - 1))
            at = place + (i - (len(family) - 1) / 2) * each
            label = None if M in seen or len(families) == len(group) else f"M = {M}"
            axis.bar(at, must.ratio(line) - 1, each, bottom=1, color=shade, edgecolor="white", lw=0.4, label=label)
            seen.add(M)
    mean = statistics.fmean(ratios)
    axis.axhline(1, color="black", lw=1)
    axis.axhline(mean, color="#D55E00", lw=1.4, ls="--", label=f"mean {mean:.3f}")
    axis.set_xticks(range(len(families)), list(families), rotation=30, ha="right")
    axis.set_xlabel("N × K" if all(line["batch"] == 1 for line in group) else "batch * M × N × K")
    axis.set_ylabel("time of the best peer /\ntime of falcon_numba")
    axis.set_title(title(key))
    low, high = min(0.9, *ratios), max(1.1, *ratios)
    axis.set_ylim(low - 0.05 * (high - low), high + 0.25 * (high - low))  # the legend stands above the bars
    axis.grid(axis="y", color="#DDDDDD", lw=0.6)
    axis.set_axisbelow(True)
    axis.legend(ncols=6, fontsize=9, frameon=False, loc="upper left")


def draw(data: dict[str, Any], dtypes: list[str] | None = None, threads: list[int] | None = None) -> Figure:
    """The figure for a file's lines, or for those of some dtypes and numbers of threads."""
    lines = [
        line
        for line in data["results"]
        if (not dtypes or line["dtype"] in dtypes) and (not threads or line["threads"] in threads)
    ]
    if not lines:
        raise SystemExit("nothing was measured for this dtype and number of threads")
    squares = all(must.shape_of(line).square for line in lines)
    with plt.rc_context({"font.size": 11, "axes.titlesize": 12}):
        return draw_squares(data, lines) if squares else draw_bars(data, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", nargs="+", help="files of cpu.py, of one machine and one set of shapes")
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"))
    parser.add_argument("--threads", nargs="+", type=int)
    parser.add_argument("-o", "--output", required=True, help="picture, .svg or .png")
    args = parser.parse_args(arguments)
    matplotlib.use("Agg")
    figure = draw(must.load(args.json), args.dtype, args.threads)
    # No date and a fixed salt: the same picture for the same numbers.
    metadata = {"Date": None} if Path(args.output).suffix == ".svg" else None
    with plt.rc_context({"svg.hashsalt": "falcon_numba"}):
        figure.savefig(args.output, dpi=166, metadata=metadata)
    plt.close(figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
