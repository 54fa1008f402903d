"""Arrays on disk: what is read is what was written, and damage is an error, never more."""

import json
import os
import pickle
import shutil
import sys
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from cli_runner import run

from gyrobn import Chunks, GyroBN, PoincareBall
from gyrobn.data import create_array, open_array, replacing

FORMATS = (".npy", ".npz", ".zarr", ".csv", ".mat", ".h5")
X = np.arange(7 * 3 * 3, dtype=np.float64).reshape(7, 3, 3) / 3


def write(path, x=X, sizes=(3, 3, 1), **options):
    """Write an array in chunks of these sizes."""
    with create_array(path, x.shape, x.dtype, **options) as out:
        for part in np.split(x, np.cumsum(sizes)[:-1]):
            out.write(part)
    return path


def opened(path, **options):
    return open_array(path, layout="matrix" if path.suffix == ".csv" else None, **options)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


# ---------------------------------------------------------------------- good files


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4"])
def test_what_is_written_is_read(tmp_path, suffix, dtype):
    x = X.astype(dtype)
    with opened(write(tmp_path / f"x{suffix}", x)) as found:
        assert (found.shape, found.ndim, len(found)) == (x.shape, 3, 7)
        assert found.dtype == (np.float64 if suffix == ".csv" else x.dtype.newbyteorder("="))
        for rows in (slice(0, 2), slice(5, 9), slice(1, 3), slice(3, 3), slice(None)):
            np.testing.assert_array_equal(found[rows], x[rows])
        np.testing.assert_array_equal(np.concatenate(list(Chunks(found, size=2))), x)
        again = pickle.loads(pickle.dumps(found))  # a task of Dask opens the file where it runs
        np.testing.assert_array_equal(np.asarray(again), x)


