"""Makes `gemm` known to Numba as soon as both are imported, in either order, without importing Numba.

An installed package is found by Numba itself, through its entry point; a checkout on the path isn't.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def _register() -> None:
    from .cpu.overload import register

    register()


class _NumbaWatch:
    """Waits on `sys.meta_path` for the first import of numba."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "numba":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def register_with_numba() -> None:
    """Now, or when numba comes; `falcon_numba.api` calls this once `gemm` exists."""
    if "numba" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _NumbaWatch())
