"""Products of ``.npy`` files: inputs and output stay on disk, and the output appears whole or not at all."""

from __future__ import annotations

import errno
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# One panel of rows is at least this much work, about a second, so that Ctrl-C and progress don't wait long ...
_PANEL_WORK = {"float32": 2e11, "float64": 1e11}
_PANEL_WORK_OTHER = 1e9
# ... but never fewer rows than this, because a flat panel is no work for a fast algorithm.
_PANEL_ROWS = {"float32": 1024, "float64": 1024}
_PANEL_ROWS_OTHER = 64


class FileProduct(NamedTuple):
    """What `multiply_files` wrote."""

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    operations: int  # 2·M·N·K, times the number of products in a batch


def open_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Memory-map a ``.npy`` file, read-only.

    Raises
    ------
    ValueError
        When it is something else: another format, cut short, or Python objects (reading those runs code from the file).
    TypeError
        When its dtype is no number: text, dates, records.
    OSError
        When it can't be read.
    """
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} is not a usable .npy file: {error}") from error
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{os.fspath(path)} holds {array.dtype}, which has no matrix product")
    return array


def multiply_files(
    a_path: str | os.PathLike[str],
    b_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    *,
    force: bool = False,
    dtype: Any = None,
    report: Callable[[int, int], None] | None = None,
    **options: Any,
) -> FileProduct:
    """Write the product of two ``.npy`` files to a third, a panel of rows at a time, by `falcon_numba.matmul`.

    A float16 result is computed in float32 (float64 where an input is wider) and rounded once, as `gemm` does it:
    NumPy's float16 product is slow, and rounds after every operation.

    The panels depend on shapes and dtype only, so the same files give the same bits whether anybody watches or not.
    The product grows in a hidden file beside the target that takes the target's name when it is complete and on disk;
    after an error or an interrupt neither is there. The target may be one of the inputs: it is replaced after their
    last use.

    Parameters
    ----------
    a_path, b_path : path
        Arrays of any dtype, rank and order that `numpy.matmul` takes.
    out_path : path
        The result, in C order. A symbolic link is followed.
    force : bool
        Replace an existing file (never anything but a regular file).
    dtype : dtype, optional
        Of the result, for example int32 for the exact product of int8 files. Inputs cast to it as in `numpy.matmul`.
    report : callable, optional
        Called with (rows done, rows in all) after every panel; of a batch, the first axis counts as rows.
    **options
        Passed to `falcon_numba.matmul`.

    Raises
    ------
    ValueError, TypeError
        Shapes that don't fit, dtypes `numpy.matmul` refuses, files that aren't ``.npy`` (these name the files); options
        out of range.
    FileExistsError
        `out_path` exists and `force` is false, or it is not a regular file.
    OSError
        Reading or writing failed.
    """
    target = Path(os.path.realpath(out_path))
    _check_target(target, force)
    a, b = open_npy(a_path), open_npy(b_path)
    names = f"{os.fspath(a_path)} {a.shape} {a.dtype} and {os.fspath(b_path)} {b.shape} {b.dtype}"
    dtype = None if dtype is None else np.dtype(dtype)
    try:
        shape = _product_shape(a.shape, b.shape)
        ones = (np.ones((1, 1), a.dtype), np.ones((1, 1), b.dtype))
        result = np.matmul(*ones, dtype=dtype).dtype  # NumPy's rule for the result, or its complaint
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # NumPy's own classes take other arguments
        raise kind(f"{names}: {error}") from None
    if result == np.float16:
        dtype = np.result_type(a, b, np.float32)
    _write_npy(target, force, result, shape, lambda c: _multiply(a, b, c, dtype, report, options))
    return FileProduct(target, result, shape, 2 * math.prod(shape) * a.shape[-1])


def _product_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of ``matmul`` of arrays of shapes `a` and `b`; ValueError where they don't fit."""
    if not a or not b:
        raise ValueError("matrix multiplication needs at least one dimension")
    inner = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner:
        raise ValueError(f"inner sizes differ, {a[-1]} and {inner}")
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ValueError("leading dimensions don't broadcast") from None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _multiply(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    dtype: Any,
    report: Callable[[int, int], None] | None,
    options: dict[str, Any],
) -> None:
    """Fill `c` panel by panel along its first axis; a `dtype` other than c's is computed in and rounded once."""
    from . import matmul

    def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        if dtype is None or dtype == c.dtype:
            matmul(a, b, out=c, dtype=dtype, **options)
        else:
            wide = np.empty(c.shape, dtype)
            matmul(a, b, out=wide, dtype=dtype, **options)
            c[...] = wide

    panels = list(_panels(a, b, c, c.dtype if dtype is None else dtype))
    if len(panels) == 1:
        product(a, b, c)
        return
    if c.ndim > 2:
        # Broadcasting to the full rank gives both operands the first axis that the panels cut; nothing is copied.
        a = np.broadcast_to(a, (*c.shape[:-2], *a.shape[-2:]))
        b = np.broadcast_to(b, (*c.shape[:-2], *b.shape[-2:]))
    for rows in panels:
        product(a[rows], b[rows] if c.ndim > 2 else b, c[rows])
        if report is not None:
            report(rows.stop, c.shape[0])


def _panels(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: np.dtype) -> Iterator[slice]:
    """Cut the first axis of `c`, computed in `dtype`, into equal panels: rows of a matrix, or products of a batch.

    A vector on one side of a batch, and a vector times anything, are one panel: they are little work.
    """
    length = c.shape[0] if c.ndim else 1
    count = 1
    if c.size and ((a.ndim == 2 and b.ndim <= 2) or (c.ndim > 2 and min(a.ndim, b.ndim) > 1)):
        work = 2 * c.size * a.shape[-1]
        least = 1 if c.ndim > 2 else _PANEL_ROWS.get(dtype.name, _PANEL_ROWS_OTHER)
        count = max(1, min(length // least, int(work / _PANEL_WORK.get(dtype.name, _PANEL_WORK_OTHER))))
    for index in range(count):
        yield slice(length * index // count, length * (index + 1) // count)


def _check_target(target: Path, force: bool) -> None:
    """Refuse, before any work, a target that must not or can't be replaced."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no such folder: {target.parent}")
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise FileExistsError(f"{target} exists and is not a regular file")
    if not force:
        raise FileExistsError(f"{target} exists; --force replaces it")


def _write_npy(
    target: Path, force: bool, dtype: np.dtype, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]
) -> None:
    """Let `fill` write into a memory-mapped array, and make that the file `target` if `fill` returns."""
    temporary = target.parent / f".falcon-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        c = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        _reserve(descriptor, c.offset, c.nbytes)
        fill(c)
        c.flush()
        del c  # Windows renames no file that is mapped
        os.fsync(descriptor)
        os.close(descriptor)
        descriptor = -1
        _publish(temporary, target, force)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Give `size` bytes of a new file their disk space: a disk that fills up under a memory map kills the process."""
    if not size:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, start, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    os.lseek(descriptor, start, os.SEEK_SET)
    zeros = bytes(1 << 20)
    while size > 0:
        size -= os.write(descriptor, zeros[:size])


def _publish(temporary: Path, target: Path, force: bool) -> None:
    """Give the finished file its name, atomically, and make that durable."""
    if force:
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    else:
        try:
            os.link(temporary, target)  # unlike a rename, refuses a target that appeared meanwhile
        except FileExistsError:
            raise FileExistsError(f"{target} appeared during the product; --force replaces it") from None
        except OSError:  # a file system without hard links
            _check_target(target, force)
            os.replace(temporary, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
