"""Block sizes: what shapes the arithmetic, what fits, and that the workspace is kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.cpu.blocking import MIB, choose_blocks, default_limit
from falcon_numba.cpu.spec import SPECS
from falcon_numba.problem import Inadmissible

SIZE = st.integers(1, 20000)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    M=SIZE,
    N=SIZE,
    K=SIZE,
    spec=st.sampled_from(sorted(SPECS.values(), key=str)),
    depth=st.integers(0, 3),
)
def test_blocks(data, M, N, K, spec, depth):
    levels = [fn.schemes[data.draw(st.sampled_from(sorted(fn.schemes)))] for _ in range(depth)]
    grid = tuple(math.prod(s.grid[i] for s in levels) for i in range(3))
    ranks = tuple(s.rank for s in levels)
    threads = data.draw(st.integers(1, 64))
    limit = data.draw(st.sampled_from([None, 64 * MIB, 1024 * MIB]))

    def blocks(M, N, grid, threads, teams=1):
        allowed = limit or default_limit(M, N, K, spec.itemsize, threads)
        found = choose_blocks(spec, grid, ranks, M, N, K, threads, teams, allowed)
        assert found.workspace(threads, teams) <= allowed
        return found

    try:
        got = blocks(M, N, grid, threads)
    except Inadmissible:
        assert limit is not None
        return
    m, k, n = grid
    leaf = [-(-size // parts) for size, parts in ((M, m), (K, k), (N, n))]
    assert got.MC % spec.MR == got.NC % spec.NR == got.N2 % spec.NR == got.KC % spec.VL == 0
    assert spec.MR <= got.MC < leaf[0] + spec.MR
    assert spec.NR <= got.NC < leaf[2] + spec.NR
    assert spec.VL <= got.KC < leaf[1] + spec.VL
    assert math.prod(ranks) % got.PRODUCTS == 0
    # The order of additions: the same for any number of threads, and for the transposed product.
    arithmetic = (got.KC, got.CHUNKS, got.PRODUCTS)
    one = blocks(M, N, grid, 1)
    assert arithmetic == (one.KC, one.CHUNKS, one.PRODUCTS)
    turned = choose_blocks(spec, (n, k, m), ranks, N, M, K, 1, 1, limit or default_limit(M, N, K, spec.itemsize, 1))
    assert arithmetic == (turned.KC, turned.CHUNKS, turned.PRODUCTS)


def test_too_little_workspace_is_refused_with_the_numbers():
    with pytest.raises(Inadmissible, match=r"⟨2,2,2;7⟩ on 1000×1000 .* 0.01 MiB"):
        choose_blocks(SPECS["avx512", "float64"], (2, 2, 2), (7,), 1000, 1000, 1000, 2, 1, MIB // 100)
