"""Block sizes: what shapes the arithmetic, what fits, and that the workspace is kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falcon_numba as fn
from falcon_numba.algorithms import flatten
from falcon_numba.cpu.blocking import MIB, choose_blocks, default_limit
from falcon_numba.cpu.spec import SPECS
from falcon_numba.problem import Inadmissible

SIZE = st.integers(1, 20000)


@settings(max_examples=300)
@given(
    data=st.data(),
    M=SIZE,
    N=SIZE,
    K=SIZE,
    spec=st.sampled_from(sorted(SPECS.values(), key=str)),
    depth=st.integers(0, 3),
)
def test_blocks(data, M, N, K, spec, depth):
    scheme = flatten(tuple(fn.schemes[data.draw(st.sampled_from(sorted(fn.schemes)))] for _ in range(depth)))
    threads = data.draw(st.integers(1, 64))
    limit = data.draw(st.sampled_from([None, 64 * MIB, 1024 * MIB]))

    def blocks(M, N, scheme, threads, teams=1):
        allowed = limit or default_limit(M, N, K, spec.itemsize, threads)
        found = choose_blocks(spec, scheme, M, N, K, threads, teams, allowed)
        assert found.workspace(threads, teams) <= allowed
        return found

    try:
        got = blocks(M, N, scheme, threads)
    except Inadmissible:
        assert limit is not None
        return
    m, k, n = scheme.grid
    leaf = [-(-size // parts) for size, parts in ((M, m), (K, k), (N, n))]
    assert got.MC % spec.MR == got.NC % spec.NR == got.N2 % spec.NR == got.KC % spec.chunk == 0
    assert spec.MR <= got.MC < leaf[0] + spec.MR
    assert spec.NR <= got.NC < leaf[2] + spec.NR
    assert spec.chunk <= got.KC < leaf[1] + spec.chunk
    assert math.prod(scheme.ranks[got.FIRST :]) == got.PRODUCTS
    # The last level's sums are H, if any are.
    assert max(len(scheme.ranks) - 1, got.FIRST) == got.FIRST + got.OUTER

    def arithmetic(blocks):
        return blocks.KC, blocks.CHUNKS, blocks.FIRST, blocks.OUTER

    # The order of additions: the same for any number of threads, and for the transposed product.
    assert arithmetic(got) == arithmetic(blocks(M, N, scheme, 1)) == arithmetic(blocks(N, M, scheme.transposed, 1))


def test_too_little_workspace_is_refused_with_the_numbers():
    with pytest.raises(Inadmissible, match=r"⟨2,2,2;7⟩ on 1000×1000 .* 0.01 MiB"):
        choose_blocks(
            SPECS["avx512", "float64"], flatten((fn.schemes["strassen"],)), 1000, 1000, 1000, 2, 1, MIB // 100
        )
