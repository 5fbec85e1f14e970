"""How long a product takes: by every candidate on the engine, and by NumPy."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from typing import NamedTuple, Protocol

import numpy as np

from ..algorithms import Scheme
from ..lanes import lane_of
from . import constants, roofline
from .candidates import Candidates
from .hardware import hardware
from .rates import Rates

Levels = tuple[Scheme, ...]
# By kind of dtype: multiplications that NumPy has done on any machine before the engine has begun, and rows or columns
# of C below which packing never pays. Of integers NumPy has plain loops, of bool loops that end early on dense data.
NUMPY_BELOW = {"f": (128**3, constants.NUMPY_THIN), "i": (80**3, 2), "u": (80**3, 2), "b": (100**3, 8)}
BLAS_DTYPES = ("float32", "float64", "complex64", "complex128")


class Product(NamedTuple):
    """The product to plan for: M × K by K × N, `batch` times."""

    M: int
    N: int
    K: int
    batch: int
    dtype: str

    @property
    def lane(self) -> Product:
        """The real product that an engine computes for it."""
        dtype, parts = lane_of(self.dtype)
        return Product(self.M, parts * self.N, parts * self.K, self.batch, dtype)


class Kernel(Protocol):
    """What the decision must know of the micro-kernel: its tile and vectors, and the longest chunk of K."""

    @property
    def MR(self) -> int: ...
    @property
    def NR(self) -> int: ...
    @property
    def VL(self) -> int: ...
    @property
    def KC(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def sum_size(self) -> int: ...
    def __hash__(self) -> int: ...


class Question(NamedTuple):
    """What is asked of the model: which of these candidates, or NumPy, for this product on such a machine.

    Attributes
    ----------
    product : Product
    candidates : Candidates
    with_numpy : bool
        Whether NumPy's product is one of them.
    kernel : Kernel
    rates, single : Rates
        With the threads that may be used, and with one.
    opening : float
        Seconds until operands that have to be converted are ready for the engine.
    """

    product: Product
    candidates: Candidates
    with_numpy: bool
    kernel: Kernel
    rates: Rates
    single: Rates
    opening: float = 0.0


def size_of(M: int, N: int, K: int) -> float:
    """The harmonic mean of the dimensions: passes over A, B and C cost 1/N + 1/M + 1/K of the multiplications.

    0 where a dimension is.
    """
    elements = M * N + N * K + K * M
    return 3 * M * N * K / elements if elements else 0.0


def whole_products(product: Product, threads: int) -> bool:
    """Whether each thread takes whole products: enough of them, and each too small to share."""
    return product.batch >= 2 * threads and product.M * product.N * product.K < 1024**3


@functools.lru_cache(maxsize=64)
def _machine(kernel: Kernel, rates: Rates, teams: int) -> roofline.Machine:
    facts = hardware()
    shape = kernel.MR, kernel.NR, kernel.VL, kernel.KC, kernel.itemsize, kernel.sum_size
    figures = *shape, facts.l2, facts.l3, rates.threads, teams
    speeds = rates.fma, rates.add, rates.l2, rates.l3, rates.read, rates.copy, rates.start, rates.call
    return roofline.Machine(*map(float, (*figures, *speeds)))


def engine_times(question: Question) -> np.ndarray:
    """Stages of all candidates, shape (candidates, roofline.COLUMNS): see there."""
    product, (_, table), _, kernel, rates, *_ = question
    M, N, K, batch, _ = product
    out = np.empty((len(table), roofline.COLUMNS))
    teams = rates.threads if whole_products(product, rates.threads) else 1
    roofline.scorer()(table, float(M), float(N), float(K), float(batch), _machine(kernel, rates, teams), out)
    if np.dtype(product.dtype).kind == "i":  # no data are dangerous
        out[:, roofline.GUARD] = 0
    return out


def opening_seconds(product: Product, rates: Rates) -> float:
    """What it takes to make a complex B the real one that A's pairs multiply: read once, written twice."""
    if lane_of(product.dtype).parts == 1:
        return 0.0
    moved = 3 * product.batch * product.K * product.N * np.dtype(product.dtype).itemsize
    return rates.start + moved / rates.copy


