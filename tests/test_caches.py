"""What lies on disk never changes an answer and never stops a run: damaged, foreign, old, locked away or missing."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numba
import pytest
from processes import copy_kernels, finish, python, start

import falcon_numba as fn
from falcon_numba import diskcache

PACKAGE = Path(fn.__file__).parent

PRODUCTS = """
    import warnings
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import falcon_numba as fn
        for dtype in ("float32", "float64"):
            a = np.arange(10_000).reshape(100, 100) % 7
            a = a.astype(dtype)
            a[0, 0] = np.nan
            assert np.isnan(fn.gemm(a, a, executor="cpu", depth=1)).sum() == 199
            a[0, 0] = 2.0**30 if dtype == "float32" else 2.0**200  # the guard's numbers count
            got = fn.gemm(a, a, executor="cpu", depth=1)
            assert np.abs(got - a @ a).max() <= 1e-5 * np.abs(a @ a).max()
    print(len(caught))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A folder with the compiled kernels of both dtypes, for copying."""
    folder = tmp_path_factory.mktemp("kernels")
    copy_kernels(folder, "float32", "float64")
    return folder


@pytest.fixture
def folder(kernels, tmp_path):
    """A cache folder of this test alone."""
    return Path(shutil.copytree(kernels, tmp_path / "cache"))


def warnings_of_products(folder, **environment: str) -> int:
    return int(python(PRODUCTS, FALCON_CACHE_DIR=str(folder), **environment))


def test_whole_files_of_other_kernels(folder):
    """Not damaged, but in the wrong place: somebody copied or renamed them."""
    guards = sorted(folder.glob("guard-*.bin"))
    assert len(guards) == 2
    swapped = [guard.read_bytes() for guard in guards][::-1]
    for guard, data in zip(guards, swapped, strict=True):
        guard.write_bytes(data)
    assert warnings_of_products(folder) == 0
    assert [guard.read_bytes() for guard in guards] != swapped


def test_things_in_the_way(folder):
    """A folder where a kernel should be, a link to nowhere: the product runs, what can't be kept is said once."""
    first, second = sorted(folder.glob("guard-*.bin"))
    first.unlink()
    first.mkdir()
    second.unlink()
    second.symlink_to(folder / "nowhere")
    assert warnings_of_products(folder) == 1
    assert first.is_dir() and second.is_file()


def _obey_permissions() -> None:
    """Of a child process, before it runs: root, too, writes only where the mode of a folder lets it."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="root must be kept from writing")
@pytest.mark.parametrize("missing", [False, True], ids=["warm", "guards missing"])
def test_read_only_folder(folder, missing):
    """Read where it can be; one warning where something should be kept."""
    for guard in folder.glob("guard-*.bin") if missing else ():
        guard.unlink()
    before = sorted(path.name for path in folder.iterdir())
    folder.chmod(0o555)
    code = textwrap.dedent(PRODUCTS) + "import os; assert not os.access(os.environ['FALCON_CACHE_DIR'], os.W_OK)"
    env = {**os.environ, "FALCON_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=_obey_permissions)
    folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ("1" if missing else "0")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_folder_that_vanishes_between_products(folder):
    out = python(
        """
        import os, shutil
        import numpy as np
        import falcon_numba as fn
        a = np.arange(10_000.0).reshape(100, 100) % 7
        assert (fn.gemm(a, a, executor="cpu", depth=1) == a @ a).all()
        shutil.rmtree(os.environ["FALCON_CACHE_DIR"])
        assert (fn.gemm(a, a, executor="cpu", depth=1) == a @ a).all()
        from falcon_numba.cpu import guard
        guard._guard.cache_clear()
        assert (fn.gemm(a, a, executor="cpu", depth=1) == a @ a).all()
        print(len(os.listdir(os.environ["FALCON_CACHE_DIR"])))
        """,
        FALCON_CACHE_DIR=str(folder),
    )
    assert out == "1"


def test_files_that_change_while_processes_start(folder):
    """Truncated, replaced and deleted at any moment."""
    guards = {guard: guard.read_bytes() for guard in folder.glob("guard-*.bin")}
    runs = [start(PRODUCTS, FALCON_CACHE_DIR=str(folder)) for _ in range(3)]
    kinds = 0
    while any(run.poll() is None for run in runs):
        for guard, data in guards.items():
            kinds += 1
            if kinds % 4 == 0:
                guard.unlink(missing_ok=True)
            else:
                guard.write_bytes(data[: len(data) * (kinds % 4) // 3])
    assert [finish(run) for run in runs] == ["0"] * 3


# --- stale code ------------------------------------------------------------------------------------------------------

HELPER = """
from ..inlined import inner

@inner
def helper(x):
    return x + 1
"""
PROBE = """
from numba import njit, types
from ..diskcache import DiskCache
from .helper import helper

def probe(x):
    return helper(1.0) if x != x else helper(0.0)

