"""The catalogue: names, look-ups, registration, files and tables."""

from __future__ import annotations

import itertools
import json
import re
import zipfile
from fractions import Fraction

import numpy as np
import pytest

from falcon_numba.algorithms import (
    Scheme,
    SchemeError,
    SchemeMapping,
    UnknownSchemeError,
    classical,
    compose,
    load_scheme,
    permute,
    resolve_scheme,
    save_scheme,
    schemes,
)
from falcon_numba.algorithms.table import HEADINGS, LEGEND, formulas, schemes_text

FORMATS = {
    "classical": "⟨1,1,1;1⟩",
    "strassen": "⟨2,2,2;7⟩",
    "winograd": "⟨2,2,2;7⟩",
    "laderman": "⟨3,3,3;23⟩",
    **{
        f"hk{m}{k}{n}": f"⟨{m},{k},{n};{rank}⟩"
        for grid, rank in (((2, 2, 3), 11), ((2, 2, 4), 14), ((2, 2, 5), 18), ((2, 3, 3), 15))
        for m, k, n in set(itertools.permutations(grid))
    },
}


@pytest.fixture
def catalogue():
    return SchemeMapping()


def strassen_arrays():
    s = schemes["strassen"]
    return [s.U.copy(), s.V.copy(), s.W.copy()]


def test_the_catalogue_holds_the_named_schemes():
    assert {name: s.format for name, s in schemes.items()} == FORMATS
    assert len(schemes) == len(FORMATS) == len(list(schemes))
    for name, scheme in schemes.items():
        assert scheme.name == name
        assert scheme.source
        assert scheme.U.dtype == np.int64
        assert schemes[name] is scheme


def test_sources():
    assert "Strassen" in schemes["strassen"].source
    assert "1969" in schemes["strassen"].source
    assert "Winograd" in schemes["winograd"].source
    assert "Laderman" in schemes["laderman"].source
    for name in ("hk223", "hk242", "hk522"):
        assert "Hopcroft" in schemes[name].source
        assert "Strassen" in schemes[name].source
    assert "search" in schemes["hk332"].source


def test_schemes_are_what_their_sources_say():
    s = schemes["strassen"]
    assert (schemes["hk224"].V[:7, :, :2] == s.V).all()
    assert (schemes["hk224"].V[7:, :, 2:] == s.V).all()
    assert (schemes["hk225"].W[14:, :, 4:] == classical(2, 2, 1).W).all()
    assert s.U[0].tolist() == s.V[0].tolist() == [[1, 0], [0, 1]]  # (A11 + A22)(B11 + B22)


@pytest.mark.parametrize("name", FORMATS)
def test_lookup_by_format(name):
    m, k, n = schemes[name].grid
    rank = schemes[name].rank
    expected = "strassen" if name == "winograd" else name
    for text in (f"<{m},{k},{n}>", f"{m}x{k}x{n}", f"⟨{m},{k},{n};{rank}⟩", f" < {m}, {k}, {n}; {rank} > "):
        assert schemes[text].name == expected


def test_lookup_of_hybrids_and_permutations():
    hybrid = schemes["strassen * hk223"]
    assert hybrid == compose(schemes["strassen"], schemes["hk223"])
    assert schemes[hybrid.name] == hybrid
    assert schemes["strassen * hk223"] is hybrid
    assert schemes["2x2x2*2x3x3.nmk"].grid == (6, 4, 6)
    assert schemes["hk233.nkm"] == permute(schemes["hk233"], "nkm")
    nested = permute(permute(schemes["hk233"], "knm"), "nkm")
    assert schemes[nested.name] == nested
    assert "strassen*winograd" in schemes
    assert "strassen*nothing" not in schemes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("strasen", "'strassen'"),
        ("Strassen", "'strassen'"),
        ("hk22", "did you mean 'hk"),
        ("zzz", "there are classical, strassen"),
        ("strassen*zzz", "'zzz'"),
        ("strassen.mkk", "'strassen'"),
        ("<4,4,4>", "no scheme of format '<4,4,4>'; there are ⟨1,1,1;1⟩"),
        ("<2,2,2;6>", "<2,2,2;6>"),
        ("", "unknown scheme ''"),
        ("*", "unknown scheme ''"),
        (3, "is a string"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(UnknownSchemeError, match=message) as caught:
        schemes[name]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ValueError)
    assert not str(caught.value).startswith(('"', "'"))
    assert name not in schemes
    assert schemes.get(name) is None


def test_resolve_scheme():
    s = schemes["strassen"]
    assert resolve_scheme("strassen") is s
    assert resolve_scheme(s) is s
    with pytest.raises(UnknownSchemeError):
        resolve_scheme("nothing")
    with pytest.raises(SchemeError):
        resolve_scheme(Scheme("bad", s.U, s.V, -s.W))
    with pytest.raises(TypeError, match="got int"):
        resolve_scheme(7)


