"""What an engine is asked to compute, normalised views and the epilogue, and the refusal to do so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np


class Inadmissible(ValueError):
    """A plan breaks a rule that the caller set: the largest error, or the workspace allowed."""


def batch_offsets(x: np.ndarray) -> np.ndarray:
    """Where every matrix of a batch starts, in bytes from the first one, in C order."""
    offset = np.zeros((), np.int64)
    for count, step in zip(x.shape[:-2], x.strides, strict=False):
        offset = np.add.outer(offset, np.arange(count) * step)
    return offset.ravel()


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """C ← alpha·A·B + beta·C for one product or a batch of equal ones.

    Attributes
    ----------
    a, b : ndarray, shapes (..., M, K) and (..., K, N)
        Views of the operands, any strides (zero and negative included), any alignment, native byte order,
        dtype as `c`, a short float where the lane of `c` (see `lanes`) is float32, or what the kernel multiplies for it
        (`integers.Lane`). Batch axes are already broadcast
        (stride 0 where an operand repeats), equal for all three.
    c : ndarray, shape (..., M, N)
        Written in place; any strides, but no element stands twice in it and it shares no memory with `a` or `b`.
    alpha, beta : float or int
        With ``beta == 0`` `c` is never read.
    headroom : float
        See `integers.Lane`.
    lower : int
        0, or only what lies on and below the diagonal of C is wanted, whatever stands above it afterwards: then the
        columns of C that belong to one row, 1, or 2 for pairs of reals. For the classical product.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    alpha: float = 1.0
    beta: float = 0.0
    headroom: float = math.inf
    lower: int = 0

    @property
    def mnk(self) -> tuple[int, int, int]:
        """(M, N, K) of one product."""
        return self.c.shape[-2], self.c.shape[-1], self.a.shape[-1]

    def at(self, index: tuple[int | slice, ...]) -> Problem:
        """One product of the batch, or part of it."""
        return replace(self, a=self.a[index], b=self.b[index], c=self.c[index])

    @property
    def column_major(self) -> bool:
        """Whether elements of a column of C, not of a row, are the nearest in memory, and it can be transposed."""
        rows, columns = self.c.shape[-2:]
        turned = rows > 1 and columns > 1 and abs(self.c.strides[-2]) < abs(self.c.strides[-1])
        return turned and not self.lower

    @property
    def transposed(self) -> Problem:
        """The same product as Cᵀ = Bᵀ·Aᵀ."""
        a, b, c = (x.swapaxes(-1, -2) for x in (self.b, self.a, self.c))
        return replace(self, a=a, b=b, c=c)
