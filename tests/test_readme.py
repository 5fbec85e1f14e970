"""The Python in README.md runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import falcon_numba
from falcon_numba.options import OPTIONS

README = Path(__file__).parent.parent / "README.md"


def test_examples_run(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    code = "\n".join(blocks) + "print([plan.executor for plan in plans], one.rank)\n"
    # A process of its own: the examples register a scheme and write a file.
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    assert "strassen" in run.stdout
    assert run.stdout.endswith("['cpu'] 77\n")  # the first examples show the engine, not NumPy


def test_every_public_name_and_option_is_there():
    text = README.read_text(encoding="utf-8")
    # An exception's class, Plan (`print(p)` shows it), and the version need no line of their own.
    for name in set(falcon_numba.__all__) - {"Plan", "SchemeError", "UnknownSchemeError", "__version__"}:
        assert re.search(rf"\b{name}\b", text), name
    for name in OPTIONS:
        assert f"`{name}`" in text, name
