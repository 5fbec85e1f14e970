"""A roofline model of one product: how long each stage takes, from what it computes and what it moves.

Notation as in the engine: A is M × K, B is K × N, the levels together are ⟨m,k,n;R⟩, one block product is h × d by
d × w with h = ⌈M/m⌉, d = ⌈K/k⌉, w = ⌈N/n⌉. The first levels are those whose products are computed one after the other
(each a pass over C), the others have sums in L2 (those of the last level) and in L3 (of the levels between): `Split`
counts what that takes. With F× and F+ the rates of multiply-adds in the micro-kernel and of additions in combinations
(flop/s, one multiply-add of a term counting once there), and β_X the bandwidth of level X of the memory, all for the
threads that take part, the stages take

====================  ======================================================================================
guard                 (M·K + K·N) / β
combine and pack A    a_terms·h·d / F+  ⊕  (a_blocks + R)·h·d / β     once for every NC columns of a block of B
combine and pack B    b_terms·d·w / F+  ⊕  (b_blocks + R)·d·w / β
micro-kernel          2·R·h′·w′·d / F×  ⊕  (R·h·d·⌈w/N2⌉ + R·d·w·⌈h/MA⌉) / β
inner sums            2·inner_sums·h′·w′·⌈d/KC⌉ / β_L2
outer sums            3·outer_sums·h′·w′·⌈d/KC⌉ / β_L3
update C              (2 or 3)·c_blocks·h·w·⌈d/(CHUNKS·KC)⌉ / β       writing a block first, adding to it later
====================  ======================================================================================

x ⊕ y = max(x, y) + ν·min(x, y): what of the shorter one isn't hidden behind the longer one; ν = 0 is the classical
roofline. h′ and w′ are h and w rounded up to what the micro-kernel really computes (virtual padding), elements count
their bytes. β is β_L3 as far as operands, result and packed forms fit into L3, else the bandwidth of main memory. The
last pieces of work are unequal: threads wait for one of them. To all this comes what a call costs before any work.

The paper's model (arXiv 2605.06057, equations 8 to 10) is the special case of infinite caches for packed data, no
padding, one pass and ν = 0: each stage max(operations / rate, elements / β), the products fused with their combination,
so that C costs M·N. NumPy's product is not modelled but measured: its rate at a few sizes, interpolated.

What the machine does beside the model is in `constants`, fitted to measurements; the rates come from `rates`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numba import config, njit, types

from ..diskcache import DiskCache
from ..inlined import inner
from . import constants as c

STAGES = (
    "call and threads",
    "guard",
    "combine and pack A",
    "combine and pack B",
    "micro-kernel",
    "inner sums",
    "outer sums",
    "update C",
)
CALL, GUARD, PACK_A, PACK_B, KERNEL, INNER, OUTER, UPDATE = range(len(STAGES))
MOVED, FLOPS = len(STAGES), len(STAGES) + 1  # two more columns of a score: bytes to and from memory, operations
COLUMNS = len(STAGES) + 2

# Columns of the table of candidates: the grid and rank of all levels, their number, and the splits to choose from.
M_, K_, N_, R_, LEVELS, SPLITS = range(6)


class Split(NamedTuple):
    """A candidate with some of its levels as first ones: how many blocks take part in what, in all products."""

    together: float  # products of all but the first levels
    a_terms: float  # of the combinations of A
    b_terms: float
    a_blocks: float  # read from A
    b_blocks: float
    inner: float  # sums of the last level
    inner_sums: float  # additions to these
    outer_sums: float  # additions of these to those of the levels between
    c_blocks: float  # additions to blocks of C


SPLIT = len(Split._fields)
TOGETHER, A_TERMS, B_TERMS, A_BLOCKS, B_BLOCKS, INNER_MN, INNER_SUMS, OUTER_SUMS, C_BLOCKS = range(SPLIT)
SPLIT_COUNT = c.MOST_TOGETHER + 1
CANDIDATE_COLUMNS = SPLITS + SPLIT_COUNT * SPLIT


class Machine(NamedTuple):
    """What a score needs of the kernel, the caches and the rates; all float64: one compiled version."""

    MR: float
    NR: float
    VL: float
    KC: float
    itemsize: float  # of what is packed
    sum_size: float  # of an element of the result
    l2: float
    l3: float
    threads: float
    teams: float
    fma: float
    add: float
    l2_rate: float
    l3_rate: float
    read: float
    copy: float
    start: float
    call: float


@inner
def _up(x, step):
    return np.ceil(x / step) * step


@inner
def _both(compute, memory):
    """Time of a stage that computes and moves data: the longer one, and what of the other isn't hidden behind it."""
    return max(compute, memory) + c.NOT_HIDDEN * min(compute, memory)


