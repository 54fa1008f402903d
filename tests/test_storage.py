"""Arrays on disk: what is read is what was written, and damage is an error, never more."""

import json
import os
import pickle
import re
import shutil
import struct
import sys
import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyrobn import GyroBN
from gyrobn.data import create_array, open_array, replacing

FORMATS = (".npy", ".npz", ".zarr")
X = np.arange(7 * 3 * 2, dtype=np.float64).reshape(7, 3, 2)


def write(path, x=X, sizes=(3, 3, 1), **options):
    """Write an array in chunks of these sizes."""
    with create_array(path, x.shape, x.dtype, **options) as out:
        for part in np.split(x, np.cumsum(sizes)[:-1]):
            out.write(part)
    return path


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def numpy_files(folder, x):
    """Write an array in every way that NumPy has."""
    np.save(folder / "a.npy", x)
    np.savez(folder / "stored.npz", x=x, other=np.zeros(3))
    np.savez_compressed(folder / "packed.npz", x=x, other=np.zeros(3))
    with (folder / "two.npy").open("wb") as file:
        np.lib.format.write_array(file, x, version=(2, 0))
    yield folder / "a.npy", None
    yield folder / "two.npy", None
    yield folder / "stored.npz", "x"
    yield folder / "packed.npz", "x"


# ---------------------------------------------------------------------- good files


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<i4"])
def test_what_is_written_is_read(tmp_path, suffix, dtype):
    x = X.astype(dtype)
    with open_array(write(tmp_path / f"x{suffix}", x)) as found:
        assert found.shape == x.shape
        assert found.ndim == 3
        assert len(found) == 7
        if suffix != ".zarr":  # where the byte order is hidden
            assert found.stored == x.dtype
        assert found.dtype == x.dtype.newbyteorder("=")
        part = found[2:5]
        assert part.dtype == found.dtype
        assert part.dtype.isnative
        np.testing.assert_array_equal(part, x[2:5])
        for rows in (slice(5, 99), slice(0, 2), slice(1, 3), slice(6, 3), slice(-2, None)):
            np.testing.assert_array_equal(found[rows], x[rows])
    assert names(tmp_path) == [f"x{suffix}"]


def test_numpy_reads_what_is_written(tmp_path):
    x = X.astype(">f4")
    loaded = np.load(write(tmp_path / "x.npy", x))
    assert loaded.dtype == x.dtype
    np.testing.assert_array_equal(loaded, x)
    with np.load(write(tmp_path / "x.npz", x, key="mine")) as archive:
        np.testing.assert_array_equal(archive["mine"], x)
    with np.load(write(tmp_path / "y.npz", x)) as archive:
        assert list(archive) == ["arr_0"]


@pytest.mark.parametrize("order", ["C", "F"])
def test_what_numpy_writes_is_read(tmp_path, order):
    x = np.asarray(X, order=order)
    for path, key in numpy_files(tmp_path, x):
        with open_array(path, key) as found:
            assert found.key == key
            for rows in (slice(0, 2), slice(2, 4), slice(5, 7), slice(1, 3), slice(None)):
                part = found[rows]
                np.testing.assert_array_equal(part, x[rows])
                assert part.flags.c_contiguous
                assert part.flags.writeable


def test_strings_and_vectors(tmp_path):
    labels = np.asarray(["a", "bcd", "ü"])
    np.save(tmp_path / "x.npy", labels)
    with open_array(tmp_path / "x.npy") as found:
        np.testing.assert_array_equal(found[:], labels)
    with open_array(write(tmp_path / "y.npy", labels, (1, 2))) as found:
        np.testing.assert_array_equal(found[:], labels)


def test_an_archive_is_read_in_order_without_starting_again(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", x=X)
    opened = []
    begin = zipfile.ZipFile.open
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *a, **k: opened.append(1) or begin(*a, **k))
    with open_array(tmp_path / "x.npz") as found:
        opened.clear()
        for start in range(0, 7, 2):
            found[start : start + 2]
        assert len(opened) == 1
        found[:2]
        found[5:]
        assert len(opened) == 2


