"""Arrays in every memory layout NumPy has, for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def layouts(draw, shape, dtype, *, writeable=False):
    """An array of small integers in `dtype`: permuted axes, steps over gaps, reversed axes, axes of stride 0,
    off its alignment, foreign byte order, read-only. With `writeable` only what NumPy lets one write to."""
    dtype = np.dtype(dtype)
    if draw(st.integers(0, 4)) == 0:
        dtype = dtype.newbyteorder()
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2, 3, -1, -2))) for _ in shape]
    if not writeable:
        steps = [0 if draw(st.integers(0, 5)) == 0 else step for step in steps]
    held = [size * abs(step) if step else 1 for size, step in zip(shape, steps, strict=True)]

    count = int(np.prod(held))
    offset = draw(st.sampled_from((0, 0, 0, 1, 3)))
    data = np.zeros(count * dtype.itemsize + offset, np.uint8)
    base = data[offset:].view(dtype).reshape([held[axis] for axis in order]).transpose(np.argsort(order))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    base[...] = rng.integers(0 if dtype.kind in "bu" else -4, 5, base.shape)
    if dtype.kind == "c":
        base.imag = rng.integers(-4, 5, base.shape)
    x = base[(..., *(slice(None, None, step or 1) for step in steps))]
    x = np.broadcast_to(x, shape) if 0 in steps else x
    if not writeable and draw(st.booleans()):
        x.flags.writeable = False
    assert x.shape == tuple(shape)
    return x


def significant_strides(x):
    """Strides of the axes along which one can step."""
    return [stride for stride, size in zip(x.strides, x.shape, strict=True) if size > 1] if x.size else []
