"""Arrays in ``.npz`` files, which are zip archives of ``.npy`` files."""

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.storage.npy import HEAD, Header, NpyArray, fill
from gyrobn.storage.stored import StoredArray, choose, reading

__all__ = ["open_npz"]

BLOCK = 1 << 20  # bytes that are unpacked at a time, on the way to a later part
GROWTH = 1032  # of a deflated file when it is unpacked, at most


def open_npz(path: Path, key: str | None) -> StoredArray:
    """Open an array of an archive."""
    archive = zipfile.ZipFile(path)
    try:
        files = {i.filename: i for i in archive.infolist() if i.filename.endswith(".npy")}
        key = choose(path, (name.removesuffix(".npy") for name in files), key)
        info = files[f"{key}.npy"]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"compression {info.compress_type} is not one that NumPy writes")
        with archive.open(info) as member:
            # the archive may say what it likes of the size; it cannot be more than this
            size = min(info.file_size, GROWTH * path.stat().st_size)
            header = Header(path, member.read(HEAD), size)
        if not header.fortran:
            return NpzArray(path, key, archive, info, header)
        with archive.open(info) as member:
            unpacked = _unpacked(member)
    except BaseException:
        archive.close()
        raise
    archive.close()
    return NpyArray(path, key, unpacked)


def _unpacked(member: Any) -> Any:
    """Return a file with what is in an archive, for an array whose every slice is all over it."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (its reader closes it)
    try:
        shutil.copyfileobj(member, file, BLOCK)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


class NpzArray(StoredArray):
    """An array in an archive: a stream that is read on from where it is, or begun again."""

    def __init__(
        self, path: Path, key: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: Header
    ) -> None:
        super().__init__(path, key, header.shape, header.dtype)
        self._archive, self._info, self._header = archive, info, header
        self._stream: Any = None
        self._at = 0  # bytes of the stream that were read

    def _read(self, start: int, stop: int) -> Any:
        out = np.empty((stop - start, *self.shape[1:]), self.stored)
        begin = self._header.offset + start * self._header.row
        with reading(self.path):
            if self._stream is None or begin < self._at:
                self._end()
                self._stream, self._at = self._archive.open(self._info), 0
            while self._at < begin:
                skipped = len(self._stream.read(min(BLOCK, begin - self._at)))
                if not skipped:
                    raise ValueError("it ends too early")
                self._at += skipped
            fill(self.path, self._stream, out)
        self._at += out.nbytes
        return out

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Close the archive."""
        self._end()
        self._archive.close()