probe = njit(nogil=True)(probe)
probe._cache = DiskCache("probe")
probe.compile(types.float64(types.float64))
"""
RUN_PROBE = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import numpy as np
    from falcon_numba.cpu.probe import probe
    print(probe(np.nan), sum(probe.stats.cache_hits.values()))
"""


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, to be changed."""
    shutil.copytree(PACKAGE, tmp_path / "copy" / "falcon_numba", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


def test_changed_options_and_helpers_are_seen(copied, tmp_path):
    """Numba's own cache looks at neither; going back finds the old code again."""
    cpu, cache = copied / "falcon_numba" / "cpu", tmp_path / "cache"

    def run() -> str:
        return python(RUN_PROBE, str(copied), FALCON_CACHE_DIR=str(cache), PYTHONDONTWRITEBYTECODE="1")

    (cpu / "helper.py").write_text(HELPER)
    (cpu / "probe.py").write_text(PROBE)
    assert run() == "2.0 0"
    assert run() == "2.0 1"
    (cpu / "probe.py").write_text(PROBE.replace("nogil=True", "nogil=True, fastmath=True"))
    assert run() == "1.0 0"  # NaN isn't seen any more
    (cpu / "helper.py").write_text(HELPER.replace("x + 1", "x + 5"))
    assert run() == "5.0 0"
    (cpu / "probe.py").write_text(PROBE)
    assert run() == "6.0 0"
    (cpu / "helper.py").write_text(HELPER)
    assert run() == "2.0 1"


def test_a_changed_kernel_is_seen(copied, tmp_path):
    """The same with a kernel of the package itself."""
    guard, cache = copied / "falcon_numba" / "cpu" / "guard.py", tmp_path / "cache"
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np
        from falcon_numba.cpu.guard import magnitudes
        from falcon_numba.cpu.engine import table_of
        from falcon_numba.cpu.spec import SPECS
        from falcon_numba.cpu.blocking import choose_blocks
        from falcon_numba.algorithms import flatten
        from falcon_numba.problem import Problem
        spec = SPECS["generic", "float32"]
        x = np.full((3, 3), 4, np.float32)
        blocks = choose_blocks(spec, flatten(()), 3, 3, 3, 1, 1, 2**28)
        ((rows, columns),) = magnitudes(table_of([Problem(x, x, x.copy())], blocks), spec)
        print(rows.highest)
    """
    environment = {"FALCON_CACHE_DIR": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    assert python(code, str(copied), **environment) == "2"
    source = guard.read_text()
    before = "exponent = (x >> mantissa) - bias"
    assert source.count(before) == 1
    guard.write_text(source.replace(before, before + " + 40"))
    assert python(code, str(copied), **environment) == "42"
    guard.write_text(source)
    assert python(code, str(copied), **environment) == "2"


def test_everything_that_is_compiled_is_in_the_key():
    """Whoever compiles a function outside of the folders that are hashed must add it there."""
    compiled = ("njit", "jit(", "register_jitable", "@intrinsic", "@inner", "overload(")
    hashed = diskcache.compiled_sources()
    assert {PACKAGE / "cpu" / "simd.py", PACKAGE / "inlined.py"} < set(hashed)
    for file in PACKAGE.rglob("*.py"):
        if file.is_relative_to(PACKAGE / "gpu"):  # its kernels are kept elsewhere, under a key of their own
            continue
        used = [word for word in compiled if word in file.read_text()]
        mentions = file.name in ("api.py", "diskcache.py", "dispatch.py")
        assert file in hashed or mentions or not used, f"{file} compiles ({used}) but is not part of the key"


@pytest.mark.parametrize("setting", [("OPT", 1), ("BOUNDSCHECK", 1), ("LOOP_VECTORIZE", 0), ("DEBUGINFO_DEFAULT", 1)])
def test_settings_of_the_compiler_are_in_the_key(setting, monkeypatch):
    from numba.core.registry import cpu_target

    codegen = cpu_target.target_context.codegen()
    before = diskcache.DiskCache("x")._file("sig", codegen)
    monkeypatch.setattr(numba.config, *setting)
    assert diskcache.DiskCache("x")._file("sig", codegen) != before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kernels_compiled_in_forks_work_together(folder):
    """Numba numbers its functions, and children go on with their parent's numbers: names must differ all the same."""
    for guard in folder.glob("guard-*.bin"):
        guard.unlink()
    out = python(
        """
        import os
        import numpy as np
        import falcon_numba as fn
        a = np.arange(10_000).reshape(100, 100) % 7
        fn.gemm(a.astype("f4"), a.astype("f4"), executor="cpu", depth=0)
        for dtype in ("float32", "float64"):
            pid = os.fork()
            if pid == 0:
                x = a.astype(dtype)
                os._exit(0 if (fn.gemm(x, x, executor="cpu", depth=1) == x @ x).all() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """,
        FALCON_CACHE_DIR=str(folder),
    )
    assert out == ""
    assert len(list(folder.glob("guard-*.bin"))) == 2
    assert warnings_of_products(folder) == 0
