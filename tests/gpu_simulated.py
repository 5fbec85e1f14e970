"""Products of the portable kernel in Numba's CUDA simulator, against NumPy; `test_gpu_tile` runs this file.

The simulator is chosen when numba.cuda is imported, so that it needs a process of its own.
"""

from __future__ import annotations

import warnings

import numpy as np

from falcon_numba.gpu import target, tile

rng = np.random.default_rng(7)


def whole(shape, dtype):
    """Small integers, which every dtype holds and adds exactly."""
    dtype = np.dtype(dtype)
    low = 0 if dtype.kind in "bu" else -3
    x = rng.integers(low, 2 if dtype.kind == "b" else 4, shape)
    if dtype.kind == "c":
        x = x + 1j * rng.integers(-3, 4, shape)
    return x.astype(dtype)


def laid_out(x, layout):
    """The same matrices in other memory, as (1-D memory, strides in elements)."""
    if layout == "F":
        x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "gaps":
        memory = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
        memory[..., : 2 * x.shape[-1] : 2] = x
        x = memory[..., : 2 * x.shape[-1] : 2]
        base = memory
    else:
        base = x if x.flags.c_contiguous else x.swapaxes(-1, -2)
    return base.reshape(-1), [s // x.itemsize for s in x.strides]


def check(dtypes, mnk, layouts, alpha, beta, batch=2, conjugate=(False, False)):
    M, N, K = mnk
    number = tile.accumulator_of(np.result_type(*dtypes))
    spec = tile.Spec(*dtypes, number.name, *conjugate)
    shapes = [(batch, M, K), (batch, K, N), (batch, M, N), (batch, M, N)]
    a, b, c, out = (whole(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    memories = [laid_out(x, layout) for x, layout in zip((a, b, c, out), layouts, strict=True)]
    strides = [s for _, (z, i, j) in memories for s in (0, z, i, j)]
    kernel = target.numba_cuda().jit(tile.build(spec))
    grid = tile.grid(spec, M, N, batch)
    arguments = [memory for memory, _ in memories]
    kernel[grid, spec.tile.threads](*arguments, M, N, K, batch, batch, *strides, number.type(alpha), number.type(beta))
    x, y = (z.astype(number) for z in (a, b))
    x, y = (np.conj(z) if flag else z for z, flag in zip((x, y), conjugate, strict=True))
    expected = alpha * (x @ y) + (beta * c.astype(number) if beta else 0)
    memory, steps = memories[3]
    got = np.lib.stride_tricks.as_strided(memory, out.shape, [s * memory.itemsize for s in steps])
    np.testing.assert_array_equal(got, expected.astype(dtypes[3]))


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)  # integers wrap
    assert target.simulated()
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    names = [*integers, "bool", "float16", "float32", "float64", "complex64", "complex128"]
    for name in names:
        check([name] * 4, (5, 7, 4), ("C", "C", "C", "C"), 1, 0)
    check(["float32"] * 4, (5, 7, 4), ("F", "C", "F", "gaps"), 2, 3)
    check(["float32"] * 4, (1, 8, 1), ("gaps", "F", "C", "F"), 1, -1)
    check(["float64"] * 4, (9, 1, 7), ("F", "gaps", "C", "C"), -1, 1, batch=1)
    check(["float32"] * 4, (3, 2, 0), ("C", "C", "C", "C"), 2, 3)
    check(["uint8", "int8", "int32", "int32"], (4, 6, 3), ("C", "F", "C", "C"), 2, 1)
    check(["int8", "float32", "float16", "float64"], (4, 5, 3), ("C", "C", "F", "C"), 1, 1)
    check(["complex64"] * 4, (3, 4, 5), ("C", "F", "C", "C"), 1, 1, conjugate=(True, False))
    check(["float32", "complex64", "complex64", "complex64"], (3, 4, 5), ("C",) * 4, 1, 0, conjugate=(True, True))
    print("simulated")
