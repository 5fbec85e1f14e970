"""How long the first product of a new process takes: compiling everything, and with the compiled code on disk.

python bench/startup.py --dtype float32
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import say

# From before the import to after the product, as a user feels it; NumPy is there already.
PROGRAM = """
import time, numpy as np
a = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.{dtype})
start = time.perf_counter()
import falcon_numba
imported = time.perf_counter()
falcon_numba.gemm(a, a, depth={depth}, executor="cpu")
print(imported - start, time.perf_counter() - start)
"""


def first_product(dtype: str, depth: int, cache: str) -> tuple[float, float]:
    """Seconds of the import, and of import and first product, in a new process with its compiled code in `cache`."""
    path = os.pathsep.join([str(Path(__file__).resolve().parent.parent), *sys.path])
    environment = {**os.environ, "FALCON_CACHE_DIR": cache, "PYTHONPATH": path}
    program = PROGRAM.format(dtype=dtype, depth=depth)
    out = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    imported, total = map(float, out.stdout.split())
    return imported, total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=("float32", "float64"), default=["float32"])
    parser.add_argument("--depth", type=int, default=1, help="of the product (an LCMA compiles the guard as well)")
    parser.add_argument("--repetitions", type=int, default=5, help="of the warm start")
    args = parser.parse_args()
    for dtype in args.dtype:
        with tempfile.TemporaryDirectory() as cache:
            say(f"{dtype}: compiling in a new process ...")
            _, cold = first_product(dtype, args.depth, cache)
            warm = [first_product(dtype, args.depth, cache) for _ in range(args.repetitions)]
        imported, total = (statistics.median(x) for x in zip(*warm, strict=True))
        print(
            f"{dtype}: import and first product {cold:.2f} s when everything compiles, "
            f"{total:.2f} s from the cache (of which {imported:.2f} s are the import)"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
