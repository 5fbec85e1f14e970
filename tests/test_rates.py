"""Speeds of the machine: defaults, the calibration file whatever is in it, interpolation."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import threading
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_numba.decision import rates as r
from falcon_numba.decision import store
from falcon_numba.decision.hardware import hardware
from falcon_numba.decision.rates import LIMITS, Rates, default_rates, rates_for, save

KEY = "this machine"


def example(dtype: str = "float32", threads: int = 1, factor: float = 1.0) -> Rates:
    curve = tuple((float(n), 5e10 * factor) for n in (64, 512))
    speeds = {name: factor * (1e9 + i) for i, name in enumerate((*r.EACH, *r.SHARED))}
    return Rates(dtype, threads, **speeds, start=1e-5, call=1e-4, numpy_call=1e-6, numpy=curve, source="calibrated")


def numbers(rates: Rates) -> list[float]:
    return [*(getattr(rates, name) for name in LIMITS), *(x for point in rates.numpy for x in point)]


def assert_works(rates: Rates) -> None:
    assert all(type(x) is float and math.isfinite(x) and x > 0 for x in numbers(rates))
    sizes = [size for size, _ in rates.numpy]
    assert sizes and sizes == sorted(set(sizes))
    assert rates.source in ("calibrated", "default")


def start_anew(patch: pytest.MonkeyPatch, file: Path) -> None:
    """The state of a new process that finds its calibration in `file`."""
    patch.setenv("FALCON_CALIBRATION", "")
    patch.setattr(store, "calibration_file", lambda: file)
    patch.setattr(store, "machine_key", lambda: KEY)
    forget()


def forget() -> None:
    r.forget()
    r._warn_once.cache_clear()


@contextlib.contextmanager
def fresh(file: Path):
    """`start_anew` in a test that does so several times."""
    with pytest.MonkeyPatch.context() as patch:
        start_anew(patch, file)
        try:
            yield file
        finally:
            forget()


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "calibration.json"
    start_anew(monkeypatch, path)
    yield path
    forget()


def read_twice() -> tuple[list[Rates], list[warnings.WarningMessage]]:
    """What a process gets, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [rates_for(dtype, threads) for dtype in r.DTYPES for threads in (1, 2, 3)]
        r.forget()
        found += [rates_for(dtype, threads) for dtype in r.DTYPES for threads in (1, 2, 3)]
    return found, caught


def assert_ignored(file: Path) -> None:
    found, caught = read_twice()
    for rates in found:
        assert rates == default_rates(rates.dtype, rates.threads, hardware())
    (warning,) = caught
    assert warning.category is RuntimeWarning and str(file) in str(warning.message)


def document() -> dict:
    entry = {"float32": {"1": r._values(example())}, "float64": {"2": r._values(example("float64", 2))}}
    return json.loads(json.dumps({"format": 1, "machines": {KEY: {"date": "", "rates": entry}}}))


# --- the file, whatever is in it -------------------------------------------------------------------------------------


JUNK = [math.nan, math.inf, -math.inf, -1.0, 0, 0.0, 1e300, 1e-300, 10**400, "1e9", "", None, True, [], {}, [1], [[]]]


