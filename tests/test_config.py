"""Options: rules, precedence, sources, threads."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

from falcon_numba import config
from falcon_numba.algorithms.catalog import schemes
from falcon_numba.config import Settings, config_context, resolve, set_config, show_config


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable set; set_config and the environment read afresh before and after."""
    for name in config._OPTIONS:
        monkeypatch.delenv(config._variable(name), raising=False)
    set_config(reset=True)
    yield
    monkeypatch.undo()
    set_config(reset=True)


def test_defaults():
    assert resolve() == Settings()
    assert config.untouched()
    assert {row[0]: row[1] for row in show_config()} == {
        "depth": "auto",
        "scheme": "auto",
        "accuracy": "balanced",
        "max_error": None,
        "check": False,
        "workspace_limit": None,
        "threads": None,
        "executor": "auto",
        "leaf": "auto",
        "arithmetic": "auto",
        "device": "auto",
        "tune": False,
        "reproducible": False,
    }


GOOD = [
    ("depth", 0, 0),
    ("depth", np.int64(2), 2),
    ("depth", "auto", "auto"),
    ("scheme", "strassen", "strassen"),
    ("scheme", ["strassen", "winograd"], ("strassen", "winograd")),
    ("accuracy", "normwise", "normwise"),
    ("max_error", 1, 1.0),
    ("max_error", Fraction(1, 4), 0.25),
    ("max_error", np.float32(0.5), 0.5),
    ("check", False, False),
    ("workspace_limit", 0, 0),
    ("workspace_limit", "256 MiB", 256 * 2**20),
    ("workspace_limit", "1.5GB", 1_500_000_000),
    ("workspace_limit", "4 kb", 4000),
    ("workspace_limit", "2Ti", 2 * 2**40),
    ("workspace_limit", "77", 77),
    ("threads", 3, 3),
    ("executor", "cpu", "cpu"),
    ("leaf", "portable", "portable"),
    ("arithmetic", "native", "native"),
    ("device", "cpu", "cpu"),
    ("reproducible", np.True_, True),
]


@pytest.mark.parametrize(("name", "value", "normal"), GOOD)
def test_good_values(name, value, normal):
    got = getattr(resolve(**{name: value}), name)
    assert got == normal and type(got) is type(normal)
    assert hash(resolve(**{name: value})) == hash(resolve(**{name: normal}))


def test_a_scheme_itself_is_a_value():
    strassen = schemes["strassen"]
    assert resolve(scheme=strassen).scheme is strassen
    assert resolve(scheme=(strassen, "winograd")).scheme == (strassen, "winograd")


BAD = [
    ("depth", -1, ValueError, "depth=-1: must be 'auto' or an integer >= 0"),
    ("depth", True, TypeError, "depth=True"),
    ("depth", 1.0, TypeError, "depth=1.0"),
    ("depth", "two", ValueError, "depth='two'"),
    ("depth", None, TypeError, "depth=None"),
    ("scheme", "strasen", ValueError, "no scheme is called 'strasen'; did you mean 'strassen'"),
    ("scheme", "qqqq", ValueError, "lists the names"),
    ("scheme", ("strassen", "qqqq"), ValueError, "no scheme is called 'qqqq'"),
    ("scheme", (), ValueError, "one scheme per level"),
    ("scheme", ("strassen", 3), TypeError, "must be 'auto', a scheme's name"),
    ("scheme", None, TypeError, "scheme=None"),
    ("scheme", {"a": 1}, TypeError, "scheme={'a': 1}"),
    ("accuracy", "norm-wise", ValueError, "did you mean 'normwise'"),
    ("accuracy", "estimated", ValueError, "not implemented yet"),
    ("accuracy", 1, TypeError, "accuracy=1"),
    ("max_error", 0, ValueError, "max_error=0: must be None or a finite number > 0"),
    ("max_error", float("nan"), ValueError, "max_error=nan"),
    ("max_error", float("inf"), ValueError, "max_error=inf"),
    ("max_error", "small", TypeError, "max_error='small'"),
    ("max_error", [1], TypeError, r"max_error=\[1\]"),
    ("check", True, ValueError, "check=True: is not implemented yet"),
    ("check", 0, TypeError, "check=0: must be True or False"),
    ("workspace_limit", -1, ValueError, "workspace_limit=-1"),
    ("workspace_limit", 1.5, TypeError, "workspace_limit=1.5"),
    ("workspace_limit", "lots", ValueError, "256 MiB"),
    ("workspace_limit", "1 i", ValueError, "256 MiB"),
    ("threads", 0, ValueError, "threads=0: must be None or an integer >= 1"),
    ("threads", "all", TypeError, "threads='all'"),
    ("executor", "cuda", ValueError, "not implemented yet"),
    ("executor", "vendor", ValueError, "not implemented yet"),
    ("executor", "cpuu", ValueError, "did you mean 'cpu'"),
    ("leaf", "avx", ValueError, "leaf='avx'"),
    ("arithmetic", "int8", ValueError, "arithmetic='int8'"),
    ("device", "cuda", ValueError, "not implemented yet"),
    ("tune", True, ValueError, "not implemented yet"),
    ("reproducible", "yes", TypeError, "reproducible='yes'"),
]
ENTRANCES = [resolve, set_config, config_context]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(("name", "value", "error", "message"), BAD)
def test_bad_values_name_the_option_the_value_and_the_rule(entrance, name, value, error, message):
    with pytest.raises(error, match=message):
        entrance(**{name: value})
    assert resolve() == Settings()


