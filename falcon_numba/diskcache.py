"""Compiled kernels on disk, keyed by everything that went into them.

Numba's own cache looks only at the file of the function that it compiles and at a pickle of its closure, which misses
changed helpers and never finds closures over intrinsics again. Here the key is a hash over the source of this package,
the signature, versions, host CPU and settings of the compiler; a file holds one compile result and a checksum which
takes in its own name, is written atomically, and anything wrong with it means compiling anew.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import platform
import sys
import warnings
from pathlib import Path

import llvmlite
import numba
import numpy as np
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult

from .folders import cache_folder, write_whole


def compiled_sources() -> list[Path]:
    """The files of this package that hold everything that is compiled."""
    root = Path(__file__).parent
    others = ("decision/constants.py", "decision/roofline.py", "inlined.py")
    return sorted([*(root / "cpu").glob("*.py"), *(root / other for other in others)])


@functools.cache
def source_hash() -> str:
    """Hash of `compiled_sources`."""
    digest = hashlib.sha256()
    for path in compiled_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


# Settings of Numba (NUMBA_OPT, …) that decide what machine code becomes of the same source.
_COMPILER_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML")


def _checksum(file: Path, payload: bytes) -> bytes:
    """With the name: the result of another kernel is no result, however whole it is."""
    return hashlib.sha256(file.name.encode() + b"\0" + payload).digest()


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


class DiskCache(_Cache):
    """One compile result in one file of `cache_folder`; plugs into a Numba dispatcher.

    Parameters
    ----------
    name : str
        Of the kernel, part of the file name.
    announcement : str
        Logged as a warning (so that the user sees why nothing happens for a while) before the kernel is compiled.
    """

    def __init__(self, name: str, announcement: str = ""):
        self._name = name
        self._announcement = announcement

    @property
    def cache_path(self) -> str:
        return str(cache_folder())

    def _file(self, signature, codegen) -> Path | None:
        folder = cache_folder()
        if folder is None:
            return None
        versions = (numba.__version__, llvmlite.__version__, np.__version__, sys.version, platform.machine())
        compiler = (*codegen.magic_tuple(), *(getattr(numba.config, name, None) for name in _COMPILER_SETTINGS))
        key = repr((source_hash(), str(signature), versions, compiler))
        return folder / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.bin"

    def load_overload(self, sig, target_context):
        found = self._load(sig, target_context)
        if found is None and self._announcement:
            logging.getLogger("falcon_numba").warning(self._announcement)
        return found

    def _load(self, sig, target_context):
        target_context.refresh()
        try:
            file = self._file(sig, target_context.codegen())
            if file is None:
                return None
            data = file.read_bytes()
            checksum, payload = data[:32], data[32:]
            if _checksum(file, payload) != checksum:
                return None
            return CompileResult._rebuild(target_context, *pickle.loads(payload))
        except Exception:  # a missing, foreign or damaged file must never stop a product
            return None

    def save_overload(self, sig, data):
        try:
            file = self._file(sig, data.codegen)
            if file is None:
                return
            payload = numba.core.serialize.dumps(data._reduce())
            write_whole(file, _checksum(file, payload) + payload)
        except OSError as error:
            _warn_once(f"falcon_numba: compiled kernels can't be kept in {cache_folder()} ({error.strerror or error})")

    def enable(self):
        """Always on."""

    def disable(self):
        """Always on."""

    def flush(self):
        """Nothing is kept in memory."""
