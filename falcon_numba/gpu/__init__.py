"""Products on NVIDIA GPUs, through numba-cuda: `gemm` and `matmul` of arrays in device memory.

Importing this package loads nothing of CUDA; `target` does that, when a product asks for it. It isn't named `cuda`
because numba-cuda redirects the import of every module whose name contains ``numba.cuda``.
"""

from __future__ import annotations

from typing import Any


def is_device_type(kind: type) -> bool:
    """Whether arrays of this type may be in device memory."""
    return hasattr(kind, "__cuda_array_interface__")


def handle(function: Any, operands: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Computes `gemm` or `matmul` of device arrays (`api.handle`), loading the engine."""
    from .api import handle as run

    return run(function, operands, keywords)
