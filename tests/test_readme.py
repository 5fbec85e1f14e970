"""The Python in README.md runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    # A process of its own: the examples register a scheme.
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    assert "strassen" in run.stdout
