"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ["FALCON_CALIBRATION"] = "off"  # tests see the same speeds on every machine, whatever its user measured

CANARY = 0xA5
GUARD_BYTES = 4096
BENCH = str(Path(__file__).parent.parent / "bench")


@pytest.fixture(autouse=True)
def guard_bytes_around_the_workspace(monkeypatch):
    """Every workspace of the CPU engine lies between guard bytes, which must survive the run."""
    from falcon_numba.cpu import engine

    borrow = engine.borrow

    @contextlib.contextmanager
    def guarded(nbytes):
        with borrow(nbytes + 2 * GUARD_BYTES) as address:
            view = np.frombuffer((ctypes.c_uint8 * (nbytes + 2 * GUARD_BYTES)).from_address(address), np.uint8)
            guards = view[:GUARD_BYTES], view[GUARD_BYTES + nbytes :]
            for guard in guards:
                guard[:] = CANARY
            yield address + GUARD_BYTES
            for guard in guards:
                assert (guard == CANARY).all(), "written outside of the workspace"

    monkeypatch.setattr(engine, "borrow", guarded)


@pytest.fixture
def bench(monkeypatch):
    """The folder of the benchmarks: its scripts import one another by name; afterwards nobody sees them."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    yield BENCH
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(BENCH):
            del sys.modules[name]
