"""The table of kernel shapes: one line per instruction set and dtype.

A micro-kernel holds an MR × NR tile of the product in vector registers, NR = NV·VL: MR·NV accumulators, NV
registers for a row of B and one for the broadcast of A must fit in the register file (32 registers with AVX-512
and NEON, 16 with AVX2 and SSE2). MR·NV ≥ 8 independent FMA chains hide the latency of 4 cycles at two FMA a cycle.
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
        NumPy name of the lane dtype.
    VL : int
        Vector length in elements.
    MR, NV : int
        Rows of the tile, vectors in a row of it.
    KC : int
        Most inner-dimension steps of a packed block: an MR × KC sliver of A and a KC × NR panel of B
        share L1 and L2 with the streams around them.
    """

    isa: str
    dtype: str
    VL: int
    MR: int
    NV: int
    KC: int

    @property
    def NR(self) -> int:
        return self.NV * self.VL

    @property
    def itemsize(self) -> int:
        return np.dtype(self.dtype).itemsize


_TABLE = [
    KernelSpec("avx512", "float32", VL=16, MR=12, NV=2, KC=1024),
    KernelSpec("avx512", "float64", VL=8, MR=12, NV=2, KC=512),
    KernelSpec("avx2", "float32", VL=8, MR=6, NV=2, KC=512),
    KernelSpec("avx2", "float64", VL=4, MR=6, NV=2, KC=256),
    KernelSpec("neon", "float32", VL=4, MR=8, NV=3, KC=512),
    KernelSpec("neon", "float64", VL=2, MR=8, NV=3, KC=256),
    KernelSpec("generic", "float32", VL=4, MR=4, NV=2, KC=256),
    KernelSpec("generic", "float64", VL=2, MR=4, NV=2, KC=256),
]

SPECS = {(s.isa, s.dtype): s for s in _TABLE}