@inner
def stage_times(x, M, N, K, ahead, machine, out):
    """Stages of one product by one candidate.

    Parameters
    ----------
    x : float64 (CANDIDATE_COLUMNS,)
    M, N, K : float64
    ahead : bool
        Whether the operands are on their way already: in a batch a thread's next product is prefetched. Products with
        levels don't gain from it: the guard goes through the whole batch before.
    machine : Machine
    out : float64 (COLUMNS,)
        Seconds of each stage, then bytes moved to and from memory, and operations.
    """
    size, sum_size, threads, teams = machine.itemsize, machine.sum_size, machine.threads, machine.teams
    team = threads / teams  # threads that share one product
    h, d, w = np.ceil(M / x[M_]), np.ceil(K / x[K_]), np.ceil(N / x[N_])
    high, wide = _up(h, c.ROWS_STEP), _up(w, machine.NR)
    chunks = np.ceil(d / (1.5 * machine.KC))
    a, b, result = M * K * size, K * N * size, M * N * sum_size
    packed_a, packed_b = x[R_] * high * d * size, x[R_] * d * wide * size

    # What is computed together, as the engine's block sizes have it.
    KC = d / chunks
    row = KC * size
    split = x[SPLITS : SPLITS + SPLIT]
    for i in range(1, SPLIT_COUNT):  # the products of fewer and fewer levels together
        need = split[TOGETHER] * row
        if need * c.HIGH > c.SHARED_A or need * min(c.WIDEST[-1], max(high, wide)) > c.SHARED_B:
            split = x[SPLITS + i * SPLIT : SPLITS + (i + 1) * SPLIT]
    together = split[TOGETHER]
    flushed = max(1.0, np.floor(c.CHUNKS_TIMES_RANK / x[R_]))
    touches = np.ceil(chunks / flushed)
    passes = touches * (x[R_] / together)
    tall = max(machine.MR, min(c.A_BYTES, c.A_SHARE / (together * flushed)) / row)  # rows of A for one thread
    N2 = max(machine.NR, min(c.MOST_N2, machine.l2 / (split[INNER_MN] * tall * sum_size)))
    NC = max(machine.NR, min(wide, c.WIDEST[min(int(x[LEVELS]), len(c.WIDEST) - 1)], c.SHARED_B / (together * row)))
    rounds = np.ceil(wide / NC)

    near = min(1.0, c.L3_SHARE * machine.l3 / (teams * (a + b + result + packed_a / passes + packed_b / passes)))

    near_rate = machine.l3_rate * (1.0 if ahead and x[LEVELS] == 0 else c.NEAR)

    def far(nbytes, rate):
        return nbytes * (near / near_rate + (1 - near) / rate)

    combine_a = split[A_TERMS] * h * d * rounds / machine.add
    combine_b = split[B_TERMS] * d * w / machine.add
    moved_a = (split[A_BLOCKS] * h * d * size + packed_a) * rounds
    read_b = split[B_BLOCKS] * d * w * size
    streamed = packed_a * np.ceil(wide / N2) + packed_b * np.ceil(high / (team * tall))
    operations = 2 * x[R_] * high * _up(w, machine.VL) * d
    compute = operations / machine.fma
    inner = 2 * split[INNER_SUMS] * high * wide * chunks * sum_size
    outer = 3 * split[OUTER_SUMS] * high * wide * chunks * sum_size
    updated = (3 * split[C_BLOCKS] * touches - x[M_] * x[N_]) * h * w * sum_size

    guarded = a + b if x[LEVELS] > 0 else 0.0
    out[GUARD] = far(guarded, machine.read) / c.GUARD
    out[PACK_A] = _both(combine_a / c.ADD_A, far(moved_a, machine.copy) / c.PACK_A)
    out[PACK_B] = _both(combine_b / c.ADD_B, far(c.READ_B * read_b + packed_b, machine.copy) / c.PACK_B)
    # A tile prefetches a line of the next panel of B every four steps; a few rows of tiles don't reach its end.
    missed = (1 - near) * max(0.0, 1 - high / (machine.MR * machine.NR * sum_size / 16)) * packed_b
    out[KERNEL] = _both(compute, streamed / (c.STREAMED * machine.read) + missed / (c.UNPREFETCHED * machine.l3_rate))
    if threads > 1:
        out[KERNEL] *= c.SHARED_KERNEL
    out[INNER] = inner / (c.INNER * machine.l2_rate)
    out[OUTER] = outer / (c.OUTER * machine.l3_rate)
    out[UPDATE] = far(updated, machine.copy) / c.UPDATE
    if x[LEVELS] <= 1 and together == x[R_]:  # the micro-kernel does it
        out[UPDATE] *= c.DIRECT
    out[CALL] = machine.start if threads > 1 and x[LEVELS] > 0 else 0.0  # of the guard
    if team > 1:
        packed = max(tall, min(c.PIECES * team * tall, c.A_SHARE * team / (together * flushed * row)))  # rows of A
        phases = rounds * np.ceil(h / packed)  # of a pass, each between two barriers
        tiles = np.ceil(high / machine.MR) * np.ceil(wide / machine.NR) / (phases * team)  # of a thread in a phase
        idle = (1 - 1 / team) * (c.IDLE + c.LAST_PIECE / tiles)
        out[CALL] += 2 * passes * phases * c.BARRIER + idle * out[KERNEL]
    out[MOVED] = guarded + moved_a + read_b + packed_b + streamed + updated
    out[FLOPS] = operations + 2 * (split[A_TERMS] * h * d * rounds + split[B_TERMS] * d * w)


def score(table, M, N, K, batch, machine, out):
    """Seconds of every candidate for `batch` equal products: out[i] as in `stage_times`, all stages of candidate i."""
    ahead = machine.threads == machine.teams and batch > machine.teams
    share = np.ceil(batch / machine.teams) * machine.teams  # as if every team had so many
    for i in range(len(table)):
        stage_times(table[i], M, N, K, ahead, machine, out[i])
        out[i] *= share if machine.teams > 1 else batch
        out[i, CALL] += machine.call + (machine.start if machine.threads > 1 else 0.0)


@functools.cache
def scorer():
    """`score`, compiled; the first call in a process loads or compiles it."""
    if config.DISABLE_JIT:
        return score
    function = njit(score)
    function._cache = DiskCache("score")
    f = types.float64
    table = types.Array(f, 2, "C")
    signature = types.void(table, f, f, f, f, types.NamedUniTuple(f, len(Machine._fields), Machine), table)
    function.compile(signature)
    return function.get_overload(signature)