@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_read(tmp_path, order):
    x = np.asarray(X, order=order)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "stored.npz", x=x, other=np.zeros(3))
    np.savez_compressed(tmp_path / "packed.npz", x=x, other=np.zeros(3))
    for name in names(tmp_path):
        with open_array(tmp_path / name, "x" if name.endswith("z") else None) as found:
            np.testing.assert_array_equal(found[2:5], X[2:5])
    np.save(tmp_path / "words.npy", np.asarray(["a", "bc"]))
    assert open_array(tmp_path / "words.npy")[:].tolist() == ["a", "bc"]


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_of_both_versions_and_usual_codecs(tmp_path, monkeypatch, version):
    codecs = zarr.codecs
    kinds = [codecs.GzipCodec(), codecs.ZstdCodec(), codecs.BloscCodec()]
    if version == 2:
        kinds = [numcodecs.Blosc(), numcodecs.GZip(), numcodecs.Zstd(), numcodecs.LZ4()]
    for i, compressor in enumerate(kinds):
        path = tmp_path / f"{i}.zarr"
        options = {"shards": (4, 3, 3)} if version == 3 else {"filters": [numcodecs.Delta("<f8")]}
        options |= {"compressors": compressor, "zarr_format": version}
        zarr.create_array(str(path), data=X, chunks=(2, 3, 3), **options)
        with open_array(path) as found:
            assert found.chunks == (2, 3, 3)
            np.testing.assert_allclose(found[1:6], X[1:6], rtol=1e-15)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_a_file_larger_than_memory_is_read_by_parts(tmp_path):
    """The pages of a memory map are released: they count as memory of the process."""
    size = 2**28
    with (tmp_path / "long.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (size // 16, 2)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + size)  # a hole: it takes no place on the disk
    program = (
        "from gyrobn import Chunks; from gyrobn.data import open_array;"
        "most = lambda: int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]);"
        "before = most();"
        "x = open_array('long.npy'); assert sum(map(len, Chunks(x))) == len(x) == 2**24;"
        "print(most() - before)"
    )
    process = run(start=("-W", "ignore", "-c", program), cwd=tmp_path)
    assert int(process.stdout) < size // 2**12, process.stderr  # a quarter of it, in kilobytes


def test_an_estimator_takes_an_opened_array(tmp_path):
    M = PoincareBall(3)
    x = M.random(50, rng=0)
    write(tmp_path / "x.npy", x, (50,))
    with open_array(tmp_path / "x.npy") as source:
        bn = GyroBN(M).fit(source)
        y = np.concatenate(list(bn.transform_chunks(source)))
    np.testing.assert_allclose(y, GyroBN(M).fit_transform(x), atol=1e-13)


# ---------------------------------------------------------------------- damage


def damaged(path, match=".", kind=ValueError):
    """Assert that a file is refused in one line that names it."""
    with pytest.raises(kind, match=match) as error, open_array(path) as found:
        found[:]
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_that_are_no_files(tmp_path):
    for suffix in FORMATS:
        with pytest.raises(FileNotFoundError):
            open_array(tmp_path / f"x{suffix}")
        (tmp_path / f"x{suffix}").mkdir()
        with pytest.raises((OSError, ValueError)):
            open_array(tmp_path / f"x{suffix}")
    with pytest.raises(ValueError, match="suffix"):
        open_array(tmp_path / "x.txt")


@pytest.mark.parametrize("suffix", FORMATS)
def test_any_flipped_byte_is_found_or_changes_only_values(tmp_path, suffix):
    """A zip archive and zarr find every change; the others at least keep the shape."""
    path = write(tmp_path / f"x{suffix}")
    file = next(p for p in (path, *path.rglob("c/0/0/0")) if p.is_file())
    content = file.read_bytes()
    for at in range(0, len(content), 1 + len(content) // 40):
        file.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        found = values(path)
        assert suffix != ".npz" or found is None or np.array_equal(found, X)
        file.write_bytes(content[:at])
        assert suffix == ".csv" or values(path) is None  # a shorter table is a table
        file.write_bytes(content)


def values(path):
    """Return what is read, or None if it is refused in one line."""
    try:
        with warnings.catch_warnings(action="ignore"), opened(path) as found:
            return found[:]
    except (ValueError, OSError) as error:
        refused = str(error)
    assert "\n" not in refused
    return None


def test_zarr_that_runs_code(tmp_path):
    """A chunk that is a pickle."""
    path, marker = tmp_path / "x.zarr", tmp_path / "ran"
    path.mkdir()

    class Harm:
        def __reduce__(self):
            return (os.system, (f"touch {marker}",))

    (path / "0").write_bytes(pickle.dumps(Harm()))
    harmful, strings = ({"id": name} for name in ("pickle", "vlen-utf8"))
    for dtype, filters, compressor in (
        ("<f8", [harmful], None),
        ("<f8", None, harmful),
        ("|O", [harmful], None),
        ("|O", [strings], harmful),
        ("|O", [strings, harmful], None),
    ):
        metadata = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": dtype, "order": "C"}
        metadata |= {"fill_value": 0, "compressor": compressor, "filters": filters}
        (path / ".zarray").write_text(json.dumps(metadata))
        damaged(path)
    assert not marker.exists()


def test_damaged_zarr(tmp_path):
    path = write(tmp_path / "x.zarr")
    good = json.loads((path / "zarr.json").read_text())
    for change in ({"shape": [-1, 3, 3]}, {"data_type": "nonsense"}, {"codecs": [{"name": "x"}]}):
        (path / "zarr.json").write_text(json.dumps(good | change))
        damaged(path)
    (path / "zarr.json").write_text("{")
    damaged(path)
    zarr.create_array(str(tmp_path / "n.zarr"), shape=(), dtype="f8")
    with pytest.raises(ValueError, match="single number"), warnings.catch_warnings(action="ignore"):
        open_array(tmp_path / "n.zarr")


def test_missing_chunks_are_told_of(tmp_path):
    path = write(tmp_path / "x.zarr", np.zeros_like(X), rows=1)  # zeros are written like others
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], 0.0)
    shutil.rmtree(path / "c" / "3")
    with pytest.warns(UserWarning, match=rf"has 1 of {len(X)} chunks missing, .* read as 0"):
        open_array(path)


# ---------------------------------------------------------------------- writing


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_leaves_nothing_and_keeps_what_was_there(tmp_path, suffix, error):
    path = tmp_path / f"x{suffix}"

    def fail():
        with create_array(path, X.shape, X.dtype) as out:
            out.write(X[:3])
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []
    write(path)
    with pytest.raises(error):
        fail()
    with pytest.raises(ValueError, match="3 of 7 samples"), create_array(path, X.shape, "f8") as a:
        a.write(X[:3])
    assert names(tmp_path) == [path.name]
    np.testing.assert_array_equal(opened(path)[:], X)
    write(path, -X)
    assert names(tmp_path) == [path.name]
    np.testing.assert_array_equal(opened(path)[:], -X)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".zarr"])
def test_what_was_there_is_there_until_the_end(tmp_path, suffix):
    """So that a file can be read while its successor is written, and another one, too."""
    path = write(tmp_path / f"x{suffix}")
    with open_array(path) as old, create_array(path, X.shape, X.dtype) as new:
        for start in range(7):
            new.write(old[start : start + 1] + 1)
        write(path, -X)
        np.testing.assert_array_equal(open_array(path)[:], -X)
    np.testing.assert_array_equal(open_array(path)[:], X + 1)
    assert names(tmp_path) == [path.name]


