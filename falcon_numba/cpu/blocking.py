"""Block sizes and workspace of one plan.

A piece of packed A takes half of L2, the sums H of MC × N2 as much as L2 (they come and go, A stays), packed B as much
as its budget allows; the constants were measured on a Zen 4 (1 MB L2) and on a server Xeon (2 MB L2). KC, CHUNKS,
FIRST and OUTER decide the order of additions, so they depend on the kernel, the shape, the scheme and the workspace
limit only, never on the machine or the number of threads; MA, MC, NC and N2 only decide the schedule. Of more than two
levels, or where the packed forms of all products don't fit, those of the first levels are computed one after the other,
each pass adding to C.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..decision.constants import A_SHARE, CHUNKS_TIMES_RANK, HIGH, MOST_N2, MOST_TOGETHER, PIECES, WIDEST
from ..decision.hardware import hardware
from ..problem import Inadmissible
from .pack import scratch_bytes
from .spec import KernelSpec

if TYPE_CHECKING:
    from ..algorithms.flatten import FlatScheme

MIB = 2**20
DEFAULT_SHARED, DEFAULT_PER_THREAD = 512 * MIB, 32 * MIB
TARGET_SHARE = 20 * MIB  # of the workspace for each thread, at most
A_OF_L2, H_OF_L2 = 15 / 32, 1.0  # sizes of what one thread works on: MC rows of A, the sums H
MOST_A_BYTES = 2**19  # of the former: larger ones don't gain, and a CPU may be half of a core that shares its L2
MOST_MC = 384
B_SHARE = 0.8  # of the shared workspace, for packed B


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block sizes (elements; CHUNKS, FIRST, OUTER and PRODUCTS are counts) and what they need.

    Of the levels, the products of the FIRST outermost ones are computed one after the other, the next OUTER ones have
    sums T, the last one, if there is one left, H. PRODUCTS is the number of products of all but the first levels.
    `target_bytes` (of all H and T) and `scratch_bytes` are per thread, `a_bytes` and `b_bytes` per team.
    """

    KC: int
    CHUNKS: int
    FIRST: int
    OUTER: int
    PRODUCTS: int
    MA: int
    MC: int
    NC: int
    N2: int
    a_bytes: int
    b_bytes: int
    target_bytes: int
    scratch_bytes: int

    @property
    def form_of_b(self) -> tuple[int, int, int, int]:
        """What the form of a packed B depends on."""
        return self.KC, self.CHUNKS, self.FIRST, self.NC

    def workspace(self, threads: int, teams: int) -> int:
        """Bytes for `threads` threads in `teams` teams."""
        return teams * (self.a_bytes + self.b_bytes) + threads * (self.target_bytes + self.scratch_bytes)


def default_limit(M: int, N: int, K: int, itemsize: int, threads: int) -> int:
    """Workspace allowed when nobody says: max(512 MiB + 32 MiB a thread, half of the bytes of A, B and C)."""
    return max(DEFAULT_SHARED + threads * DEFAULT_PER_THREAD, (M * K + K * N + M * N) * itemsize // 2)


def up(value: int, step: int) -> int:
    return -(-value // step) * step


def even(total: int, most: int, step: int) -> int:
    """The part of `total`, a multiple of `step`, that splits it into equal parts of about `most`.

    A part may be half as large again as `most`: one part more costs more than a block that is somewhat too large.
    """
    parts = max(1, -((most - 2 * total) // (2 * most)))
    return up(-(-total // parts), step)


@functools.lru_cache(maxsize=4096)
def choose_blocks(
    spec: KernelSpec,
    scheme: FlatScheme,
    M: int,
    N: int,
    K: int,
    threads: int,
    teams: int,
    limit: int,
) -> Blocks:
    """Block sizes for one product of M × K by K × N, within `limit` bytes.

    Raises
    ------
    Inadmissible
        When even the smallest blocks need more.
    """
    (m, k, n), ranks = scheme.grid, scheme.ranks
    h, d, w = -(-M // m), -(-K // k), -(-N // n)
    MR, NR, chunk, size, sum_size = spec.MR, spec.NR, spec.chunk, spec.itemsize, spec.sum_size

    # What decides the arithmetic: independent of threads and teams, and equal for the transposed product.
    shared = min(limit, DEFAULT_SHARED)
    KC = even(d, spec.KC, chunk)
    high, wide = min(HIGH, up(max(h, w), MR)), min(WIDEST[-1], up(max(h, w), NR))
    for first in range(max(0, len(ranks) - MOST_TOGETHER), len(ranks) + 1):  # fewer and fewer levels together
        products = math.prod(ranks[first:])
        row = products * KC * size
        if row * high <= shared // 8 and row * wide <= shared * B_SHARE:
            break
    KC = min(KC, max(chunk, shared // 8 // (products * MR * size) // chunk * chunk))
    fitting = shared // 8 // (products * KC * MR * size)
    outer = max(0, len(ranks) - first - 1)
    chunks = max(1, min(-(-d // KC), CHUNKS_TIMES_RANK // math.prod(ranks), fitting))

    # What only decides the schedule.
    row = chunks * products * KC * size  # bytes of one row of packed A, or of one column of packed B
    inner, sums = (math.prod([m * n for m, _, n in scheme.grids[i:]]) for i in (first + outer, first))
    targets = sums + (inner if outer else 0)
    team = threads // teams
    budget = min(A_SHARE * team, limit // (4 * teams)) // row // MR * MR
    on_chip = min(int(A_OF_L2 * hardware().l2), MOST_A_BYTES) // (KC * size) // MR * MR
    MC = max(MR, min(MOST_MC, on_chip, budget, up(h, MR)))
    MA = max(MC, min(budget, team * MC * (PIECES if team > 1 else 1)))
    MA = up(-(-h // -(-h // MA)), MR)
    budget = min(TARGET_SHARE, limit // (4 * threads)) // (targets * MC * sum_size) // NR * NR
    on_chip = int(H_OF_L2 * hardware().l2) // (inner * MC * sum_size) // NR * NR
    N2 = max(NR, min(MOST_N2 // NR * NR, on_chip, budget, up(w, NR)))
    a_bytes, target_bytes = up(MA * row, 64), up(targets * MC * N2 * sum_size, 64)
    scratch = scratch_bytes(max(m * k, k * n), spec)
    left = ((limit - threads * (target_bytes + scratch)) // teams - a_bytes) // row // NR * NR
    if left < NR:
        what = f"⟨{m},{k},{n};{scheme.rank}⟩" if scheme.rank > 1 else "the classical product, which data may ask for,"
        raise Inadmissible(
            f"{what} on {M}×{K} by {K}×{N} with {threads} threads needs more workspace than "
            f"the {limit / MIB:.3g} MiB allowed (workspace_limit)"
        )
    NC = even(w, WIDEST[min(len(ranks), len(WIDEST) - 1)], NR)
    NC = min(NC, up(-(-w // -(-w // left)), NR))
    return Blocks(KC, chunks, first, outer, products, MA, MC, NC, N2, a_bytes, up(NC * row, 64), target_bytes, scratch)
