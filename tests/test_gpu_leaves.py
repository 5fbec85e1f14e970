"""Leaf kernels compiled without a GPU: registers, spills, warnings; and which products a leaf takes."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numba_cuda")
leaf = pytest.importorskip("falcon_numba.gpu.leaf")


def ptxas():
    try:
        import nvidia.cu13

        places = [Path(p) / "bin" for p in nvidia.cu13.__path__]
    except ImportError:
        places = []
    found = [str(p / "ptxas") for p in places if (p / "ptxas").exists()] or [shutil.which("ptxas")]
    return found[0]


@pytest.mark.parametrize("cc, arch", [((8, 0), "sm_80"), ((9, 0, "a"), "sm_90a")])
@pytest.mark.parametrize("dtype", ["float32"])
def test_no_spills(dtype, cc, arch, tmp_path):
    if ptxas() is None:
        pytest.skip("needs ptxas")
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.cudadrv import nvvm

    source = leaf.source_for(dtype)
    options = {"opt": 3, "fastmath": False}
    result = compile_cuda(source.function, leaf.types.void, tuple(source.arguments), nvvm_options=options, cc=cc[:2])
    library, name = result.library, result.fndesc.llvm_func_name
    function = library.get_function(name)
    library._entry_name = name
    kernel_fixup(function, False)
    nvvm.set_launch_bounds(function, (source.family.threads, source.blocks_per_sm))
    text = tmp_path / "kernel.ptx"
    text.write_text(library.get_asm_str(cc=cc))
    command = [ptxas(), "-v", f"-arch={arch}", str(text), "-o", str(tmp_path / "kernel.cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True)
    log = report.stdout + report.stderr
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    assert "C75" not in log


def test_accepts_only_whole_aligned_tiles():
    source = leaf.source_for("float32")
    good = leaf.LeafProduct(0, 4096, 8192, 256, 128, 64, 64, 128, 128)
    assert leaf.accepts(source, [good, good])
    for change in ({"M": 255}, {"K": 33}, {"a": 4}, {"ldc": 129}, {"N": 0}):
        assert not leaf.accepts(source, [replace(good, **change)])
    assert not leaf.accepts(source, [good, replace(good, alpha=2.0)])
    assert not leaf.accepts(source, [])
    with pytest.raises(NotImplementedError):
        leaf.source_for("int8")
