"""Code in fresh interpreters."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

WAKE = 1.0  # seconds
PATIENCE = 300  # wakes; not by the clock, since somebody may stop all of us for a while


def python(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a fresh interpreter; its standard output. Raises AssertionError with its errors."""
    return finish(start(code, *arguments, **environment))


def start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start code in a fresh interpreter."""
    return _start(["-c", textwrap.dedent(code), *arguments], environment)


def start_file(file: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a file in a fresh interpreter, with this working folder's packages."""
    environment["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return _start([str(file), *arguments], environment)


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    env = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for what `start` started; its standard output. Raises AssertionError with its errors."""
    try:
        for _ in range(PATIENCE):
            try:
                out, errors = process.communicate(timeout=WAKE)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            raise AssertionError("hangs")
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return out.strip()


def copy_kernels(folder: Path, *dtypes: str) -> None:
    """Put the compiled kernels of `dtypes` into a cache folder: from the usual one, compiled there if need be."""
    files = python(
        """
        import sys
        import numpy as np
        import falcon_numba as fn
        from falcon_numba.diskcache import DiskCache
        used, find = set(), DiskCache._file
        def note(self, *key):
            file = find(self, *key)
            used.add(str(file))
            return file
        DiskCache._file = note
        for dtype in sys.argv[1:]:
            fn.gemm(np.ones((64, 64), dtype), np.ones((64, 64), dtype), depth=1)
        print("\\n".join(used))
        """,
        *dtypes,
    )
    folder.mkdir(exist_ok=True)
    for file in files.splitlines():
        shutil.copy(file, folder)


def exit_code_of(pid: int) -> int | None:
    """Wait for a fork of this process; its exit code, None where it hangs (it is killed then)."""
    for _ in range(int(60 / 0.02)):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
