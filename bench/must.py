"""Judges measured lines: ratios to the best peer, and the demands of `shapes.MUST`."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from shapes import MUST, Demand, Shape

Line = dict[str, Any]


def shape_of(line: Line) -> Shape:
    return Shape(line["M"], line["N"], line["K"], line["batch"])


def best_peer(line: Line, peers: tuple[str, ...] = (), key: str = "seconds") -> tuple[str, float] | None:
    """Name and median time of the fastest peer (of `peers`, where given) on a line."""
    found = [(x[key], name) for name, x in line["contenders"].items() if not x["ours"] and (not peers or name in peers)]
    return (min(found)[1], min(found)[0]) if found else None


def ratio(line: Line, variant: str = "auto", peers: tuple[str, ...] = (), key: str = "seconds") -> float:
    """Median time of the best peer over that of our variant."""
    peer = best_peer(line, peers, key)
    return float("nan") if peer is None else peer[1] / line["contenders"][variant][key]


def describe(line: Line, peak: float) -> str:
    """A measured line in one line of text."""
    peer = best_peer(line)
    words = [f"{line['dtype']} {line['threads']}T {shape_of(line)!s:>18}:"]
    for name, x in line["contenders"].items():
        text = f"{name} {x['gflops']:.1f}"
        if x["ours"]:
            text += f" ({x['scheme'] if x['executor'] == 'cpu' else x['executor']}"
            text += f", {ratio(line, name):.3f}" if peer else ""
            text += f", unpaused {ratio(line, name, key='unpaused_seconds'):.3f}" if "unpaused_seconds" in x else ""
            text += ")"
        words.append(text + f" err {x['error']:.1e};")
    return " ".join([*words, f"peak {peak:.1f}"])


def lines_of(demand: Demand, data: dict[str, Any]) -> list[Line]:
    """The measured lines that a demand speaks of."""
    return [
        line
        for line in data["results"]
        if line["set"] in demand.sets
        and line["dtype"] == demand.dtype
        and shape_of(line) in demand.sizes
        and (not demand.threads or line["threads"] in demand.threads)
        and demand.variant in line["contenders"]
        and best_peer(line, demand.peers) is not None
    ]


def value(demand: Demand, line: Line, data: dict[str, Any]) -> float:
    """The quantity of a demand on one line."""
    x = line["contenders"][demand.variant]
    if demand.quantity == "peak":
        return x["gflops"] / data["peak"][line["dtype"]][str(line["threads"])]
    if demand.quantity == "overhead":
        peer = best_peer(line, demand.peers)
        assert peer is not None
        return 1e6 * (x["seconds"] - peer[1])
    return ratio(line, demand.variant, demand.peers)


def judge(demand: Demand, data: dict[str, Any]) -> list[tuple[str, float, bool, str]]:
    """What a demand says of measured lines: (what, value, met, who ran and how)."""
    lines = lines_of(demand, data)
    if not lines:
        return []
    if demand.quantity == "mean ratio":
        mean = statistics.fmean(value(demand, line, data) for line in lines)
        return [(f"mean of {len(lines)} shapes", mean, mean >= demand.least, "")]
    verdicts = []
    for line in lines:
        x = line["contenders"][demand.variant]
        found = value(demand, line, data)
        met = found <= demand.least if demand.quantity == "overhead" else found >= demand.least
        # Small products and batches may be NumPy's by plan; elsewhere only what our engine did counts.
        met = met and (x["executor"] == "cpu" or not {"small", "batches"}.isdisjoint(demand.sets))
        note = x["scheme"] if x["executor"] == "cpu" else f"executor {x['executor']}"
        if "unpaused_seconds" in x and demand.quantity == "ratio":
            note += f"; unpaused {ratio(line, demand.variant, demand.peers, 'unpaused_seconds'):.3f}"
        if (classical := line["contenders"].get("numpy")) is not None and classical["error"] > 0:
            note += f"; error {x['error']:.1e}, {x['error'] / classical['error']:.1f} × NumPy's"
        verdicts.append((f"{shape_of(line)}, {line['threads']} threads", found, met, note))
    return verdicts


def report(data: dict[str, Any]) -> int:
    """Print every demand that was measured; 1 where one is not met."""
    failed = unmeasured = 0
    for demand in MUST:
        verdicts = judge(demand, data)
        unmeasured += not verdicts
        for what, found, met, note in verdicts:
            failed += not met
            against = f" to {' or '.join(demand.peers)}" if demand.peers else ""
            sign = "≤" if demand.quantity == "overhead" else "≥"
            unit = " µs" if demand.quantity == "overhead" else ""
            print(
                f"{'met ' if met else 'MISS'}  {demand.dtype} {demand.variant}, {what}: {demand.quantity}{against} "
                f"{found:.3f}{unit} (asked {sign} {demand.least:g})  {note}"
            )
    print(f"{failed} missed; {unmeasured} of {len(MUST)} demands speak of nothing measured here")
    return min(failed, 1)


def load(paths: list[str]) -> dict[str, Any]:
    """Files of `cpu.py` as one; peaks are the highest found."""
    parts = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    data: dict[str, Any] = {**parts[0], "peak": {}, "results": [line for part in parts for line in part["results"]]}
    for part in parts:
        for dtype, by_threads in part["peak"].items():
            peaks = data["peak"].setdefault(dtype, {})
            for threads, peak in by_threads.items():
                peaks[threads] = max(peak, peaks.get(threads, 0.0))
    return data
