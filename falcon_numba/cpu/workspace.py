"""Memory for packed operands and targets.

A run never shares its workspace. The last one released is kept for the next run, since touching fresh pages costs more
than combining; `release` gives it back to the system.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import numpy as np

ALIGN = 64

_lock = threading.Lock()
_spare: np.ndarray | None = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # whoever held the old one doesn't exist in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def borrow(nbytes: int) -> Iterator[int]:
    """The address of `nbytes` bytes, aligned to a cache line, while the context lasts.

    Raises
    ------
    MemoryError
        From NumPy, before anything is computed.
    """
    global _spare
    with _lock:
        buffer, _spare = _spare, None
    if buffer is None or buffer.size < nbytes + ALIGN:
        buffer = None  # freed before the larger one is made
        buffer = np.empty(nbytes + ALIGN, np.uint8)
    try:
        yield -(-buffer.ctypes.data // ALIGN) * ALIGN
    finally:
        with _lock:
            _spare = buffer


def release() -> None:
    """Give the workspace kept between runs back to the system."""
    global _spare
    with _lock:
        _spare = None
