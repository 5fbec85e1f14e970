"""A barrier for the threads of one run, in shared memory.

Python threads are descheduled at any time, so the barrier yields its time slice instead of spinning for long. It can
be called off: where a run fails to start on one thread, the others leave at their next barrier instead of waiting for
ever.
"""

from __future__ import annotations

from numba import types

from .simd import atomic_add, atomic_load, inner

ARRIVED, CALLED_OFF = 0, 64  # byte offsets in the sync area: two cache lines
SYNC_BYTES = 128
SPINS = 2000  # about 10 µs before the first yield

_sched_yield = types.ExternalFunction("sched_yield", types.int32())


@inner
def barrier(sync, passed, threads):
    """Wait for all `threads`; `passed` counts the barriers before. Returns passed + 1, or −1 when called off."""
    if threads > 1:
        atomic_add(sync + ARRIVED, 1)
        spins = 0
        while atomic_load(sync + ARRIVED) < (passed + 1) * threads:
            if atomic_load(sync + CALLED_OFF) != 0:
                return -1
            spins += 1
            if spins > SPINS:
                _sched_yield()
    return passed + 1
