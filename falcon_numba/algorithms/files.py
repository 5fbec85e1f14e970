"""Scheme files, ``.json`` or ``.npz``.

The JSON is one object::

    {
      "name": "strassen",                 # default: the file's stem
      "source": "where it comes from",    # default: the file's name
      "grid": [2, 2, 2], "rank": 7,       # optional, checked where given
      "evaluation_order": ["s1 = a21 + a22", …],          # optional, see `straightline`; must compute U, V, W
      "permutations": {"hk323": "kmn", …},                # read by the catalogue only: names for permuted formats
      "U": [[[1, 0], [0, 1]], …],         # R matrices m×k; a coefficient is an integer, a decimal or a string "p/q"
      "V": […],                           # R matrices k×n
      "W": […]                            # R matrices m×n
    }

Other keys are ignored. A ``.npz`` file has the same names as arrays: U, V, W of these shapes, in numbers or in strings
such as "1/2", and optionally the strings name and source and the strings of evaluation_order.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .compose import as_scheme
from .scheme import Scheme, SchemeError
from .straightline import evaluate


def load_scheme(path: str | os.PathLike[str]) -> Scheme:
    """Read a scheme from a ``.json`` or ``.npz`` file.

    Parameters
    ----------
    path : str or path-like
        Of a ``.json`` file, one object with "U", "V" and "W", each a list of R matrices of integers, decimals or
        strings such as "-1/2", and optionally "name", "source", "grid", "rank" and "evaluation_order"; or of a ``.npz``
        file with arrays U (R, m, k), V (R, k, n) and W (R, m, n), and optionally the strings name and source. The name
        defaults to the file's.

    Returns
    -------
    Scheme
        Not verified yet: call `Scheme.verify`, or register it.

    Raises
    ------
    SchemeError
        The file is not a scheme file; the message names the file and what is wrong. A ValueError.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    if _suffix(path) == ".npz":
        return scheme_from_dict(_read_npz(path), path.stem, str(path))
    return scheme_from_dict(parse_json(path.read_bytes(), str(path)), path.stem, str(path))


def save_scheme(scheme: Scheme | str, path: str | os.PathLike[str]) -> None:
    """Write a scheme to a file that `load_scheme` reads.

    Parameters
    ----------
    scheme : Scheme or str
        A str is a name in `falcon_numba.schemes`.
    path : str or path-like
        Ending in ``.json`` (text, one product a line) or ``.npz`` (arrays U, V, W, name, source, evaluation_order;
        coefficients are int64 or, where there are fractions, strings such as "1/2"). An existing file is replaced.

    Raises
    ------
    SchemeError
        Another ending. A ValueError.
    OSError
        The file cannot be written.
    """
    scheme, path = as_scheme(scheme), Path(path)
    if _suffix(path) == ".json":
        path.write_text(scheme_to_json(scheme), encoding="utf-8")
        return
    arrays: dict[str, Any] = {
        letter: x.astype(str) if x.dtype == object else x
        for letter, x in zip("UVW", (scheme.U, scheme.V, scheme.W), strict=True)
    }
    with path.open("wb") as file:  # given a path, NumPy would add .npz to "x.NPZ"
        np.savez(file, name=scheme.name, source=scheme.source, evaluation_order=[*scheme.evaluation_order], **arrays)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (".json", ".npz"):
        raise SchemeError(f"{path}: the name of a scheme file ends in .json or .npz")
    return suffix


def scheme_to_json(scheme: Scheme, **extra: Any) -> str:
    """The text of a scheme file; `extra` adds keys."""
    head: dict[str, Any] = {"name": scheme.name, "source": scheme.source, "grid": scheme.grid, "rank": scheme.rank}
    if scheme.evaluation_order:
        head["evaluation_order"] = scheme.evaluation_order
    fields = [
        f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in {**head, **extra}.items()
    ]
    for letter, x in (("U", scheme.U), ("V", scheme.V), ("W", scheme.W)):
        products = ",\n    ".join(json.dumps(matrix, default=str) for matrix in x.tolist())
        fields.append(f'  "{letter}": [\n    {products}\n  ]')
    return "{\n" + ",\n".join(fields) + "\n}\n"


def parse_json(text: str | bytes, where: str) -> dict[str, Any]:
    """The object in a scheme file's text; decimals stay text, so that 0.1 means one tenth exactly."""
    try:
        data = json.loads(text, parse_float=str)
    except ValueError as error:  # malformed JSON or UTF-8
        raise SchemeError(f"{where}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise SchemeError(f"{where}: a scheme file is one JSON object, got {type(data).__name__}")
    return data


def scheme_from_dict(data: dict[str, Any], name: str, where: str) -> Scheme:
    """A Scheme from the contents of a scheme file; `name` where it gives none."""
    missing = [letter for letter in "UVW" if letter not in data]
    if missing:
        raise SchemeError(f"{where}: no {', '.join(missing)}")
    order = data.get("evaluation_order", ())
    if not isinstance(order, (list, tuple)) or not all(isinstance(line, str) for line in order):
        raise SchemeError(f"{where}: evaluation_order must be a list of strings")
    try:
        scheme = Scheme(
            str(data.get("name", name)),
            data["U"],
            data["V"],
            data["W"],
            str(data.get("source", f"file {Path(where).name}")),
            tuple(order),
        )
        for key, value in (("grid", list(scheme.grid)), ("rank", scheme.rank)):
            stated = data.get(key, value)
            if stated != value:
                raise SchemeError(f"states {key} {stated}, but its arrays have {value}")
        if order and not all(map(np.array_equal, evaluate(order, scheme.grid), (scheme.U, scheme.V, scheme.W))):
            raise SchemeError("evaluation_order does not compute U, V, W")
    except SchemeError as error:
        raise SchemeError(f"{where}: {error}") from None
    return scheme


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            data: dict[str, Any] = {letter: archive[letter] for letter in "UVW" if letter in archive}
            return data | {
                key: archive[key].tolist() for key in ("name", "source", "evaluation_order") if key in archive
            }
    except (ValueError, zipfile.BadZipFile) as error:
        raise SchemeError(f"{path}: not an .npz file of plain arrays: {error}") from None
