"""Where the time of a run goes: a clock that the worker reads between its phases, when it is given one.

Every thread has a row of int64 (`COLUMNS` of them)::

    seconds, nanoseconds     as the system writes them
    first reading, last reading
    nanoseconds spent in each of `PHASES`

A reading charges the time since the last one to the phase that has just ended. Phases last tens of microseconds at
least, a reading tens of nanoseconds.
"""

from __future__ import annotations

import time

import numpy as np
from numba import types

from ..inlined import inner
from .simd import peek_i64, poke_i64

PHASES = ("other", "pack_a", "pack_b", "kernel", "targets", "flush", "barrier")
OTHER, PACK_A, PACK_B, KERNEL, TARGETS, FLUSH, BARRIER = range(len(PHASES))
FIRST, LAST, SUMS = 2, 3, 4
COLUMNS = SUMS + len(PHASES)

_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_CLOCK = np.int32(getattr(time, "CLOCK_MONOTONIC", 1))  # of `time.monotonic_ns`


@inner
def lap(clock, phase):
    """Charge the time since the last reading to `phase`; nothing where `clock`, the address of a row, is 0."""
    if clock != 0:
        _clock_gettime(_CLOCK, clock)
        now = peek_i64(clock) * 1_000_000_000 + peek_i64(clock + 8)
        last = peek_i64(clock + 8 * LAST)
        if last == 0:
            poke_i64(clock + 8 * FIRST, now)
        else:
            total = clock + 8 * (SUMS + phase)
            poke_i64(total, peek_i64(total) + now - last)
        poke_i64(clock + 8 * LAST, now)
