"""The rules of the options: which values each may have, in Python and as text.

Every check returns the value in its normal form or raises TypeError or ValueError with the rule.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple


def _choice(*valid: str, later: tuple[str, ...] = ()) -> Callable[[Any], str]:
    rule = "must be one of " + ", ".join(map(repr, valid))
    if later:
        rule += f" ({' and '.join(map(repr, later))} {'are' if len(later) > 1 else 'is'} planned)"

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError(rule)
        if value in later:
            raise ValueError(f"is not implemented yet; {rule}")
        if value not in valid:
            raise ValueError(rule + _did_you_mean(value, valid))
        return value

    return check


def _flag(value: Any) -> bool:
    if not (isinstance(value, bool) or type(value).__name__ == "bool"):  # NumPy's bool is no subclass
        raise TypeError("must be True or False")
    return bool(value)


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


MOST_THREADS = 1024  # more would only wait for one another, and each has a stack


def _threads(value: Any) -> int | None:
    rule = f"must be None or an integer from 1 to {MOST_THREADS}"
    value = None if value is None else _whole(value, 1, rule)
    if value is not None and value > MOST_THREADS:
        raise ValueError(rule)
    return value


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
        raise TypeError(
            "must be 'auto', a scheme's name, a Scheme, or a tuple of names and Schemes; "
            "arrays make one: falcon_numba.Scheme(name, U, V, W)"
        )
    try:
        schemes[value]
    except KeyError as error:
        if isinstance(names := split_names(value), tuple):
            raise ValueError(f"several levels are a tuple, scheme={names}, not a text with commas") from None
        if value.lower().endswith((".json", ".npz")):
            raise ValueError(f"a file is registered first: falcon_numba.schemes.register({value!r})") from None
        raise ValueError(str(error)) from None
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


def split_names(text: str) -> str | tuple[str, ...]:
    """A scheme's name, or a tuple of the names that commas separate; commas in ``"<2,2,3;11>"`` separate nothing."""
    names = [name.strip() for name in re.split(r",(?![^<⟨]*[>⟩])", text)]
    return names[0] if len(names) == 1 else tuple(names)


class Option(NamedTuple):
    check: Callable[[Any], Any]
    parse: Callable[[str], Any]  # text of the environment variable -> value for `check`


OPTIONS: dict[str, Option] = {
    "depth": Option(_depth, _number(int)),
    "scheme": Option(_scheme, split_names),
    "accuracy": Option(_choice("balanced", "componentwise", "normwise", "estimated"), str),
    "max_error": Option(_max_error, _number(float)),
    "check": Option(_flag, _yes_no),
    "workspace_limit": Option(_workspace_limit, _number(int)),
    "threads": Option(_threads, _number(int)),
    "executor": Option(_choice("auto", "numpy", "cpu", later=("cuda", "vendor")), str),
    "leaf": Option(_choice("auto", "simd", "portable"), str),
    "arithmetic": Option(_choice("auto", "native"), str),
    "device": Option(_choice("auto", "cpu", later=("cuda",)), str),
    "tune": Option(_flag, _yes_no),
    "reproducible": Option(_flag, _yes_no),
}


def closest(word: str, known: Collection[str]) -> str | None:
    """The known word that `word` may be a slip for."""
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.75)), None)  # 'gpu' isn't meant to be 'cpu'


def _did_you_mean(word: str, known: Collection[str]) -> str:
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close else ""


class _ShortRepr(reprlib.Repr):
    """Values in error messages: arrays by their shape, everything else cut where it gets long."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100

    def repr_ndarray(self, x: Any, _level: int) -> str:
        return f"<array of shape {x.shape}>"


_short = _ShortRepr().repr


def checked(name: str, value: Any, shown: str | None = None) -> Any:
    """`value` in its normal form; the error names the option or, where given, what `shown` says."""
    try:
        return OPTIONS[name].check(value)
    except (TypeError, ValueError) as error:
        # From the environment every fault is one of value: the text is always a str.
        kind = ValueError if shown else type(error)
        raise kind(f"{shown or f'{name}={_short(value)}'}: {error}") from None


GEMM_ONLY = ("alpha", "beta", "trans_a", "trans_b", "out_dtype", "modulus", "plan")


def check_name(name: str) -> None:
    if name not in OPTIONS:
        if name in GEMM_ONLY:
            raise TypeError(f"{name} is an argument of gemm only")
        known = ", ".join(OPTIONS)
        raise TypeError(f"unknown option {name!r}{_did_you_mean(name, list(OPTIONS))} (options: {known})")


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in options:
        check_name(name)
    return {name: checked(name, value) for name, value in options.items()}