def test_samples_that_do_not_fit(tmp_path):
    with create_array(tmp_path / "x.npy", (2, 3), "f8") as out:
        out.write(np.zeros((1, 3)))
        for shape in ((2, 3), (1, 2), (1, 3, 1)):
            with pytest.raises(ValueError, match="does not fit"):
                out.write(np.zeros(shape))
        out.write(np.ones((1, 3)))
    with (
        pytest.raises(TypeError, match="same_kind"),
        create_array(tmp_path / "y.npy", (2, 1), np.int64) as out,
    ):
        out.write(np.asarray([[1.7], [2.0]]))
    assert names(tmp_path) == ["x.npy"]


def test_places_that_cannot_be_written(tmp_path):
    for name in ("x.npy", "x.zarr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").touch()
        with pytest.raises(IsADirectoryError), create_array(tmp_path / name, (1,), "f8"):
            pass
        assert names(tmp_path / name) == ["precious"]
    assert names(tmp_path) == ["x.npy", "x.zarr"]
    (tmp_path / "file.zarr").touch()
    with pytest.raises(FileExistsError), create_array(tmp_path / "file.zarr", (1,), "f8"):
        pass
    missing = tmp_path / "missing" / "x.npy"
    with pytest.raises(FileNotFoundError), create_array(missing, (1,), "f8"):
        pass
    with pytest.raises(ValueError, match="suffix"), create_array(tmp_path / "x.txt", (1,), "f8"):
        pass


def test_links_and_permissions(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "plain").touch()
    target = write(tmp_path / "far" / "x.npy")
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode
    target.chmod(0o600)
    (tmp_path / "x.npy").symlink_to(target)
    write(tmp_path / "x.npy", -X)
    assert (tmp_path / "x.npy").is_symlink()
    np.testing.assert_array_equal(np.load(target), -X)
    assert names(tmp_path / "far") == ["x.npy"]
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
def test_long_names(tmp_path, letter):
    """A name may have 255 bytes."""
    path = tmp_path / (letter * (250 // len(letter.encode())) + ".npz")
    for _ in range(2):
        GyroBN().fit(X[:, 0]).save(path)
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("group", [False, True])
def test_a_store_of_any_version_can_be_replaced(tmp_path, version, group):
    path = tmp_path / "x.zarr"
    if group:
        zarr.open_group(str(path), mode="w", zarr_format=version).create_array("a", data=X)
    else:
        zarr.create_array(str(path), data=X, zarr_format=version)
    write(path, -X)
    np.testing.assert_array_equal(open_array(path)[:], -X)
    assert names(tmp_path) == ["x.zarr"]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_swap_keeps_one_store(tmp_path, monkeypatch, call, after):
    """There is no one call that replaces a folder."""
    path, calls = write(tmp_path / "x.zarr"), []

    def interrupted(function):
        def move(source, target):
            if tmp_path / "x.zarr" not in (Path(source), Path(target)):  # zarr renames files, too
                return function(source, target)
            calls.append(source)
            if len(calls) != call or after:
                function(source, target)
            if len(calls) == call:
                raise KeyboardInterrupt
            return None

        return move

    monkeypatch.setattr(os, "rename", interrupted(os.rename))
    monkeypatch.setattr(os, "replace", interrupted(os.replace))
    with pytest.raises(KeyboardInterrupt):
        write(path, -X)
    assert names(tmp_path) == ["x.zarr"]
    np.testing.assert_array_equal(open_array(path)[:], -X if after and call == 2 else X)


def test_what_a_killed_process_left(tmp_path):
    """It is removed with the next file of that name; a store that was moved away comes back."""
    others = [".x.zarr.part", ".xx.zarr.gyrobn-999999999-a", f".x.zarr.gyrobn-{os.getpid()}-a"]
    left = ".x.zarr.gyrobn-999999999-b"
    for name in (*others, left):
        (tmp_path / name).mkdir()
    (tmp_path / left / "x.zarr").touch()
    write(tmp_path / "y.zarr").rename(tmp_path / left / "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "x.zarr"):
        raise RuntimeError
    assert names(tmp_path) == sorted([*others, "x.zarr"])
    np.testing.assert_array_equal(open_array(tmp_path / "x.zarr")[:], X)
    write(tmp_path / "x.zarr", -X)
    assert names(tmp_path) == sorted([*others, "x.zarr"])


def test_without_a_library(tmp_path, monkeypatch):
    path = write(tmp_path / "x.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"^\.zarr files need zarr: .*'gyrobn\[zarr\]'"):
        open_array(path)
    with pytest.raises(ImportError), create_array(Path(tmp_path / "y.zarr"), (1,), "f8"):
        pass
    assert names(tmp_path) == ["x.zarr"]
