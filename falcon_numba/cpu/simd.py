"""LLVM vectors for Numba: the one file that speaks llvmlite.

`Vec` emits loads, stores, multiply-adds and shuffles of vectors like ``<VL x float>`` at integer addresses inside an
``@intrinsic``; the factories in `microkernel`, `pack` and `epilogue` are written with it. Addresses are int64 so
that neither a layout nor a shape ever becomes part of a compiled signature, and so that no index check stands
between a loop and its vector instructions. The same IR serves x86 and ARM: LLVM picks the instructions.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64  # bytes
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))

# Products of pairs of int16 added up, by instruction set and int32 lanes. With VNNI LLVM makes one instruction of them
# and the addition that follows.
PAIRS = {
    ("avx512", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("avx2", 8): "llvm.x86.avx2.pmadd.wd",
}


def c64(value: int):
    """An int64 constant."""
    return ir.Constant(I64, value)


class Vec:
    """Emits vector instructions of one dtype and vector length into a builder.

    llvmlite has no names for vector intrinsics, so they are declared as plain functions; LLVM knows them by name.
    """

    def __init__(self, builder, dtype: str, VL: int):
        self.b, self.VL = builder, VL
        self.size = np.dtype(dtype).itemsize
        bits = 8 * self.size
        self.exact = np.dtype(dtype).kind == "i"
        self.int_elem = ir.IntType(bits)
        self.int_type = ir.VectorType(self.int_elem, VL)
        self.elem = self.int_elem if self.exact else ir.FloatType() if bits == 32 else ir.DoubleType()
        self.type = ir.VectorType(self.elem, VL)
        self.mantissa, self.bias = (23, 127) if bits == 32 else (52, 1023)
        self.width = VL * self.size  # bytes of a vector
        self.zero = ir.Constant(self.type, [0 if self.exact else 0.0] * VL)
        self._suffix = f"v{VL}{'i' if self.exact else 'f'}{bits}"

    def _call(self, name: str, ret, args):
        fnty = ir.FunctionType(ret, [a.type for a in args])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, fnty, name), args)

    def mul(self, x, y):
        return self.b.mul(x, y) if self.exact else self.b.fmul(x, y)

    def fma(self, x, y, z):
        """x·y + z, rounded once; of integers modulo 2^bits."""
        if self.exact:
            return self.b.add(self.b.mul(x, y), z)
        return self._call("llvm.fma." + self._suffix, self.type, [x, y, z])

    def dot(self, x, y, z, isa: str):
        """z plus the sums of the products of pairs: the int32 lanes of x and y are two int16 each."""
        pairs = ir.VectorType(I16, 2 * self.VL)
        name = PAIRS.get((isa, self.VL))
        if name:
            args = [self.b.bitcast(v, pairs) for v in (x, y)]
            return self.b.add(z, self._call(name, self.type, args))
        sixteen = self.splat_int(16)
        low = [self.b.ashr(self.b.shl(v, sixteen), sixteen) for v in (x, y)]
        high = [self.b.ashr(v, sixteen) for v in (x, y)]
        return self.b.add(z, self.b.add(self.b.mul(*low), self.b.mul(*high)))

    def pair(self, x, y):
        """The elements of x, then those of y, are two rows of int16: their columns as int32 lanes of two vectors."""
        halves = ir.VectorType(I16, 2 * self.VL)
        x, y = self.b.bitcast(x, halves), self.b.bitcast(y, halves)
        index = ir.VectorType(I32, 2 * self.VL)
        for first in (0, self.VL):
            lanes = [i for j in range(first, first + self.VL) for i in (j, 2 * self.VL + j)]
            yield self.b.bitcast(self.b.shuffle_vector(x, y, ir.Constant(index, lanes)), self.type)

    def prefetch(self, address):
        """Ask for the cache line at `address` in L2."""
        pointer = self.b.inttoptr(address, I8.as_pointer())
        self._call("llvm.prefetch.p0", ir.VoidType(), [pointer, I32(0), I32(2), I32(1)])

    def splat(self, scalar, type_=None):
        type_ = type_ or self.type
        undef = ir.Constant(type_, ir.Undefined)
        lane0 = self.b.insert_element(undef, scalar, I32(0))
        return self.b.shuffle_vector(lane0, undef, ir.Constant(ir.VectorType(I32, self.VL), [0] * self.VL))

    def splat_int(self, value: int):
        """A constant vector of integers as wide as the elements."""
        return ir.Constant(self.int_type, [value] * self.VL)

    def pointer(self, address, type_=None):
        return self.b.inttoptr(address, (type_ or self.type).as_pointer())

    def load(self, address, align: int = 1, type_=None):
        return self.b.load(self.pointer(address, type_), align=align)

    def store(self, value, address, align: int = 1, nontemporal: bool = False):
        instruction = self.b.store(value, self.pointer(address, value.type), align=align)
        if nontemporal:
            instruction.set_metadata("nontemporal", self.b.module.add_metadata([I32(1)]))

    def scalar(self, address):
        """The element at `address`, any alignment."""
        return self.b.load(self.pointer(address, self.elem), align=1)

    def scalar_fma(self, x, y, z):
        return self.b.add(self.b.mul(x, y), z) if self.exact else self.b.fma(x, y, z)

    def lanes_below(self, n):
        """Mask of the lanes i < n."""
        index = ir.VectorType(I32, self.VL)
        lanes = ir.Constant(index, list(range(self.VL)))
        return self.b.icmp_signed("<", lanes, self.splat(self.b.trunc(n, I32), index))

    def load_masked(self, address, mask):
        args = [self.pointer(address), I32(1), mask, self.zero]
        return self._call(f"llvm.masked.load.{self._suffix}.p0", self.type, args)

    def store_masked(self, value, address, mask):
        args = [value, self.pointer(address), I32(1), mask]
        self._call(f"llvm.masked.store.{self._suffix}.p0", ir.VoidType(), args)

    def exp2(self, exponent):
        """2**exponent for a vector of integers inside the normal range."""
        biased = self.b.add(exponent, self.splat_int(self.bias))
        return self.b.bitcast(self.b.shl(biased, self.splat_int(self.mantissa)), self.type)

    def interleave(self, x, y, width: int):
        """Exchange the off-diagonal halves of 2·width-lane groups of x and y: one step of a transposition."""
        low, high = [], []
        for group in range(0, self.VL, 2 * width):
            low += [*range(group, group + width), *range(self.VL + group, self.VL + group + width)]
            high += [i + width for i in low[-2 * width :]]
        index = ir.VectorType(I32, self.VL)
        return tuple(self.b.shuffle_vector(x, y, ir.Constant(index, lanes)) for lanes in (low, high))

    def even(self, x, y):
        """Lanes 0, 2, 4, … of x, then 1, 3, 5, … of y: every other element of a line, y starting VL − 1 after x."""
        lanes = [*range(0, self.VL, 2), *range(self.VL + 1, 2 * self.VL, 2)]
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, self.VL), lanes))

    def transpose(self, rows):
        """VL vectors as the rows of a VL × VL matrix → its columns, in log2(VL) rounds of two-input shuffles."""
        rows = list(rows)
        width = self.VL // 2
        while width:
            for i in range(self.VL):
                if not i & width:
                    rows[i], rows[i | width] = self.interleave(rows[i], rows[i | width], width)
            width //= 2
        return rows


def phi(builder, type_, *incoming):
    """A phi node of (value, block) pairs."""
    node = builder.phi(type_)
    for value, block in incoming:
        node.add_incoming(value, block)
    return node


def make_memory(dtype: str):
    """Scalar access at integer addresses and the scalar multiply-add, as Numba functions.

    Returns
    -------
    peek : (address) -> value of `dtype`
    poke : (address, value) -> None
    fma : (x, y, z) -> x·y + z rounded once
    """
    scalar = getattr(types, dtype)

    @intrinsic
    def peek(typingctx, address):
        def codegen(context, builder, signature, args):
            return Vec(builder, dtype, 1).scalar(args[0])

        return scalar(types.int64), codegen

    @intrinsic
    def poke(typingctx, address, value):
        def codegen(context, builder, signature, args):
            Vec(builder, dtype, 1).store(args[1], args[0])
            return context.get_dummy_value()

        return types.void(types.int64, scalar), codegen

    @intrinsic
    def fma(typingctx, x, y, z):
        def codegen(context, builder, signature, args):
            return Vec(builder, dtype, 1).scalar_fma(*args)

        return scalar(scalar, scalar, scalar), codegen

    return peek, poke, fma


@intrinsic
def peek_i32(typingctx, address):
    """The int32 at `address`, as int64."""

    def codegen(context, builder, signature, args):
        return builder.sext(builder.load(builder.inttoptr(args[0], I32.as_pointer()), align=4), I64)

    return types.int64(types.int64), codegen


@intrinsic
def peek_i64(typingctx, address):
    """The int64 at `address`."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], I64.as_pointer()), align=8)

    return types.int64(types.int64), codegen


@intrinsic
def poke_i64(typingctx, address, value):
    """Store an int64 at `address`."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], I64.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at `address` in L2."""

    def codegen(context, builder, signature, args):
        Vec(builder, "float32", 1).prefetch(args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def atomic_add(typingctx, address, value):
    """Add to the int64 at `address`; sequentially consistent, so it also orders earlier streaming stores on x86."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, address):
    """Read the int64 at `address` with acquire order."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen
