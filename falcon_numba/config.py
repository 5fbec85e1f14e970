"""The options of every product: names, rules, and where a value comes from.

Precedence: argument of the call > `config_context` > `set_config` > ``FALCON_*`` environment > default.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Settings:
    """One value for every option, checked; hashable. Make it with `resolve`.

    Attributes
    ----------
    depth : "auto" or int
        Levels of the scheme; 0 is the classical product.
    scheme : "auto", str, Scheme or tuple of str and Scheme
        Name in ``falcon_numba.schemes`` or a scheme; a tuple has one per level, outermost first.
    accuracy : {"balanced", "componentwise", "normwise"}
        Which error bound is promised.
    max_error : float or None
        Largest allowed error relative to K·max|A|·max|B|.
    check : bool
        Verify the result after the product.
    workspace_limit : int or None
        Bytes the engine may use beside the operands and the result.
    threads : int or None
        Threads of one product; None follows ``numba.get_num_threads()``.
    executor : {"auto", "numpy", "cpu"}
        Who computes: NumPy, or the package's engine for the CPU.
    leaf : {"auto", "simd", "portable"}
        Which micro-kernel the CPU engine runs.
    arithmetic : {"auto", "native"}
        The type the engine computes in; "native" is the operands' own.
    device : {"auto", "cpu"}
        Where the product runs.
    tune : bool
        Measure candidates at run time.
    reproducible : bool
        Forbid whatever may change the bits between runs or machines' vendor libraries.
    """

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


# --- rules: each returns the value in its normal form or raises TypeError / ValueError with the rule ---------------


def _choice(*valid: str, later: tuple[str, ...] = ()) -> Callable[[Any], str]:
    rule = "must be one of " + ", ".join(map(repr, valid))

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(rule)
        if value in later:
            raise ValueError(f"is not implemented yet; {rule}")
        if value not in valid:
            raise ValueError(rule + _did_you_mean(value, valid))
        return value

    return check


def _flag(*, implemented: bool = True) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not (isinstance(value, bool) or type(value).__name__ == "bool"):  # NumPy's bool is no subclass
            raise TypeError("must be True or False")
        if value and not implemented:
            raise ValueError("is not implemented yet; must be False")
        return bool(value)

    return check


def _whole(value: Any, least: int, rule: str) -> int:
    try:
        if type(value).__name__ == "bool":
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(rule) from None
    if number < least:
        raise ValueError(rule)
    return number


def _depth(value: Any) -> str | int:
    rule = "must be 'auto' or an integer >= 0"
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(rule)
        return value
    return _whole(value, 0, rule)


def _threads(value: Any) -> int | None:
    return None if value is None else _whole(value, 1, "must be None or an integer >= 1")


def _scheme(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        if not value:
            raise ValueError("a tuple of schemes needs one scheme per level; depth=0 asks for the classical product")
        return tuple(_one_scheme(item) for item in value)
    return value if isinstance(value, str) and value == "auto" else _one_scheme(value)


def _one_scheme(value: Any) -> Any:
    from .algorithms.catalog import schemes  # here, so that a program that names no scheme never loads the catalogue
    from .algorithms.scheme import Scheme

    if isinstance(value, Scheme):
        return value
    if not isinstance(value, str):
        raise TypeError("must be 'auto', a scheme's name, a Scheme, or a tuple of names and Schemes")
    try:
        schemes[value]
    except KeyError:
        hint = _did_you_mean(value, list(schemes)) or "; print(falcon_numba.schemes) lists the names"
        raise ValueError(f"no scheme is called {value!r}{hint}") from None
    return value


def _max_error(value: Any) -> float | None:
    rule = "must be None or a finite number > 0"
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or type(value).__name__ == "bool":
        raise TypeError(rule)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(rule) from None
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(rule)
    return number


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS |= {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}


def _workspace_limit(value: Any) -> int | None:
    rule = "must be None, a number of bytes >= 0, or text such as '256 MiB'"
    if value is None:
        return None
    if not isinstance(value, str):
        return _whole(value, 0, rule)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(rule)
    return int(float(match[1]) * _UNITS[match[2]])


def _yes_no(text: str) -> Any:
    return {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
        "off": False,
    }.get(text.lower(), text)


def _number(kind: type) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if text.lower() == "none":
            return None
        try:
            return kind(text)
        except ValueError:
            return text  # the option's rule says what is wrong, or knows the word

    return parse


def _names(text: str) -> Any:
    names = [name.strip() for name in text.split(",")]
    return names[0] if len(names) == 1 else tuple(names)


class _Option(NamedTuple):
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]  # text of the environment variable -> value for `check`


_OPTIONS: dict[str, _Option] = {
    "depth": _Option(_depth, _number(int)),
    "scheme": _Option(_scheme, _names),
    "accuracy": _Option(_choice("balanced", "componentwise", "normwise", later=("estimated",)), str),
    "max_error": _Option(_max_error, _number(float)),
    "check": _Option(_flag(implemented=False), _yes_no),
    "workspace_limit": _Option(_workspace_limit, _number(int)),
    "threads": _Option(_threads, _number(int)),
    "executor": _Option(_choice("auto", "numpy", "cpu", later=("cuda", "vendor")), str),
    "leaf": _Option(_choice("auto", "simd", "portable"), str),
    "arithmetic": _Option(_choice("auto", "native"), str),
    "device": _Option(_choice("auto", "cpu", later=("cuda",)), str),
    "tune": _Option(_flag(implemented=False), _yes_no),
    "reproducible": _Option(_flag(), _yes_no),
}


def _did_you_mean(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _checked(name: str, value: Any, shown: str | None = None) -> Any:
    """`value` in its normal form; the error names the option or, where given, what `shown` says."""
    try:
        return _OPTIONS[name].check(value)
    except (TypeError, ValueError) as error:
        # From the environment every fault is one of value: the text is always a str.
        kind = ValueError if shown else type(error)
        raise kind(f"{shown or f'{name}={value!r}'}: {error}") from None


def _checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise TypeError(f"unknown option {name!r}{_did_you_mean(name, list(_OPTIONS))} (options: {known})")
    return {name: _checked(name, value) for name, value in options.items()}


# --- state ---------------------------------------------------------------------------------------------------------

_DEFAULT = Settings()
_lock = threading.Lock()
_variables: dict[str, Any] | None = None  # what the environment said; None until first use
_process: dict[str, Any] = {}  # what set_config said
_base: Settings | None = None  # both together; None until next use
_scope: ContextVar[dict[str, Any] | None] = ContextVar("falcon_numba.config", default=None)


def _variable(name: str) -> str:
    return "FALCON_" + name.upper()


def _environment() -> dict[str, Any]:
    found = {}
    for name, option in _OPTIONS.items():
        text = os.environ.get(_variable(name), "").strip()
        if text:
            found[name] = _checked(name, option.parse(text), shown=f"environment variable {_variable(name)}={text!r}")
    return found


@lru_cache(maxsize=1024)
def _merged(base: Settings, items: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> Settings:
    # `types` keeps depth=True from finding the entry of depth=1.
    return replace(base, **_checked_options(dict(items)))


def _with(base: Settings, options: Mapping[str, Any]) -> Settings:
    items = tuple(options.items())
    try:
        hash(items)
    except TypeError:  # a list of schemes, or a value that its rule will refuse
        return replace(base, **_checked_options(options))
    return _merged(base, items, tuple(map(type, options.values())))


def _combine() -> Settings:
    global _base, _variables
    with _lock:
        if _variables is None:
            _variables = _environment()
        found = {**_variables, **_process}
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


def set_config(*, reset: bool = False, **options: Any) -> None:
    """Set options for the whole process, all threads.

    Parameters
    ----------
    reset : bool
        Forget first what earlier calls set and read the environment afresh.
    **options
        See `Settings`.

    Raises
    ------
    TypeError, ValueError
        As `resolve`; then nothing has changed.
    """
    global _base, _process, _variables
    checked = _checked_options(options)
    with _lock:
        if reset:
            _variables = None
        _process = checked if reset else {**_process, **checked}
        _base = None


@contextmanager
def _scoped(options: dict[str, Any]) -> Iterator[None]:
    token = _scope.set({**(_scope.get() or {}), **options})
    try:
        yield
    finally:
        _scope.reset(token)


def config_context(**options: Any) -> Any:
    """Set options inside a ``with`` block or a decorated function; blocks nest, the innermost wins.

    Other threads and other asyncio tasks keep their own options.

    Raises
    ------
    TypeError, ValueError
        As `resolve`, when the context is made.

    Examples
    --------
    >>> with config_context(depth=0):
    ...     print(resolve().depth)
    0
    """
    return _scoped(_checked_options(options))


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
    settings, scope, environment = active(), _scope.get() or {}, _variables or {}

    def source(name: str) -> str:
        if name in scope:
            return "config_context"
        if name in _process:
            return "set_config"
        return f"environment ({_variable(name)})" if name in environment else "default"

    return ConfigReport((field.name, getattr(settings, field.name), source(field.name)) for field in fields(Settings))
