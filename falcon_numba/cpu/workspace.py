"""Memory for packed operands and targets.

A run never shares its workspace. The last one released is kept for the next run, since touching fresh pages costs more
than combining; `release` gives it back to the system.
"""

from __future__ import annotations

from collections import deque

import numpy as np

ALIGN = 64


class _Buffer:
    """`nbytes` bytes from `address` on."""

    __slots__ = ("_memory", "address", "nbytes")

    def __init__(self, nbytes: int):
        self._memory = np.empty(nbytes + ALIGN, np.uint8)
        self.address = -(-self._memory.ctypes.data // ALIGN) * ALIGN
        self.nbytes = nbytes


# At most one. Its append and pop need no lock, which a forked child could find taken.
_spare: deque[_Buffer] = deque(maxlen=1)


class borrow:
    """Context manager: the address of `nbytes` bytes, aligned to a cache line, while the context lasts.

    Raises
    ------
    MemoryError
        From NumPy, before anything is computed.
    """

    __slots__ = ("_buffer", "_nbytes")

    def __init__(self, nbytes: int):
        self._nbytes = nbytes

    def __enter__(self) -> int:
        try:
            buffer = _spare.pop()
        except IndexError:
            buffer = None
        if buffer is None or buffer.nbytes < self._nbytes:
            buffer = None  # freed before the larger one is made
            buffer = _Buffer(self._nbytes)
        self._buffer = buffer
        return buffer.address

    def __exit__(self, *_: object) -> None:
        _spare.append(self._buffer)


def reserve(nbytes: int) -> None:
    """Have `nbytes` bytes ready for the runs that follow.

    Raises
    ------
    MemoryError
        Now, and not in one of them.
    """
    with borrow(nbytes):
        pass


def release() -> None:
    """Give the workspace kept between runs back to the system."""
    _spare.clear()