def test_only_the_slice_is_in_memory(tmp_path):
    """A hole of 2 GB, of which the process reads the last samples, costs no memory."""
    import resource

    with (tmp_path / "x.npy").open("wb") as file:
        shape = (1 << 18, 1 << 10)
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 8 * shape[0] * shape[1])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_array(tmp_path / "x.npy") as x:
        assert not x[-2:].any()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # kilobytes


def test_an_array_on_disk_becomes_one_in_memory(tmp_path):
    write(tmp_path / "x.npy")
    with open_array(tmp_path / "x.npy") as found:
        np.testing.assert_array_equal(np.asarray(found), X)
        assert np.asarray(found, dtype=np.float32).dtype == np.float32
        with pytest.raises(ValueError, match="makes a copy"):
            np.asarray(found, copy=False)
        with pytest.raises(TypeError, match=r"read in slices, such as x\[:10\], got 3"):
            found[3]
        bn = GyroBN().fit(found)
        np.testing.assert_array_equal(bn.transform(found), bn.transform(X))


def test_step(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with open_array(tmp_path / "x.npy") as found, pytest.raises(ValueError, match="the step 2"):
        found[::2]


@pytest.mark.parametrize("suffix", [".npz", ".zarr"])
def test_keys(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix == ".npz":
        np.savez(path, a=X, b=X[0])
    else:
        import zarr

        group = zarr.open_group(str(path), mode="w")
        group.create_array("a", data=X)
        group.create_array("b", data=X[0])
    for key, x in (("a", X), ("b", X[0])):
        with open_array(path, key) as found:
            np.testing.assert_array_equal(found[:], x)
    with pytest.raises(ValueError, match=r"x\.\w+ holds 2 arrays \(a, b\): choose one by its key"):
        open_array(path)
    with pytest.raises(ValueError, match="holds no array 'c', but a, b"):
        open_array(path, "c")


def test_a_key_where_there_are_none(tmp_path):
    for suffix in (".npy", ".zarr"):
        with pytest.raises(ValueError, match="without a name, got the key 'a'"):
            open_array(write(tmp_path / f"x{suffix}"), "a")


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_of_both_versions(tmp_path, version):
    import zarr

    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), data=X, chunks=(2, 3, 2), zarr_format=version)
    with open_array(path) as found:
        assert found.chunks == (2, 3, 2)
        np.testing.assert_array_equal(found[1:6], X[1:6])


# ---------------------------------------------------------------------- files that are none


def damaged(path, match, kind=ValueError):
    """Assert that a file is refused in one line that names it."""
    with pytest.raises(kind) as error, open_array(path) as found:
        found[:]
    text = str(error.value)
    assert path.name in text
    assert "\n" not in text
    assert match in text


