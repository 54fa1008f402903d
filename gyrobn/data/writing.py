"""Arrays written in chunks, into files that appear whole or not at all."""

import csv
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.chunks import Chunks
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
            header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
            with path.open("xb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                self.offset = file.tell()
                file.truncate(self.offset + math.prod(shape) * self.dtype.itemsize)

    def __setitem__(self, rows: Any, chunk: Any) -> None:
        rows = rows[0] if isinstance(rows, tuple) else rows
        chunk = np.ascontiguousarray(chunk.astype(self.dtype, casting="same_kind", copy=False))
        if self.array is not None:
            self.array[rows] = chunk
            return
        with self.path.open("r+b") as file:
            file.seek(self.offset + rows.start * math.prod(self.shape[1:]) * chunk.itemsize)
            file.write(chunk.reshape(-1).view(np.uint8).data)

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
    path, shape = Path(path), tuple(shape)
    suffix = suffix_of(path)
    with replacing(path) as part:
        if suffix == ".zarr":
            # chunks of zeros are written, too: a missing chunk means damage
            rows = rows or max(1, 2**23 // (8 * math.prod(shape[1:])))
            array = library("zarr", suffix).create_array(
                str(part),
                shape=shape,
                dtype=dtype,
                chunks=(min(rows, shape[0]), *shape[1:]),
                config={"write_empty_chunks": True},
            )
            out = ArrayWriter(part, shape, dtype, array)
        else:
            draft = part if suffix == ".npy" else part.with_name(f"{part.name}.npy")
            out = ArrayWriter(draft, shape, dtype)
        yield out
        if out.count != shape[0]:
            raise ValueError(f"{out.count} of {shape[0]} samples of {path} were written")
        if suffix not in (".npy", ".zarr"):
            _convert(draft, part, suffix, names, layout, axis)


def _convert(
    draft: Path,
    part: Path,
    suffix: str,
    names: Sequence[str],
    layout: str | None,
    axis: str | None,
) -> None:
    """Write the array of a ``.npy`` file in another format."""
    x = np.lib.format.open_memmap(draft, mode="r")
    if suffix == ".npz":
        with part.open("wb") as file:
            np.savez(file, x)
    elif suffix == ".csv":
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([names] if names else [])
            for chunk in Chunks(x):
                writer.writerows(pack(chunk, layout).tolist())  # as many digits as are needed
    elif suffix == ".mat":
        from scipy.io import savemat

        if x.nbytes >= 2**32:
            raise ValueError("a .mat file holds at most 4 GB: name a .npy, .zarr or .h5 file")
        with part.open("wb") as file:
            savemat(file, {"X": np.moveaxis(x, 0, -1) if axis == "last" else x})
    else:
        with library("h5py", suffix).File(part, "w") as file:
            target = file.create_dataset("X", x.shape, x.dtype)
            for rows, chunk in Chunks(x).numbered():
                target[rows[0] : rows[-1] + 1] = chunk


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path after ``path``, which gets that name if the block succeeds.

    Otherwise it is removed, and what was at ``path`` stays. A link stays a link. What a process
    that was killed has left of an earlier ``path`` is removed.
    """
    target = Path(os.path.realpath(os.fsdecode(path)))
    check_replaceable(target)
    prefix = f".{os.fsdecode(os.fsencode(target.name)[:180])}.gyrobn-"  # names have 255 bytes
    for left in target.parent.iterdir():
        owner = left.name.removeprefix(prefix).partition(".")[0]
        if left.name.startswith(prefix) and owner.isdecimal() and not _runs(int(owner)):
            if left.suffix == ".old" and not target.exists():
                os.rename(left, target)
            _remove(left)
    part = target.with_name(f"{prefix}{os.getpid()}.{os.urandom(4).hex()}")
    draft, old = (part.with_name(part.name + end) for end in (".npy", ".old"))
    try:
        yield part
        if part.is_file():  # on the disk, before it takes the place of what was there
            with open(part, "rb") as written:
                os.fsync(written.fileno())
        if target.is_dir():  # a zarr store, which no system call replaces
            os.rename(target, old)
        elif target.exists():
            shutil.copymode(target, part)
        os.replace(part, target)
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        for left in (part, draft, old):
            _remove(left)


def check_replaceable(path: str | PathLike[str]) -> None:
    """Refuse to replace a directory that is not a zarr store, or to write where that fails."""
    path = Path(path)
    with os.scandir(path.parent):  # raises if it is not there, or not a directory
        pass
    stores = path.suffix.lower() == ".zarr"
    is_store = stores and any((path / n).is_file() for n in ("zarr.json", ".zarray", ".zgroup"))
    if path.is_dir() and not is_store:
        raise IsADirectoryError(f"{path} is a directory: name a file")
    if stores and path.is_file():
        raise FileExistsError(f"{path} is a file, not a zarr store: remove it first")
    if path.exists() and not path.is_dir() and not path.is_file():
        raise OSError(f"{path} is not a regular file: name one that can be replaced")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    """Return whether a process runs, or may run."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
