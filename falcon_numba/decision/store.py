"""The calibration file: measured speeds as JSON in the user's cache folder, of one machine or of several::

    {"format": 1,
     "machines": {"AMD EPYC (znver4, avx512, …); falcon_numba 0.1.0, …": {"date": "2025-12-01T10:00:00+00:00",
                                                                       "rates": {"float32": {"1": {…}, "2": {…}}}},
                  …}}

Machines that share a home folder, and environments with other versions, each have their own entry. What the rates are
is the business of `rates`; this module only knows where they are kept.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..folders import cache_folder, write_whole
from .hardware import hardware

FORMAT = 1
MOST_BYTES = 2**20  # a thousand machines; whatever is longer isn't ours
LOCK_SECONDS = 5.0  # longest wait for another process that is writing; it needs milliseconds


class Unusable(ValueError):
    """Why a calibration file, or this machine's entry in it, can't be used."""


def calibration_file() -> Path | None:
    """Where measured speeds are kept; None without a cache folder."""
    folder = cache_folder()
    return None if folder is None else folder / "calibration.json"


@lru_cache(maxsize=1)
def machine_key() -> str:
    """This machine, and the versions that its speeds depend on: the name of its entry.

    Different machines often call their CPU the same (``"AMD EPYC"`` in a virtual machine), hence the other facts.
    """
    import numba
    import numpy as np

    from .._version import __version__

    h = hardware()
    facts = f"{h.llvm_cpu}, {h.isa}, {h.physical_cores} cores, {h.usable_cpus} CPUs, L2 {h.l2 >> 10} KiB, "
    facts += f"L3 {h.l3 >> 10} KiB, {platform.system()}"
    return f"{h.cpu} ({facts}); falcon_numba {__version__}, numba {numba.__version__}, numpy {np.__version__}"


def read_entry(file: Path, key: str) -> dict[str, Any] | None:
    """The entry of machine `key` as JSON has it; None where there is no file, or no such entry in it.

    Raises
    ------
    Unusable
        Anything wrong with the file.
    """
    entry = _machines(file).get(key)
    if entry is None or isinstance(entry, dict):
        return entry
    raise Unusable("this machine's entry is no JSON object")


def write_entry(file: Path, key: str, change: Callable[[Any], dict[str, Any]]) -> None:
    """Put ``change(entry or None)`` and the date in place of an entry; the others stay. The file is replaced whole.

    Raises
    ------
    OSError
        When the folder can't be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_name(file.name + ".lock")):
        try:
            machines = _machines(file)
        except Unusable:
            machines = {}
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        machines[key] = {**change(machines.get(key)), "date": date}
        text = json.dumps({"format": FORMAT, "machines": machines}, indent=1, ensure_ascii=False) + "\n"
        write_whole(file, text.encode("utf-8"))


def _machines(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        if error.errno == errno.EACCES and not os.access(file.parent, os.X_OK):
            return {}  # another user's folder
        raise Unusable(error.strerror or type(error).__name__) from None
    if len(raw) > MOST_BYTES:
        raise Unusable(f"longer than {MOST_BYTES >> 20} MiB")
    try:
        data = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise Unusable("nested too deeply") from None
    except ValueError as error:  # neither JSON nor UTF-8, or an integer of thousands of digits
        raise Unusable(f"no valid JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("machines"), dict):
        raise Unusable(f"no calibration file of format {FORMAT}")
    return data["machines"]


@contextlib.contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Keep other writers out, on shared file systems too; a lock that somebody left behind is taken over."""
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
