"""The threads of a run: a small pool of Python threads that each run the worker with the GIL released.

The pool belongs to one run at a time. A second Python thread that multiplies meanwhile does its product alone, in its
own thread: never a deadlock at a barrier, no dependence on Numba's threading layers, and, since results don't depend on
the number of threads, nobody can tell.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
from collections.abc import Callable

import numba
import numpy as np

from .sync import CALLED_OFF, SYNC_BYTES


def default_threads() -> int:
    """Threads that Numba would use now: `numba.set_num_threads` is respected, without starting its thread pool."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is not None and getattr(parallel, "_is_initialized", False):
        return int(parallel.get_num_threads())
    return int(numba.config.NUMBA_NUM_THREADS)


class Pool:
    """Threads that wait for work. `run` may be called from any thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads."""
        self._busy = threading.Lock()
        self._inboxes: list[queue.SimpleQueue] = []

    def _serve(self, inbox: queue.SimpleQueue) -> None:
        while True:
            task, done = inbox.get()
            try:
                task()
                done.put(None)
            except BaseException as error:  # handed to the caller, who raises it
                done.put(error)

    def _grow(self, count: int) -> None:
        while len(self._inboxes) < count:
            inbox: queue.SimpleQueue = queue.SimpleQueue()
            name = f"falcon_numba-{len(self._inboxes) + 1}"
            threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()
            self._inboxes.append(inbox)

    def run(self, threads: int, work: Callable[[int, int, int], None]) -> int:
        """Call ``work(tid, threads, sync)`` for every tid below `threads` at once; returns the threads used.

        `sync` is the address of the shared sync area. Where the pool is taken, the caller works alone. When one call
        raises, the others are called off and the first error is raised after all have ended.
        """
        area = np.zeros(SYNC_BYTES // 8, np.int64)

        def call(tid: int, threads: int) -> None:
            try:
                work(tid, threads, area.ctypes.data)
            except BaseException:
                area[CALLED_OFF // 8] = 1
                raise

        if threads == 1 or not self._busy.acquire(blocking=False):
            call(0, 1)
            return 1
        try:
            self._grow(threads - 1)
            done: queue.SimpleQueue = queue.SimpleQueue()
            started = 0
            error: BaseException | None = None
            try:
                for tid in range(1, threads):
                    self._inboxes[tid - 1].put((functools.partial(call, tid, threads), done))
                    started += 1
                call(0, threads)
            except BaseException as raised:
                area[CALLED_OFF // 8] = 1
                error = raised
            while started:  # no interrupt may leave a thread behind that still writes into the caller's arrays
                try:
                    failure = done.get()
                except BaseException as raised:
                    error = error or raised
                    continue
                started -= 1
                error = error or failure
            if error is not None:
                raise error
        finally:
            self._busy.release()
        return threads


pool = Pool()

if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads, and maybe a lock that nobody will release.
    os.register_at_fork(after_in_child=pool.reset)