def npy(header, data=b"", version=(1, 0)):
    """Return a .npy file with any header."""
    text = header if isinstance(header, bytes) else header.encode("latin1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text) & 0xFFFF)
    return b"\x93NUMPY" + bytes(version) + length + text + data


def head(shape="(2, 3)", descr="'<f8'", fortran="False"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", ""),
        (b"1.0 2.0\n3.0 4.0\n", "magic string"),
        (b"\x93NUMPY", ""),
        (b"\x93NUMPY\x01\x00\xff\xff{", ""),
        (npy(head()), "cut off: an array of shape (2, 3) and dtype float64 takes"),
        (npy(head(), bytes(47)), "cut off"),
        (npy(head("()"), bytes(8)), "single number"),
        (npy(head("(-1, 3)"), bytes(80)), "is no shape"),
        (npy(head("(True, 3)"), bytes(80)), "is no shape"),
        (npy(head(f"({10**30}, 3)"), bytes(80)), "is no shape"),
        (npy(head(f"(0, {10**30})")), "is no shape"),
        (npy(head(f"({2**62}, {2**62})"), bytes(80)), "cut off"),
        (npy(head(f"({2**62}, 3)", "'<U0'"), bytes(80)), "expected numbers"),
        (npy(head("(3, 2.0)"), bytes(80)), ""),
        (npy(head("'x'"), bytes(80)), ""),
        (npy(head("(2,)", "'O'"), pickle.dumps([1, 2])), "a pickle"),
        (npy(head("(2,)", "[('a', '<f8')]"), bytes(80)), "expected numbers"),
        (npy(head("(2,)", "('<f8', (2,))"), bytes(80)), "expected numbers"),
        (npy(head("(2,)", "'V8'"), bytes(80)), "expected numbers"),
        (npy(head("(2,)", "'nonsense'"), bytes(80)), ""),
        (npy(head("(2,)", "42"), bytes(80)), ""),
        (npy(head("(1,) * 10**9"), bytes(80)), ""),
        (npy(head("__import__('os').system('touch hacked')")), ""),
        (npy("[" * 5000), ""),
        (npy("{" * 9000 + "}" * 9000), ""),
        (npy("(" * 90 + ")" * 90), ""),
        (npy("{[]: 1}"), ""),
        (npy("-" * 9000 + "1"), ""),
        (npy(head() + " " * 20_000, version=(2, 0)), ""),
        (npy(head(), bytes(80), version=(3, 0)), "version (3, 0)"),
        (npy(head(), bytes(80), version=(9, 9)), ""),
        (npy(head("(1,) " * 1000), bytes(80)), ""),
        (npy(head("(" + "1, " * 100 + ")"), bytes(80)), ""),
    ],
)
def test_damaged_npy(tmp_path, monkeypatch, content, match):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    damaged(path, match)
    # the same bytes inside an archive
    inside = tmp_path / "y.npz"
    with zipfile.ZipFile(inside, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    damaged(inside, match)
    assert names(tmp_path) == ["x.npy", "y.npz"]


def test_an_empty_array_is_no_damage(tmp_path):
    for shape in ((0, 3), (3, 0), (0,)):
        for path, key in numpy_files(tmp_path, np.zeros(shape)):
            with open_array(path, key) as found:
                assert found[:].shape == found.shape == shape


def test_a_header_of_python_2(tmp_path):
    (tmp_path / "x.npy").write_bytes(npy(head("(2L, 1L)"), X[0, :2, 0].tobytes()))
    with open_array(tmp_path / "x.npy") as found:
        assert found.shape == (2, 1)


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with open_array(tmp_path / "x.npy") as found:
        os.truncate(tmp_path / "x.npy", 200)
        with pytest.raises(ValueError, match="bytes too early"):
            found[:]


def test_damaged_archives(tmp_path):
    np.savez(tmp_path / "good.npz", x=X)
    good = (tmp_path / "good.npz").read_bytes()
    data = good.index(X.tobytes())
    path = tmp_path / "x.npz"

    path.write_bytes(good[:data] + b"\xff" + good[data + 1 :])
    damaged(path, "CRC")
    path.write_bytes(good[: data + 50])
    damaged(path, "")
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    damaged(path, "")
    path.write_bytes(b"")
    damaged(path, "")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    damaged(path, "holds 0 arrays (none)")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(write(tmp_path / "a.npy"), "a.npy")
    damaged(path, "compression 12")


def test_an_archive_that_lies_about_sizes(tmp_path):
    """The directory says 8 PB, and so does the header of the array."""
    path = tmp_path / "x.npz"
    info = zipfile.ZipInfo("x.npy")
    content = npy(head("(1000, 1000000000000)"), bytes(1000))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, content)
        archive.infolist()[0].file_size = 8 * 10**15 + 1000
    damaged(path, "cut off")


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_array(tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"suffix '.txt': expected .npy, .npz, .zarr"):
        open_array(tmp_path / "x.txt")
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(ValueError, match="is not a regular file"):
        open_array(tmp_path / "x.npy")
    os.mkfifo(tmp_path / "y.npy")
    with pytest.raises(ValueError, match="is not a regular file"):  # and does not wait for ever
        open_array(tmp_path / "y.npy")
    (tmp_path / "x.zarr").touch()
    with pytest.raises(ValueError, match="is not a directory"):
        open_array(tmp_path / "x.zarr")


