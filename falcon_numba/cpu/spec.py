"""The table of kernel shapes: one line per instruction set and dtype.

A micro-kernel holds an MR × NR tile of the product in vector registers, NR = NV·VL: MR·NV accumulators, NV
registers for a row of B and one for the broadcast of A must fit in the register file (32 registers with AVX-512
and NEON, 16 with AVX2 and SSE2). MR·NV ≥ 8 independent FMA chains hide the latency of 4 cycles at two FMA a cycle.

Integers of either sign share a kernel: modulo 2^bits their sums and products have the same bits. The kernel of int16
multiplies pairs and adds them to sums of 32 bits in one instruction (`pmaddwd` and its kin), modulo 2^32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """Shape of the micro-kernel for one instruction set and dtype.

    Attributes
    ----------
    isa : str
    dtype : str
        NumPy name of the dtype that is packed and multiplied.
    VL : int
        Vector length in sums.
    MR, NV : int
        Rows of the tile, vectors in a row of it.
    KC : int
        Most inner-dimension steps of a packed block: an MR × KC sliver of A and a KC × NR panel of B
        share L1 and L2 with the streams around them.
    sums : str
        NumPy name of the dtype of sums and results, by default `dtype`. If it is wider, a lane of a vector holds
        several elements of the inner dimension (`DOT`).
    """

    isa: str
    dtype: str
    VL: int
    MR: int
    NV: int
    KC: int
    sums: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", self.sums or self.dtype)

    @property
    def NR(self) -> int:
        return self.NV * self.VL

    @property
    def itemsize(self) -> int:
        """Bytes of what is packed."""
        return np.dtype(self.dtype).itemsize

    @property
    def sum_size(self) -> int:
        """Bytes of an element of the result."""
        return np.dtype(self.sums).itemsize

    @property
    def DOT(self) -> int:
        """Products that one lane adds up in a step."""
        return self.sum_size // self.itemsize

    @property
    def chunk(self) -> int:
        """Elements of a row of A in one vector."""
        return self.VL * self.DOT

    @property
    def pack_VL(self) -> int:
        """Elements in a vector while packing: a vector of A, and no more than a row of a panel of B."""
        return min(self.chunk, self.NR)

    @property
    def widest_group(self) -> int:
        """Bytes of a row of a chunk of A or of a panel of B, whichever are more."""
        return max(self.chunk, self.NR) * self.itemsize

    @property
    def exact(self) -> bool:
        """Whether the arithmetic is that of integers modulo 2^bits."""
        return np.dtype(self.dtype).kind == "i"


_TABLE = [
    KernelSpec("avx512", "float32", VL=16, MR=12, NV=2, KC=1024),
    KernelSpec("avx512", "float64", VL=8, MR=12, NV=2, KC=512),
    KernelSpec("avx512", "int64", VL=8, MR=12, NV=2, KC=512),
    KernelSpec("avx512", "int32", VL=16, MR=12, NV=2, KC=1024),
    KernelSpec("avx512", "int16", VL=16, MR=12, NV=2, KC=2048, sums="int32"),
    KernelSpec("avx2", "float32", VL=8, MR=6, NV=2, KC=512),
    KernelSpec("avx2", "float64", VL=4, MR=6, NV=2, KC=256),
    KernelSpec("avx2", "int64", VL=4, MR=6, NV=2, KC=256),
    KernelSpec("avx2", "int32", VL=8, MR=6, NV=2, KC=512),
    KernelSpec("avx2", "int16", VL=8, MR=6, NV=2, KC=1024, sums="int32"),
    KernelSpec("neon", "float32", VL=4, MR=8, NV=3, KC=512),
    KernelSpec("neon", "float64", VL=2, MR=8, NV=3, KC=256),
    KernelSpec("neon", "int64", VL=2, MR=8, NV=3, KC=256),
    KernelSpec("neon", "int32", VL=4, MR=8, NV=3, KC=512),
    KernelSpec("neon", "int16", VL=4, MR=8, NV=2, KC=1024, sums="int32"),
    KernelSpec("generic", "float32", VL=4, MR=4, NV=2, KC=256),
    KernelSpec("generic", "float64", VL=2, MR=4, NV=2, KC=256),
    KernelSpec("generic", "int64", VL=2, MR=4, NV=2, KC=256),
    KernelSpec("generic", "int32", VL=4, MR=4, NV=2, KC=256),
    KernelSpec("generic", "int16", VL=4, MR=4, NV=2, KC=512, sums="int32"),
]

SPECS = {(s.isa, s.dtype): s for s in _TABLE}
