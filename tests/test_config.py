"""Options: rules, precedence, sources, threads."""

from __future__ import annotations

import doctest
import pickle
import re
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

from falcon_numba import config, plan_for
from falcon_numba.algorithms.catalog import schemes
from falcon_numba.config import Settings, config_context, resolve, set_config, show_config


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """No variable set; set_config and the environment read afresh before and after."""
    for name in config.OPTIONS:
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
    ("accuracy", "estimated", "estimated"),
    ("max_error", 1, 1.0),
    ("max_error", Fraction(1, 4), 0.25),
    ("max_error", np.float32(0.5), 0.5),
    ("check", False, False),
    ("check", np.True_, True),
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
    ("scheme", "strasen", ValueError, "scheme='strasen': unknown scheme 'strasen'; did you mean 'strassen'"),
    ("scheme", "qqqq", ValueError, "command `falcon-numba schemes`"),
    ("scheme", ("strassen", "qqqq"), ValueError, "unknown scheme 'qqqq'"),
    ("scheme", "<4,4,4>", ValueError, "no scheme of format"),
    ("scheme", "strassen, hk223", ValueError, r"are a tuple, scheme=\('strassen', 'hk223'\), not a text with commas"),
    ("scheme", "mine.npz", ValueError, r"schemes\.register\('mine\.npz'\)"),
    ("scheme", (), ValueError, "one scheme per level"),
    ("scheme", ("strassen", 3), TypeError, "must be 'auto', a scheme's name"),
    ("scheme", None, TypeError, "scheme=None"),
    ("scheme", {"a": 1}, TypeError, "scheme={'a': 1}"),
    ("accuracy", "norm-wise", ValueError, "did you mean 'normwise'"),
    ("accuracy", 1, TypeError, "accuracy=1"),
    ("max_error", 0, ValueError, "max_error=0: must be None or a finite number > 0"),
    ("max_error", float("nan"), ValueError, "max_error=nan"),
    ("max_error", float("inf"), ValueError, "max_error=inf"),
    ("max_error", "small", TypeError, "max_error='small'"),
    ("max_error", [1], TypeError, r"max_error=\[1\]"),
    ("check", 0, TypeError, "check=0: must be True or False"),
    ("workspace_limit", -1, ValueError, "workspace_limit=-1"),
    ("workspace_limit", 1.5, TypeError, "workspace_limit=1.5"),
    ("workspace_limit", "lots", ValueError, "256 MiB"),
    ("workspace_limit", "1 i", ValueError, "256 MiB"),
    ("threads", 0, ValueError, "threads=0: must be None or an integer from 1 to 1024"),
    ("threads", 10**6, ValueError, "from 1 to 1024"),
    ("threads", "all", TypeError, "threads='all'"),
    ("executor", "gpu", ValueError, r"one of 'auto', 'numpy', 'cpu' \('cuda' and 'vendor' are planned\)$"),
    ("executor", "cuda", ValueError, "not implemented yet"),
    ("executor", "vendor", ValueError, "not implemented yet"),
    ("executor", "cpuu", ValueError, "did you mean 'cpu'"),
    ("leaf", "avx", ValueError, "leaf='avx'"),
    ("arithmetic", "int8", ValueError, "arithmetic='int8'"),
    ("device", "cuda", ValueError, r"not implemented yet.*'cuda' is planned"),
    ("tune", 1, TypeError, "tune=1"),
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


TWO = ("strassen", "winograd")


