"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from guards import guarding
from hypothesis import settings

os.environ["FALCON_CALIBRATION"] = "off"  # tests see the same speeds on every machine, whatever its user measured

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started us in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt processes, which would inherit it

settings.register_profile("no deadline", deadline=None)  # whatever runs first compiles; a machine may be busy
settings.load_profile("no deadline")

BENCH = str(Path(__file__).parent.parent / "bench")


@pytest.fixture(autouse=True)
def guard_bytes_around_the_workspace(monkeypatch):
    """Every workspace of the CPU engine lies between guard bytes, which must survive the run."""
    from falcon_numba.cpu import engine

    monkeypatch.setattr(engine, "borrow", guarding(engine.borrow))


@pytest.fixture
def bench(monkeypatch):
    """The folder of the benchmarks: its scripts import one another by name; afterwards nobody sees them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    yield BENCH
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(BENCH):
            del sys.modules[name]