def test_register_arrays(catalogue):
    made = catalogue.register(strassen_arrays(), name="mine", source="me")
    assert catalogue["mine"] is made
    assert made.source == "me"
    assert list(catalogue)[-1] == "mine"
    assert len(catalogue) == len(schemes) + 1
    assert "mine" not in schemes
    assert catalogue["mine*strassen"].rank == 49


def test_a_registered_scheme_of_lower_rank_becomes_its_formats_default(catalogue):
    assert "<4,4,4>" not in catalogue
    catalogue.register(classical(4, 4, 4))
    assert catalogue["<4,4,4>"].rank == 64
    catalogue.register(compose(schemes["strassen"], schemes["strassen"]), name="strassen2")
    assert catalogue["<4,4,4>"].name == "strassen2"


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("as_text", [True, False])
def test_register_a_file(catalogue, tmp_path, suffix, as_text):
    path = tmp_path / f"mine{suffix}"
    u, v, w = strassen_arrays()
    if suffix == ".npz":
        np.savez(path, U=u, V=v, W=w)
    else:
        path.write_text(json.dumps({"U": u.tolist(), "V": v.tolist(), "W": w.tolist()}))
    made = catalogue.register(str(path) if as_text else path)
    assert made == schemes["strassen"].renamed("mine")
    assert f"mine{suffix}" in made.source
    assert catalogue.register(path, name="other").name == "other"


def test_register_refuses_invalid_schemes_and_names_the_equation(catalogue, tmp_path):
    u, v, w = strassen_arrays()
    w[3, 1, 0] += 1
    message = r"Σ_r U\[r,\d,\d\]·V\[r,\d,\d\]·W\[r,1,0\] = -?\d, expected [01]"
    np.savez(tmp_path / "bad.npz", U=u, V=v, W=w)
    for bad in ((u, v, w), Scheme("bad", u, v, w), tmp_path / "bad.npz"):
        with pytest.raises(SchemeError, match=message):
            catalogue.register(bad, name="bad")
    assert "bad" not in catalogue


@pytest.mark.parametrize("name", ["auto", "a*b", "a.b", "a,b", "2x2x2", "<2,2,2>", "", " a", "a\n", "é"])
def test_register_refuses_names_that_mean_something_else(catalogue, name):
    with pytest.raises(ValueError, match="cannot name a scheme"):
        catalogue.register(Scheme(name, *strassen_arrays()))
    assert len(catalogue) == len(FORMATS)


def test_register_never_replaces_silently(catalogue):
    other = schemes["winograd"]
    first = catalogue.register(other, name="mine")
    assert catalogue.register(other, name="mine") is first
    assert catalogue["mine*mine"].nonzeros[0] == 14**2
    with pytest.raises(ValueError, match="'mine' is taken"):
        catalogue.register(strassen_arrays(), name="mine")
    assert catalogue["mine"] is first
    catalogue.register(strassen_arrays(), name="mine", replace=True)
    assert catalogue["mine"].nonzeros == (12, 12, 12)
    assert catalogue["mine*mine"].nonzeros[0] == 12**2
    assert catalogue.register(schemes["strassen"]) == schemes["strassen"]
    assert len(catalogue) == len(FORMATS) + 1
    for replace in (False, True):
        with pytest.raises(ValueError, match="'strassen' is taken"):
            catalogue.register(other, name="strassen", replace=replace)


def test_register_refuses_other_things(catalogue):
    with pytest.raises(ValueError, match="needs a name"):
        catalogue.register(strassen_arrays())
    for bad in (7, None, strassen_arrays()[:2], np.zeros(3)):
        with pytest.raises(SchemeError, match="three arrays"):
            catalogue.register(bad, name="x")
    with pytest.raises(FileNotFoundError):
        catalogue.register("nowhere.json")


@pytest.mark.parametrize("file", ["x.json", "x.npz", "X.NPZ"])
@pytest.mark.parametrize("name", [*FORMATS, "fractions"])
def test_save_and_load(name, file, tmp_path):
    s = schemes["strassen"]
    scheme = Scheme(name, s.U * Fraction(-1, 3), s.V, s.W * -3, "é") if name == "fractions" else schemes[name]
    save_scheme(scheme, tmp_path / file)
    back = load_scheme(tmp_path / file)
    assert back == scheme
    assert zipfile.is_zipfile(tmp_path / file) == file.lower().endswith("npz")
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert (back.source, back.evaluation_order) == (scheme.source, scheme.evaluation_order)


def test_the_name_of_a_file_says_its_format(tmp_path):
    for name in ("x.txt", "x", "x.npy", "json"):
        with pytest.raises(SchemeError, match=r"ends in \.json or \.npz"):
            save_scheme(schemes["strassen"], tmp_path / name)
        (tmp_path / name).write_text("{}")
        with pytest.raises(SchemeError, match=r"ends in \.json or \.npz"):
            load_scheme(tmp_path / name)


def test_save_scheme_takes_a_name(tmp_path):
    save_scheme("winograd", tmp_path / "w.npz")
    assert load_scheme(tmp_path / "w.npz") == schemes["winograd"]
    with pytest.raises(TypeError, match="got ndarray"):
        save_scheme(schemes["winograd"].U, tmp_path / "u.npz")


