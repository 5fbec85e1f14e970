"""What the threads of one run share: a barrier, and tickets for pieces of work.

Python threads are descheduled at any time, so the barrier yields its time slice instead of spinning for long. It can
be called off: where a run fails to start on one thread, the others leave at their next barrier instead of waiting for
ever.
"""

from __future__ import annotations

from numba import types

from ..inlined import inner
from .simd import atomic_add, atomic_load, poke_i64

ARRIVED, CALLED_OFF, TICKETS = 0, 64, 128  # byte offsets in the sync area: a cache line each
SYNC_BYTES = 192
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


@inner
def reset_tickets(sync, tid, threads):
    """Start again at 0; to be called by all threads, with a barrier behind the last ticket and one before the next."""
    if threads > 1 and tid == 0:
        poke_i64(sync + TICKETS, 0)


@inner
def next_ticket(sync, last, threads):
    """The next number that no thread has drawn; `last` is what this one drew last, −1 at first."""
    return atomic_add(sync + TICKETS, 1) if threads > 1 else last + 1


@inner
def share(count, part, parts):
    """First and last of the `count` things that belong to `part` of `parts`."""
    return count * part // parts, count * (part + 1) // parts
