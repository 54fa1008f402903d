"""Arrays written in chunks, into files that appear whole or not at all."""

import csv
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from gyrobn.data.chunks import BYTES, Chunks
from gyrobn.data.files import library, pack, suffix_of


class ArrayWriter:
    """Takes the samples of a new array in order, or anywhere by slices, from any process.

    Made by :func:`create_array`. It is a ``.npy`` file, which each call opens, or a zarr array.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, array: Any = None) -> None:
        self.path, self.shape, self.dtype, self.array = path, shape, np.dtype(dtype), array
        self.count = 0
        """Number of samples written so far."""
        if array is None:
            self.start = np.lib.format.open_memmap(path, "w+", self.dtype, shape).offset

    def __setitem__(self, rows: Any, chunk: Any) -> None:
        rows = rows[0] if isinstance(rows, tuple) else rows
        chunk = chunk.astype(self.dtype, casting="same_kind", copy=False)
        if self.array is not None:
            self.array[rows] = chunk
            return
        with self.path.open("r+b") as file:
            file.seek(self.start + rows.start * math.prod(self.shape[1:]) * chunk.itemsize)
            chunk.tofile(file)

    def write(self, chunk: Any) -> None:
        """Append samples, shape ``(k, *shape[1:])``."""
        chunk, stop = np.asarray(chunk), self.count + len(chunk)
        if chunk.shape[1:] != self.shape[1:] or stop > self.shape[0]:
            raise ValueError(
                f"a chunk of shape {chunk.shape} does not fit an array of shape {self.shape} of "
                f"which {self.count} samples are written"
            )
        self[self.count : stop] = chunk
        self.count = stop


@contextmanager
def create_array(
    path: str | PathLike[str],
    shape: Sequence[int],
    dtype: Any,
    *,
    rows: int | None = None,
    names: Sequence[str] = (),
    layout: str | None = None,
    axis: str | None = None,
) -> Iterator[ArrayWriter]:
    """Write an array to disk in chunks; it appears at its path when it is complete.

    If the block ends in an error, or before all samples are written, nothing is left behind, and a
    file that was at ``path`` is still there.

    Parameters
    ----------
    path
        The file to write; its suffix is the format, one of those of
        :func:`~gyrobn.data.open_array`. A ``.mat`` file is made in memory.
    shape, dtype
        Of the whole array.
    rows
        Samples per chunk of a zarr array; by default about 8 MB.
    names, layout
        The header of a table, and what a row of it holds, as in :func:`~gyrobn.data.open_array`.
    axis
        The axis of a ``.mat`` file that counts the samples, ``"first"`` by default.

    Examples
    --------
    See :func:`~gyrobn.data.open_array`.
    """
    shape, suffix, array = tuple(shape), suffix_of(Path(path)), None
    with replacing(path) as part:
        draft = part
        if suffix == ".zarr":
            rows = min(rows or max(1, BYTES // (8 * math.prod(shape[1:]))), shape[0])
            # chunks of zeros are written, too: a missing chunk means damage
            options = {"chunks": (rows, *shape[1:]), "config": {"write_empty_chunks": True}}
            create = library("zarr", suffix).create_array
            array = create(str(part), shape=shape, dtype=dtype, **options)
        elif suffix != ".npy":
            draft = part.with_name("draft.npy")
        out = ArrayWriter(draft, shape, dtype, array)
        yield out
        if out.count != shape[0]:
            raise ValueError(f"{out.count} of {shape[0]} samples of {path} were written")
        if draft is not part:
            x = np.load(draft, mmap_mode="r")
            _convert(x, part, suffix, names, layout, axis)


def _convert(
    x: Any, path: Path, suffix: str, names: Sequence[str], layout: str | None, axis: str | None
) -> None:
    """Write an array to a file that is not written in chunks."""
    if suffix == ".npz":
        with path.open("wb") as file:  # a name would get a suffix
            np.savez(file, x)
    elif suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([names] if names else [])
            for chunk in Chunks(x):
                writer.writerows(pack(chunk, layout).tolist())  # as many digits as are needed
    elif suffix == ".mat":
        from scipy.io import savemat

        if x.nbytes >= 2**32:
            raise ValueError("a .mat file holds at most 4 GB: name a .npy, .zarr or .h5 file")
        x = np.moveaxis(x, 0, -1) if axis == "last" else x
        savemat(path, {"X": x}, appendmat=False)
    else:
        with library("h5py", suffix).File(path, "w") as file:
            target = file.create_dataset("X", x.shape, x.dtype)
            for rows, chunk in Chunks(x).numbered():
                target[rows[0] : rows[-1] + 1] = chunk


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path, of a file that gets the name ``path`` if the block succeeds.

    Otherwise it is removed, and what was at ``path`` stays. A link stays a link. The temporary
    files are in a hidden folder beside ``path``; one that a killed process left is removed.
    """
    target = Path(os.path.realpath(os.fsdecode(path)))
    check_replaceable(target)
    prefix = f".{os.fsdecode(os.fsencode(target.name)[:180])}.gyrobn-"  # names have 255 bytes
    for left in target.parent.iterdir():
        process = left.name.removeprefix(prefix).partition("-")[0]
        if left.name.startswith(prefix) and process.isdecimal() and not _runs(int(process)):
            _remove(left, target)
    folder = Path(mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=target.parent))
    part = folder / target.name
    try:
        yield part
        if part.is_file():  # on the disk, before it takes the place of what was there
            with part.open("rb") as written:
                os.fsync(written.fileno())
        if target.is_dir():  # a zarr store, which no system call replaces
            os.rename(target, folder / "old")
        elif target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    finally:
        _remove(folder, target)


def _remove(folder: Path, target: Path) -> None:
    """Remove temporary files; a store that was moved away, with none in its place, comes back."""
    if (folder / "old").exists() and not target.exists():
        os.rename(folder / "old", target)
    shutil.rmtree(folder, ignore_errors=True)


def check_replaceable(path: str | PathLike[str]) -> None:
    """Refuse to replace a directory that is not a zarr store, or to write where that fails."""
    path = Path(path)
    with os.scandir(path.parent):  # raises if it is not there, or not a directory
        pass
    is_store = path.suffix.lower() == ".zarr"
    if path.is_dir() and not (
        is_store and any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))
    ):
        raise IsADirectoryError(f"{path} is a directory: name a file")
    if is_store and path.is_file():
        raise FileExistsError(f"{path} is a file, not a zarr store: remove it first")
    if path.exists() and not path.is_dir() and not path.is_file():
        raise OSError(f"{path} is not a regular file: name one that can be replaced")


def _runs(process: int) -> bool:
    """Return whether a process runs, or may run."""
    try:
        if os.name == "posix":
            os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
