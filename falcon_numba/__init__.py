"""falcon_numba: matrix multiplication beyond the hardware's classical peak.

`gemm` and `matmul` multiply NumPy arrays with lower-complexity algorithms (Strassen and its kin) where they pay, under
a stated error bound. `schemes` is the catalogue of algorithms, `plan` tells what would run and why. Names are loaded
on first use; importing this package compiles nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .algorithms import Scheme, SchemeError, UnknownSchemeError, compose, load_scheme, save_scheme, schemes
    from .api import gemm, matmul
    from .checking import ProductCheckWarning, check_counts
    from .config import config_context, set_config, show_config
    from .cpu.workspace import release as release_workspace
    from .explanation import explain
    from .gramian import gram
    from .planning import Plan
    from .powers import matrix_power
    from .preview import plan, plan_for
    from .tracing import trace
    from .verification import Verification, verify_product

_HOME = {
    "algorithms": ("Scheme", "SchemeError", "UnknownSchemeError", "compose", "load_scheme", "save_scheme", "schemes"),
    "api": ("gemm", "matmul"),
    "preview": ("plan", "plan_for"),
    "checking": ("ProductCheckWarning", "check_counts"),
    "config": ("config_context", "set_config", "show_config"),
    "explanation": ("explain",),
    "gramian": ("gram",),
    "planning": ("Plan",),
    "powers": ("matrix_power",),
    "tracing": ("trace",),
    "verification": ("Verification", "verify_product"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Plan",
    "ProductCheckWarning",
    "Scheme",
    "SchemeError",
    "UnknownSchemeError",
    "Verification",
    "__version__",
    "check_counts",
    "compose",
    "config_context",
    "explain",
    "gemm",
    "gram",
    "load_scheme",
    "matmul",
    "matrix_power",
    "plan",
    "plan_for",
    "release_workspace",
    "save_scheme",
    "schemes",
    "set_config",
    "show_config",
    "trace",
    "verify_product",
]


def __getattr__(name: str) -> Any:
    if name == "release_workspace":
        from .cpu.workspace import release as value
    elif name in _MODULE:
        value = getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
