"""LCMA plans on the GPU with the vendor's leaf against the vendor's own product, interleaved, and the combine kernels'
bandwidth against a copy: CUDA events, random data. Needs a CUDA GPU, PyTorch and numba-cuda.

python bench/gpu_plans.py [--quick]
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from falcon_numba import schemes
from falcon_numba.gpu import combine
from falcon_numba.gpu.engine import Matrix, prepare
from falcon_numba.gpu.vendor import torch_leaf

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = [
    ("float32", 8192, (1, 2, 3)),
    ("float32", 16384, (1, 2, 3)),
    ("float64", 8192, (1, 2)),
    ("float64", 16384, (1, 2, 3)),
    ("bfloat16", 16384, (1, 2)),
    ("bfloat16", 32768, (1, 2)),
]


def as_matrix(x: torch.Tensor) -> Matrix:
    return Matrix(x.data_ptr(), x.shape[0], x.shape[1], x.stride(0), str(x.dtype).removeprefix("torch."))


def plan(a: Any, b: Any, c: Any, names: tuple[str, ...], **options: Any) -> Any:
    """A function that runs the plan on PyTorch's stream."""
    kept = []

    def allocate(size: int) -> int:
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return kept[0].data_ptr()

    levels = tuple(schemes[name] for name in names)
    launch = prepare(as_matrix(a), as_matrix(b), as_matrix(c), levels, torch_leaf, allocate, **options)

    def run(_alive: Any = (kept, a, b, c)) -> None:
        launch(torch.cuda.current_stream().cuda_stream)

    return run


def times(items: dict[str, Any], rounds: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of each, one after the other in every round."""
    found: dict[str, list[float]] = {name: [] for name in items}
    repeats: dict[str, int] = {}
    for i in range(rounds + 1):
        for name, run in items.items():
            count = repeats.get(name, 1)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                run()
            end.record()
            end.synchronize()
            elapsed = begin.elapsed_time(end) / count
            if i == 0:
                run()
                repeats[name] = max(1, min(50, int(1000 * seconds / elapsed)))
            else:
                found[name].append(elapsed)
    return {name: statistics.median(x) for name, x in found.items()}


def bandwidth(name: str, dtype: str, n: int) -> None:
    """TB/s, bytes read and written, of the input and the output combine of one level."""
    scheme, kind = schemes[name], DTYPES[dtype]
    x = torch.randn(n, n, device="cuda", dtype=torch.float32).to(kind)
    rows, cols = n // scheme.m // 8 * 8, n // scheme.k // 8 * 8
    out = torch.empty(scheme.rank, rows, cols, device="cuda", dtype=kind)
    h = torch.randn(
        scheme.rank, rows, cols, device="cuda", dtype=torch.float64 if dtype == "float64" else torch.float32
    )
    c, y = torch.empty_like(x), torch.empty_like(x)
    height, width = rows * scheme.m, cols * scheme.n
    table = torch.tensor(
        [[x.data_ptr(), n, height, width, out.data_ptr()], [h.data_ptr(), c.data_ptr(), n, height, width]]
    )
    table = table.cuda()
    where, products = table.data_ptr(), str(h.dtype).removeprefix("torch.")
    a, o = combine.input_kernel(scheme, "A", dtype), combine.output_kernel(scheme, products, dtype, True)
    grid = [(-(-cols // k.source.columns), rows, 1) for k in (a, o)]
    read = a.launcher(grid[0], [where, rows, cols, 1, 0])
    write = o.launcher(grid[1], [where + 40, rows, cols, 1, 1.0, 0.0, 0, 0, 0, 0, 0])
    stream = torch.cuda.current_stream().cuda_stream
    t = times({"copy": lambda: y.copy_(x), "in": lambda: read(stream), "out": lambda: write(stream)}, 5, 0.02)
    one, size = x.element_size() * height * width / 1e9, x.element_size() * x.numel() / 1e9
    sums, products_bytes = out.element_size() * out.numel() / 1e9, h.element_size() * h.numel() / 1e9
    print(f"combine {name} {dtype} {n}: copy {2 * size / t['copy']:.2f}, in {(one + sums) / t['in']:.2f}, "
          f"out {(one + products_bytes) / t['out']:.2f} TB/s", flush=True)  # fmt: skip


def speed(dtype: str, n: int, depths: tuple[int, ...]) -> None:
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float32).to(DTYPES[dtype]) for _ in range(2))
    c = torch.empty_like(a)
    sample = a[:256].double() @ b[:, :512].double()  # the rows and columns the errors are taken of
    names = ["winograd"] if dtype != "bfloat16" else ["strassen", "winograd"]
    runs = {"vendor": lambda: torch.mm(a, b, out=c)}
    for depth in depths:
        for name in names[:1] if depth > 1 else names:
            runs[f"{name}^{depth}"] = plan(a, b, c, (name,) * depth)
    runs[f"{names[0]}^{depths[-1]} normwise"] = plan(a, b, c, (names[0],) * depths[-1], accuracy="normwise")
    errors = {}
    for key, run in runs.items():
        c.fill_(float("nan"))
        run()
        errors[key] = ((c[:256, :512].double() - sample).norm() / sample.norm()).item()
    found = times(runs, 4, 0.06)
    for key, t in found.items():
        print(f"{dtype} {n} {key:22s} {t:9.3f} ms {2 * n**3 / t / 1e9:7.1f} TFLOP/s ×{found['vendor'] / t:.3f} "
              f"error {errors[key]:.1e}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small sizes only")
    quick = parser.parse_args().quick
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, dtype in [
        ("winograd", "float32"),
        ("winograd", "bfloat16"),
        ("strassen", "float64"),
        ("laderman", "float32"),
    ]:
        bandwidth(name, dtype, 16384)
    for dtype, n, depths in CASES:
        if n <= 8192 or not quick:
            speed(dtype, n, depths)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
