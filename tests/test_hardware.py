"""Hardware facts from made-up trees of /sys and /proc, and from this machine."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from falcon_numba.decision.hardware import DEFAULTS, _family, detect, hardware, isa_family

CPU = "sys/devices/system/cpu"
FACTS = {
    *("cpu", "llvm_cpu", "architecture", "isa", "physical_cores", "logical_cores", "usable_cpus"),
    *("l1d", "l2", "l3", "memory", "memory_limit"),
}


def no_sysconf(name: str) -> int:
    raise ValueError("unrecognized configuration name")


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(root: Path, cpus: int = 8, threads: int = 2, **extra: str) -> Path:
    """A server with `threads` CPUs a core and 32K/1M/96M of cache; `extra` replaces files (a/b spelt a__b)."""
    files = {
        f"{CPU}/online": f"0-{cpus - 1}\n",
        "proc/cpuinfo": "processor\t: 0\nvendor_id\t: X\nmodel name\t: Example  9000 CPU\n\nmodel name : second\n",
        "proc/meminfo": "MemTotal:       65536000 kB\nMemFree:        1000 kB\n",
    }
    for cpu in range(cpus):
        core = cpu // threads * threads
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{core}-{core + threads - 1}\n"
        caches = [("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "1024K"), ("3", "Unified", "96M")]
        for index, (level, kind, size) in enumerate(caches):
            folder = f"{CPU}/cpu{cpu}/cache/index{index}"
            files |= {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size}
    return tree(root, files | {name.replace("__", "/"): text for name, text in extra.items()})


def test_full_tree(tmp_path):
    facts = detect(machine(tmp_path), affinity=range(8), sysconf=no_sysconf)
    assert (facts.cpu, facts.logical_cores, facts.physical_cores) == ("Example 9000 CPU", 8, 4)
    assert (facts.l1d, facts.l2, facts.l3) == (32 << 10, 1 << 20, 96 << 20)
    assert facts.memory == facts.memory_limit == 65536000 << 10
    assert facts.usable_cpus == 8
    assert facts.source("l2") == "sysfs" and facts.source("usable_cpus") == "affinity"
    assert facts.source("cpu") == facts.source("memory") == facts.source("memory_limit") == "procfs"


def test_affinity_narrows_and_names_the_cpu_whose_caches_count(tmp_path):
    root = machine(tmp_path)
    tree(root, {f"{CPU}/cpu5/cache/index2/size": "4M"})
    facts = detect(root, affinity={7, 5}, sysconf=no_sysconf)
    assert (facts.usable_cpus, facts.source("usable_cpus")) == (2, "affinity")
    assert facts.l2 == 4 << 20
    assert facts.logical_cores == 8


@pytest.mark.parametrize(
    ("files", "usable", "limit"),
    [
        # Version 2 in a container: the group is the root of the mount although its name is the host's.
        (
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/cpu.max": "150000 100000",
                "sys/fs/cgroup/memory.max": "1073741824\n",
            },
            2,
            1 << 30,
        ),
        # Version 2 on the host: the parent's limit is the tighter one.
        (
            {
                "proc/self/cgroup": "0::/user.slice/job",
                "sys/fs/cgroup/user.slice/cpu.max": "100000 100000",
                "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000",
                "sys/fs/cgroup/user.slice/job/memory.max": "max",
            },
            1,
            None,
        ),
        # Version 1, controllers mounted together; a quota below one CPU still leaves one.
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/x/y\n1:name=systemd:/\n",
                "sys/fs/cgroup/cpu,cpuacct/x/y/cpu.cfs_quota_us": "20000",
                "sys/fs/cgroup/cpu,cpuacct/x/y/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "536870912",
            },
            1,
            512 << 20,
        ),
        # Version 1 without limits, beside a version-2 mount as hybrids have it.
        (
            {
                "proc/self/cgroup": "2:cpu:/\n4:memory:/\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/unified/cpu.max": "300000 100000",
            },
            3,
            None,
        ),
        # Garbled in every way.
        (
            {
                "proc/self/cgroup": "nonsense\n::\n0::/../../etc\n7:cpu\n",
                "sys/fs/cgroup/cpu.max": "many 0",
                "sys/fs/cgroup/memory.max": "-5",
            },
            8,
            None,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "100000 0", "sys/fs/cgroup/memory.max": "0"}, 8, None),
    ],
)
def test_cgroup_limits(tmp_path, files, usable, limit):
    facts = detect(tree(machine(tmp_path), files), affinity=range(8), sysconf=no_sysconf)
    assert facts.usable_cpus == usable
    assert facts.source("usable_cpus") == ("affinity" if usable == 8 else "cgroup")
    assert facts.memory_limit == (limit or facts.memory)
    assert facts.source("memory_limit") == ("cgroup" if limit else "procfs")


def test_nothing_readable_gives_documented_defaults(tmp_path):
    facts = detect(tmp_path / "missing", affinity=(), sysconf=no_sysconf)
    for name in ("l1d", "l2", "l3", "memory"):
        assert (getattr(facts, name), facts.source(name)) == (DEFAULTS[name], "default")
    assert facts.logical_cores == facts.physical_cores == facts.usable_cpus == os.cpu_count()
    assert facts.source("usable_cpus") == "python"
    assert facts.cpu and facts.source("cpu") == "llvm"


@pytest.mark.parametrize("junk", ["", "32KB", "-32K", "K", "²K", "0", "9" * 400 + "K", "\x00\xff"])
def test_garbled_sizes(tmp_path, junk):
    root = machine(tmp_path)
    tree(root, {f"{CPU}/cpu0/cache/index{index}/size": junk for index in range(4)})
    tree(root, {f"{CPU}/online": junk, "proc/cpuinfo": junk, "proc/meminfo": f"MemTotal: {junk}\n"})
    facts = detect(root, affinity=range(8), sysconf=no_sysconf)
    for name in ("l1d", "l2", "l3", "memory"):
        assert (getattr(facts, name), facts.source(name)) == (DEFAULTS[name], "default")
    assert facts.logical_cores >= 1


def test_binary_and_folder_in_place_of_files(tmp_path):
    root = machine(tmp_path)
    (root / CPU / "online").write_bytes(bytes(range(256)))
    (root / "proc/meminfo").unlink()
    (root / "proc/meminfo").mkdir()
    facts = detect(root, affinity=range(8), sysconf=no_sysconf)
    assert facts.memory == DEFAULTS["memory"]


def test_sysconf_serves_where_sysfs_is_hidden(tmp_path):
    known = {"SC_LEVEL1_DCACHE_SIZE": 49152, "SC_LEVEL2_CACHE_SIZE": 2 << 20, "SC_LEVEL3_CACHE_SIZE": -1}
    known |= {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    facts = detect(tmp_path, affinity=range(2), sysconf=known.__getitem__)
    assert (facts.l1d, facts.source("l1d")) == (49152, "sysconf")
    assert (facts.memory, facts.source("memory")) == (4096000, "sysconf")
    assert (facts.l3, facts.source("l3")) == (DEFAULTS["l3"], "default")


def test_macos(tmp_path):
    known = {
        "machdep.cpu.brand_string": b"Example M9 Pro\0",
        "hw.logicalcpu": (12).to_bytes(4, sys.byteorder),
        "hw.physicalcpu": (12).to_bytes(4, sys.byteorder),
        "hw.l1dcachesize": (65536).to_bytes(8, sys.byteorder),
        "hw.perflevel0.l1dcachesize": (131072).to_bytes(4, sys.byteorder),
        "hw.l2cachesize": (16 << 20).to_bytes(8, sys.byteorder),
        "hw.memsize": (32 << 30).to_bytes(8, sys.byteorder),
    }
    facts = detect(tmp_path, affinity=(), sysctl=known.get, sysconf=no_sysconf)
    assert (facts.cpu, facts.logical_cores, facts.usable_cpus) == ("Example M9 Pro", 12, 12)
    assert (facts.l1d, facts.l2, facts.memory) == (128 << 10, 16 << 20, 32 << 30)
    assert facts.source("l2") == facts.source("usable_cpus") == "sysctl"
    # No L3: the last level is L2, not a default smaller than it.
    assert (facts.l3, facts.source("l3")) == (16 << 20, "default")


@pytest.mark.parametrize(
    ("features", "architecture", "family"),
    [
        ("+avx2,+fma,+avx512f,+avx512vl,+avx512dq,+avx512bw", "x86_64", "avx512"),
        ("+avx2,+fma,+avx512f,-avx512vl,+avx512dq,+avx512bw", "x86_64", "avx2"),
        ("+avx2,+fma,+avx512f", "x86_64", "avx2"),
        ("+avx2,-fma", "x86_64", "generic"),
        ("+avx2,+fma,-avx2", "x86_64", "generic"),
        ("", "x86_64", "generic"),
        ("", "aarch64", "neon"),
        ("+neon,+sve", "aarch64", "neon"),
        ("-neon", "aarch64", "generic"),
        ("", "riscv64", "generic"),
    ],
)
def test_isa_family_of_feature_strings(features, architecture, family):
    assert _family(features, architecture) == family


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("NUMBA_CPU_FEATURES", "+avx2,+fma", "avx2"),
        ("NUMBA_CPU_FEATURES", "+avx2,+fma,+avx512f,+avx512vl,+avx512dq,+avx512bw", "avx512"),
        ("NUMBA_CPU_NAME", "generic", "generic"),
    ],
)
def test_isa_respects_what_numba_was_told(variable, value, expected):
    if hardware().architecture != "x86_64":
        pytest.skip("feature names of x86")
    code = "from falcon_numba.decision.hardware import isa_family; print(isa_family())"
    environment = {**os.environ, variable: value, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == expected


def test_this_machine():
    facts = hardware()
    assert hardware() is facts
    assert pickle.loads(pickle.dumps(facts)) == facts and hash(facts) == hash(facts)
    assert {name for name, _ in facts.sources} == FACTS
    assert 1 <= facts.usable_cpus <= facts.logical_cores
    assert 1 <= facts.physical_cores <= facts.logical_cores
    assert 4 << 10 <= facts.l1d <= facts.l2 <= 1 << 30
    assert facts.isa in ("avx512", "avx2", "neon", "generic")
    assert 0 < facts.memory_limit <= facts.memory


def test_isa_is_cheap():
    import numba  # noqa: F401

    start = time.perf_counter()
    for _ in range(20):
        isa_family.__wrapped__()
    assert (time.perf_counter() - start) / 20 < 0.005


def test_import_reads_nothing():
    code = (
        "import builtins, sys\n"
        "import falcon_numba.decision.hardware as h\n"
        "assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules\n"
        "assert h.hardware.cache_info().currsize == 0\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
