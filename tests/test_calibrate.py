"""Measuring the machine: `falcon-numba calibrate` and what it is made of."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_cli import ENVIRONMENT, one_error_line
from test_rates import assert_works, example, forget, start_anew

import falcon_numba
from falcon_numba import calibration, cli, sysinfo
from falcon_numba.cpu.runners import EngineRunners
from falcon_numba.decision import calibrate as c
from falcon_numba.decision import numpy_speed, store
from falcon_numba.decision import rates as r
from falcon_numba.decision.hardware import hardware
from falcon_numba.decision.rates import LIMITS, rates_for

TINY = (4, 8)


class FakeRunners:
    """Speeds with a known median: 1, 100 and 10 times the speed of a thread, after a first sample that is off."""

    def __init__(self, dtype="float32", _gemm=None, speed=1e9):
        self.dtype, self._speed = dtype, speed
        self._samples = {}

    def _sample(self, name, threads, least):
        cycle = self._samples.setdefault((name, threads), itertools.chain([1e6], itertools.cycle([1, 100, 10])))
        return next(cycle) * least * threads

    def __getattr__(self, name):
        return lambda threads: self._sample(name, threads, 1e-6 if name == "start" else self._speed)

    def call(self):
        return self._sample("call", 1, 1e-6)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(c, "PAUSE", 0.0)
    monkeypatch.setattr(calibration, "calibrate", functools.partial(c.calibrate, rounds=3, sizes=TINY))
    monkeypatch.setattr("falcon_numba.cpu.runners.EngineRunners", FakeRunners)
    monkeypatch.setattr("falcon_numba.cpu.threads.default_threads", lambda: 2)
    monkeypatch.setattr(calibration, "hardware", lambda: replace(hardware(), usable_cpus=4, physical_cores=4))
    path = tmp_path / "calibration.json"
    start_anew(monkeypatch, path)
    yield path
    forget()


# --- calibrate -------------------------------------------------------------------------------------------------------


def test_medians_without_the_first_round(monkeypatch):
    monkeypatch.setattr(c, "PAUSE", 0.0)
    steps = []
    one, three = c.calibrate(FakeRunners(), (1, 3), lambda *step: steps.append(step), rounds=3, sizes=TINY)
    assert steps == [(i + 1, 8) for i in range(8)]
    for rates, threads in ((one, 1), (three, 3)):
        assert_works(rates)
        assert (rates.dtype, rates.threads, rates.source) == ("float32", threads, "calibrated")
        for name in set(c.SPEEDS) - {"start"}:
            assert getattr(rates, name) == pytest.approx(10 * 1e9 * threads), name
        assert rates.start == pytest.approx(1e-5 * threads)
        assert [size for size, _ in rates.numpy] == [4, 8]


def test_every_figure_is_measured():
    assert {*c.SPEEDS, "call", "numpy_call"} == set(LIMITS)


@pytest.mark.parametrize("speed", [0.0, float("nan"), float("inf"), -1e9, 1e30])
def test_figures_that_cannot_be_true(monkeypatch, speed):
    monkeypatch.setattr(c, "PAUSE", 0.0)
    with pytest.raises(ValueError, match="float64, 1 threads: fma"):
        c.calibrate(FakeRunners("float64", speed=speed), (1,), rounds=1, sizes=TINY)


# --- NumPy's product -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpys_speed(dtype):
    squares = numpy_speed.NumpySquares(dtype, (32, 64))
    assert 1e-8 < squares.call() < 1e-3
    speeds = squares.speeds(1)
    assert list(speeds) == [32, 64] and all(1e7 < speed < 1e13 for speed in speeds.values())


def test_numpys_threads_are_limited():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    before = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    seen = []

    class Spy(numpy_speed.NumpySquares):
        def _seconds(self, n):
            seen.append({p["num_threads"] for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"})
            return 1e-3

    assert Spy("float32", (4,)).limited
    Spy("float32", (4,)).speeds(1)
    assert seen == [{1}]
    assert [pool["num_threads"] for pool in threadpoolctl.threadpool_info()] == before


def test_without_threadpoolctl_speeds_are_in_proportion(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    monkeypatch.setattr(numpy_speed.NumpySquares, "_seconds", lambda self, n: 2 * n**3 / 1e9)
    monkeypatch.setattr(numpy_speed, "hardware", lambda: replace(hardware(), usable_cpus=4))
    for name in numpy_speed.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    squares = numpy_speed.NumpySquares("float32", TINY)
    assert not squares.limited
    assert squares.speeds(4) == pytest.approx({4: 1e9, 8: 1e9})
    assert squares.speeds(1) == pytest.approx({4: 0.25e9, 8: 0.25e9})
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert squares.speeds(1) == pytest.approx({4: 0.5e9, 8: 0.5e9})


def test_slow_machines_measure_fewer_sizes(monkeypatch):
    monkeypatch.setattr(numpy_speed.NumpySquares, "_seconds", lambda self, n: n / 100)
    assert list(numpy_speed.NumpySquares("float32", (4, 8, 16, 32)).speeds(1)) == [4, 8, 16]


# --- the engine's kernels --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runners():
    return EngineRunners("float32", falcon_numba.gemm)


@pytest.mark.parametrize("name", c.SPEEDS)
def test_runners_measure_something(runners, name):
    least, most = LIMITS[name]
    for threads in (1, 2):
        sample = getattr(runners, name)(threads)
        assert type(sample) is float and max(least, 1e-8) <= sample <= most
    assert runners._engine.clock is None


def test_the_python_around_a_product(runners):
    assert 1e-6 < runners.call() < 0.05


def test_nothing_is_measured_while_another_thread_multiplies(runners):
    from falcon_numba.cpu.threads import pool

    with pool._busy, pytest.raises(RuntimeError, match="another thread"):
        runners.read(2)


@pytest.mark.parametrize("kind", ["write", "copy", "cached"])
def test_streams_write_what_they_say(runners, kind):
    from falcon_numba.cpu.streams import make_stream

    raw = np.zeros(4096 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    values = raw[start : start + 4096].view(np.float32)
    values[:512] = np.arange(512)
    make_stream(runners._spec.isa, kind)(raw.ctypes.data + start, 4096, 1)
    expected = np.ones(1024) if kind == "write" else np.tile(np.arange(512), 2)
    np.testing.assert_array_equal(values, expected)
    assert not raw[:start].any() and not raw[start + 4096 :].any()


def test_a_read_reads_everything(runners):
    from falcon_numba.cpu.streams import UNROLL, make_stream

    raw = np.zeros(4096 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    values = raw[start : start + 4096].view(np.float32)
    values[:] = 1
    make_stream(runners._spec.isa, "read")(raw.ctypes.data + start, 4096, 1)
    assert values[: UNROLL * runners._spec.VL].sum() == 1024


# --- the command -----------------------------------------------------------------------------------------------------


def test_command(file, capsys):
    assert cli.main(["calibrate"]) == 0
    streams = capsys.readouterr()
    assert str(file) in streams.out and "micro-kernel (GFLOP/s)" in streams.out and "2 threads" in streams.out
    assert streams.err == ""  # no progress where stderr is no terminal
    for dtype in r.DTYPES:
        for threads in (1, 2, 3):
            assert rates_for(dtype, threads).source == "calibrated"
    assert rates_for("float32", 2).fma == pytest.approx(2e10)


def test_command_options(file, capsys):
    assert cli.main(["calibrate", "--dtype", "float64", "--threads", "3", "1", "3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "float64" in out and "3 threads" in out and "float32" not in out and "not saved" in out
    assert not file.exists()


def test_command_shows_its_progress(file, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["calibrate"]) == 0
    lines = capsys.readouterr().err.strip("\n").split("\r")[1:]
    assert [line.split(" steps")[0] for line in lines] == [f"{i}/16" for i in range(1, 17)]


@pytest.mark.parametrize("threads", ["0", "-1", "5", "x"])
def test_impossible_numbers_of_threads(file, capsys, threads):
    assert cli.main(["calibrate", "--threads", "1", threads]) == 2
    one_error_line(capsys.readouterr().err)
    assert not file.exists()


@pytest.mark.parametrize("when", range(4))
def test_an_interrupted_calibration_changes_nothing(file, capsys, monkeypatch, when):
    r.save([example()])
    before = file.read_bytes()
    count = itertools.count()

    def interrupt(self, _threads):
        if next(count) == when * 3:
            raise KeyboardInterrupt
        return 1e9

    monkeypatch.setattr(FakeRunners, "read", interrupt, raising=False)
    assert cli.main(["calibrate"]) == 130
    assert capsys.readouterr().err == "falcon-numba: interrupted\n"
    assert file.read_bytes() == before and rates_for("float32", 1) == example()


def test_a_folder_that_cannot_be_written(file, capsys, monkeypatch, tmp_path):
    (tmp_path / "blocked").touch()
    monkeypatch.setattr(store, "calibration_file", lambda: tmp_path / "blocked" / "calibration.json")
    assert cli.main(["calibrate"]) in (1, 2)
    assert "blocked" in one_error_line(capsys.readouterr().err)


def test_a_busy_machine_is_noticed(monkeypatch):
    monkeypatch.setattr(calibration, "hardware", lambda: replace(hardware(), physical_cores=4))
    one = example(threads=1)
    assert not calibration.busy([one, replace(one, threads=2, fma=1.7 * one.fma)])
    assert calibration.busy([one, replace(one, threads=2, fma=1.5 * one.fma)])
    assert not calibration.busy([one, replace(one, threads=8, fma=3.9 * one.fma)])  # two threads a core
    assert not calibration.busy([one, replace(one, dtype="float64", fma=0.5 * one.fma)])


def test_the_table_has_a_gap_where_a_size_was_left_out():
    text = calibration.table([example(), replace(example(), threads=2, numpy=((64.0, 1e9),))])
    assert "NumPy, size 512 (GFLOP/s)" in text and text.splitlines()[-1].split()[-1] == "50"


# --- info ------------------------------------------------------------------------------------------------------------


def info(capsys) -> str:
    assert cli.main(["info"]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    (line,) = [line for line in streams.out.splitlines() if line.startswith("  calibration ")]
    return line


def test_info_tells_about_the_calibration(file, capsys, monkeypatch):
    assert "none: speeds are assumed until" in info(capsys)
    r.save([example(), example(threads=2), example("float64")])
    line = info(capsys)
    assert "used, new: float32 with 1, 2 threads; float64 with 1 thread" in line and str(file) in line
    file.write_text(file.read_text().replace('"fma"', '"FMA"'))
    r.forget()
    line = info(capsys)
    assert "ignored, float32, 1 threads: fma is" in line and str(file) in line
    monkeypatch.setenv("FALCON_CALIBRATION", "off")
    assert "off: speeds are assumed  [FALCON_CALIBRATION]" in info(capsys)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        ({"seconds": 5}, "new"),
        ({"minutes": 1}, "1 minute old"),
        ({"hours": 5.5}, "5 hours old"),
        ({"days": 400}, "400 days old"),
        ({"days": -1}, "new"),
    ],
)
def test_age(age, text):
    now = datetime.datetime.now(datetime.UTC)
    assert sysinfo._age((now - datetime.timedelta(**age)).isoformat()) == text


@pytest.mark.parametrize("date", ["", "yesterday", "0001-01-01", "9999-99-99T00:00:00"])
def test_age_of_strange_dates(date):
    assert sysinfo._age(date)


# --- in earnest ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_calibration(tmp_path):
    environment = {**ENVIRONMENT, "FALCON_CACHE_DIR": str(tmp_path), "FALCON_CALIBRATION": "on"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "falcon_numba", *arguments]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, encoding="utf-8"
        ).stdout

    run("calibrate", "--dtype", "float32")
    run("calibrate", "--dtype", "float64", "--threads", "1")
    text = run("info")
    assert "used, new: float32 with 1" in text and "float64 with 1 thread" in text
    ((_, entry),) = json.loads((tmp_path / "calibration.json").read_text(encoding="utf-8"))["machines"].items()
    single, double = (entry["rates"][dtype]["1"] for dtype in r.DTYPES)
    # Wide, since the tests may share the machine with others.
    assert 0.8 < single["fma"] / double["fma"] < 5
    assert single["pack"] < 2 * single["read"] < 4 * single["l2"]
    assert dict(single["numpy"])[1024] < 2 * single["fma"]
