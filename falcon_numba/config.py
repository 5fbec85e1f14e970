"""The options of every product and where their values come from; `config_context` says what each means.

Precedence: argument of the call > `config_context` > `set_config` > ``FALCON_*`` environment > default.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from .options import OPTIONS, check_name, checked, checked_options, closest


class _Hashed:
    """Room for a hash: plans are kept by settings, and every product looks for its plan."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Settings(_Hashed):
    """One value for every option, checked; hashable. Make it with `resolve`; `config_context` explains the options."""

    depth: str | int = "auto"
    scheme: Any = "auto"
    accuracy: str = "balanced"
    max_error: float | None = None
    check: bool = False
    workspace_limit: int | None = None
    threads: int | None = None
    executor: str = "auto"
    leaf: str = "auto"
    arithmetic: str = "auto"
    device: str = "auto"
    tune: bool = False
    reproducible: bool = False

    @property
    def needs_engine(self) -> bool:
        """Whether NumPy's product would not do, even of depth 0."""
        return self.executor == "cpu" or self.leaf != "auto" or self.reproducible

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # never pickled: hashes of strings differ between processes
            object.__setattr__(self, "_hash", hash(tuple(getattr(self, field.name) for field in fields(self))))
            return self._hash


_DEFAULT = Settings()
_lock = threading.Lock()
_variables: dict[str, Any] | None = None  # what the environment said; None until first use
_process: dict[str, Any] = {}  # what set_config said
_base: Settings | None = None  # both together; None until next use
_OTHER_VARIABLES = ("FALCON_CACHE_DIR", "FALCON_CALIBRATION")
_scope: ContextVar[dict[str, Any] | None] = ContextVar("falcon_numba.config", default=None)


def _variable(name: str) -> str:
    return "FALCON_" + name.upper()


def _environment() -> dict[str, Any]:
    found = {}
    for name, option in OPTIONS.items():
        text = os.environ.get(_variable(name), "").strip()
        if text:
            found[name] = checked(name, option.parse(text), shown=f"environment variable {_variable(name)}={text!r}")
    _warn_of_unknown_variables()
    return found


def _warn_of_unknown_variables() -> None:
    known = {*map(_variable, OPTIONS), *_OTHER_VARIABLES}
    unknown = sorted(name for name in os.environ if name.startswith("FALCON_") and name not in known)
    if unknown:
        hints = ((name, closest(name, known)) for name in unknown)
        names = ", ".join(f"{name} (did you mean {close}?)" if close else name for name, close in hints)
        warnings.warn(f"falcon_numba ignores unknown environment variables: {names}", stacklevel=2)