def paths(value, path=()):
    """Every place in a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


PLACES = [path for path in paths(document()) if path[-1] != "date"]


def changed(path, *value):
    """A document with another value in one place, or none at all."""
    data = document()
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value:
        inner[path[-1]] = copy.deepcopy(value[0])
    else:
        del inner[path[-1]]
    return data


@pytest.mark.parametrize("place", PLACES, ids=lambda path: ".".join(map(str, path[2:] or path)))
def test_junk_in_any_place_is_ignored_with_one_warning(tmp_path, place):
    for i, junk in enumerate(JUNK):
        data = changed(place, junk)
        if place[-1] == "format" and junk is True:
            continue  # equals 1, and does no harm
        if place == ("machines",) and junk == {}:
            continue  # somebody else's
        if place == ("machines", KEY) and junk is None:
            continue  # as if there were none
        if place[-1] == "rates" and junk == {}:
            continue  # nothing measured
        with fresh(tmp_path / f"{i}.json") as file:
            file.write_text(json.dumps(data))
            assert_ignored(file)


@pytest.mark.parametrize("place", [p for p in PLACES if len(p) > 2 and p[-1] not in r.DTYPES])
def test_a_missing_value_is_noticed(file, place):
    file.write_text(json.dumps(changed(place)))
    if isinstance(place[-1], int) and len(place) == 7:  # one point less of NumPy's curve
        assert {rates.source for rates in read_twice()[0]} == {"calibrated"}
    else:
        assert_ignored(file)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.just("numpy"), inner),
    max_leaves=8,
)


@settings(max_examples=200)
@given(
    st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.builds(lambda place, value: json.dumps(changed(place, value)).encode(), st.sampled_from(PLACES), json_values)
    | st.integers(0, 600).map(lambda end: json.dumps(document()).encode()[:end])
    | st.tuples(st.integers(0, 800), st.integers(0, 255)).map(
        lambda x: (text := bytearray(json.dumps(document()).encode()))[: x[0]] + bytes([x[1]]) + text[x[0] + 1 :]
    )
)
def test_fuzzed_files_give_rates_that_work(tmp_path_factory, content):
    with fresh(tmp_path_factory.getbasetemp() / "fuzzed.json") as file:
        file.write_bytes(content)
        found, caught = read_twice()
        for rates in found:
            assert_works(rates)
        assert len(caught) == bool(r.calibration().problem)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe{}",
        b"[" * 500_000,
        b'{"format": 1, "machines": ' + b'{"a": ' * 100_000,
        b"1" * 10_000,
        b" " * (store.MOST_BYTES + 1),
        json.dumps(document()).encode()[:-1],
        json.dumps({**document(), "format": 2}).encode(),
    ],
    ids=["empty", "not utf-8", "deep", "deep objects", "digits", "long", "truncated", "newer"],
)
def test_files_that_are_no_calibration(file, content):
    file.write_bytes(content)
    assert_ignored(file)


def test_a_directory_is_no_calibration(file):
    file.mkdir()
    assert_ignored(file)


def test_an_unreadable_file(file, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(13, "Permission denied")

    file.write_text(json.dumps(document()))
    monkeypatch.setattr(store, "open", refuse, raising=False)  # root may read everything
    assert_ignored(file)


@pytest.mark.parametrize("content", [None, json.dumps({"format": 1, "machines": {"other": "whatever"}})])
def test_no_measurements_are_no_reason_to_warn(file, content):
    if content is not None:
        file.write_text(content)
    found, caught = read_twice()
    assert not caught and {rates.source for rates in found} == {"default"}


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").touch()
    with fresh(tmp_path / "file" / "calibration.json"):
        assert read_twice()[1] == []
        with pytest.raises(OSError):
            save([example()])


def test_it_can_be_switched_off(file, monkeypatch):
    save([example()])
    assert rates_for("float32", 1).source == "calibrated"
    monkeypatch.setenv("FALCON_CALIBRATION", "off")
    r.forget()
    assert rates_for("float32", 1).source == "default"
    file.write_text("{")
    r.forget()
    assert read_twice()[1] == []


def test_without_a_home_folder(monkeypatch, file):
    monkeypatch.setattr(store, "calibration_file", lambda: None)
    assert rates_for("float32", 1).source == "default"
    with pytest.raises(FileNotFoundError, match="FALCON_CACHE_DIR"):
        save([example()])


# --- saving ----------------------------------------------------------------------------------------------------------


def test_saved_rates_come_back_at_once(file):
    assert rates_for("float32", 1).source == "default"
    rates = replace(example(), fma=math.pi * 1e10)
    assert save([rates]) == str(file)
    assert rates_for("float32", 1) == rates
    assert rates_for("float64", 1).source == "default"
    r.forget()
    assert rates_for("float32", 1) is rates_for("float32", 1) == rates


def test_saving_keeps_what_it_does_not_replace(file):
    save([example(threads=1), example(threads=2)])
    save([example("float64"), example(threads=2, factor=2.0), example(threads=4)])
    assert rates_for("float32", 1) == example(threads=1)
    assert rates_for("float32", 2) == example(threads=2, factor=2.0)
    assert rates_for("float32", 4) == example(threads=4)
    assert rates_for("float64", 1) == example("float64")


@pytest.mark.parametrize("content", ["{", json.dumps(changed(("machines", KEY, "rates", "float32", "1", "fma"), -1))])
def test_saving_repairs_a_damaged_file(file, content):
    file.write_text(content)
    save([example()])
    found, caught = read_twice()
    assert not caught and found[0] == example()


def test_machines_that_share_a_home_folder(file, monkeypatch):
    """What one cannot understand of the other's entry stays as it is, too."""
    file.write_text(json.dumps({"format": 1, "machines": {"third": {"rates": "of the future"}}}))
    save([example(factor=1.0)])
    monkeypatch.setattr(store, "machine_key", lambda: "second")
    r.forget()
    assert rates_for("float32", 1).source == "default"
    save([example(factor=2.0)])
    assert rates_for("float32", 1) == example(factor=2.0)
    monkeypatch.setattr(store, "machine_key", lambda: KEY)
    r.forget()
    assert rates_for("float32", 1) == example(factor=1.0)
    assert json.loads(file.read_text())["machines"]["third"] == {"rates": "of the future"}


