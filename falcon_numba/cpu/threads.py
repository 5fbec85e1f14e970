"""The threads of a run: a small pool of Python threads that each run the worker with the GIL released.

The pool belongs to one run at a time. A second Python thread that multiplies meanwhile does its product alone, in its
own thread: never a deadlock at a barrier, no dependence on Numba's threading layers, and, since results don't depend on
the number of threads, nobody can tell.
"""

from __future__ import annotations

import contextlib
import ctypes
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


def _current_cpu() -> Callable[[], int] | None:
    """The system's "which CPU am I on", where there is one and threads can be placed (Linux)."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None


def _restrict(thread: int, cpus: set[int]) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, cpus)


MOST_PLACED = 4  # threads


class Pool:
    """Threads that wait for work. `run` may be called from any thread."""

    _current_cpu = staticmethod(_current_cpu() or (lambda: -1))

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads."""
        self._busy = threading.Lock()
        self._threads: list[tuple[threading.Thread, queue.SimpleQueue]] = []  # each with its inbox

    def _serve(self, index: int, inbox: queue.SimpleQueue) -> None:
        while True:
            task, done = inbox.get()
            error = None
            try:
                task()
            except BaseException as raised:  # handed to the caller, who raises it
                error = raised
            done.put((index, error))

    def _grow(self, count: int) -> int:
        """Have `count` threads, or as many as the system gives us; returns how many."""
        while len(self._threads) < count:
            index, inbox = len(self._threads), queue.SimpleQueue()  # type: int, queue.SimpleQueue
            name = f"falcon_numba-{index + 1}"
            thread = threading.Thread(target=self._serve, args=(index, inbox), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # a limit of the system, or the interpreter is shutting down
                return index
            self._threads.append((thread, inbox))
        return count

    def _placement(self, threads: int) -> tuple[set[int], set[int]] | None:
        """CPUs to wake on, which leave out the caller's, and CPUs to run on from then on.

        The scheduler likes to wake a thread on the CPU of its waker, which is about to be busy with its own share; it
        takes milliseconds until the thread is moved to an idle one, longer than many a product. Where threads are many
        the scheduler does better alone: 16 of them took 7 ms to start in one of ten runs, without placement 1.5 ms.
        """
        here = self._current_cpu()
        if here < 0 or threads > MOST_PLACED:
            return None
        allowed = os.sched_getaffinity(0)
        return (allowed - {here}, allowed) if len(allowed) > 1 else None

    def _wait_until_idle(self, count: int) -> None:
        """Return when the first `count` threads have done all they were given, whatever interrupts the waiting.

        A thread left behind would still write into the arrays of a caller who believes the run is over.
        """
        idle: set[int] = set()
        done: queue.SimpleQueue = queue.SimpleQueue()
        while len(idle) < count:
            with contextlib.suppress(KeyboardInterrupt):
                for index in set(range(count)) - idle:
                    self._threads[index][1].put((lambda: None, done))
                while len(idle) < count:
                    idle.add(done.get()[0])

    def run(self, threads: int, work: Callable[[int, int, int], None]) -> int:
        """Call ``work(tid, threads, sync)`` for every tid below `threads` at once; returns the threads used.

        `sync` is the address of the shared sync area. Where the pool is taken, or the system has no threads to give,
        the caller works alone; alone it gets 0. When one call raises, the others are called off and the first error is
        raised after all have ended.
        """
        if threads > 1:
            # Not acquire() and then try: a KeyboardInterrupt between the two would leave the pool taken for ever. The
            # first step of a loop over `filter`, in C, takes it, and no interrupt comes between that and the body.
            for _ in filter(self._busy.acquire, (False,)):
                try:
                    threads = 1 + self._grow(threads - 1)
                    if threads > 1:
                        self._run_together(threads, work)
                        return threads
                finally:
                    self._busy.release()
        work(0, 1, 0)  # nobody to wait for, no sync area
        return 1

    def _run_together(self, threads: int, work: Callable[[int, int, int], None]) -> None:
        area = np.zeros(SYNC_BYTES // 8, np.int64)
        sync = area.ctypes.data

        def call(tid: int, threads: int, cpus: set[int] | None = None) -> None:
            try:
                if cpus:
                    _restrict(0, cpus)
                work(tid, threads, sync)
            except BaseException:
                area[CALLED_OFF // 8] = 1
                raise

        placement = self._placement(threads)
        done: queue.SimpleQueue = queue.SimpleQueue()
        try:
            for index, (thread, inbox) in enumerate(self._threads[: threads - 1]):
                cpus = None
                if placement is not None:
                    wake_on, cpus = placement
                    _restrict(thread.native_id or 0, wake_on)
                inbox.put((functools.partial(call, index + 1, threads, cpus), done))
            call(0, threads)
            errors = [done.get()[1] for _ in range(threads - 1)]
        except BaseException:
            area[CALLED_OFF // 8] = 1
            self._wait_until_idle(threads - 1)
            raise
        for error in errors:
            if error is not None:
                raise error


pool = Pool()

if hasattr(os, "register_at_fork"):
    # A forked child has none of the threads, and maybe a lock that nobody will release.
    os.register_at_fork(after_in_child=pool.reset)
