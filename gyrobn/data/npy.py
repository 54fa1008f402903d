"""``.npy`` files, and ``.npz`` files, which are zip archives of them, read in slices."""

import io
import math
import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from gyrobn.data.stored import StoredArray, check_dtype, choose, reading

HEAD = 1 << 14
"""Bytes in which a header ends: NumPy allows it 10,000."""

AXES, MOST = 64, sys.maxsize  # the most axes of a NumPy array, and the longest axis
BLOCK = 1 << 20  # bytes to unpack at a time, on the way to a later slice
GROWTH = 1032  # a deflated file grows at most by this factor when it is unpacked
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header:
    """What the first bytes of a ``.npy`` file say, after checks.

    ``head`` holds up to ``HEAD`` bytes, ``size`` is the number of bytes in the file, and ``path``
    is for messages.
    """

    def __init__(self, path: Path | str, head: bytes, size: int) -> None:
        if not head:
            raise ValueError("it is empty")
        stream = io.BytesIO(head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a header that Python 2 wrote, or odd text
            version = npy.read_magic(stream)
            if version not in READERS:
                raise ValueError(f"version {version} of the format, for values with named fields")
            shape, self.fortran, self.dtype = READERS[version](stream)
        if len(shape) > AXES or any(isinstance(n, bool) or not 0 <= n <= MOST for n in shape):
            raise ValueError(f"its shape {shape} is no shape")
        check_dtype(path, self.dtype)
        self.shape = shape
        self.offset = stream.tell()
        needed = self.offset + math.prod(shape) * self.dtype.itemsize
        if needed > size:
            raise ValueError(
                f"it is cut off: an array of shape {shape} and dtype {self.dtype} takes "
                f"{needed:,} bytes, there are {size:,}"
            )


class NpyArray(StoredArray):
    """The array in an open file without a buffer, which it closes."""

    def __init__(self, path: Path, key: str | None, file: Any, size: int) -> None:
        try:
            self._header = Header(path, file.read(HEAD), size)
            super().__init__(path, key, self._header.shape, self._header.dtype, file=file)
        except BaseException:
            file.close()
            raise

    def _read(self, start: int, stop: int) -> Any:
        count, each = stop - start, math.prod(self.shape[1:])
        fortran = self._header.fortran
        out = np.empty((count, *self.shape[1:]), self.stored, order="F" if fortran else "C")
        runs = [(start * each, out)]
        if fortran:  # the first axis runs fastest: each entry of a sample has a run of its own
            columns = out.reshape(count, each, order="F").T
            runs = [(k * len(self) + start, column) for k, column in enumerate(columns)]
        with reading(self.path):
            for first, run in runs:
                self._seek(self._header.offset + first * self.stored.itemsize)
                left = run.reshape(-1).view(np.uint8).data
                while left:
                    found = self._file.readinto(left)
                    if not found:
                        raise ValueError(f"it ends {len(left):,} bytes too early")
                    left = left[found:]
        return np.ascontiguousarray(out)

    def _seek(self, position: int) -> None:
        self._file.seek(position)


class NpzArray(NpyArray):
    """An array in an archive: a stream, which is opened again to go back."""

    def __init__(self, path: Path, key: str, archive: zipfile.ZipFile, name: str) -> None:
        self._archive, self._info = archive, (info := archive.getinfo(name))
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"compression {info.compress_type} is not one that NumPy writes")
        # the archive may declare any size, but it cannot hold more than this
        size = min(info.file_size, GROWTH * path.stat().st_size)
        super().__init__(path, key, archive.open(info), size)

    def _seek(self, position: int) -> None:
        # the stream's own seek drops the check sum from Python 3.13 on
        if position < self._file.tell():
            self._file.close()
            self._file = self._archive.open(self._info)
        while (left := position - self._file.tell()) and self._file.read(min(BLOCK, left)):
            pass

    def unpacked(self) -> StoredArray:
        """Return the array, in a temporary file if Fortran order scatters its slices."""
        if not self._header.fortran:
            return self
        with self:
            self._seek(0)
            return copied(self.path, self.key, self._file)

    def close(self) -> None:
        """Close the archive."""
        super().close()
        self._archive.close()


def copied(path: Path, key: str | None, stream: Any) -> NpyArray:
    """Copy a stream to a temporary file, and return the array in it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (its reader closes it)
    try:
        shutil.copyfileobj(stream, file, BLOCK)
        size = file.tell()
        file.seek(0)
        return NpyArray(path, key, file, size)
    except BaseException:
        file.close()
        raise


def open_npz(path: Path, key: str | None) -> StoredArray:
    """Open an array of an archive."""
    archive = zipfile.ZipFile(path)
    try:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        key = choose(path, (name.removesuffix(".npy") for name in names), key)
        return NpzArray(path, key, archive, f"{key}.npy").unpacked()
    except BaseException:
        archive.close()
        raise