def test_writers_at_the_same_time_lose_nothing(file):
    keys = [str(i) for i in range(12)]
    threads = [threading.Thread(target=store.write_entry, args=(file, key, lambda _: {})) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(json.loads(file.read_text())["machines"]) == sorted(keys)
    assert os.listdir(file.parent) == [file.name]


def test_a_lock_left_behind_is_taken_over(file, monkeypatch):
    monkeypatch.setattr(store, "LOCK_SECONDS", 0.05)
    file.with_name("calibration.json.lock").touch()
    save([example()])
    assert rates_for("float32", 1) == example() and os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_file(file, monkeypatch, error):
    save([example()])
    before = file.read_bytes()

    def fail(*_arguments):
        raise error

    monkeypatch.setattr(store.os, "replace", fail)
    with pytest.raises(type(error)):
        save([example(factor=2.0)])
    assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


@pytest.mark.parametrize("wrong", [{"fma": 0.0}, {"start": math.nan}, {"numpy": ()}, {"dtype": "float16"}])
def test_nothing_is_saved_that_would_not_be_read(file, wrong):
    with pytest.raises(ValueError):
        save([example(), replace(example(), **wrong)])
    assert not file.exists()


def test_the_key_names_machine_and_versions():
    import numba
    import numpy as np

    import falcon_numba

    key = store.machine_key()
    for word in (hardware().cpu, hardware().isa, falcon_numba.__version__, numba.__version__, np.__version__):
        assert word in key


# --- numbers of threads ----------------------------------------------------------------------------------------------


def test_between_measured_numbers_of_threads(file):
    many = replace(example(threads=5, factor=3.0), start=5e-5, numpy=((64.0, 1e10), (1024.0, 4e10)))
    save([example(threads=1), many])
    found = rates_for("float32", 2)
    assert found.threads == 2 and found.source == "calibrated"
    assert found.start == pytest.approx(2e-5) and found.fma == pytest.approx(1.5 * example().fma)
    assert found.read == pytest.approx(1.5 * example().read)
    curve = dict(found.numpy)
    assert list(curve) == [64, 512, 1024]
    assert curve[64] == pytest.approx(0.75 * 5e10 + 0.25 * 1e10)
    assert curve[1024] == pytest.approx(0.75 * 5e10 + 0.25 * 4e10)


@pytest.mark.parametrize(("threads", "cpus", "ratio"), [(8, 16, 2), (8, 4, 1), (8, 6, 1.5), (2, 16, 0.5), (2, 2, 0.5)])
def test_outside_of_the_measured_numbers_of_threads(threads, cpus, ratio):
    measured = example(threads=4)
    found = r._between({4: measured}, threads, replace(hardware(), usable_cpus=cpus))
    assert found.threads == threads
    for name in LIMITS:
        assert getattr(found, name) == getattr(measured, name) * (ratio if name in r.EACH else 1), name
    assert found.numpy == tuple((n, speed * ratio) for n, speed in measured.numpy)


def test_rates_of_any_number_of_threads_work(file):
    save([example(threads=2), example(threads=7)])
    for threads in (1, 2, 3, 6, 7, 8, 1000):
        assert_works(rates_for("float32", threads))


def test_a_seen_question_costs_nothing(file):
    save([example(threads=1), example(threads=9)])
    rates_for("float32", 5)
    start = time.perf_counter()
    for _ in range(1000):
        rates_for("float32", 5)
    assert time.perf_counter() - start < 0.02


# --- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["avx512", "avx2", "neon", "generic", "unheard of"])
@pytest.mark.parametrize("cores", [1, 2, 16, 128])
def test_defaults(isa, cores):
    machine = replace(hardware(), isa=isa, physical_cores=cores, logical_cores=cores, usable_cpus=cores)
    for threads in {1, 2, cores, 2 * cores}:
        single, double = (default_rates(dtype, threads, machine) for dtype in r.DTYPES)
        for rates in (single, double):
            assert_works(rates)
            assert rates.source == "default" and r.check(rates).fma == rates.fma
            speeds = [speed for _, speed in rates.numpy]
            assert speeds == sorted(speeds) or cores == 1
            assert max(speeds) < rates.fma  # or the engine would have no chance
            assert rates.pack < rates.read <= rates.copy and rates.read < rates.l3 < rates.l2
        assert single.fma == 2 * double.fma and single.read == double.read
        alone = default_rates("float32", 1, machine)
        assert single.fma == min(threads, cores) * alone.fma and single.start >= alone.start
        assert all(x <= y for (_, x), (_, y) in zip(alone.numpy, single.numpy, strict=True))


def test_two_zen4_cores():
    """The machine that the proportions were measured on."""
    machine = replace(hardware(), isa="avx512", physical_cores=2, usable_cpus=2)
    two = asdict(default_rates("float32", 2, machine))
    measured = {"fma": 230e9, "add": 45e9, "l2": 220e9, "l3": 163e9, "read": 38e9, "write": 30e9, "copy": 49e9}
    measured |= {"pack": 20e9, "start": 1e-4, "call": 1.2e-4, "numpy_call": 1e-6}
    for name, value in measured.items():
        assert two[name] == pytest.approx(value, rel=0.15), name
