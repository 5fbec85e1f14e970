"""The classical product as one C function per dtype, for machine code that isn't ours.

Linking the worker into a user's compiled function would run it through LLVM again for every function and every type of
argument, 2 s each time. Compiled code calls it by name instead. The name is known to LLVM in this process once
`kernel_for` has returned; code that Numba keeps on disk (``cache=True``) brings the `Kernel` along in its environment,
and unpickling that makes the name known before the code is linked.
"""

from __future__ import annotations

import functools

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.core.compiler import Flags
from numba.core.targetconfig import ConfigStack
from numba.extending import intrinsic, register_jitable

from ..algorithms import flatten
from ..decision.constants import CHUNKS_TIMES_RANK
from ..decision.hardware import isa_family
from ..diskcache import DiskCache, source_hash
from ..inlined import inner_of, named
from . import worker as w
from .blocking import choose_blocks, default_limit, even, up
from .engine import engine_for
from .pack import Terms, scratch_bytes
from .simd import I64
from .spec import SPECS, KernelSpec
from .workspace import ALIGN

_even, _up = register_jitable(even), register_jitable(up)

_columns = w.COLUMNS
_tables, _terms, _buffers = w.Tables, Terms, w.Buffers


def symbol_for(dtype: str) -> str:
    """Name of the C function; it changes with the source, so that older code on disk can't meet a newer kernel."""
    return f"falcon_numba_gemm_{dtype}_{source_hash()[:16]}"


def make_entry(worker, dtype: str):
    """The worker on the calling thread, one row of the table of products, the classical scheme."""
    lane = np.dtype(dtype).type

    def entry(product, a, b, targets, scratch, alpha, beta):
        grid, ptr, block = np.ones(3, np.int64), np.arange(2), np.zeros(1, np.int64)
        terms = _terms(ptr, block, np.ones(1, lane))
        buffers = _buffers(a, 0, b, 0, targets, 0, 0, scratch, 0, 0, 0)
        products = carray(product, (1, _columns))
        zero, single = np.int64(0), np.int64(1)  # as literals they would ask for a worker of their own
        tables = _tables(grid, grid, grid, terms, terms, terms, terms, terms, terms, terms)
        worker(zero, single, single, zero, products, alpha, beta, tables, buffers)

    return njit(named(entry, dtype), nogil=True)


class Kernel:
    """The C function of one dtype: void (int64 *product, int64 a, b, targets, scratch, scalar alpha, beta).

    Attributes
    ----------
    spec : KernelSpec
    symbol : str
    call : Numba intrinsic (products, workspace, a, b, targets, scratch, alpha, beta)
        Calls it with the first row of `products`, int64 (1, COLUMNS); `workspace` is only kept alive. For compiled
        code.
    """

    def __init__(self, dtype: str):
        self.spec: KernelSpec = SPECS[isa_family(), dtype]
        self.symbol = symbol_for(dtype)
        scalar, i = getattr(types, dtype), types.int64
        signature = types.void(types.CPointer(i), i, i, i, i, scalar, scalar)
        plain = Flags()
        plain.nrt = True
        with ConfigStack().enter(plain):  # or else options of the function being compiled (fastmath) would leak in
            self._entry = make_entry(engine_for(self.spec, False)._worker, dtype)
            self._entry._cache = DiskCache(f"njit-{self.spec.isa}-{dtype}")
            self._entry.compile(signature)
        result = self._entry.overloads[signature.args]
        address = result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)
        llvm.add_symbol(self.symbol, address)
        self.call = _make_call(self)

    def __reduce__(self):
        return _reload, (self.spec.dtype, self.symbol)


def _make_call(kernel: Kernel):
    real = ir.FloatType() if kernel.spec.itemsize == 4 else ir.DoubleType()
    function_type = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64, I64, I64, real, real])
    scalar, i = getattr(types, kernel.spec.dtype), types.int64

    @intrinsic
    def call(typingctx, products, workspace, a, b, targets, scratch, alpha, beta):
        def codegen(context, builder, signature, args):
            products = context.make_array(signature.args[0])(context, builder, args[0])
            function = cgutils.get_or_insert_function(builder.module, function_type, kernel.symbol)
            builder.call(function, [products.data, *args[2:]])
            context.environment.consts.append(kernel)
            return context.get_dummy_value()

        return types.void(products, workspace, i, i, i, i, scalar, scalar), codegen

    return call


@functools.cache
def kernel_for(dtype: str) -> Kernel:
    """The kernel of a dtype; the first call in a process loads or compiles it."""
    return Kernel(dtype)


def _reload(dtype: str, symbol: str) -> Kernel:
    """What unpickling calls. Numba takes an OSError for a missing file of its cache, and compiles anew."""
    if symbol != symbol_for(dtype):
        raise OSError("compiled against another version of falcon_numba")
    return kernel_for(dtype)


@functools.cache
def make_classical(dtype: str):
    """The product of checked operands, compiled once for all layouts.

    Returns
    -------
    classical : Numba function (M, N, K, a, b, c, alpha, beta)
        a, b and c: (address, row step, column step), steps in bytes. M, N, K ≥ 1.
    """
    kernel = kernel_for(dtype)
    spec, call = kernel.spec, kernel.call
    VL, MR, NR, size = spec.VL, spec.MR, spec.NR, spec.itemsize
    large = 2**15, 2**15, spec.KC * CHUNKS_TIMES_RANK
    most = choose_blocks(spec, flatten(()), *large, 1, 1, default_limit(*large, size, 1))
    most_KC, most_CHUNKS, most_MC, most_NC, most_N2 = most.KC, most.CHUNKS, most.MC, most.NC, most.N2
    scratch_size = scratch_bytes(1, spec)

    part = inner_of(dtype)

    @part
    def classical(M, N, K, a, b, c, alpha, beta):
        if M > 1 and N > 1 and c[1] == size and c[2] != size:  # Cᵀ = Bᵀ·Aᵀ: the kernel writes rows
            M, N = N, M
            a, b, c = (b[0], b[2], b[1]), (a[0], a[2], a[1]), (c[0], c[2], c[1])
        KC = _even(K, most_KC, VL)
        CHUNKS = min((K + KC - 1) // KC, most_CHUNKS)
        MC, NC, N2 = min(most_MC, _up(M, MR)), _even(N, most_NC, NR), min(most_N2, _up(N, NR))
        products = np.zeros((1, w.COLUMNS), np.int64)
        p = products[0]
        p[w.A], p[w.A_ROW], p[w.A_COL] = a
        p[w.B], p[w.B_ROW], p[w.B_COL] = b
        p[w.C], p[w.C_ROW], p[w.C_COL] = c
        p[w.SIZE_M], p[w.SIZE_N], p[w.SIZE_K] = M, N, K
        p[w.BLOCK_KC], p[w.BLOCK_CHUNKS] = KC, CHUNKS
        p[w.BLOCK_MA], p[w.BLOCK_MC], p[w.BLOCK_NC], p[w.BLOCK_N2] = MC, MC, NC, N2
        row = CHUNKS * KC * size
        a_bytes, b_bytes, target_bytes = _up(MC * row, ALIGN), _up(NC * row, ALIGN), _up(MC * N2 * size, ALIGN)
        workspace = np.empty(a_bytes + b_bytes + target_bytes + scratch_size + ALIGN, np.uint8)
        base = _up(workspace.ctypes.data, ALIGN)
        targets = base + a_bytes + b_bytes
        call(products, workspace, base, base + a_bytes, targets, targets + target_bytes, alpha, beta)

    return classical
