"""The portable GPU kernel: in the simulator, compiled without a GPU, and its host side; on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba
from falcon_numba.gpu import tile

needs_numba_cuda = pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="numba-cuda is missing")


@needs_numba_cuda
def test_products_in_the_simulator(tmp_path):
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "FALCON_CACHE_DIR": str(tmp_path)}
    file = Path(__file__).with_name("gpu_simulated.py")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, timeout=600)
    assert done.stdout.strip() == "simulated", done.stderr


def test_importing_loads_nothing_of_cuda():
    code = (
        "import sys, numpy as np, falcon_numba; falcon_numba.gemm(np.eye(3), np.eye(3)); falcon_numba.matmul([1], [1]);"
        "assert not {'numba.cuda', 'cuda', 'falcon_numba.gpu.api'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@needs_numba_cuda
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
@pytest.mark.parametrize(
    "spec",
    [
        tile.Spec("float32", "float32", "float32", "float32", "float32"),
        tile.Spec("bfloat16", "float16", "bool", "bfloat16", "float32"),
        tile.Spec("complex64", "float64", "float16", "complex128", "complex128", True, False),
        tile.Spec("uint8", "int16", "bool", "int64", "int64"),
        tile.Spec("bool", "bool", "bool", "bool", "int32"),
    ],
)
def test_kernels_compile_without_a_gpu_and_come_back_from_the_disk(spec, capability, tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvvm")
    monkeypatch.setenv("FALCON_CACHE_DIR", str(tmp_path))
    source = tile.source(spec)
    name, cubin = source.compile(capability)
    assert cubin.startswith(b"\x7fELF") and name.encode() in cubin
    (file,) = tmp_path.iterdir()
    never = source._replace(build=lambda: pytest.fail("compiled again"))
    assert never.compile(capability) == (name, cubin)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))  # damaged: compiled anew
    assert source.compile(capability)[0].encode() in source.compile(capability)[1]


@given(
    st.lists(st.integers(1, 4), max_size=5), st.lists(st.lists(st.integers(-9, 9), min_size=5, max_size=5), max_size=3)
)
def test_merged_batch_axes_reach_the_same_elements(shape, strides):
    dense = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    strides = [x[: len(shape)] for x in strides] + [dense]
    merged, steps = tile.batch_axes(shape, strides)
    assert len(merged) >= 2 and np.prod(merged) == np.prod(shape)

    def offsets(sizes, own):
        return [sum(i * s for i, s in zip(index, own, strict=True)) for index in np.ndindex(*sizes)]

    for before, after in zip(strides, steps, strict=True):
        assert offsets(shape, before) == offsets(merged, after)


def test_dense_batches_are_one_launch():
    assert tile.batch_axes((3, 4, 5), [(20, 5, 1), (40, 10, 2)]) == ([1, 60], [[0, 1], [0, 2]])


def test_host_tensors_are_refused_as_before():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 2)
    for operands in ((x, x), (x, np.ones((2, 2)))):
        for function in (falcon_numba.gemm, falcon_numba.matmul):
            with pytest.raises(TypeError, match=r"Tensor are not supported; convert to numpy\.ndarray"):
                function(*operands)


@settings(max_examples=200)
@given(st.integers(-(2**70), 2**70), st.sampled_from([8, 16, 32, 64]))
def test_integer_scalars_become_signed(value, bits):
    api = pytest.importorskip("falcon_numba.gpu.api")
    number = np.dtype(f"int{bits}")
    assert (api._scalar(value, number) - value) % 2**bits == 0
    assert np.iinfo(number).min <= api._scalar(value, number) <= np.iinfo(number).max
