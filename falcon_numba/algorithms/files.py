"""Scheme files.

A scheme file is JSON, one object::

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

Other keys are ignored. A ``.npz`` file with arrays U, V, W of these shapes is read too.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .scheme import Scheme, SchemeError
from .straightline import evaluate


def load_scheme(path: str | os.PathLike[str]) -> Scheme:
    """Read a scheme from a ``.json`` or ``.npz`` file.

    Parameters
    ----------
    path : str or path-like

    Returns
    -------
    Scheme
        Not verified yet: call `Scheme.verify`, or register it.

    Raises
    ------
    SchemeError
        The file is not a scheme file; the message names the file and what is wrong.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    if path.suffix == ".npz":
        return scheme_from_dict(_read_npz(path), path.stem, str(path))
    return scheme_from_dict(parse_json(path.read_bytes(), str(path)), path.stem, str(path))


def save_scheme(scheme: Scheme, path: str | os.PathLike[str]) -> None:
    """Write a scheme as a JSON scheme file, one product a line."""
    Path(path).write_text(scheme_to_json(scheme), encoding="utf-8")


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
            return {letter: archive[letter] for letter in "UVW" if letter in archive}
    except (ValueError, zipfile.BadZipFile) as error:
        raise SchemeError(f"{path}: not an .npz file of plain arrays: {error}") from None
