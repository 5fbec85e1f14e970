"""`schemes`: the catalogue, a mapping from name to `Scheme`.

Names: ``classical`` (one block), ``strassen``, ``winograd``, ``laderman``; ``hk{m}{k}{n}``, in every order of m, k, n,
for schemes of the ranks that J. E. Hopcroft and L. R. Kerr attained first ("On minimizing the number of multiplications
necessary for matrix multiplication", SIAM J. Appl. Math. 20 (1971)). A scheme's `source` says where its coefficients
come from.
A lookup also understands

- ``"strassen*hk223"``: a hybrid, composed outermost first;
- ``"hk233.nkm"``: a permutation, see `symmetry.permute`;
- ``"2x2x3"``, ``"<2,2,3>"``, ``"<2,2,3;11>"``: the scheme of that format with the lowest rank, then the lowest growth
  factor.
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from .compose import compose
from .files import load_scheme, parse_json, scheme_from_dict
from .scheme import Scheme, SchemeError
from .stability import growth_factor
from .symmetry import ORDERS, permute
from .table import schemes_html, schemes_text

_NAME = re.compile(r"[A-Za-z_][\w+-]*", re.ASCII)
_FORMAT = re.compile(r"[<⟨]?\s*(\d+)\s*[x×,]\s*(\d+)\s*[x×,]\s*(\d+)\s*(?:;\s*(\d+)\s*)?[>⟩]?")


class UnknownSchemeError(KeyError, ValueError):
    """A name that the catalogue does not have; the message names close matches."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class SchemeMapping(Mapping[str, Scheme]):
    """Schemes by name, built-in and registered. Data files are read, and verified, at the first look-up."""

    def __init__(self) -> None:
        self._registered: dict[str, Scheme] = {}
        self._resolved: dict[str, Scheme] = {}  # hybrids, permutations and formats looked up before
        self._lock = threading.Lock()

    @cached_property
    def _builtin(self) -> dict[str, Scheme]:
        found = []
        for file in (resources.files(__package__) / "data").iterdir():
            if file.name.endswith(".json"):
                data = parse_json(file.read_bytes(), file.name)
                scheme = scheme_from_dict(data, file.name.removesuffix(".json"), file.name).verify()
                found += [
                    scheme,
                    *(permute(scheme, order, name) for name, order in data.get("permutations", {}).items()),
                ]
        found.sort(key=lambda s: (s.m * s.k * s.n, s.grid, growth_factor(s), s.name))
        return {scheme.name: scheme for scheme in found}

    def __getitem__(self, name: str) -> Scheme:
        if not isinstance(name, str):
            raise UnknownSchemeError(f"a scheme name is a string, got {type(name).__name__}")
        for known in (self._builtin, self._registered, self._resolved):
            if name in known:
                return known[name]
        with self._lock:
            resolved = self._resolved[name] = self._derive(name)
        return resolved

    def _derive(self, name: str) -> Scheme:
        if "*" in name:
            return compose(*(self._part(part) for part in name.split("*")))
        return self._part(name)

    def _part(self, name: str) -> Scheme:
        name = name.strip()
        for known in (self._builtin, self._registered):
            if name in known:
                return known[name]
        base, _, order = name.rpartition(".")
        if order in ORDERS:
            return permute(self._part(base), order)
        if match := _FORMAT.fullmatch(name):
            m, k, n = (int(x) for x in match.groups()[:3])
            return self._of_format(name, (m, k, n), int(match[4]) if match[4] else None)
        raise self._unknown(name)

    def _of_format(self, text: str, grid: tuple[int, int, int], rank: int | None) -> Scheme:
        fits = [s for s in self.values() if s.grid == grid and rank in (None, s.rank)]
        if not fits:
            formats = dict.fromkeys(s.format for s in self.values())
            raise UnknownSchemeError(f"no scheme of format {text!r}; there are {', '.join(formats)}")
        return min(fits, key=lambda s: (s.rank, growth_factor(s)))

    def _unknown(self, name: str) -> UnknownSchemeError:
        close = difflib.get_close_matches(name.lower(), list(self), n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"there are {', '.join(self)}"
        listed = "print(falcon_numba.schemes), or the command `falcon-numba schemes`, shows the catalogue"
        return UnknownSchemeError(f"unknown scheme {name!r}; {hint} ({listed})")

    def __iter__(self) -> Iterator[str]:
        yield from self._builtin
        yield from list(self._registered)

    def __len__(self) -> int:
        return len(self._builtin) + len(self._registered)

    def register(
        self,
        scheme: Scheme | str | os.PathLike[str] | Sequence[Any],
        *,
        name: str | None = None,
        source: str | None = None,
        replace: bool = False,
    ) -> Scheme:
        """Add a scheme, after checking it exactly.

        Parameters
        ----------
        scheme : Scheme, path, or (U, V, W)
            A path names a ``.json`` or ``.npz`` file, see `falcon_numba.load_scheme`; where the name in it is none
            that is allowed, the file's counts. Arrays have shapes (R, m, k),
            (R, k, n), (R, m, n), integer or rational coefficients, and need a `name`.
        name, source : str, optional
            In place of the scheme's own. A name is letters, digits, ``_``, ``+`` and ``-``, and starts with a letter.
        replace : bool, optional
            Whether a scheme registered before under this name gives way. Built-in schemes never do.

        Returns
        -------
        Scheme
            As stored.

        Raises
        ------
        SchemeError
            Malformed, or no matrix multiplication: the first Brent equation violated is named.
        ValueError
            A name that is not allowed, or taken by another scheme.
        """
        scheme = self._as_scheme(scheme, name, source)
        if not _NAME.fullmatch(scheme.name) or scheme.name == "auto":
            raise ValueError(
                f"{scheme.name!r} cannot name a scheme: a name is letters, digits, '_', '+' and '-' after a letter, "
                "and not 'auto'"
            )
        scheme.verify()
        with self._lock:
            taken = self._builtin.get(scheme.name) or (None if replace else self._registered.get(scheme.name))
            if taken not in (None, scheme):
                raise ValueError(f"the name {scheme.name!r} is taken by {taken!r}")
            if taken is None:
                self._registered[scheme.name] = scheme
                self._resolved.clear()
        return taken or scheme

    @staticmethod
    def _as_scheme(scheme: Any, name: str | None, source: str | None) -> Scheme:
        if isinstance(scheme, (str, os.PathLike)):
            path, scheme = Path(scheme), load_scheme(scheme)
            if name is None and not _NAME.fullmatch(scheme.name):  # a product of schemes, say
                name = path.stem
        if isinstance(scheme, Scheme):
            return scheme if name is None and source is None else scheme.renamed(name or scheme.name, source)
        if not isinstance(scheme, Sequence) or len(scheme) != 3:
            raise SchemeError(f"a scheme is a Scheme, a path or three arrays (U, V, W), got {type(scheme).__name__}")
        if name is None:
            raise ValueError("a scheme given as arrays needs a name")
        U, V, W = scheme
        return Scheme(name, U, V, W, source or "registered from arrays")

    def __str__(self) -> str:
        return schemes_text(list(self.values()))

    def _repr_html_(self) -> str:
        return schemes_html(list(self.values()))

    def __repr__(self) -> str:
        return f"<SchemeMapping: {', '.join(self)}>"


schemes = SchemeMapping()


def resolve_scheme(scheme: str | Scheme) -> Scheme:
    """The scheme that an option names, verified.

    Raises
    ------
    UnknownSchemeError
        No such name.
    SchemeError
        A `Scheme` that does not multiply matrices.
    TypeError
        Neither a name nor a Scheme.
    """
    if isinstance(scheme, Scheme):
        return scheme.verify()
    if isinstance(scheme, str):
        return schemes[scheme]
    raise TypeError(f"a scheme is a name or a Scheme, got {type(scheme).__name__}")
