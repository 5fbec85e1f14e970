"""Plain streams through memory, in vectors: what a level of the memory hierarchy can deliver, for calibration."""

from __future__ import annotations

import functools
from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import Vec, c64
from .spec import SPECS

KINDS = ("read", "write", "copy", "cached")
UNROLL = 8


@functools.cache
def make_stream(isa: str, kind: str) -> Any:
    """A compiled function (address, bytes, rounds) that goes over memory again and again without the GIL.

    ``"read"`` adds all vectors up (and leaves the sums in the first ones), ``"write"`` writes a constant with streaming
    stores, ``"copy"`` copies the first half to the second with streaming stores, ``"cached"`` with ordinary ones.
    `address` is aligned to a cache line; `bytes` counts in steps of 2·UNROLL vectors.
    """
    VL = SPECS[isa, "float32"].VL

    @intrinsic
    def sweep(typingctx, address, nbytes):
        def codegen(context, builder, signature, args):
            address, nbytes = args
            v = Vec(builder, "float32", VL)
            copies = kind in ("copy", "cached")
            half = builder.udiv(nbytes, c64(2)) if copies else nbytes
            target = builder.add(address, half)
            one = v.splat(v.elem(1.0))
            sums = [cgutils.alloca_once_value(builder, v.zero) for _ in range(UNROLL if kind == "read" else 0)]
            with cgutils.for_range(builder, builder.udiv(half, c64(UNROLL * v.width))) as each:
                start = builder.mul(each.index, c64(UNROLL * v.width))
                for i in range(UNROLL):
                    offset = builder.add(start, c64(i * v.width))
                    here = builder.add(address, offset)
                    if kind == "read":
                        builder.store(builder.fadd(builder.load(sums[i]), v.load(here, align=v.width)), sums[i])
                    elif kind == "write":
                        v.store(one, here, align=v.width, nontemporal=True)
                    else:
                        to = builder.add(target, offset)
                        v.store(v.load(here, align=v.width), to, align=v.width, nontemporal=kind == "copy")
            for i, total in enumerate(sums):  # stored, so that the loop isn't optimised away
                v.store(builder.load(total), builder.add(address, c64(i * v.width)), align=v.width)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @njit(types.void(types.int64, types.int64, types.int64), nogil=True)
    def stream(address, nbytes, rounds):
        for _ in range(rounds):
            sweep(address, nbytes)

    return stream