def test_a_refused_value_is_refused_again_after_an_equal_good_one():
    assert resolve(depth=1).depth == 1
    for value in (True, 1.0):
        with pytest.raises(TypeError):
            resolve(depth=value)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_unknown_options_list_the_known_ones(entrance):
    with pytest.raises(TypeError, match=r"unknown option 'thread'; did you mean 'threads'\? \(options: depth, scheme"):
        entrance(thread=1)
    with pytest.raises(TypeError, match=r"unknown option 'zzz' \(options"):
        entrance(zzz=1)


def test_precedence(monkeypatch):
    def source():
        return resolve().depth, next(row[2] for row in show_config() if row[0] == "depth")

    assert source() == ("auto", "default")
    monkeypatch.setenv("FALCON_DEPTH", "1")
    set_config(reset=True)
    assert source() == (1, "environment (FALCON_DEPTH)")
    set_config(depth=2)
    assert source() == (2, "set_config")
    with config_context(depth=3):
        assert source() == (3, "config_context")
        assert resolve(depth=4).depth == 4
        with config_context(depth=5, threads=1):
            assert (resolve().depth, resolve().threads) == (5, 1)
        assert (resolve().depth, resolve().threads) == (3, None)
        set_config(threads=2)  # seen through a context that says nothing about it
        assert (resolve().depth, resolve().threads) == (3, 2)
    assert source() == (2, "set_config")
    set_config(reset=True)
    assert source() == (1, "environment (FALCON_DEPTH)")


def test_context_ends_with_an_exception_and_decorates():
    with pytest.raises(RuntimeError), config_context(depth=1):
        raise RuntimeError
    assert resolve().depth == "auto"

    @config_context(depth=2)
    def inside(again=True):
        return resolve().depth, inside(False) if again else None

    assert inside() == (2, (2, None))
    assert inside()[0] == 2 and resolve().depth == "auto"


def test_threads_share_set_config_and_keep_their_contexts():
    set_config(threads=2)
    barrier = threading.Barrier(8)

    def work(depth):
        with config_context(depth=depth):
            barrier.wait(10)
            return [resolve().depth for _ in range(200)], resolve().threads

    with config_context(depth=99), ThreadPoolExecutor(8) as pool:
        assert pool.submit(lambda: resolve().depth).result() == "auto"
        for depth, (seen, threads) in enumerate(pool.map(work, range(8))):
            assert set(seen) == {depth} and threads == 2


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("DEPTH", "2", 2),
        ("DEPTH", " auto ", "auto"),
        ("SCHEME", "strassen", "strassen"),
        ("SCHEME", "strassen, winograd", ("strassen", "winograd")),
        ("MAX_ERROR", "1e-3", 1e-3),
        ("MAX_ERROR", "none", None),
        ("WORKSPACE_LIMIT", "1 MiB", 2**20),
        ("WORKSPACE_LIMIT", "4096", 4096),
        ("THREADS", "3", 3),
        ("EXECUTOR", "numpy", "numpy"),
        ("REPRODUCIBLE", "1", True),
        ("REPRODUCIBLE", "True", True),
        ("REPRODUCIBLE", "off", False),
        ("THREADS", "", None),
    ],
)
def test_environment(monkeypatch, name, text, value):
    monkeypatch.setenv(f"FALCON_{name}", text)
    set_config(reset=True)
    assert getattr(resolve(), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DEPTH", "-1"),
        ("DEPTH", "deep"),
        ("SCHEME", "qqqq"),
        ("MAX_ERROR", "small"),
        ("THREADS", "0"),
        ("THREADS", "1.5"),
        ("EXECUTOR", "cuda"),
        ("REPRODUCIBLE", "perhaps"),
        ("CHECK", "yes"),
    ],
)
def test_bad_environment_names_the_variable_every_time(monkeypatch, name, text):
    monkeypatch.setenv(f"FALCON_{name}", text)
    set_config(reset=True)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"environment variable FALCON_{name}='{text}'"):
            resolve()


def test_environment_reaches_a_product_of_another_process():
    code = "import numpy as np; from falcon_numba.api import matmul; matmul(np.ones((2, 2)), np.ones((2, 2)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path), "FALCON_LEAF": "x"}, capture_output=True
    )
    assert done.returncode == 1 and b"environment variable FALCON_LEAF='x'" in done.stderr


def test_report_prints_a_table():
    set_config(executor="cpu")
    lines = str(show_config()).splitlines()
    assert lines[0].split() == ["option", "value", "from"] and len(lines) == 14
    assert "executor         'cpu'       set_config" in lines


def test_settings_pickle_and_cannot_change():
    settings = resolve(depth=1)
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError):
        settings.depth = 2
    assert resolve(depth=1) is settings
