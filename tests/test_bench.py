"""The pure parts of bench/: shapes, verdicts, pictures; and that the parts of a profile add up."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("bench")


def line(shape, dtype="float32", threads=1, *, ours=1.0, numpy=1.25, mkl=1.5, executor="cpu", kind="squares"):
    """A measured line as `cpu.py` writes it: seconds of each contender."""
    contenders = {}
    for name, seconds in {"numpy": numpy, "mkl": mkl, "auto": ours}.items():
        gflops = shape.operations / seconds / 1e9
        contenders[name] = {"ours": name == "auto", "seconds": seconds, "gflops": gflops, "error": 1e-8 * seconds}
    contenders["auto"] |= {"executor": executor, "scheme": "strassen"}
    return {"set": kind, **shape._asdict(), "dtype": dtype, "threads": threads, "contenders": contenders}


def data_of(lines, peak=100.0):
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "A CPU", "llvm_cpu": "generic", "usable_cpus": 2},
        "versions": {"falcon_numba": "1", "python": "3", "numba": "0"},
        "peers": {"numpy": "NumPy 2", "mkl": "MKL 2"},
        "peak": {dtype: {"1": peak, "2": 2 * peak} for dtype in ("float32", "float64")},
        "results": lines,
    }


def test_shapes():
    from shapes import MUST, SETS, Shape

    assert Shape.parse("4096") == Shape(4096, 4096, 4096)
    assert Shape.parse("64*2x3x5") == Shape(2, 3, 5, 64)
    assert Shape(2, 3, 5, 64).operations == 2 * 2 * 3 * 5 * 64
    for bad in ("0", "2x3", "x", "0*4"):
        with pytest.raises(ValueError):
            Shape.parse(bad)
    for shapes in SETS.values():
        assert len(set(shapes)) == len(shapes)
        assert all(Shape.parse(str(shape)) == shape for shape in shapes)
    assert len(SETS["llm"]) == 12 * 5
    assert Shape(512, 7168, 16384) in SETS["llm"]
    for demand in MUST:  # a demand that no set can meet would never be checked
        assert set(demand.sizes) <= {shape for name in demand.sets for shape in SETS[name]}, demand


def test_verdicts():
    import must
    from shapes import Demand, Shape

    n, big = Shape(4096, 4096, 4096), Shape(8192, 8192, 8192)
    demand = Demand("auto", "float32", ("squares",), (n, big), "ratio", 1.28)
    data = data_of([line(n), line(n, numpy=1.3), line(n, executor="numpy", numpy=2), line(n, "float64"), line(big)])
    found = must.judge(demand, data)
    assert [round(value, 3) for _, value, _, _ in found] == [1.25, 1.3, 1.5, 1.25]
    assert [met for _, _, met, _ in found] == [False, True, False, False]  # the third is not our engine's
    assert must.judge(demand._replace(peers=("mkl",)), data)[0][1] == 1.5
    assert must.judge(demand._replace(quantity="mean ratio"), data)[0][1] == pytest.approx(
        np.mean([1.25, 1.3, 1.5, 1.25])
    )
    assert must.judge(demand._replace(quantity="peak"), data)[0][1] == pytest.approx(2 * 4096**3 / 1e11)
    assert must.judge(demand._replace(quantity="overhead", least=3.0), data)[0][1] == pytest.approx(-0.25e6)
    assert must.judge(demand._replace(peers=("torch",)), data) == []
    assert must.judge(demand._replace(threads=(2,)), data) == []


def test_report_counts_what_is_missed(capsys):
    import must
    from shapes import Shape

    n = Shape(4096, 4096, 4096)
    good = line(n, ours=1.0, numpy=1.3, mkl=1.4)
    assert must.report(data_of([good], peak=100.0)) == 0
    assert "MISS" not in capsys.readouterr().out
    assert must.report(data_of([good], peak=200.0)) == 1
    assert "MISS  float32 auto, 4096, 1 threads: peak" in capsys.readouterr().out


def test_files_are_joined(tmp_path):
    import must
    from shapes import Shape

    one, two = data_of([line(Shape(64, 64, 64))], 100.0), data_of([line(Shape(128, 128, 128))], 110.0)
    paths = []
    for data in (one, two):
        paths.append(str(tmp_path / f"{len(paths)}.json"))
        Path(paths[-1]).write_text(json.dumps(data), encoding="utf-8")
    joined = must.load(paths)
    assert [x["M"] for x in joined["results"]] == [64, 128]
    assert joined["peak"]["float32"]["1"] == 110


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("kind", ["squares", "llm", "batches"])
def test_pictures(tmp_path, kind, suffix):
    pytest.importorskip("matplotlib")
    import plot
    from shapes import SETS

    shapes = SETS[kind][:12]
    lines = [line(s, dtype, kind=kind) for s in shapes for dtype in ("float32", "float64")]
    lines += [line(s, threads=2, ours=1.5, kind=kind) for s in shapes]
    source, picture = tmp_path / "x.json", tmp_path / f"x.{suffix}"
    source.write_text(json.dumps(data_of(lines)), encoding="utf-8")
    assert plot.main([str(source), "-o", str(picture)]) == 0
    first = picture.read_bytes()
    assert len(first) > 10_000
    if suffix == "svg":
        assert plot.main([str(source), "-o", str(picture)]) == 0
        assert picture.read_bytes() == first  # the same picture for the same numbers


def test_squares_show_every_contender_and_the_peak():
    pytest.importorskip("matplotlib")
    import plot
    from matplotlib import pyplot as plt
    from shapes import Shape

    data = data_of([line(Shape(n, n, n)) for n in (64, 128, 256)], 123.0)
    figure = plot.draw(data)
    speed, error = figure.axes
    by_label = {x.get_label(): x for x in speed.get_lines()}
    assert set(by_label) == {"falcon_numba", "NumPy", "MKL", "FMA peak, measured"}
    assert by_label["falcon_numba"].get_ydata()[-1] == pytest.approx(2 * 256**3 / 1e9)
    assert by_label["FMA peak, measured"].get_ydata()[0] == 123
    assert "GFLOP/s" in speed.get_ylabel() and "error" in error.get_ylabel()
    plt.close(figure)
    with pytest.raises(SystemExit):
        plot.draw(data, threads=[2])


def test_pinned_blas_is_refused():
    import measure

    measure.refuse_pinned_blas({"HOME": "/"})
    with pytest.raises(SystemExit, match="-u OPENBLAS_CORETYPE"):
        measure.refuse_pinned_blas({"OPENBLAS_CORETYPE": "Haswell"})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_are_found(dtype):
    import measure
    from shapes import Shape

    a, b, c = measure.operands(Shape(40, 50, 30, 3), dtype)
    reference = measure.Reference(a, b)
    np.matmul(a, b, out=c)
    assert reference.error(c) < np.finfo(dtype).eps
    wrong = copy.copy(c)
    wrong[2, -1, -1] += 1
    scale = 30 * float(np.abs(a).max() * np.abs(b).max())
    assert reference.error(wrong) == pytest.approx(1 / scale, rel=0.01)
    wrong[0, 0, 0] = np.nan
    assert np.isnan(reference.error(wrong))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("depth", [0, 1])
def test_parts_of_a_profile_add_up(depth, threads):
    import profile_product
    from shapes import Shape

    found = profile_product.profile(Shape(700, 500, 600), "float32", threads, 3, depth=depth)
    assert found.plan.depth == depth
    assert set(found.parts) == set(profile_product.LABELS)
    assert sum(found.parts.values()) == found.total
    assert all(found.parts[name] > 0 for name in ("pack_a", "pack_b", "kernel", "flush", "python"))
    assert min(found.parts.values()) >= 0  # "python" is what is left of the wall time, so nothing is counted twice
    assert (found.parts["guard"] > 0) == (depth > 0)
    text = profile_product.table(found, 100.0)
    assert "combine and pack A" in text and "100.0%" in text


def test_a_run_from_end_to_end(tmp_path, bench):
    pytest.importorskip("threadpoolctl")
    output = tmp_path / "x.json"
    command = [
        sys.executable,
        f"{bench}/cpu.py",
        "--shapes",
        "70",
        "2*30x20x40",
        "--depths",
        "0",
        "1",
        "--peers",
        "numpy",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    command += ["--threads", "1", "2", "--unpaused", "--seconds", "0.1", "--check", "must", "-o", str(output)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    assert "0 missed" in run.stdout
    data = json.loads(output.read_text(encoding="utf-8"))
    assert [(x["M"], x["batch"], x["threads"]) for x in data["results"]] == [
        (70, 1, 1),
        (30, 2, 1),
        (70, 1, 2),
        (30, 2, 2),
    ]
    assert data["peak"]["float32"].keys() == {"1", "2"} and data["machine"]["cpu"] and data["date"]
    for measured in data["results"]:
        assert measured["contenders"].keys() == {"numpy", "auto", "depth 0", "depth 1"}
        assert measured["contenders"]["depth 1"]["scheme"] == "strassen"
        for x in measured["contenders"].values():
            assert len(x["samples"]) >= 3 and len(x["samples"]) % 2 == 1
            assert ("unpaused_seconds" in x) == (measured["threads"] > 1)
            assert 0 < x["error"] < 1e-6


def test_multiplications_of_a_plan():
    import profile_product

    import falcon_numba as fn

    plan = fn.plan_for(800, 600, 400, "float32", depth=1, executor="cpu")
    assert profile_product.multiplications(plan, False) == 7 * 400 * 300 * 200
    assert profile_product.multiplications(plan, True) >= 7 * 400 * 300 * 200
