"""The vendor library's product as a leaf: cuBLAS through PyTorch."""

from __future__ import annotations

from typing import Any

from .compiled import Launch

_TYPESTR = {"float16": "<f2", "bfloat16": "<i2", "float32": "<f4", "float64": "<f8"}


class _Memory:
    def __init__(self, address: int, shape: tuple[int, ...], dtype: str):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": _TYPESTR[dtype], "version": 3, "strides": None,
        }  # fmt: skip


def tensor(address: int, shape: tuple[int, ...], dtype: str) -> Any:
    """A contiguous PyTorch tensor over device memory, which the caller keeps alive."""
    import torch

    out = torch.as_tensor(_Memory(address, shape, dtype), device="cuda")
    return out.view(torch.bfloat16) if dtype == "bfloat16" else out


def torch_leaf(a: int, b: int, h: int, count: int, shape: tuple[int, int, int], dtype: str, products: str) -> Launch:
    """All leaf products as one `torch.bmm`, on PyTorch's current stream, which must be the one launched on."""
    import torch

    rows, inner, columns = shape
    A, B = tensor(a, (count, rows, inner), dtype), tensor(b, (count, inner, columns), dtype)
    H = tensor(h, (count, rows, columns), products)
    if dtype == products:
        return lambda stream: torch.bmm(A, B, out=H)
    return lambda stream: torch.ops.aten.bmm.dtype_out(A, B, torch.float32, out=H)