# ---------------------------------------------------------------------- zarr that is none


def test_zarr_codecs_that_run_code(tmp_path):
    """A chunk that is a pickle."""
    path = tmp_path / "x.zarr"
    path.mkdir()
    marker = tmp_path / "ran"

    class Harm:
        def __reduce__(self):
            return (os.system, (f"touch {marker}",))

    (path / "0").write_bytes(pickle.dumps(Harm()))
    harmful, strings, shorter = ({"id": name} for name in ("pickle", "vlen-utf8", "quantize"))
    for dtype, filters, compressor in (
        ("<f8", [harmful], None),
        ("<f8", None, harmful),
        ("|O", [harmful], None),
        ("|O", [strings], harmful),
        ("|O", [strings, harmful], None),
        ("<f8", [shorter | {"digits": 2, "dtype": "<f8"}], None),
    ):
        metadata = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": dtype, "order": "C"}
        metadata |= {"fill_value": 0, "compressor": compressor, "filters": filters}
        (path / ".zarray").write_text(json.dumps(metadata))
        damaged(path, "quantize" if dtype == "<f8" and filters not in (None, [harmful]) else "")
    assert not marker.exists()


@pytest.mark.parametrize(
    "metadata",
    [
        {"filters": [{"id": "delta"}, {"id": "pickle"}]},
        {"compressor": {"id": "pickle"}},
        {"codecs": [{"name": "bytes"}, {"name": "numcodecs.pickle"}]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"codecs": [{"name": "x"}]}}]},
        {"codecs": [{"name": "sharding_indexed", "configuration": {"index_codecs": [{}]}}]},
    ],
)
def test_codecs_that_are_not_known(metadata):
    from gyrobn.data.zarr import _check_codecs

    with pytest.raises(ValueError, match="not trusted"):
        _check_codecs(Path("x.zarr"), metadata)


@pytest.mark.parametrize("version", [2, 3])
def test_usual_codecs(tmp_path, version):
    import zarr

    codecs = zarr.codecs
    kinds = [codecs.GzipCodec(), codecs.ZstdCodec(), codecs.BloscCodec()]
    if version == 2:
        import numcodecs

        kinds = [numcodecs.Blosc(), numcodecs.GZip(), numcodecs.Zstd(), numcodecs.LZ4()]
    for i, compressor in enumerate(kinds):
        path = tmp_path / f"{i}.zarr"
        options = {"shards": (4, 3, 2)} if version == 3 else {"filters": [numcodecs.Delta("<f8")]}
        options |= {"compressors": compressor, "zarr_format": version}
        zarr.create_array(str(path), data=X, chunks=(2, 3, 2), **options)
        with open_array(path) as found:
            np.testing.assert_array_equal(found[:], X)


def test_damaged_zarr(tmp_path):
    path = write(tmp_path / "x.zarr")
    good = json.loads((path / "zarr.json").read_text())
    chunk = next(p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:-5])
    damaged(path, "")
    for change in ({"shape": [-1, 3, 2]}, {"data_type": "nonsense"}, {"codecs": [{"name": "x"}]}):
        (path / "zarr.json").write_text(json.dumps(good | change))
        damaged(path, "")
    (path / "zarr.json").write_text("{")
    damaged(path, "")
    shutil.rmtree(path)
    path.mkdir()
    with pytest.raises((ValueError, OSError)):
        open_array(path)


def test_zarr_of_strings(tmp_path):
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(str(tmp_path / "x.zarr"), shape=(3,), dtype=str)
        damaged(tmp_path / "x.zarr", "")


