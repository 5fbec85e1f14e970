"""Products of .npy files: values against NumPy, and a target that appears whole or not at all."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

import falcon_numba
from falcon_numba import npyio
from falcon_numba.npyio import multiply_files, open_npy


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def small_panels(monkeypatch):
    """Panels of at least 4 rows of any dtype, whatever their work; the list collects their row counts."""
    seen = []
    real = falcon_numba.matmul

    def spy(a, b, **options):
        seen.append(options["out"].shape[0] if options["out"].ndim else 1)
        return real(a, b, **options)

    monkeypatch.setattr(falcon_numba, "matmul", spy, raising=False)
    monkeypatch.setattr(npyio, "_PANEL_ROWS", {})
    monkeypatch.setattr(npyio, "_PANEL_ROWS_OTHER", 4)
    monkeypatch.setattr(npyio, "_PANEL_WORK", {})
    monkeypatch.setattr(npyio, "_PANEL_WORK_OTHER", 1)
    return seen


def save(folder, a, b):
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    return folder / "a.npy", folder / "b.npy", folder / "out" / "c.npy"


def random(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iub":
        return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    return rng.integers(-8, 9, shape).astype(dtype)  # small whole numbers: every product is exact


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "int64", "uint16", "bool", "complex64", ">f8", ">i4"]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_dtypes_and_orders(folder, small_panels, dtype, order):
    a, b = random((13, 7), dtype), random((7, 5), dtype, 1)
    paths = save(folder, np.asarray(a, order=order), np.asarray(b, order=order))
    done = multiply_files(*paths)
    expected = np.matmul(a, b)
    result = np.load(paths[2])
    assert (result.dtype, result.shape) == (expected.dtype, (13, 5)) == (done.dtype, done.shape)
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, expected)
    assert done.operations == 2 * 13 * 7 * 5
    assert sum(small_panels) == 13 and len(small_panels) == 3 and max(small_panels) - min(small_panels) <= 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *([(3,), (3,)], [(3,), (3, 4)], [(9, 3), (3,)], [(2, 1, 2), (2,)], [(3,), (2, 5, 3, 4)]),
        *([(6, 2, 3), (6, 3, 4)], [(1, 2, 3), (6, 3, 4)], [(2, 3), (6, 3, 4)], [(6, 2, 3), (3, 4)]),
        *([(5, 1, 2, 3), (6, 3, 4)], [(0, 3), (3, 2)], [(2, 0), (0, 3)], [(0, 2, 3), (0, 3, 4)], [(9, 1), (1, 9)]),
    ],
)
def test_shapes(folder, small_panels, a, b):
    a, b = random(a, "float64"), random(b, "float64", 1)
    paths = save(folder, a, b)
    done = multiply_files(*paths)
    result, expected = np.load(paths[2]), np.matmul(a, b)
    assert result.shape == expected.shape == done.shape
    np.testing.assert_array_equal(result, expected)


def test_result_dtype_can_be_asked_for(folder):
    a, b = np.full((4, 1024), -128, np.int8), np.full((1024, 3), -128, np.int8)
    paths = save(folder, a, b)
    done = multiply_files(*paths, dtype="int32")
    assert done.dtype == np.int32
    np.testing.assert_array_equal(np.load(paths[2]), np.full((4, 3), 16777216))


@pytest.mark.parametrize(
    ("inputs", "dtype", "wide"),
    [("float16", None, "float32"), ("float32", "float16", "float32"), ("float64", np.float16, "float64")],
)
@pytest.mark.parametrize("shapes", [((40, 4096), (4096, 3)), ((4, 40, 300), (300, 3)), ((300,), (300,))])
def test_float16_is_computed_wide_and_rounded_once(folder, monkeypatch, inputs, dtype, wide, shapes):
    lanes = []
    real = falcon_numba.matmul

    def spy(a, b, **options):
        lanes.append((options["out"].dtype, options["dtype"]))
        return real(a, b, **options)

    monkeypatch.setattr(falcon_numba, "matmul", spy, raising=False)
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(inputs) for shape in shapes)
    paths = save(folder, a, b)
    assert multiply_files(*paths, dtype=dtype).dtype == np.float16
    assert set(lanes) == {(np.dtype(wide), np.dtype(wide))}
    expected = np.matmul(a.astype(np.longdouble), b.astype(np.longdouble))
    result = np.load(paths[2])
    assert (result.dtype, result.shape) == (np.float16, expected.shape)
    np.testing.assert_allclose(result, expected.astype(np.float16), rtol=2**-10, atol=1e-4)


def test_report_counts_rows(folder, small_panels):
    seen = []
    multiply_files(*save(folder, np.ones((20, 3)), np.ones((3, 2))), report=lambda *rows: seen.append(rows))
    assert seen[-1] == (20, 20) and len(seen) == 5 and seen == sorted(seen)


def test_panels_depend_on_shape_only(folder, small_panels):
    paths = save(folder, np.ones((20, 3)), np.ones((3, 2)))
    multiply_files(*paths)
    unwatched = small_panels.copy()
    small_panels.clear()
    multiply_files(*paths, force=True, report=lambda *rows: None)
    assert small_panels == unwatched


def test_inputs_are_mapped_not_read(folder, monkeypatch):
    kinds = []

    def spy(a, b, out, **options):
        kinds.extend(type(array) for array in (a, b, out))
        np.matmul(a, b, out=out)

    monkeypatch.setattr(falcon_numba, "matmul", spy, raising=False)
    multiply_files(*save(folder, np.ones((2, 2)), np.ones((2, 2))))
    assert kinds == [np.memmap] * 3


# --- what must not work ---


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3, 4), (5, 6), r"a\.npy \(3, 4\) float64 and .*b\.npy \(5, 6\) float64: inner sizes differ, 4 and 5"),
        ((4, 1), (3,), "inner sizes differ"),
        ((3,), (1, 4), "inner sizes differ"),
        ((), (3,), r"a\.npy \(\) .* at least one dimension"),
        ((2, 3, 4), (3, 4, 5), r"b\.npy \(3, 4, 5\) .* broadcast"),
    ],
)
def test_shapes_that_do_not_fit(folder, a, b, message):
    paths = save(folder, np.ones(a), np.ones(b))
    with pytest.raises(ValueError, match=message):
        multiply_files(*paths)
    assert not os.listdir(folder / "out")


@pytest.mark.parametrize("dtype", ["U3", "datetime64[s]", "V4"])
def test_dtypes_without_a_product(folder, dtype):
    paths = save(folder, np.zeros((2, 2), dtype), np.zeros((2, 2), dtype))
    with pytest.raises(TypeError, match=r"a\.npy holds .* no matrix product"):
        multiply_files(*paths)
    np.save(paths[0], np.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"b\.npy holds"):
        multiply_files(*paths)
    assert not os.listdir(folder / "out")


def test_dtype_that_does_not_cast(folder):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(TypeError, match=r"a\.npy \(2, 2\) float64 and .*b\.npy .*Cannot cast"):
        multiply_files(*paths, dtype="int32")
    with pytest.raises(TypeError, match="float33"):
        multiply_files(*paths, dtype="float33")
    assert not os.listdir(folder / "out")


@pytest.mark.parametrize("content", [b"", b"hello, world", b"\x93NUMPY\x01\x00v\x00{bad", b"PK\x03\x04" + bytes(60)])
def test_not_an_npy_file(folder, content):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    paths[1].write_bytes(content)
    with pytest.raises(ValueError, match=r"b\.npy is not a usable \.npy file"):
        multiply_files(*paths)
    assert not os.listdir(folder / "out")


def test_file_cut_short(folder):
    paths = save(folder, np.ones((20, 20)), np.ones((20, 20)))
    paths[0].write_bytes(paths[0].read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a usable"):
        multiply_files(*paths)


class _Trap:
    def __reduce__(self):
        return (os.mkdir, ("trap-has-sprung",))


def test_pickles_are_never_loaded(folder, monkeypatch):
    monkeypatch.chdir(folder)
    np.save(folder / "a.npy", np.array([[_Trap()]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="objects"):
        open_npy(folder / "a.npy")
    assert not (folder / "trap-has-sprung").exists()


def test_missing_input(folder):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    paths[0].unlink()
    with pytest.raises(FileNotFoundError):
        multiply_files(*paths)


def test_unknown_option(folder):
    with pytest.raises(TypeError):
        multiply_files(*save(folder, np.ones((2, 2)), np.ones((2, 2))), nonsense=1)
    assert not os.listdir(folder / "out")


# --- the target ---


@pytest.mark.parametrize(
    "error", [RuntimeError("broken"), KeyboardInterrupt(), MemoryError(), OSError(28, "No space left")]
)
@pytest.mark.parametrize("force", [False, True])
def test_failure_in_the_middle_leaves_nothing(folder, small_panels, monkeypatch, error, force):
    paths = save(folder, np.ones((20, 3)), np.ones((3, 2)))
    if force:
        np.save(paths[2], np.zeros(1))
    before = sorted(os.listdir(folder / "out"))

    def fail(done, total):
        if done > total // 2:
            raise error

    with pytest.raises(type(error)):
        multiply_files(*paths, force=force, report=fail)
    assert sorted(os.listdir(folder / "out")) == before
    if force:
        np.testing.assert_array_equal(np.load(paths[2]), np.zeros(1))


def test_full_disk_is_an_error_before_the_work(folder, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        multiply_files(*save(folder, np.ones((2, 2)), np.ones((2, 2))))
    assert not os.listdir(folder / "out")


def test_without_fallocate_the_space_is_written(folder, monkeypatch):
    def unsupported(*_arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    a = np.arange(600.0).reshape(20, 30)
    paths = save(folder, a, a.T)
    multiply_files(*paths)
    np.testing.assert_allclose(np.load(paths[2]), a @ a.T)


def test_existing_target_needs_force(folder):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    paths[2].write_text("precious")
    with pytest.raises(FileExistsError, match="--force"):
        multiply_files(*paths)
    assert paths[2].read_text() == "precious"
    paths[2].chmod(0o640)
    multiply_files(*paths, force=True)
    np.testing.assert_array_equal(np.load(paths[2]), np.full((2, 2), 2.0))
    assert stat.S_IMODE(paths[2].stat().st_mode) == 0o640  # a private file stays private


def test_target_that_appears_meanwhile_is_kept(folder, small_panels):
    paths = save(folder, np.ones((20, 3)), np.ones((3, 2)))
    with pytest.raises(FileExistsError, match="appeared"):
        multiply_files(*paths, report=lambda *rows: paths[2].write_text("somebody else's"))
    assert paths[2].read_text() == "somebody else's"
    assert os.listdir(folder / "out") == ["c.npy"]


def test_file_system_without_hard_links(folder, monkeypatch):
    def unsupported(*_arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", unsupported)
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    multiply_files(*paths)
    assert np.load(paths[2])[0, 0] == 2
    assert os.listdir(folder / "out") == ["c.npy"]


def test_output_may_replace_an_input(folder):
    a_path, b_path, _ = save(folder, np.full((2, 2), 2.0), np.full((2, 2), 3.0))
    with pytest.raises(FileExistsError):
        multiply_files(a_path, b_path, a_path)
    multiply_files(a_path, b_path, a_path, force=True)
    np.testing.assert_array_equal(np.load(a_path), np.full((2, 2), 12.0))


def test_new_file_has_the_usual_permissions(folder):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    multiply_files(*paths)
    assert paths[2].stat().st_mode == paths[0].stat().st_mode


def test_symbolic_link_is_followed(folder):
    paths = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    link = folder / "link.npy"
    link.symlink_to(paths[2])
    multiply_files(*paths[:2], link)
    assert link.is_symlink() and np.load(paths[2])[0, 0] == 2


@pytest.mark.parametrize("target", ["out", "missing/c.npy"])
def test_impossible_targets(folder, target):
    a, b, _ = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises((FileExistsError, FileNotFoundError)):
        multiply_files(a, b, folder / target, force=True)


def test_a_device_is_never_replaced(folder):
    if not os.path.exists(os.devnull) or os.name == "nt":
        pytest.skip("no device file here")
    a, b, _ = save(folder, np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(FileExistsError, match="not a regular file"):
        multiply_files(a, b, os.devnull, force=True)