def _displaced(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """What `upper` takes back of `lower`: the depth or scheme that contradicts one of its options counts as "auto"."""
    depth, scheme = (None if name in upper else lower.get(name) for name in ("depth", "scheme"))
    levels = len(scheme) if isinstance(scheme, tuple) else None
    classical = upper.get("accuracy") == "componentwise" or upper.get("executor") == "numpy"
    displaced = {}
    if levels is not None and (classical or upper.get("depth", "auto") not in ("auto", levels)):
        displaced["scheme"] = "auto"
    new = upper.get("scheme")
    if depth not in (None, "auto") and ((classical and depth) or (isinstance(new, tuple) and len(new) != depth)):
        displaced["depth"] = "auto"
    return displaced


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    return {**lower, **upper, **_displaced(lower, upper)}


def _apply(base: Settings, options: Mapping[str, Any]) -> Settings:
    given = checked_options(options)
    return replace(base, **given, **_displaced({"depth": base.depth, "scheme": base.scheme}, given))


@lru_cache(maxsize=1024)
def _merged(base: Settings, items: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Settings:
    # `types` keeps depth=True from finding the entry of depth=1.
    return _apply(base, dict(items))


def _with(base: Settings, options: Mapping[str, Any]) -> Settings:
    items = tuple(options.items())
    try:
        hash(items)
    except TypeError:  # a list of schemes, or a value that its rule will refuse
        return _apply(base, options)
    return _merged(base, items, tuple(map(type, options.values())))


def _combine() -> Settings:
    global _base, _variables
    with _lock:
        if _variables is None:
            _variables = _environment()
        found = _over(_variables, _process)
        _base = replace(_DEFAULT, **found) if found else _DEFAULT
        return _base


def active() -> Settings:
    """The settings of a call that passes no option."""
    base = _base
    if base is None:
        base = _combine()
    scope = _scope.get()
    return _with(base, scope) if scope else base


def resolve(**options: Any) -> Settings:
    """The settings of a call with these options.

    Raises
    ------
    TypeError
        An unknown option, or a value of the wrong type.
    ValueError
        A value out of range or not implemented yet; or a bad ``FALCON_*`` variable.
    """
    return _with(active(), options) if options else active()


def untouched() -> bool:
    """Whether every option has its default (False before the environment has been read: `active` reads it)."""
    return _base is _DEFAULT and not _scope.get()


def set_config(*, reset: bool | str | Collection[str] = False, **options: Any) -> None:
    """Set options for the whole process, all threads.

    Parameters
    ----------
    reset : bool, str or collection of str
        Forget first what earlier calls set: of the options named, or, with True, of all; True also reads the
        environment afresh. An option forgotten has the value of its environment variable or its default again.
    **options
        See `falcon_numba.config_context`.

    Raises
    ------
    TypeError, ValueError
        An unknown option, or a bad value; then nothing has changed.

    Examples
    --------
    >>> import falcon_numba
    >>> falcon_numba.set_config(depth=1, threads=1)
    >>> falcon_numba.set_config(reset="depth")  # threads stays 1
    >>> falcon_numba.set_config(reset=True)
    """
    global _base, _process, _variables
    given = checked_options(options)
    forgotten = set(OPTIONS if reset is True else [reset] if isinstance(reset, str) else reset or ())
    for name in forgotten:
        check_name(name)
    with _lock:
        if reset is True:
            _variables = None
        _process = _over({name: value for name, value in _process.items() if name not in forgotten}, given)
        _base = None


@contextmanager
def _scoped(options: dict[str, Any]) -> Iterator[None]:
    token = _scope.set(_over(_scope.get() or {}, options))
    try:
        yield
    finally:
        _scope.reset(token)


def config_context(**options: Any) -> Any:
    """Set options inside a ``with`` block or a decorated function; blocks nest, the innermost wins.

    Every option below is also an argument of `gemm`, `matmul`, `plan`, `plan_for` and `set_config`, and an environment
    variable, ``FALCON_DEPTH`` for `depth` and so on (a tuple is written with commas, ``FALCON_SCHEME=strassen,hk223``).
    Precedence: argument of the call > `config_context` > `set_config` > environment > default. A depth or scheme that
    contradicts an option of higher precedence counts as "auto". Other threads and other asyncio tasks keep their own
    contexts.

    Parameters
    ----------
    depth : "auto" or int >= 0, default "auto"
        Levels of recursion; 0 is the classical product. "auto": as many as pay for the shape and keep every promise.
    scheme : "auto", str, Scheme, or tuple of str and Scheme, default "auto"
        The algorithm: a name that `falcon_numba.schemes` understands, or a scheme, for all levels; a tuple has one for
        each level, outermost first, and so decides the depth. "auto" leaves the choice to the library.
    accuracy : {"balanced", "componentwise", "normwise", "estimated"}, default "balanced"
        The error bound that is promised, see README, "Accuracy". "balanced": relative to the largest magnitudes in the
        row of A and the column of B, by scaling with powers of two where these differ; "normwise": relative to
        max|A|·max|B|, without scaling; "componentwise": relative to (|A||B|)_ij, which only depth 0 keeps. "estimated":
        computed as with "balanced", but it is the error estimated on the operands, from a sample of the product, that
        must meet `max_error`, which has to be given: likely, not proven (`falcon_numba.numerics.estimate`).
    max_error : None or number > 0, default None
        Largest proven error allowed, relative to K·max|A|·max|B|: "auto" takes the deepest plan that pays whose bound
        meets it, and a product that can't meet it raises ValueError. None: no limit. With ``accuracy="estimated"`` it
        is the largest error estimated.
    workspace_limit : None, int >= 0 (bytes) or str such as "256 MiB", default None
        Memory that the engine may use beside operands and result. None: a limit of its own choice. The units are B,
        kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024).
    threads : None or int >= 1, default None
        Threads of one product on the engine; None follows `numba.get_num_threads`. Without effect where NumPy
        computes: its BLAS has a setting of its own, such as ``OPENBLAS_NUM_THREADS``.
    executor : {"auto", "numpy", "cpu"}, default "auto"
        Who computes: NumPy's BLAS, this library's engine for the CPU, or whichever is faster. "cuda" and "vendor" are
        planned.
    leaf : {"auto", "simd", "portable"}, default "auto"
        The engine's micro-kernel: explicit vector instructions (also "auto"), or plain loops that any LLVM compiles.
    reproducible : bool, default False
        Forbid whatever could change the bits between runs: float32 and float64 then always run on the engine.
    arithmetic : {"auto", "native"}, default "auto"
        The type that the engine computes in; so far always the operands' own ("native").
    device : {"auto", "cpu"}, default "auto"
        Where the product runs; so far always on the CPU. "cuda" is planned.
    check : bool, default False
        Test what the engine has computed with random vectors, in O(n²), see `verify_product`. A product that fails is
        computed again by NumPy, with a `ProductCheckWarning`; `check_counts` counts. What NumPy computes anyway is not
        tested. A copy of C is kept during a product with ``beta != 0``, since it is needed for both.
    tune : bool, default False
        On first use of a shape, time the two or three candidates nearest to the model's choice on the operands, and
        keep the fastest for this process. Not with `reproducible`, nor with estimates.

    Raises
    ------
    TypeError, ValueError
        An unknown option, or a bad value, when the context is made; ValueError for a bad ``FALCON_*`` variable.

    Examples
    --------
    >>> import falcon_numba
    >>> with falcon_numba.config_context(scheme="winograd", depth=1):
    ...     print(falcon_numba.plan_for(512, 512, 512).scheme)
    winograd
    """
    return _scoped(checked_options(options))


class ConfigReport(tuple[tuple[str, Any, str], ...]):
    """Rows (option, value, where it came from); prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        table = [("option", "value", "from"), *((name, repr(value), source) for name, value, source in self)]
        wide = [max(len(row[column]) for row in table) for column in range(3)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in table
        )


def show_config() -> ConfigReport:
    """Every option, its value here, and where that value came from."""
    settings, environment = active(), _variables or {}
    process = {**_process, **_displaced(environment, _process)}
    scope = _scope.get() or {}
    scope = {**scope, **_displaced(_over(environment, _process), scope)}

    def source(name: str) -> str:
        if name in scope:
            return "config_context"
        if name in process:
            return "set_config"
        return f"environment ({_variable(name)})" if name in environment else "default"

    return ConfigReport((field.name, getattr(settings, field.name), source(field.name)) for field in fields(Settings))
