"""Where this library keeps files of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path


def cache_folder() -> Path | None:
    """Where compiled kernels and measured speeds are kept; None where the user has no home folder: nothing is kept.

    ``FALCON_CACHE_DIR``, else ``NUMBA_CACHE_DIR``/falcon_numba, else the user's cache folder on this platform.
    """
    if folder := os.environ.get("FALCON_CACHE_DIR"):
        return Path(folder)
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(folder) / "falcon_numba"
    if sys.platform == "win32" and (folder := os.environ.get("LOCALAPPDATA")):
        return Path(folder) / "falcon_numba" / "cache"
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "falcon_numba"
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():  # nobody knows the home folder: "~" is no place for files that will be trusted
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "falcon_numba"


def write_whole(file: Path, data: bytes) -> None:
    """Replace a file by one with this content: other processes see the old one or the new one, never a part.

    Raises
    ------
    OSError
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