def test_zarr_of_a_number(tmp_path):
    """Its missing chunk is not what is wrong with it, so there is no warning."""
    import zarr

    zarr.create_array(str(tmp_path / "x.zarr"), shape=(), dtype="f8")
    with pytest.raises(ValueError, match=r"x\.zarr holds a single number"):
        open_array(tmp_path / "x.zarr")


def test_without_zarr(tmp_path, monkeypatch):
    path = write(tmp_path / "x.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"pip install 'gyrobn\[zarr\]'"):
        open_array(path)
    missing = pytest.raises(ImportError, match=r"^\.zarr files need zarr: ")
    with missing, create_array(tmp_path / "y.zarr", (1,), "f8"):
        pass
    assert names(tmp_path) == ["x.zarr"]


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
    assert names(tmp_path) == [path.name]
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], X)
    write(path, -X)
    assert names(tmp_path) == [path.name]
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], -X)


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_was_there_is_there_until_the_end(tmp_path, suffix):
    """So that a file can be read while its successor is written."""
    path = write(tmp_path / f"x{suffix}")
    with open_array(path) as old, create_array(path, X.shape, X.dtype) as new:
        for start in range(7):
            new.write(old[start : start + 1] + 1)
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], X + 1)


@pytest.mark.parametrize("suffix", FORMATS)
def test_too_few_or_too_many_samples(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with pytest.raises(ValueError, match="3 of 7 samples"), create_array(path, X.shape, "f8") as a:
        a.write(X[:3])
    with create_array(path, (2, 3), "f8") as out:
        out.write(np.zeros((1, 3)))
        for shape in ((2, 3), (1, 2), (1, 3, 1)):
            with pytest.raises(ValueError, match="does not fit"):
                out.write(np.zeros(shape))
        out.write(np.ones((1, 3)))
        assert out.count == 2


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "x.npy").mkdir()
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "precious").touch()
    for path in (tmp_path / "x.npy", tmp_path / "x.zarr"):
        with pytest.raises(FileExistsError, match="exists"), create_array(path, (1,), "f8"):
            pass
    assert names(tmp_path) == ["x.npy", "x.zarr"]
    assert names(tmp_path / "x.zarr") == ["precious"]
    missing = tmp_path / "missing" / "x.npy"
    with pytest.raises(FileNotFoundError) as error, create_array(missing, (1,), "f8"):
        pass
    assert error.value.filename == str(missing)
    with pytest.raises(ValueError, match="suffix"), create_array(tmp_path / "x.txt", (1,), "f8"):
        pass


def test_behind_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    target = write(tmp_path / "far" / "x.npy")
    (tmp_path / "x.npy").symlink_to(target)
    write(tmp_path / "x.npy", -X)
    assert (tmp_path / "x.npy").is_symlink()
    np.testing.assert_array_equal(np.load(target), -X)
    assert names(tmp_path / "far") == ["x.npy"]


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    write(tmp_path / "x.npy")
    modes = [(tmp_path / name).stat().st_mode for name in ("plain", "x.npy")]
    assert modes[0] == modes[1]


def test_a_failed_swap_puts_the_old_store_back(tmp_path, monkeypatch):
    path = write(tmp_path / "x.zarr")
    rename = os.rename

    def fail(source, target):
        if str(source).endswith(".part"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="No space") as error:
        write(path, -X)
    assert error.value.filename == str(path)
    assert names(tmp_path) == ["x.zarr"]
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], X)


def test_replacing_is_for_any_file(tmp_path):
    with replacing(tmp_path / "a.png") as temporary:
        assert temporary.parent == tmp_path
        temporary.write_bytes(b"picture")
        assert not (tmp_path / "a.png").exists()
    assert (tmp_path / "a.png").read_bytes() == b"picture"
    assert names(tmp_path) == ["a.png"]


# ---------------------------------------------------------------------- any bytes

