"""All shapes that the benchmarks run, and the speeds that are asked of them, as data."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """`batch` products of (M × K) by (K × N)."""

    M: int
    N: int
    K: int
    batch: int = 1

    @property
    def operations(self) -> int:
        """2·M·N·K for each product, whatever the algorithm really does: effective GFLOP/s count these."""
        return 2 * self.M * self.N * self.K * self.batch

    @property
    def square(self) -> bool:
        return self.M == self.N == self.K and self.batch == 1

    def __str__(self) -> str:
        if self.square:
            return str(self.M)
        return (f"{self.batch}*" if self.batch > 1 else "") + f"{self.M}x{self.N}x{self.K}"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From "4096", "2048x4096x7168" (M×N×K) or "64*512x512x512"."""
        batch, _, sizes = text.rpartition("*")
        parts = [int(x) for x in sizes.split("x")]
        M, N, K = parts * 3 if len(parts) == 1 else parts
        shape = cls(M, N, K, int(batch or 1))
        if min(shape) < 1:
            raise ValueError(f"{text}: sizes must be at least 1")
        return shape


# BLAS libraries like powers of two less and multiples of their tiles more: the other sizes are the honest floor.
SQUARES = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3000, 4096, 5000, 6500, 8192, 12288)
LARGE = (4096, 8192, 12288, 16384)  # for machines of many cores

# (N, K) of the linear layers of language models; M is the number of tokens.
DEEPSEEK = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
LLAMA_3_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
HUNYUAN = ((9216, 3072), (3072, 12288))
TOKENS = (512, 1024, 2048, 4096, 8192)

SETS: dict[str, tuple[Shape, ...]] = {
    "squares": tuple(Shape(n, n, n) for n in SQUARES),
    "large": tuple(Shape(n, n, n) for n in LARGE),
    "llm": tuple(Shape(M, N, K) for N, K in DEEPSEEK + LLAMA_3_8B + HUNYUAN for M in TOKENS),
    "batches": (Shape(8, 8, 8, 10000), Shape(64, 64, 64, 1000), Shape(512, 512, 512, 64)),
    "small": (
        *(Shape(n, n, n) for n in (2, 4, 8, 16, 32)),
        *(Shape(n, 1, n) for n in (1000, 4096)),  # matrix · vector
        *(Shape(1, n, n) for n in (1000, 4096)),
        *(Shape(n, n, 1) for n in (1000, 4096)),  # outer product
    ),
    "quick": (Shape(64, 64, 64), Shape(1024, 1024, 1024), Shape(300, 1100, 1500), Shape(32, 32, 32, 20)),
}


class Demand(NamedTuple):
    """What one variant of ours must reach on some lines of a run.

    Attributes
    ----------
    variant : str
        Contender: "auto", "depth 0", …
    dtype : str
    sets, sizes : tuple
        Names of sets, and the shapes of them that count.
    quantity : {"ratio", "mean ratio", "peak", "overhead"}
        Median of the best peer over ours; its mean over all these shapes; effective rate over the FMA peak; or
        microseconds that a call takes longer than the best peer's (then `least` is a most).
    least : float
    threads : tuple of int
        Empty: any.
    peers : tuple of str
        Empty: the best of all.
    """

    variant: str
    dtype: str
    sets: tuple[str, ...]
    sizes: tuple[Shape, ...]
    quantity: str
    least: float
    threads: tuple[int, ...] = ()
    peers: tuple[str, ...] = ()


def _squares(*sizes: int) -> tuple[Shape, ...]:
    return tuple(Shape(n, n, n) for n in sizes)


def _of_squares(variant: str, dtype: str, least: float, *sizes: int) -> Demand:
    return Demand(variant, dtype, ("squares", "large"), _squares(*sizes), "ratio", least, threads=(1, 2))


_PEAK_FROM = {"float32": 3000, "float64": 4096}
_COMPUTE_BOUND = tuple(s for s in SETS["llm"] if s.operations >= 2 * 4096**3 and min(s[:3]) >= 1024)

MUST: tuple[Demand, ...] = (
    _of_squares("depth 0", "float32", 1.05, 1024, 1536, 2048, 4096, 8192),
    _of_squares("depth 0", "float32", 1.00, 3000, 5000),
    _of_squares("depth 0", "float64", 1.02, 1024, 1536, 2048, 4096, 8192),
    _of_squares("depth 0", "float64", 1.00, 3000, 5000),
    _of_squares("auto", "float32", 1.12, 1536, 2048),
    _of_squares("auto", "float32", 1.18, 3000, 5000, 6500),
    _of_squares("auto", "float32", 1.28, 4096),
    _of_squares("auto", "float32", 1.38, 8192),
    _of_squares("auto", "float32", 1.43, 12288),
    _of_squares("auto", "float64", 1.12, 3000, 5000, 6500),
    _of_squares("auto", "float64", 1.20, 4096),
    _of_squares("auto", "float64", 1.28, 8192),
    *(
        Demand("auto", dtype, ("squares", "large"), _squares(*(n for n in SQUARES if n >= least)), "peak", 1.0)
        for dtype, least in _PEAK_FROM.items()
    ),
    Demand("auto", "float32", ("llm",), SETS["llm"], "ratio", 0.98, threads=(1,)),
    Demand("auto", "float32", ("llm",), SETS["llm"], "mean ratio", 1.25, threads=(1,)),
    Demand("auto", "float32", ("llm",), _COMPUTE_BOUND, "peak", 1.0, threads=(1, 2)),
    *(
        Demand("auto", dtype, ("large",), _squares(*LARGE), "ratio", least, threads=(16,), peers=peers)
        for dtype in ("float32", "float64")
        for least, peers in ((1.20, ("numpy",)), (1.05, ("mkl", "torch")))
    ),
    *(
        Demand("auto", dtype, ("batches",), sizes, "ratio", least, peers=("numpy",))
        for dtype in ("float32", "float64")
        for least, sizes in ((0.97, SETS["batches"][:2]), (1.10, SETS["batches"][2:]))
    ),
    *(
        demand
        for dtype in ("float32", "float64")
        for demand in (
            Demand("auto", dtype, ("small",), SETS["small"][:5], "overhead", 3.0, peers=("numpy",)),
            Demand("auto", dtype, ("small",), SETS["small"][5:], "ratio", 0.97, peers=("numpy",)),
        )
    ),
)
