"""Memory that must not be touched: guard bytes around workspaces and outputs, forbidden pages around inputs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator

import numpy as np

CANARY = 0xA5
GUARD_BYTES = 4096
PAGE = mmap.PAGESIZE
OUT_LAYOUTS = ("C", "F", "gaps", "reversed", "turned gaps", "unaligned")
FENCED_LAYOUTS = ("C", "F", "gaps", "turned gaps", "reversed", "broadcast")


def guarding(borrow):
    """`workspace.borrow` with guard bytes on both sides, which must survive the context; within them NaN everywhere."""

    @contextlib.contextmanager
    def guarded(nbytes: int) -> Iterator[int]:
        with borrow(nbytes + 2 * GUARD_BYTES) as address:
            view = np.frombuffer((ctypes.c_uint8 * (nbytes + 2 * GUARD_BYTES)).from_address(address), np.uint8)
            guards = view[:GUARD_BYTES], view[GUARD_BYTES + nbytes :]
            view[GUARD_BYTES : GUARD_BYTES + nbytes] = 0xFF  # whoever reads before writing reads NaN
            for guard in guards:
                guard[:] = CANARY
            yield address + GUARD_BYTES
            for guard in guards:
                assert (guard == CANARY).all(), "written outside of the workspace"

    return guarded


def canary(dtype: str) -> np.generic:
    """The number whose bytes are all `CANARY`."""
    return np.full(np.dtype(dtype).itemsize, CANARY, np.uint8).view(dtype)[0]


class Output:
    """An output matrix among guard bytes.

    Attributes
    ----------
    array : ndarray, shape as given
        Of canaries.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, layout: str):
        size, (*batch, rows, columns) = np.dtype(dtype).itemsize, shape
        fast, slow = (2, 3) if "gaps" in layout else (1, 1)  # gaps between elements, and lines of a matrix
        turned = layout == "F" or layout.startswith("turned")
        lines, line = (columns, rows) if turned else (rows, columns)
        start = GUARD_BYTES + (1 if layout == "unaligned" else 0)
        line_step = fast * line * size * slow
        steps = [fast * size, line_step] if turned else [line_step, fast * size]
        reach = lines * line_step
        for count in reversed(batch):
            steps.insert(0, reach)
            reach *= count
        self._bytes = np.full(reach + 2 * GUARD_BYTES + 1, CANARY, np.uint8)
        # From a buffer and not as_strided, which doesn't see whether all of it lies within the bytes.
        self.array = np.ndarray(shape, dtype, self._bytes.data, start, steps)
        if layout == "reversed":
            self.array = self.array[..., ::-1, ::-1]

    def check(self) -> None:
        """Every byte beside the array is as it was; the array is overwritten."""
        self.array[...] = canary(self.array.dtype.name)
        assert (self._bytes == CANARY).all(), "written outside of the output"


def fenced(values: np.ndarray, layout: str, at_end: bool) -> np.ndarray:
    """A read-only copy of a matrix that starts after, or ends before, a page that nobody may read.

    A read outside of it kills the process. "broadcast" repeats its first row.
    """
    rows, columns = values.shape
    size = values.itemsize
    held = {
        "gaps": (2 * rows - 1, 3 * columns - 2),
        "turned gaps": (3 * columns - 2, 2 * rows - 1),
        "broadcast": (1, columns),
    }.get(layout, (rows, columns))
    nbytes = held[0] * held[1] * size
    inside = -(-nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = PAGE + (inside - nbytes if at_end else 0)
    flat = np.frombuffer(memory, np.uint8)[start : start + nbytes].view(values.dtype)
    if layout == "F":
        view = flat.reshape(columns, rows).T
    elif layout == "gaps":
        view = flat.reshape(held)[::2, ::3]
    elif layout == "turned gaps":
        view = flat.reshape(held)[::3, ::2].T
    elif layout == "reversed":
        view = flat.reshape(held)[::-1, ::-1]
    else:
        view = flat.reshape(held)
    view[...] = values[: view.shape[0]]
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for page in (base, base + PAGE + inside):
        assert protect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0, ctypes.get_errno()
    view.flags.writeable = False
    return np.broadcast_to(view, values.shape) if layout == "broadcast" else view
