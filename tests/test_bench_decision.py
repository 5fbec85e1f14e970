"""The bench of the decision: its shapes, its judgement of made-up lines, and a short run from end to end."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.usefixtures("bench")


def line(shape, chosen, auto, *, predicted=None, threads=1, **seconds):
    """A measured line as `decision.py` writes it: seconds of the candidates, `depth_1` for "depth 1"."""
    contenders = {}
    for name, x in {"auto": auto, **seconds}.items():
        ran = chosen if name == "auto" else name
        depth = int(ran[-1]) if ran.startswith("depth") else 0
        contenders[name.replace("_", " ")] = {
            "seconds": x,
            "executor": "numpy" if ran == "numpy" else "cpu",
            "scheme": ",".join(["strassen"] * depth) or "classical",
            "depth": depth,
            "predicted": predicted,
        }
    return {**shape._asdict(), "dtype": "float32", "threads": threads, "chosen": chosen, "contenders": contenders}


def test_random_shapes():
    from shapes import KINDS, random_shapes

    shapes = random_shapes(200)
    assert len(set(shapes)) == 200
    assert random_shapes(20) == shapes[:20]
    assert random_shapes(20, seed=1) != shapes[:20]
    assert all(min(s) >= 1 and max(s) <= 4099 for s in shapes)
    by_kind = {kind: [s[:3] for s, k in zip(shapes, KINDS * 20, strict=True) if k == kind] for kind in KINDS}
    assert all(len(set(s)) == 1 for s in by_kind["square"])
    assert all(max(s) <= 128 for s in by_kind["small"])
    assert all(min(s) <= 16 for s in by_kind["skinny"])
    assert all(x > 1 and all(x % i for i in range(2, math.isqrt(x) + 1)) for s in by_kind["prime"] for x in s)
    assert all(
        x.bit_count() == 1 or (x + 1).bit_count() == 1 or (x - 1).bit_count() == 1
        for s in by_kind["near a power"]
        for x in s
    )
    assert max(s.operations for s in random_shapes(100, 1e8)) <= 1e8


def test_workload_shapes():
    from shapes import WORKLOADS, Shape, workload_shapes

    shapes = workload_shapes(100, 8e9)
    assert len(set(shapes)) == 100
    assert max(s.operations for s in shapes) <= 8e9
    assert workload_shapes(10, 8e9) == shapes[:10]
    everything = workload_shapes(len(WORKLOADS), math.inf)
    assert set(everything) == {shape for shape, _ in WORKLOADS}
    assert Shape(2048, 1139, 512) in everything
    assert Shape(int(8e9 / (2 * 4096 * 7168)), 4096, 7168) in workload_shapes(len(WORKLOADS), 8e9)  # fewer tokens


def test_verdicts():
    from regret import judge
    from shapes import Shape

    n = Shape(2048, 2048, 2048)
    v = judge(line(n, "depth 1", 1.3, predicted=1.1, numpy=1.5, depth_0=1.4, depth_1=1.25, depth_2=1.0))
    assert (v.chosen, v.best) == ("depth 1", "depth 2")
    assert (v.regret, v.own, v.loss) == pytest.approx((1.25, 1.3, 1.3 / 1.5))
    assert v.error == pytest.approx(0.15 / 1.25)
    assert v.where == "2048, float32, 1 thread"
    assert v.described("depth 1") == "strassen, depth 1 (1.25e+03 ms)"

    faster = judge(line(n, "depth 1", 0.9, numpy=1.5, depth_1=1.0))  # the same plan timed twice: its own noise
    assert (faster.best, faster.regret, faster.own) == ("depth 1", 1.0, 0.9)
    assert math.isnan(faster.error)
    alone = judge(line(n, "auto", 0.9, numpy=1.5, depth_1=1.0))  # a plan that no candidate has
    assert (alone.chosen, alone.best, alone.regret) == ("auto", "auto", 1.0)
    assert math.isnan(judge(line(n, "depth 1", 1.0, depth_1=1.0)).loss)


def test_limits(capsys):
    from regret import check, judge, quantities, summary
    from shapes import DECISION_MUST, Shape

    large, small = Shape(2048, 2048, 2048), Shape(64, 64, 64)
    good = [judge(line(large, "depth 1", 1.0, predicted=1.05, numpy=1.3, depth_1=1.0)) for _ in range(30)]
    slow = judge(line(small, "numpy", 2.0, numpy=1.0, depth_0=5.0))  # a small product's own timing isn't asked for
    assert list(quantities([*good, slow]).values()) == pytest.approx([1.0, 1.0, 1.0, 1 / 1.3, 0.05])
    assert check([*good, slow]) == 0
    assert "MISS" not in capsys.readouterr().out

    bad = judge(line(large, "depth 0", 1.4, predicted=2.0, threads=2, numpy=1.3, depth_0=1.4, depth_1=1.0))
    found = quantities([*good, bad])
    assert found["regret, geometric mean"] == pytest.approx(1.4 ** (1 / 31))
    assert found["regret, worst"] == pytest.approx(1.4)
    assert found["regret, 95th percentile"] == 1.0
    assert check([*good, bad]) == 1
    out = capsys.readouterr().out
    assert out.count("MISS") == 2 and "MISS  regret, worst: 1.400 (asked ≤ 1.2)" in out
    text = summary([*good, slow, bad])
    assert "1.400  2048, float32, 2 threads: depth 0 (1.4e+03 ms), not strassen, depth 1 (1e+03 ms)" in text
    assert "1.077  2048, float32, 2 threads: depth 0 (1.4e+03 ms), not NumPy (1.3e+03 ms)" in text
    assert text.count("2048, float32, 1 thread") == 0
    assert "5.0%" in text

    assert check([]) == 0
    assert capsys.readouterr().out.count("none") == len(DECISION_MUST)
    assert "no plan here predicts its time" in summary([slow])


def test_candidates():
    import candidates
    from peers import available
    from shapes import Shape

    (numpy,) = available(("numpy",))
    names = ["numpy", "0", "1", "2", "winograd", "strassen,hk223"]
    found = candidates.contenders_for(Shape(300, 300, 300), "float32", names, numpy)
    assert [x.name for x in found] == [
        "auto",
        "numpy",
        "depth 0",
        "depth 1",
        "depth 2",
        "winograd",
    ]  # 4·64 fit, 6·64 not
    assert [x.plan.scheme for x in found[2:]] == ["classical", "strassen", "strassen,strassen", "winograd"]
    assert candidates.same_work(found) == "numpy"
    found = candidates.contenders_for(Shape(2600, 2600, 2600), "float32", names, numpy)
    same = next(x.plan for x in found if x.name == candidates.same_work(found))
    assert (same.executor, same.levels) == (found[0].plan.executor, found[0].plan.levels)
    assert candidates.same_work(found[:2]) == "auto"
    with pytest.raises(ValueError, match="strasen"):
        candidates.contenders_for(Shape(300, 300, 300), "float32", ["strasen"], numpy)


def test_settling_waits_for_threads_that_work():
    from measure import settle

    end = time.perf_counter() + 0.1

    def spin():
        while time.perf_counter() < end:
            pass

    threading.Thread(target=spin).start()
    settle(5.0)
    assert time.perf_counter() >= end
    start = time.perf_counter()
    settle(5.0)
    assert time.perf_counter() - start < 1.0


def command(bench, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    run = subprocess.run(
        [sys.executable, f"{bench}/decision.py", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert run.returncode == 0, run.stderr
    return run


def test_a_run_is_resumed_and_judged_again(tmp_path, bench):
    pytest.importorskip("threadpoolctl")
    output = str(tmp_path / "x.json")
    options = ["--dtype", "float32", "--threads", "1", "2", "--candidates", "numpy", "0", "1", "--seconds", "0.01"]
    command(bench, *options, "--shapes", "70", "-o", output)
    run = command(bench, *options, "--shapes", "70", "2*130x140x150", "-o", output)
    assert "2 lines to measure, 2 are done" in run.stderr
    assert "regret of the plan" in run.stdout
    with open(output, encoding="utf-8") as file:
        data = json.load(file)
    assert [(x["M"], x["batch"], x["threads"]) for x in data["results"]] == [
        (70, 1, 1),
        (70, 1, 2),
        (130, 2, 1),
        (130, 2, 2),
    ]
    for measured in data["results"]:
        depths = {"depth 0"} if measured["M"] == 70 else {"depth 0", "depth 1"}
        assert measured["contenders"].keys() == {"auto", "numpy", *depths}
        assert measured["chosen"] in measured["contenders"]
        for x in measured["contenders"].values():
            assert x["timings"] >= 2
            assert 0 < x["quartiles"][0] <= x["seconds"] <= x["quartiles"][1]
    assert command(bench, "--from", output, "--replan").stdout.startswith(run.stdout.splitlines()[0])


def test_lines_are_judged_by_what_is_chosen_now():
    import decision
    from shapes import Shape

    tiny, unmeasured = Shape(8, 8, 8), Shape(1300, 1300, 1300)
    lines = [line(tiny, "depth 0", 3.0, numpy=1.0, depth_0=3.0), line(unmeasured, "numpy", 1.0, numpy=1.0)]
    data = {"results": lines}
    threads = decision.default_threads()
    try:
        assert decision.replan(data) == 1
    finally:
        decision.set_threads(threads, [])
    (kept,) = data["results"]
    assert kept["chosen"] == "numpy" and kept["contenders"]["auto"]["seconds"] == 1.0
