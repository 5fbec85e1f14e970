"""All shapes that the benchmarks run, and the speeds that are asked of them, as data."""

from __future__ import annotations

import math
import random
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
    "types": (Shape(512, 512, 512), Shape(1024, 1024, 1024), Shape(2048, 2048, 2048)),
    "quick": (Shape(64, 64, 64), Shape(1024, 1024, 1024), Shape(300, 1100, 1500), Shape(32, 32, 32, 20)),
}


MOST_SIZE = 4096  # of random shapes
KINDS = ("any", "square", "prime", "any", "skinny", "small", "any", "square", "flat", "near a power")  # in turn


def random_shapes(count: int, most_flops: float = math.inf, seed: int = 2605) -> tuple[Shape, ...]:
    """Different shapes of all `KINDS`, always the same ones; fewer are the first of more.

    Sizes are log-uniform in 1 … 4096: of any shape, of squares, and rounded up to primes; at most 128 for small ones;
    one or two of at most 16 for skinny ones; one of 32 … 256 beside larger ones for flat ones; 2^i − 1, 2^i or 2^i + 1
    near a power of two.
    """
    rng = random.Random(seed)

    def size(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def of_kind(kind: str) -> Shape:
        sizes = [size(1, MOST_SIZE) for _ in range(3)]
        if kind == "square":
            sizes = [sizes[0]] * 3
        elif kind == "prime":
            sizes = [_prime(x) for x in sizes]
        elif kind == "small":
            sizes = [size(1, 128) for _ in range(3)]
        elif kind == "skinny":
            sizes = [size(1, 16), size(128, MOST_SIZE), size(128, MOST_SIZE) if rng.random() < 0.5 else size(1, 16)]
        elif kind == "flat":
            sizes = [size(32, 256), size(512, MOST_SIZE), size(512, MOST_SIZE)]
        elif kind == "near a power":
            sizes = [max(1, 2 ** rng.randint(4, 12) + rng.choice((-1, 0, 1))) for _ in range(3)]
        rng.shuffle(sizes)
        return Shape(*sizes)

    found: dict[Shape, None] = {}  # in order
    while len(found) < count:
        kind, before = KINDS[len(found) % len(KINDS)], len(found)
        while len(found) == before:
            shape = of_kind(kind)
            if shape.operations <= most_flops:
                found[shape] = None
    return tuple(found)


def _prime(least: int) -> int:
    n = max(2, least)
    while any(n % i == 0 for i in range(2, math.isqrt(n) + 1)):
        n += 1
    return n


# (N, K) of layers of language models beyond those above.
DEEPSEEK_MORE = ((576, 7168), (256, 7168))
LLAMA_3_70B = ((10240, 8192), (8192, 8192))
QWEN_2_5 = ((4608, 3584), (3584, 3584), (3584, 18944), (7168, 5120), (5120, 5120))
PRIMES = (1139, 1279, 1327, 3307, 3329)

# (shape, which sizes are made smaller, all by the same factor, where the product takes too long).
WORKLOADS: tuple[tuple[Shape, str], ...] = (
    # DeepSeek-V3: tests/generators.py of github.com/deepseek-ai/DeepGEMM; forward, then gradients of data and weights.
    *((Shape(M, N, K), "M") for N, K in DEEPSEEK + DEEPSEEK_MORE for M in (1, 64, 128, 4096)),
    *((Shape(4096, K, N), "M") for N, K in DEEPSEEK + DEEPSEEK_MORE[:1]),
    *((Shape(N, 4096, K), "N") for N, K in DEEPSEEK + DEEPSEEK_MORE[:1]),
    # Muon's X·Xᵀ: the same file.
    *((Shape(M, M, K), "MNK") for M, K in ((4608, 5120), (1536, 5120), (576, 5120), (4096, 7168), (7168, 2048))),
    # Llama 3 and Qwen 2.5: benchmarks/kernels/weight_shapes.py of github.com/vllm-project/vllm.
    *((Shape(M, N, K), "M") for N, K in LLAMA_3_8B for M in (16, 32, 128, 512, 2048)),
    *((Shape(M, N, K), "M") for N, K in LLAMA_3_70B for M in (16, 256, 2048)),
    *((Shape(M, N, K), "M") for N, K in QWEN_2_5 for M in (16, 64, 256, 2048)),
    # A transformer's ragged batches: scripts/performance/transformer.sh of github.com/ROCm/rocBLAS.
    *((Shape(2048, N, 512), "M") for N in (160, 333, 512, 777, 1024, 2222, 3428, *PRIMES)),
    # Covariances: github.com/scikit-learn/scikit-learn/issues/27483, github.com/MDAnalysis/mdanalysis/issues/5351.
    *((Shape(M, M, K), "K") for M, K in ((100, 1_000_000), (642, 500), (2565, 500))),
    # Quantum chemistry: coupled clusters (o = 4, v = 53), 431 and 965 orbitals by orbitals or by panels of 20
    # (github.com/microsoft/qdk-chemistry/pull/459), batches (github.com/dmrgpp/dmrgpp/pull/240).
    (Shape(16, 2809, 2809), "M"),
    *((Shape(M, N, M), "N") for M in (431, 965) for N in (M, 20)),
    (Shape(45, 45, 1926, 16), "K"),
    (Shape(45, 45, 45, 256), "K"),
)


def workload_shapes(count: int, most_flops: float) -> tuple[Shape, ...]:
    """The first `count` of the `WORKLOADS` in a random order, always the same one, made smaller where need be."""
    found: dict[Shape, None] = {}
    for shape, free in random.Random(2605).sample(WORKLOADS, len(WORKLOADS)):
        factor = min(1.0, most_flops / shape.operations) ** (1 / len(free))
        found[shape._replace(**{name: max(1, int(getattr(shape, name) * factor)) for name in free})] = None
    return tuple(found)[:count]


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
    Demand("auto", "float16", ("types",), _squares(1024), "ratio", 150.0),
    Demand("auto", "complex128", ("types",), _squares(2048), "ratio", 1.05),
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


class Limit(NamedTuple):
    """What a quantity of `regret.quantities` may be at most."""

    quantity: str
    most: float


DECISION_MUST = (
    Limit("regret, geometric mean", 1.02),
    Limit("regret, 95th percentile", 1.08),
    Limit("regret, worst", 1.20),
    Limit("time over NumPy's, worst of 2MNK ≥ 2·256³", 1.03),
    Limit("prediction error, median of n ≥ 1024", 0.10),
)
