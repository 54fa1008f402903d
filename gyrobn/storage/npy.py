"""``.npy`` files, read by offset."""

import io
import math
import os
import sys
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from gyrobn.storage.stored import StoredArray, check_dtype

__all__ = ["HEAD", "Header", "NpyArray", "fill"]

HEAD = 1 << 14
"""Bytes in which a header ends: NumPy allows it 10,000."""

AXES, MOST = 64, sys.maxsize  # of an array of NumPy, and their length
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header:
    """What the first bytes of a ``.npy`` file say, after checks.

    Parameters
    ----------
    path
        The file, for messages.
    head
        Its first bytes, up to ``HEAD`` of them: a header that says it is longer costs nothing.
    size
        Number of bytes that there are.
    """

    def __init__(self, path: Path | str, head: bytes, size: int) -> None:
        stream = io.BytesIO(head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a header that Python 2 wrote, or of odd text
            version = npy.read_magic(stream)
            if version not in READERS:
                raise ValueError(f"version {version} of the format, for values with named fields")
            shape, self.fortran, self.dtype = READERS[version](stream)
        if len(shape) > AXES or any(isinstance(n, bool) or not 0 <= n <= MOST for n in shape):
            raise ValueError(f"its shape {shape} is no shape")
        check_dtype(path, self.dtype)
        self.shape = shape
        self.offset = stream.tell()
        self.row = math.prod(shape[1:]) * self.dtype.itemsize
        needed = self.offset + math.prod(shape) * self.dtype.itemsize
        if needed > size:
            raise ValueError(
                f"it is cut off: an array of shape {shape} and dtype {self.dtype} takes "
                f"{needed:,} bytes, there are {size:,}"
            )


class NpyArray(StoredArray):
    """The array of an open ``.npy`` file without a buffer, which it closes."""

    def __init__(self, path: Path, key: str | None, file: BinaryIO) -> None:
        self._file = file
        try:
            header = Header(path, file.read(HEAD), os.fstat(file.fileno()).st_size)
            super().__init__(path, key, header.shape, header.dtype)
        except BaseException:
            file.close()
            raise
        self._header = header

    def _read(self, start: int, stop: int) -> Any:
        offset, rest = self._header.offset, self.shape[1:]
        if not self._header.fortran:
            out = np.empty((stop - start, *rest), self.stored)
            self._file.seek(offset + start * self._header.row)
            fill(self.path, self._file, out)
            return out
        # the first axis runs fastest: for each entry of a sample, a run of neighbours
        columns = np.empty((math.prod(rest), stop - start), self.stored)
        for k, column in enumerate(columns):
            self._file.seek(offset + (k * self.shape[0] + start) * self.stored.itemsize)
            fill(self.path, self._file, column)
        return np.ascontiguousarray(columns.T.reshape((stop - start, *rest), order="F"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def fill(path: Path, file: Any, out: Any) -> None:
    """Read from a file into a contiguous array."""
    left = memoryview(out.reshape(-1).view(np.uint8))
    while left:
        count = file.readinto(left)
        if not count:
            raise ValueError(f"{path} ends {len(left):,} bytes too early")
        left = left[count:]