def test_decimals_in_files_are_exact(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"U": [[[0.1]]], "V": [[["1/3"]]], "W": [[[30]]]}')
    assert load_scheme(path).verify().U[0, 0, 0] == Fraction(1, 10)


GOOD = '"U": [[[1]]], "V": [[[1]]], "W": [[[1]]]'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "one JSON object"),
        ('{"U": [[[1]]], "V": [[[1]]]}', "no W"),
        ('{"U": [[1]], "V": [[[1]]], "W": [[[1]]]}', "shapes"),
        ('{"U": [[[NaN]]], "V": [[[1]]], "W": [[[1]]]}', "exact number"),
        ('{"U": {}, "V": [[[1]]], "W": [[[1]]]}', "shapes|exact number"),
        (f'{{"rank": 2, {GOOD}}}', "rank 2"),
        (f'{{"grid": [1, 1, 2], {GOOD}}}', "grid"),
        (f'{{"evaluation_order": "p = a11 * b11", {GOOD}}}', "list of strings"),
        (f'{{"evaluation_order": 3, {GOOD}}}', "list of strings"),
        (f'{{"evaluation_order": ["p = a11 * b11", "c11 = -p"], {GOOD}}}', "does not compute"),
        (f'{{"evaluation_order": ["p"], {GOOD}}}', "name = expression"),
        (f'{{"evaluation_order": ["p = a11 * b11", "q = a11 * b11", "c11 = p"], {GOOD}}}', "does not compute"),
    ],
)
def test_bad_files_are_refused_by_name(text, message, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(SchemeError, match=rf"bad\.json: .*({message})"):
        load_scheme(path)


def test_bad_npz_files_are_refused(tmp_path):
    path = tmp_path / "bad.npz"
    path.write_text("no archive")
    with pytest.raises(SchemeError, match=r"bad\.npz"):
        load_scheme(path)
    np.savez(path, U=np.ones((1, 1, 1)))
    with pytest.raises(SchemeError, match="no V, W"):
        load_scheme(path)
    np.savez(path, U=np.array([None]), V=np.ones((1, 1, 1)), W=np.ones((1, 1, 1)))
    with pytest.raises(SchemeError, match=r"bad\.npz"):
        load_scheme(path)


def test_print_shows_a_table():
    lines = str(schemes).splitlines()
    assert len(lines) == 3 + len(schemes) + len(LEGEND)
    cells = {line.split("│")[0].strip(): [c.strip() for c in line.split("│")] for line in lines}
    for word in ("classical", "speed-up", "ω", "non-zeros", "additions", "CSE", "e", "γ"):
        assert re.search(rf"(^|; ){word}: ", "\n".join(LEGEND), re.MULTILINE) and word in HEADINGS
    assert cells["strassen"][1:10] == ["⟨2,2,2;7⟩", "8", "1.143", "2.8074", "36", "18", "18", "12", "14.83"]
    assert cells["winograd"][5:10] == ["42", "24", "15", "18", "17.85"]
    assert cells["strassen"][10].startswith("V. Strassen")
    assert max(map(len, lines)) < 180
    assert "…" in str(schemes)
    whole = schemes_text(list(schemes.values()), long=True)
    assert "…" not in whole and all(scheme.source in whole for scheme in schemes.values())
    assert "strassen" in repr(schemes)


def test_html(catalogue):
    catalogue.register(strassen_arrays(), name="mine", source="<script>")
    html = catalogue._repr_html_()
    assert html.count("<tr>") == len(catalogue) + 1
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
    one = schemes["strassen"]._repr_html_()
    assert "H1 = (A11 + A22) · (B11 + B22)" in one
    assert "H2 = (A21 + A22) · B11" in one
    assert "<pre>" not in schemes["strassen*laderman"]._repr_html_()
    assert "–" in schemes["laderman*laderman"]._repr_html_()


def test_formulas():
    assert formulas(schemes["strassen"])[-2:] == ["C21 = H2 + H4", "C22 = H1 − H2 + H3 + H6"]
    s = Scheme("x", [[[Fraction(-1, 2)] * 10]], np.zeros((1, 10, 1)), [[[3]]])
    first, second = formulas(s)
    assert first.startswith("H1 = (−1/2·A1,1 − 1/2·A1,2")
    assert first.endswith("· 0")
    assert second == "C11 = 3·H1"


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_a_file_lends_its_name_where_the_schemes_own_is_not_allowed(catalogue, tmp_path, suffix):
    product = compose("strassen", "hk223")
    save_scheme(product, tmp_path / f"both{suffix}")
    assert catalogue.register(tmp_path / f"both{suffix}").name == "both"
    save_scheme(product, tmp_path / f"2nd{suffix}")
    with pytest.raises(ValueError, match="cannot name a scheme"):
        catalogue.register(tmp_path / f"2nd{suffix}")
