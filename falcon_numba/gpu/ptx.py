"""Inline PTX as Numba intrinsics: each is built in Python from an asm text, its loops unrolled by the generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):  # numba-cuda 0.30 asks for what numpy 2.5 removed
    np.row_stack = np.vstack  # noqa: NPY201

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
_LLVM = {"f": F32, "d": F64, "r": I32, "l": I64}
_NUMBA = {"f": types.float32, "d": types.float64, "r": types.int32, "l": types.int64}


def c32(value: int) -> ir.Constant:
    return ir.Constant(I32, value)


def c64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def emit(b: Any, text: str, outs: str, args: Sequence[Any], kinds: Sequence[str], volatile: bool = True) -> list[Any]:
    """One asm statement; `outs` holds the results' constraint letters, `kinds` the arguments' ('0' ties to result 0).

    A volatile statement is also a compiler barrier for memory.
    """
    if len(outs) > 1:
        result: Any = ir.LiteralStructType([_LLVM[o] for o in outs])
    else:
        result = _LLVM[outs] if outs else ir.VoidType()
    constraints = ",".join(["=" + o for o in outs] + list(kinds) + (["~{memory}"] if volatile else []))
    function = ir.FunctionType(result, [a.type for a in args])
    value = b.call(ir.InlineAsm(function, text, constraints, side_effect=volatile), list(args))
    if len(outs) > 1:
        return [b.extract_value(value, i) for i in range(len(outs))]
    return [value] if outs else []


def pack(b: Any, values: Sequence[Any]) -> Any:
    """Values of one type as the aggregate of a UniTuple."""
    aggregate: Any = ir.Constant(ir.ArrayType(values[0].type, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        aggregate = b.insert_value(aggregate, value, i)
    return aggregate


def unpack(b: Any, aggregate: Any, count: int) -> list[Any]:
    return [b.extract_value(aggregate, i) for i in range(count)]


def registers(letter: str, count: int) -> Any:
    """The Numba type of `count` registers: how accumulators and fragments travel between intrinsics."""
    return types.UniTuple(_NUMBA[letter], count)


def make(name: str, kinds: Sequence[Any], result: Any, generate: Callable[[Any, list[Any]], Any]) -> Any:
    """An intrinsic with arguments of `kinds` (letters or Numba types) whose code `generate(builder, args)` emits."""
    arguments = [_NUMBA[k] if isinstance(k, str) else k for k in kinds]
    returns = types.void if result is None else _NUMBA[result] if isinstance(result, str) else result
    signature = returns(*arguments)

    def codegen(context: Any, builder: Any, _signature: Any, args: list[Any]) -> Any:
        value = generate(builder, args)
        return context.get_dummy_value() if result is None else value

    scope: dict[str, Any] = {"signature": signature, "codegen": codegen}
    names = "".join(f", a{i}" for i in range(len(arguments)))  # Numba matches intrinsics by named arguments
    exec(f"def {name}(typingctx{names}):\n    return signature, codegen\n", scope)
    return intrinsic(scope[name])


def statement(name: str, text: str, kinds: str = "", result: str | None = None, volatile: bool = True) -> Any:
    """An intrinsic of one asm statement."""

    def generate(b: Any, args: list[Any]) -> Any:
        values = emit(b, text, result or "", args, kinds, volatile)
        return values[0] if values else None

    return make(name, list(kinds), result, generate)


def _dynamic_shared(b: Any, _args: list[Any]) -> Any:
    name = "dynamic_shared"
    if name not in b.module.globals:
        memory = ir.GlobalVariable(b.module, ir.ArrayType(I8, 0), name, addrspace=3)
        memory.linkage, memory.align = "external", 1024
    return b.ptrtoint(b.module.get_global(name), I32)


thread = statement("thread", "mov.u32 $0, %tid.x;", "", "r", volatile=False)
block = statement("block", "mov.u32 $0, %ctaid.x;", "", "r", volatile=False)
shared_base = make("shared_base", [], "r", _dynamic_shared)
barrier = statement("barrier", "bar.sync 0;")
copy_commit = statement("copy_commit", "cp.async.commit_group;")
load_word = statement("load_word", "ld.global.nc.b64 $0, [$1];", "l", "l", volatile=False)


def copy_wait(pending: int) -> Any:
    """Waits until at most `pending` groups of copies are under way."""
    return statement("copy_wait", f"cp.async.wait_group {pending};")


def copy_rows(b: Any, shared: Any, source: Any, stride: Any, rows: int, step: int, shared_step: int) -> None:
    """Asynchronous copies of 16 bytes from each `step`-th of `rows` rows, `shared_step` bytes apart in shared."""
    for i in range(rows):
        target, address = b.add(shared, c32(i * shared_step)), b.add(source, b.mul(stride, c64(i * step)))
        emit(b, "cp.async.cg.shared.global [$0], [$1], 16;", "", [target, address], "rl")
