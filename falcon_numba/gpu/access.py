"""Loads and stores of the combine kernels as inline PTX: 16 bytes at once, or one element under a predicate.

Values in registers are float32, float64 for float64 in memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_OF = {"h": I16, "r": I32, "l": I64, "f": F32, "d": F64}
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def lanes_of(dtype: str) -> int:
    """Elements in 16 bytes."""
    return 16 // SIZES[dtype]


def c64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


def emit(b: Any, text: str, outs: str, args: list[Any], kinds: str) -> list[Any]:
    """One asm statement; `outs` and `kinds` are constraint letters of results and arguments."""
    result = (
        ir.VoidType() if not outs else _OF[outs] if len(outs) == 1 else ir.LiteralStructType([_OF[o] for o in outs])
    )
    constraint = ",".join(["=" + o for o in outs] + list(kinds))
    asm = ir.InlineAsm(ir.FunctionType(result, [_OF[k] for k in kinds]), text, constraint, side_effect=True)
    value = b.call(asm, args)
    if len(outs) < 2:
        return [value] if outs else []
    return [b.extract_value(value, i) for i in range(len(outs))]


def register(dtype: str) -> Any:
    """The LLVM type that holds an element."""
    return F64 if dtype == "float64" else F32


def _word(dtype: str) -> tuple[str, str]:
    return {"float64": ("d", "f64"), "float32": ("f", "f32")}.get(dtype, ("r", "b32"))


def _unpack(b: Any, word: Any, dtype: str) -> list[Any]:
    if dtype == "bfloat16":
        high = ir.Constant(I32, 0xFFFF0000)
        return [b.bitcast(b.shl(word, ir.Constant(I32, 16)), F32), b.bitcast(b.and_(word, high), F32)]
    text = "{.reg .b16 l,h; mov.b32 {l,h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}"
    return emit(b, text, "ff", [word], "r")


def load_lanes(b: Any, address: Any, dtype: str, lanes: int, when: Any = None) -> list[Any]:
    """`lanes` contiguous elements from an address that is a multiple of their size; zeros unless i1 `when`."""
    kind, suffix = _word(dtype)
    words, out = lanes * SIZES[dtype] // (8 if kind == "d" else 4), []
    for at in range(0, words, 2 if kind == "d" else 4):
        count = min(words - at, 2 if kind == "d" else 4)
        place = b.add(address, c64(16 * (at // (2 if kind == "d" else 4))))
        names = [f"${i}" for i in range(count)]
        target = "{" + ",".join(names) + "}" if count > 1 else names[0]
        vector = f".v{count}" if count > 1 else ""
        read = f"ld.global.L1::no_allocate{vector}.{suffix} {target}, [${count}];"
        if when is None:
            values = emit(b, read, kind * count, [place], "l")
        else:
            zero = {"d": "0d0000000000000000", "f": "0f00000000", "r": "0"}[kind]
            clear = " ".join(f"mov.{suffix} {name}, {zero};" for name in names)
            text = f"{{.reg .pred p; setp.ne.u32 p, ${count + 1}, 0; {clear} @p {read}}}"
            values = emit(b, text, kind * count, [place, b.zext(when, I32)], "lr")
        for value in values:
            out += [value] if kind != "r" else _unpack(b, value, dtype)
    return out


def store_lanes(b: Any, address: Any, values: list[Any], dtype: str) -> None:
    kind, suffix = _word(dtype)
    if kind == "r":
        form = f"cvt.rn.{'bf16' if dtype == 'bfloat16' else 'f16'}x2.f32 $0, $2, $1;"
        values = [emit(b, form, "r", values[i : i + 2], "ff")[0] for i in range(0, len(values), 2)]
    each = 2 if kind == "d" else 4
    for at in range(0, len(values), each):
        part = values[at : at + each]
        names = ",".join(f"${i + 1}" for i in range(len(part)))
        target, vector = (f"{{{names}}}", f".v{len(part)}") if len(part) > 1 else (names, "")
        emit(b, f"st.global{vector}.{suffix} [$0], {target};", "", [b.add(address, c64(16 * (at // each))), *part],
             "l" + kind * len(part))  # fmt: skip


def load_one(b: Any, address: Any, dtype: str, when: Any) -> Any:
    """One element, zero (and nothing read) unless i1 `when`."""
    kind, suffix = {"float64": ("d", "f64"), "float32": ("f", "f32")}.get(dtype, ("h", "b16"))
    zero = {"d": "0d0000000000000000", "f": "0f00000000", "h": "0"}[kind]
    text = (
        f"{{.reg .pred p; .reg .{suffix} t; setp.ne.u32 p, $2, 0; mov.{suffix} t, {zero}; "
        f"@p ld.global.{suffix} t, [$1]; mov.{suffix} $0, t;}}"
    )
    value = emit(b, text, kind, [address, b.zext(when, I32)], "lr")[0]
    if dtype == "bfloat16":
        return b.bitcast(b.shl(b.zext(value, I32), ir.Constant(I32, 16)), F32)
    return emit(b, "cvt.f32.f16 $0, $1;", "f", [value], "h")[0] if dtype == "float16" else value


def store_one(b: Any, address: Any, value: Any, dtype: str, when: Any) -> None:
    kind, suffix = {"float64": ("d", "f64"), "float32": ("f", "f32")}.get(dtype, ("h", "b16"))
    if kind == "h":
        value = emit(b, f"cvt.rn.{'bf16' if dtype == 'bfloat16' else 'f16'}.f32 $0, $1;", "h", [value], "f")[0]
    text = f"{{.reg .pred p; setp.ne.u32 p, $2, 0; @p st.global.{suffix} [$0], $1;}}"
    emit(b, text, "", [address, value, b.zext(when, I32)], f"l{kind}r")


def power(b: Any, exponent: Any, dtype: str) -> Any:
    """2^exponent (i32) for normal powers of two."""
    if dtype == "float64":
        bits = b.shl(b.add(b.sext(exponent, I64), c64(1023)), c64(52))
        return b.bitcast(bits, F64)
    return b.bitcast(b.shl(b.add(exponent, ir.Constant(I32, 127)), ir.Constant(I32, 23)), F32)


def _pure(name: str, text: str, result: Any, arguments: list[Any], outs: str, kinds: str) -> Any:
    def implementation(typingctx: Any, *args: Any) -> Any:
        return result(*arguments), lambda c, b, s, a: (emit(b, text, outs, list(a), kinds) or [c.get_dummy_value()])[0]

    names = ", ".join(f"x{i}" for i in range(len(arguments)))
    scope = {"implementation": implementation}
    exec(f"def {name}(typingctx{', ' + names if names else ''}):\n    return implementation(typingctx, {names})", scope)
    return intrinsic(scope[name])


read_i64 = _pure("read_i64", "ld.global.b64 $0, [$1];", types.int64, [types.int64], "l", "l")
read_i32 = _pure("read_i32", "ld.global.b32 $0, [$1];", types.int32, [types.int64], "r", "l")
write_i32 = _pure("write_i32", "st.global.b32 [$0], $1;", types.void, [types.int64, types.int32], "", "lr")
atomic_max = _pure("atomic_max", "red.global.max.u32 [$0], $1;", types.void, [types.int64, types.int32], "", "lr")
warp_max = _pure("warp_max", "redux.sync.max.u32 $0, $1, 0xffffffff;", types.int32, [types.int32], "r", "r")


def operation(arguments: list[Any], generate: Any, result: Any = types.void) -> Any:
    """An intrinsic of these Numba types whose code ``generate(builder, args)`` emits."""
    names = ", ".join(f"x{i}" for i in range(len(arguments)))

    def implementation(typingctx: Any, *args: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = generate(builder, args)
            return context.get_dummy_value() if value is None else value

        return result(*arguments), codegen

    scope = {"implementation": implementation}
    exec(f"def operation(typingctx, {names}):\n    return implementation(typingctx, {names})", scope)
    return intrinsic(scope["operation"])
