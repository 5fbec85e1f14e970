"""The command falcon-numba: exit codes, one-line errors, what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import falcon_numba
from falcon_numba import cli, demo, sysinfo

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(1)
    a = rng.integers(-5, 6, (30, 20)).astype(np.float32)
    b = rng.integers(-5, 6, (20, 10)).astype(np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    return [str(tmp_path / name) for name in ("a.npy", "b.npy")], str(tmp_path / "c.npy"), a @ b


def one_error_line(text: str) -> str:
    assert text.startswith("falcon-numba: error: ") and text.endswith("\n") and text.count("\n") == 1
    assert "Traceback" not in text
    return text


# --- matmul ---


def test_matmul(files, capsys):
    inputs, output, expected = files
    assert cli.main(["matmul", *inputs, "-o", output]) == 0
    np.testing.assert_array_equal(np.load(output), expected)
    streams = capsys.readouterr()
    assert "float32 (30, 10)" in streams.out and output in streams.out and "effective GFLOP/s" in streams.out
    assert streams.err == ""  # no progress where stderr is no terminal


def test_matmul_passes_options_on(files, monkeypatch):
    inputs, output, _ = files
    seen = {}

    def spy(a, b, out, **options):
        seen.update(options)
        np.matmul(a, b, out=out)

    monkeypatch.setattr(falcon_numba, "matmul", spy, raising=False)
    options = ["--depth", "2", "--scheme", "<2,2,3;11>,strassen", "--threads", "1", "--max-error", "1e-5"]
    options += ["--workspace-limit", "256 MiB", "--accuracy", "normwise", "--executor", "cpu", "--reproducible"]
    assert cli.main(["matmul", *inputs, "-o", output, *options]) == 0
    assert seen == {
        "dtype": None,
        "depth": 2,
        "scheme": ("<2,2,3;11>", "strassen"),
        "threads": 1,
        "max_error": 1e-5,
        "workspace_limit": "256 MiB",
        "accuracy": "normwise",
        "executor": "cpu",
        "reproducible": True,
    }
    seen.clear()
    assert cli.main(["matmul", *inputs, "-o", output, "--force"]) == 0
    assert seen == {"dtype": None}  # an option that isn't given stays the library's


@pytest.mark.parametrize(("rate", "text"), [(1234.5, "1234"), (123.45, "123"), (12.34, "12.3"), (1e-6, "0.00")])
def test_digits(rate, text):
    assert cli._digits(rate) == text


def test_matmul_of_integers_counts_operations(files, capsys):
    inputs, output, _ = files
    for name in inputs:
        np.save(name, np.ones((4, 4), np.int8))
    assert cli.main(["matmul", *inputs, "-o", output, "--dtype", "int32"]) == 0
    assert "effective Gop/s" in capsys.readouterr().out


def test_schemes_in_files_are_registered(files, capsys, tmp_path):
    inputs, output, expected = files
    strassen = falcon_numba.schemes["strassen"]
    falcon_numba.save_scheme(strassen.renamed("cli-one"), tmp_path / "one.json")
    falcon_numba.save_scheme(strassen.renamed("cli-two"), tmp_path / "two.npz")
    scheme = f"{tmp_path / 'one.json'},{tmp_path / 'two.npz'}"
    assert cli.main(["matmul", *inputs, "-o", output, "--scheme", scheme]) == 0
    np.testing.assert_array_equal(np.load(output), expected)
    assert falcon_numba.schemes["cli-one"] == strassen.renamed("cli-one")
    assert cli.main(["plan", "400", "400", "400", "--scheme", str(tmp_path / "two.npz"), "--depth", "2"]) == 0
    assert "cli-two" in capsys.readouterr().out
    (tmp_path / "bad.json").write_text("{")
    for name, word in (("bad.json", "not JSON"), ("none.npz", "No such file")):
        assert cli.main(["plan", "8", "8", "8", "--scheme", str(tmp_path / name)]) == 2
        error = one_error_line(capsys.readouterr().err)
        assert name in error and word in error


def test_matmul_existing_output(files, capsys):
    inputs, output, expected = files
    np.save(output, np.zeros(1))
    assert cli.main(["matmul", *inputs, "-o", output]) == 2
    assert "--force" in one_error_line(capsys.readouterr().err)
    np.testing.assert_array_equal(np.load(output), np.zeros(1))
    assert cli.main(["matmul", *inputs, "-o", output, "--force"]) == 0
    np.testing.assert_array_equal(np.load(output), expected)


def test_matmul_progress(files, capsys, monkeypatch):
    inputs, output, _ = files
    monkeypatch.setattr("falcon_numba.npyio._PANEL_ROWS", {"float32": 10})
    monkeypatch.setattr("falcon_numba.npyio._PANEL_WORK", {"float32": 1})
    assert cli.main(["matmul", *inputs, "-o", output, "--progress"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["10/30 rows", "20/30 rows", "30/30 rows"]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda inputs: os.unlink(inputs[0]), 2),
        (lambda inputs: np.save(inputs[1], np.ones((7, 7))), 2),
        (lambda inputs: np.save(inputs[1], np.array(["x"])), 2),
        (lambda inputs: np.save(inputs[1], np.array([[{}]]), allow_pickle=True), 2),
        (lambda inputs: open(inputs[1], "w").close(), 2),
        (lambda inputs: (os.unlink(inputs[1]), os.mkdir(inputs[1])), 2),
    ],
)
def test_matmul_bad_input(files, capsys, tmp_path, spoil, code):
    inputs, output, _ = files
    spoil(inputs)
    before = sorted(os.listdir(tmp_path))
    assert cli.main(["matmul", *inputs, "-o", output]) == code
    one_error_line(capsys.readouterr().err)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 1, "error: MemoryError\n"),
        (RuntimeError("two\nlines"), 1, "error: RuntimeError: two lines\n"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device\n"),
        (ValueError("depth=-1: must be ..."), 2, "error: depth=-1: must be ...\n"),
        (KeyboardInterrupt(), 130, "falcon-numba: interrupted\n"),
    ],
)
def test_matmul_failure(files, capsys, monkeypatch, tmp_path, error, code, message):
    inputs, output, _ = files

    def broken(*_arguments, **_options):
        raise error

    monkeypatch.setattr(falcon_numba, "matmul", broken, raising=False)
    before = sorted(os.listdir(tmp_path))
    assert cli.main(["matmul", *inputs, "-o", output]) == code
    assert capsys.readouterr().err.endswith(message)
    assert sorted(os.listdir(tmp_path)) == before


def test_debug_shows_the_traceback(files):
    with pytest.raises(FileNotFoundError):
        cli.main(["--debug", "matmul", files[0][0], "missing.npy", "-o", files[1]])


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_no_file(files, tmp_path, number):
    inputs, output, _ = files
    code = (
        "import sys, time, falcon_numba\n"
        "def slow(*_arguments, **_options):\n"
        "    print('working', flush=True)\n"
        "    time.sleep(60)\n"
        "falcon_numba.matmul = slow\n"
        "from falcon_numba.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    before = sorted(os.listdir(tmp_path))
    command = [sys.executable, "-c", code, "matmul", *inputs, "-o", output]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "working\n"
        assert sorted(os.listdir(tmp_path)) != before  # the temporary file is there now
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "falcon-numba: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == before


def test_sigterm_handler_is_restored(files):
    before = signal.getsignal(signal.SIGTERM)
    cli.main(["matmul", *files[0], "-o", files[1]])
    assert signal.getsignal(signal.SIGTERM) is before


# --- the other commands ---


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["nonsense"], ["plan", "1", "2"], ["plan", "a", "b", "c"], ["matmul", "a.npy", "b.npy"]),
        *(["plan", "8", "8", "8", "--depth", "-1"], ["plan", "8", "8", "8", "--depth", "deep"]),
        *(
            ["plan", "8", "8", "8", "--nonsense", "1"],
            ["plan", "8", "8", "8", "--threads", "two"],
            ["plan", "-8", "8", "8"],
        ),
        *(["plan", "8", "8", "8", "--dtype", "float33"], ["plan", "8", "8", "8", "--max-error", "x"]),
        ["plan", "8", "8", "8", "--scheme", "no-such-scheme"],
    ],
)
def test_usage_errors(arguments, capsys):
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    one_error_line(streams.err)
    assert streams.out == ""


@pytest.mark.parametrize("arguments", [["--help"], ["matmul", "--help"], ["--version"]])
def test_help(arguments, capsys):
    assert cli.main(arguments) == 0
    assert "falcon-numba" in capsys.readouterr().out


def test_plan_prints_the_plan(capsys):
    assert cli.main(["plan", "300", "200", "100", "--dtype", "float64", "--depth", "1", "--scheme", "strassen"]) == 0
    expected = falcon_numba.plan_for(300, 200, 100, "float64", depth=1, scheme="strassen")
    assert capsys.readouterr().out == f"{expected}\n"


def test_plan_has_the_librarys_default_dtype(capsys):
    assert cli.main(["plan", "300", "200", "100"]) == 0
    assert capsys.readouterr().out == f"{falcon_numba.plan_for(300, 200, 100)}\n"


@pytest.mark.parametrize(
    ("terminal", "arguments", "cut"), [(True, [], True), (True, ["--long"], False), (False, [], False)]
)
def test_schemes_prints_the_catalogue(capsys, monkeypatch, terminal, arguments, cut):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert cli.main(["schemes", *arguments]) == 0
    text = capsys.readouterr().out
    assert "strassen" in text and "CSE: " in text and ("…" in text) == cut


def test_an_unknown_scheme_points_to_the_command(capsys):
    assert cli.main(["plan", "8", "8", "8", "--scheme", "no-such-scheme"]) == 2
    assert "`falcon-numba schemes`" in one_error_line(capsys.readouterr().err)


def test_info(capsys, monkeypatch):
    monkeypatch.delenv("FALCON_DEPTH", raising=False)
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for word in ("instruction set", "L2 cache", "Numba would use", "GPU", "numpy", "llvmlite", "cache folder", "depth"):
        assert word in text
    assert "unavailable" not in text


def test_info_reports_on_broken_installations(capsys, monkeypatch):
    monkeypatch.setattr(sysinfo, "_driver_devices", lambda: 1 / 0)
    assert cli.main(["info"]) == 0
    assert "unavailable (ZeroDivisionError" in capsys.readouterr().out


def test_info_says_that_no_gpu_computes(capsys):
    assert cli.main(["info"]) == 0
    assert "none yet: every product runs on the CPU" in capsys.readouterr().out


def test_a_misspelt_variable_is_a_warning_in_one_line():
    run = subprocess.run(
        [sys.executable, "-m", "falcon_numba", "plan", "8", "8", "8"],
        env={**ENVIRONMENT, "FALCON_SCHEMA": "strassen"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert run.returncode == 0 and run.stderr.count("\n") == 1
    assert run.stderr.startswith("falcon-numba: warning: ") and "did you mean FALCON_SCHEME?" in run.stderr


def test_info_names_a_bad_variable():
    run = subprocess.run(
        [sys.executable, "-m", "falcon_numba", "info"],
        env={**ENVIRONMENT, "FALCON_DEPTH": "minus one"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert run.returncode == 0 and "FALCON_DEPTH" in run.stdout and run.stderr == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (32 << 10, "32 KiB"),
        (1536 << 10, "1.5 MiB"),
        (25276502016, "23.54 GiB"),
        (1 << 42, "4096 GiB"),
    ],
)
def test_bytes_text(size, text):
    assert sysinfo.bytes_text(size) == text


def test_module_is_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "falcon_numba", "--version"], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (0, f"falcon-numba {falcon_numba.__version__}\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_reader_that_leaves_early():
    command = f"{sys.executable} -m falcon_numba schemes | true"
    run = subprocess.run(["sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert run.stderr == ""


def test_help_starts_fast_and_imports_no_compiler():
    code = "import sys; from falcon_numba.cli import main; main(['--help']); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True).returncode == 0


# --- demo ---


@pytest.fixture
def tiny_demo(monkeypatch):
    monkeypatch.setattr(demo, "PRODUCTS", (("query, output", 40, 40, 2), ("down", 56, 1200, 1)))
    monkeypatch.setattr(demo, "QUICK_TOKENS", 24)
    monkeypatch.setattr(demo, "PAUSE", 0.0)


def test_demo(tiny_demo, capsys, tmp_path):
    with falcon_numba.config_context(executor="cpu"):
        assert cli.main(["demo", "--quick", "--json", str(tmp_path / "demo.json")]) == 0
    streams = capsys.readouterr()
    assert "24×56×1200" in streams.out and "one layer" in streams.out and "NumPy" in streams.out
    assert "compiling" in streams.err and "down" in streams.err
    record = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert [product["count"] for product in record["products"]] == [2, 1]
    assert record["products"][1]["falcon_error"] <= record["products"][1]["error_bound"]
    assert record["layer"]["ratio"] == pytest.approx(
        record["layer"]["numpy_seconds"] / record["layer"]["falcon_seconds"]
    )
    assert record["verdict"] in streams.out.replace("\n\n", "\n")


def test_demo_of_numpy_alone_makes_no_claim_and_compiles_nothing(tiny_demo, capsys, monkeypatch):
    assert cli.main(["demo", "--quick"]) == 0
    streams = capsys.readouterr()
    assert "says nothing about falcon_numba's speed" in streams.out and "fast" not in streams.out
    assert "compiling" not in streams.err


@pytest.mark.parametrize("tokens", [demo.TOKENS, demo.QUICK_TOKENS])
def test_the_demo_measures_the_engine(tokens):
    products = demo.PRODUCTS if tokens == demo.TOKENS else demo.PRODUCTS[: demo.QUICK_PRODUCTS]
    for _, K, N, _ in products:
        assert falcon_numba.plan_for(tokens, N, K, "float32").executor == "cpu"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"executor": "numpy"}, "numpy"),
        ({"depth": 0, "executor": "cpu"}, "classical"),
        ({"depth": 1}, "strassen"),
        ({"depth": 2}, "strassen×2"),
        ({"scheme": ("strassen", "winograd")}, "strassen*winograd"),
    ],
)
def test_plan_word(options, word):
    assert demo.plan_word(falcon_numba.plan_for(500, 500, 500, **options)) == word


def test_demo_folder_of_json_is_checked_first(capsys, tmp_path):
    assert cli.main(["demo", "--json", str(tmp_path / "missing" / "demo.json")]) == 2
    assert "compiling" not in capsys.readouterr().err


@pytest.mark.parametrize("fault", [1.0, np.nan])
def test_demo_does_not_praise_a_wrong_product(tiny_demo, capsys, monkeypatch, fault):
    real = falcon_numba.gemm

    def wrong(a, b, **options):
        result = real(a, b, **options)
        result[-1, -1] += fault * 1e6
        return result

    monkeypatch.setattr(falcon_numba, "gemm", wrong, raising=False)
    assert cli.main(["demo", "--quick"]) == 1
    text = capsys.readouterr().out
    assert "WRONG RESULT" in text and "times as fast" not in text


def row(numpy_seconds: float, falcon_seconds: float, plan: str = "classical") -> demo.Row:
    return demo.Row("x", 10, 20, 30, 2, numpy_seconds, falcon_seconds, 1e-9, 2e-9, 1e-3, plan, 3)


@pytest.mark.parametrize(
    ("numpy_seconds", "words"),
    [
        *((1.25, "1.25 times as fast as NumPy"), (1.04, "1.04 times as fast as NumPy"), (1.029, "equally fast")),
        *((1.0, "equally fast"), (0.971, "equally fast"), (0.8, "slower than NumPy here, 0.80 times")),
    ],
)
def test_verdict_is_true(numpy_seconds, words):
    text = demo.verdict([row(numpy_seconds, 1.0)])
    assert words in text and "2.00 s" in text and f"NumPy {2 * numpy_seconds:.2f} s" in text


def test_verdict_names_what_numpy_computed():
    assert "x: left to NumPy" in demo.verdict([row(1.0, 0.5), row(1.0, 1.0, "numpy")])
    assert "left to NumPy" not in demo.verdict([row(1.0, 0.5)])
    assert "times as fast" not in demo.verdict([row(2.0, 1.0, "numpy")])


def test_total_row_counts_every_product():
    assert demo.totals([row(1.0, 0.5), row(2.0, 4.0)]) == (6.0, 9.0)
    assert demo.table([row(1.0, 0.5)]).splitlines()[-1].split()[:3] == ["one", "layer", "2"]


def test_demo_keeps_its_time(tiny_demo):
    start = time.perf_counter()
    measured = demo._measure("x", 8, 8, 8, 1, 0.0)
    assert measured.repetitions == 1 and time.perf_counter() - start < 30