BOUNDED = settings(
    derandomize=True,
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

_NUMBERS = st.integers(-(10**31), 10**31) | st.integers(-3, 40)
_WORDS = st.sampled_from(
    ["<f8", ">f4", "O", "|S0", "<U3", "V9", "f8,f8", "M8[ns]", "exit()", "\x00", "descr", "shape"]
)
_LITERALS = st.recursive(
    _NUMBERS | _WORDS | st.booleans() | st.none() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


def _headers():
    good = st.fixed_dictionaries(
        {"descr": _WORDS | _LITERALS, "fortran_order": st.booleans() | _LITERALS},
        optional={"shape": st.lists(_NUMBERS, max_size=4).map(tuple) | _LITERALS, "more": _WORDS},
    )
    return (good | _LITERALS).map(repr) | st.text(max_size=60)


def read_or_refuse(path, key=None):
    """Return False if a file is refused in one line, True if not; other errors fail the test."""
    try:
        with open_array(path, key) as found:
            assert len(found.shape) >= 1
            if np.prod(found.shape, dtype=object) < 10**6:
                assert found[:].shape == found.shape
    except (ValueError, OSError) as error:
        return "\n" in str(error)
    return True


@BOUNDED
@given(header=_headers(), version=st.sampled_from([(1, 0), (2, 0), (3, 0)]), data=st.binary())
def test_any_header(tmp_path, header, version, data):
    text = header.encode("utf-8", "replace")[:9000]
    (tmp_path / "x.npy").write_bytes(npy(text, data, version))
    read_or_refuse(tmp_path / "x.npy")


@BOUNDED
@given(data=st.binary(max_size=300), suffix=st.sampled_from([".npy", ".npz"]))
def test_any_bytes(tmp_path, data, suffix):
    magic = b"\x93NUMPY" if suffix == ".npy" else b"PK\x03\x04"
    for content in (data, magic + data):
        (tmp_path / f"x{suffix}").write_bytes(content)
        assert not read_or_refuse(tmp_path / f"x{suffix}")


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    np.save(folder / "a.npy", X)
    np.save(folder / "f.npy", np.asfortranarray(X))
    np.savez(folder / "b.npz", x=X)
    np.savez_compressed(folder / "c.npz", x=X)
    return [(path.suffix, path.read_bytes()) for path in sorted(folder.iterdir())]


@BOUNDED
@given(draw=st.data())
def test_flipped_and_cut_files(tmp_path, samples, draw):
    suffix, content = draw.draw(st.sampled_from(samples))
    end = draw.draw(st.integers(1, len(content)) | st.just(len(content)))
    cut = bytearray(content[:end])
    for _ in range(draw.draw(st.integers(0, 3))):
        cut[draw.draw(st.integers(0, end - 1))] = draw.draw(st.integers(0, 255))
    path = Path(tmp_path / f"x{suffix}")
    path.write_bytes(bytes(cut))
    good = read_or_refuse(path)
    assert good or bytes(cut) != content


def test_an_archive_may_be_longer_than_the_limit_of_old_ones(tmp_path, monkeypatch):
    """Which is 2 GB: beyond it, sizes need more bytes, which must be there from the start."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    with open_array(write(tmp_path / "x.npz")) as found:
        np.testing.assert_array_equal(found[:], X)


def test_what_packs_best_is_read(tmp_path):
    """Zeros shrink to a thousandth: what an archive may hold for its length allows for that."""
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((1 << 20, 2)))
    with open_array(tmp_path / "x.npz") as found:
        assert found[-1:].shape == (1, 2)


def test_an_archive_that_is_refused_is_closed(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", a=X, b=X)
    opened, make = [], zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda *a: opened.append(make(*a)) or opened[-1])
    with pytest.raises(ValueError, match="choose one"):
        open_array(tmp_path / "x.npz")
    assert [archive.fp for archive in opened] == [None]


def test_zarr_is_written_in_chunks_of_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("gyrobn.data.zarr.CHUNK", 2 * X[0].nbytes)
    with open_array(write(tmp_path / "x.zarr")) as found:
        assert found.chunks == (2, 3, 2)
        np.testing.assert_array_equal(found[:], X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("group", [False, True])
def test_a_store_of_any_version_can_be_replaced(tmp_path, version, group):
    import zarr

    path = tmp_path / "x.zarr"
    if group:
        zarr.open_group(str(path), mode="w", zarr_format=version).create_array("a", data=X)
    else:
        zarr.create_array(str(path), data=X, zarr_format=version)
    write(path, -X)
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], -X)
    assert names(tmp_path) == ["x.zarr"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2"])
def test_what_numpy_writes_is_read_in_any_dtype(tmp_path, order, dtype):
    x = np.asarray(X.astype(dtype), order=order)
    np.save(tmp_path / "a.npy", x)
    with open_array(tmp_path / "a.npy") as found:
        for rows in (slice(0, 2), slice(5, 7), slice(1, 3), slice(None)):
            np.testing.assert_array_equal(found[rows], x[rows])


def test_missing_chunks_are_told_of(tmp_path):
    path = tmp_path / "x.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gyrobn.data.zarr.CHUNK", X[0].nbytes)
        write(path, np.zeros_like(X))  # zeros are written like anything else
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], 0.0)
    shutil.rmtree(path / "c" / "3")
    with pytest.warns(UserWarning, match=rf"has 1 of {len(X)} chunks missing, .* read as 0"):
        open_array(path)


def test_chunks_of_nothing_are_refused(tmp_path):
    import zarr

    zarr.create_array(str(tmp_path / "x.zarr"), data=X, zarr_format=2)
    header = tmp_path / "x.zarr" / ".zarray"
    text = re.sub(r'"chunks": \[\s*\d+', '"chunks": [0', header.read_text())
    header.write_text(text)
    with pytest.raises(ValueError, match=r"x\.zarr"):
        open_array(tmp_path / "x.zarr")


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path = write(tmp_path / "x.npy")
    path.chmod(0o600)
    write(path, -X)
    assert path.stat().st_mode & 0o777 == 0o600


def test_values_that_do_not_fit_the_dtype_are_refused(tmp_path):
    with (
        pytest.raises(TypeError, match="same_kind"),
        create_array(tmp_path / "x.npy", (2, 1), np.int64) as out,
    ):
        out.write(np.asarray([[1.7], [2.0]]))
    assert names(tmp_path) == []


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_interrupted_swap_keeps_one_store(tmp_path, monkeypatch, when):
    path = write(tmp_path / "x.zarr")
    rename, calls = os.rename, []

    def interrupted(source, target):
        calls.append(source)
        if when == "before" or (when == "between" and len(calls) == 2):
            monkeypatch.setattr(os, "rename", rename)
            raise KeyboardInterrupt
        rename(source, target)
        if when == "after" and len(calls) == 1:
            monkeypatch.setattr(os, "rename", rename)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, -X)
    assert names(tmp_path) == ["x.zarr"]
    with open_array(path) as found:
        np.testing.assert_array_equal(found[:], X)


def test_what_zarr_writes_after_an_interrupt_is_removed(tmp_path):
    """It writes in a thread of its own, which goes on for a moment."""
    late = []

    def interrupted():
        with replacing(tmp_path / "x.zarr", store=True) as draft:
            draft.mkdir()
            late.append(threading.Timer(0.01, lambda: draft.mkdir(exist_ok=True)))
            late[0].start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    late[0].join()
    assert names(tmp_path) == []


def test_an_error_of_the_system_stays_one(tmp_path, monkeypatch):
    """Of a file that may not be read, the kind and number of the error are kept."""
    path = write(tmp_path / "x.npy")

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError) as error:
        open_array(path)
    assert (error.value.errno, error.value.filename) == (13, str(path))