def has_blas(dtype: str) -> bool:
    """Whether NumPy has a BLAS for the dtype."""
    return dtype in BLAS_DTYPES


def numpy_is_surely_faster(M: int, N: int, K: int, kind: str = "f") -> bool:
    """Whether NumPy's product is the faster one on any machine: it is small, or nearly a matrix times a vector.

    `kind` is that of the dtype; of those without an engine the answer doesn't matter.
    """
    below, thin = NUMPY_BELOW.get(kind) or NUMPY_BELOW["f"]
    return below > M * N * K or min(M, N) < thin


def numpy_seconds(product: Product, rates: Rates, single: Rates) -> float:
    """NumPy's product: its measured rate at this size, and what packing operands costs that don't fit into L3.

    Several threads gain what they gain for a square of as many multiplications, and a shape costs what it costs one
    thread. The measured squares contain packing that reuse makes cheap; of a skinny product it is a good part.
    """
    M, N, K, batch, dtype = product
    itemsize = np.dtype(dtype).itemsize
    moved = (M * K + K * N + M * N) * itemsize
    if min(M, N) == 1:
        return rates.numpy_call + batch * moved / rates.read
    if K == 1:
        return rates.numpy_call + batch * M * N * constants.NUMPY_OUTER
    speed = _speed(single.numpy, size_of(M, N, K))
    if not has_blas(dtype):  # no threads, no packing
        return rates.numpy_call + batch * 2 * M * N * K / speed
    if rates.threads > 1:
        square = (M * N * K) ** (1 / 3)
        speed *= _speed(rates.numpy, square) / _speed(single.numpy, square)
    cached = constants.L3_SHARE * hardware().l3 / 2
    packing = max(0.0, M * K * itemsize - cached) / (constants.NUMPY_PACK_A * rates.pack)
    wide = 1 + constants.NUMPY_WIDER * max(0.0, math.log2(N / constants.NUMPY_WIDE)) if itemsize == 4 else 1.0
    packing += wide * max(0.0, K * N * itemsize - cached) / (constants.NUMPY_PACK_B * rates.pack * itemsize / 4)
    if batch * moved > constants.L3_SHARE * hardware().l3 and batch > 1:  # every product's operands come from memory
        packing += constants.NUMPY_BATCH * moved / rates.read
    return rates.numpy_call + batch * (2 * M * N * K / speed + packing)


def _speed(curve: tuple[tuple[float, float], ...], size: float) -> float:
    """The speed at a size, interpolated; proportional to the size below the first one."""
    i = bisect_left(curve, (size,))
    if i == 0:
        return curve[0][1] * min(1.0, size / curve[0][0])
    if i == len(curve):
        return curve[-1][1]
    (x0, y0), (x1, y1) = curve[i - 1], curve[i]
    return y0 + (y1 - y0) * math.log(size / x0) / math.log(x1 / x0)


def in_order(question: Question) -> list[tuple[float, Levels | None]]:
    """Candidates (None for NumPy) with their predicted seconds, the preferred one first, the others by time.

    Preferred is the one of fewest levels among the fastest.
    """
    seconds = (engine_times(question)[:, : len(roofline.STAGES)].sum(axis=1) + question.opening).tolist()
    found: list[tuple[float, Levels | None]] = list(zip(seconds, question.candidates.levels, strict=True))
    if question.with_numpy:
        found.append((numpy_seconds(question.product, question.rates, question.single), None))
    found.sort(key=_seconds)
    product = question.product
    thin = min(product.M, product.N) < constants.THIN
    best, numpy_must = found[0][0], constants.THIN_MUST_GAIN if thin else constants.LEVEL_MUST_GAIN
    near = [x for x in found if x[0] <= best * (numpy_must if x[1] is None else constants.LEVEL_MUST_GAIN)]
    preferred = min(near, key=_levels)
    found.remove(preferred)
    return [preferred, *found]


def _seconds(found: tuple[float, Levels | None]) -> float:
    return found[0]


def _levels(found: tuple[float, Levels | None]) -> int:
    return -1 if found[1] is None else len(found[1])