@pytest.mark.parametrize("entrance", ["set_config", "config_context", "call"])
@pytest.mark.parametrize(
    ("outer", "inner", "depth", "scheme"),
    [
        ({"scheme": TWO}, {"depth": 0}, 0, "auto"),
        ({"scheme": TWO}, {"depth": 1}, 1, "auto"),
        ({"scheme": TWO}, {"depth": 2}, 2, TWO),
        ({"scheme": TWO}, {"depth": "auto"}, "auto", TWO),
        ({"scheme": TWO}, {"threads": 1}, "auto", TWO),
        ({"scheme": TWO}, {"depth": 1, "scheme": "winograd"}, 1, "winograd"),
        ({"scheme": TWO}, {"accuracy": "componentwise"}, "auto", "auto"),
        ({"scheme": TWO}, {"executor": "numpy"}, "auto", "auto"),
        ({"depth": 1}, {"scheme": list(TWO)}, "auto", TWO),
        ({"depth": 2}, {"scheme": TWO}, 2, TWO),
        ({"depth": 1}, {"scheme": "winograd"}, 1, "winograd"),
        ({"depth": 0}, {"accuracy": "componentwise"}, 0, "auto"),
        ({"depth": 2}, {"accuracy": "componentwise"}, "auto", "auto"),
        ({"depth": 2}, {"executor": "numpy"}, "auto", "auto"),
    ],
)
def test_an_inner_option_wins_over_an_outer_one_that_contradicts_it(monkeypatch, entrance, outer, inner, depth, scheme):
    for name, value in outer.items():
        monkeypatch.setenv(f"FALCON_{name.upper()}", ",".join(value) if isinstance(value, tuple) else str(value))
    set_config(reset=True)

    def check(**options):
        settings = resolve(**options)
        assert (settings.depth, settings.scheme) == (depth, scheme)
        plan_for(300, 300, 300, **options)  # refuses what contradicts itself

    if entrance == "set_config":
        set_config(**inner)
        check()
        monkeypatch.undo()
        set_config(reset=True)
        set_config(**outer)
        set_config(**inner)
        check()
    elif entrance == "config_context":
        with config_context(**inner):
            check()
            assert {name: value for name, value, _ in show_config()}["scheme"] == scheme
        monkeypatch.undo()
        set_config(reset=True)
        with config_context(**outer), config_context(**inner):
            check()
    else:
        check(**inner)


def test_options_of_one_place_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="depth=1 contradicts"):
        plan_for(300, 300, 300, depth=1, scheme=TWO)


def test_the_report_says_who_displaced_an_option(monkeypatch):
    monkeypatch.setenv("FALCON_SCHEME", "strassen,winograd")
    set_config(reset=True)
    with config_context(depth=0):
        assert ("scheme", "auto", "config_context") in show_config()
    set_config(depth=1)
    assert ("scheme", "auto", "set_config") in show_config()


def test_set_config_forgets_single_options(monkeypatch):
    monkeypatch.setenv("FALCON_DEPTH", "1")
    set_config(reset=True)
    set_config(depth=2, threads=3, leaf="portable")
    set_config(reset="depth")
    assert (resolve().depth, resolve().threads) == (1, 3)
    set_config(reset=("threads", "leaf"), depth=0)
    assert (resolve().depth, resolve().threads, resolve().leaf) == (0, None, "auto")
    with pytest.raises(TypeError, match="unknown option 'thread'; did you mean 'threads'"):
        set_config(reset="thread", depth=3)
    assert resolve().depth == 0


def test_config_context_documents_every_option():
    text = config_context.__doc__
    for name in config.OPTIONS:
        assert re.search(rf"^    {name} : ", text, re.MULTILINE), name
    assert doctest.testmod(config).failed == 0


def test_arrays_in_an_error_are_named_by_their_shapes():
    s = schemes["strassen"]
    with pytest.raises(TypeError) as caught:
        resolve(scheme=(s.U, s.V, s.W))
    assert "scheme=(<array of shape (7, 2, 2)>, <array" in str(caught.value)
    assert "falcon_numba.Scheme(name, U, V, W)" in str(caught.value)
    for value in (s.U, s.U.tolist(), {"a": ["b" * 1000] * 100}):
        with pytest.raises(TypeError) as caught:
            resolve(scheme=value)
        assert len(str(caught.value)) < 1000


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
        ("SCHEME", "<2,2,3;11>", "<2,2,3;11>"),
        ("SCHEME", "⟨2,2,3;11⟩,strassen , <2,2,2>*hk223", ("⟨2,2,3;11⟩", "strassen", "<2,2,2>*hk223")),
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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve()
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
        ("CHECK", "maybe"),
    ],
)
def test_bad_environment_names_the_variable_every_time(monkeypatch, name, text):
    monkeypatch.setenv(f"FALCON_{name}", text)
    set_config(reset=True)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"environment variable FALCON_{name}='{text}'"):
            resolve()


def test_misspelt_variables_are_named_in_one_warning(monkeypatch):
    monkeypatch.setenv("FALCON_THREAD", "1")
    monkeypatch.setenv("FALCON_ZZZ", "1")
    monkeypatch.setenv("FALCON_CACHE_DIR", "somewhere")
    set_config(reset=True)
    message = r"unknown environment variables: FALCON_THREAD \(did you mean FALCON_THREADS\?\), FALCON_ZZZ$"
    with pytest.warns(UserWarning, match=message) as caught:
        assert resolve() == resolve(threads=None) == Settings()
    assert len(caught) == 1


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
