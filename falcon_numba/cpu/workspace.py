"""Memory for packed operands and targets.

A run never shares its workspace. The last one released is kept for the next run, since touching fresh pages costs more
than combining; `release` gives it back to the system. Converted operands have a shelf of their own, since a run borrows
its workspace while they are lent.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import DTypeLike

ALIGN = 64


class _Buffer:
    """`nbytes` bytes from `address` on."""

    __slots__ = ("_memory", "address", "nbytes")

    def __init__(self, nbytes: int):
        self._memory = np.empty(nbytes + ALIGN, np.uint8)
        self.address = -(-self._memory.ctypes.data // ALIGN) * ALIGN
        self.nbytes = nbytes

    def array(self, offset: int, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array `offset` bytes from `address` on."""
        first = self.address - self._memory.ctypes.data + offset
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._memory[first : first + size].view(dtype).reshape(shape)


# At most one each. Append and pop need no lock, which a forked child could find taken.
_spare: deque[_Buffer] = deque(maxlen=1)
CONVERTED: deque[_Buffer] = deque(maxlen=1)


class borrow:
    """Context manager: the address of `nbytes` bytes, aligned to a cache line, while the context lasts.

    They come from a shelf, and go back there.

    Raises
    ------
    MemoryError
        From NumPy, before anything is computed.
    """

    __slots__ = ("_nbytes", "_shelf", "buffer")

    def __init__(self, nbytes: int, shelf: deque[_Buffer] = _spare):
        self._nbytes, self._shelf = nbytes, shelf

    def __enter__(self) -> int:
        try:
            buffer = self._shelf.pop()
        except IndexError:
            buffer = None
        if buffer is None or buffer.nbytes < self._nbytes:
            buffer = None  # freed before the larger one is made
            buffer = _Buffer(self._nbytes)
        self.buffer = buffer
        return buffer.address

    def __exit__(self, *_: object) -> None:
        self._shelf.append(self.buffer)


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
    CONVERTED.clear()
