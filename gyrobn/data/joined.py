"""Several files as one array, and a folder of files that appear together."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.stored import Form, StoredArray
from gyrobn.data.writing import (
    check_replaceable,
    create_array,
    move_into_place,
    part_of,
    remove_stale,
)


class JoinedArray(StoredArray):
    """The samples of several arrays, one after the other; closes all of them."""

    def __init__(self, parts: Sequence[StoredArray]) -> None:
        first, *rest = parts
        for part in rest:
            if (part.shape[1:], part.dtype) != (first.shape[1:], first.dtype):
                raise ValueError(
                    f"{part.path} holds samples of shape {part.shape[1:]}, {part.dtype}, "
                    f"{first.path} of shape {first.shape[1:]}, {first.dtype}: files that are "
                    "normalized together must agree in both"
                )
        name = Path(f"{first.path} and {len(rest)} more") if rest else first.path
        self.starts = np.cumsum([0, *map(len, parts)])
        """The number of the first sample of each part, and the number of all samples."""
        labels = None
        if first.form.labels is not None:  # as objects, because NumPy would make 1 and "1" the same
            labels = np.concatenate([part.form.labels.astype(object) for part in parts])
        shape = (int(self.starts[-1]), *first.shape[1:])
        super().__init__(name, None, shape, first.dtype, Form(labels=labels))
        self.parts = tuple(parts)

    def _read(self, start: int, stop: int) -> Any:
        found = [
            part[max(0, start - first) : stop - first]
            for part, first in zip(self.parts, self.starts.tolist(), strict=False)
            if first < stop and first + len(part) > start
        ]
        return np.concatenate(found) if found else self.parts[0][0:0]

    def place(self, row: int) -> tuple[Path, int]:
        """Return the file of a sample, and its number there."""
        k = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[k].path, row - int(self.starts[k])

    def close(self) -> None:
        """Close all files."""
        for part in self.parts:
            part.close()


Change = Callable[[StoredArray], tuple[tuple[int, ...], Form]]
"""Tells the shape and form of what is written for an array."""


def as_it_was(source: StoredArray) -> tuple[tuple[int, ...], Form]:
    """Return the shape and form of an array: what is written for it has the same."""
    return source.shape, source.form


class FolderWriter:
    """Takes the samples of several arrays in chunks, in order. See :func:`create_folder`."""

    def __init__(self, folder: Path, source: JoinedArray, stack: ExitStack, change: Change) -> None:
        self._folder, self._stack, self._change = folder, stack, change
        self._left = list(source.parts)
        self._out: Any = None

    def write(self, chunk: Any) -> None:
        """Append samples; a file that is full is closed, and the next one begins."""
        while len(chunk):
            if self._out is None:
                part = self._left.pop(0)
                shape, form = self._change(part)
                self._out = self._stack.enter_context(
                    create_array(self._folder / part.path.name, shape, part.stored, part.key, form)
                )
            room = self._out.shape[0] - self._out.count
            self._out.write(chunk[:room])
            chunk = chunk[room:]
            if self._out.count == self._out.shape[0]:
                self._stack.close()
                self._out = None


@contextmanager
def create_folder(
    path: Path, source: JoinedArray, change: Change = as_it_was
) -> Iterator[FolderWriter]:
    """Write the files of a joined array to a folder, under their names, with other samples.

    They appear when all of them are complete. If the block ends in an error, none does, and what
    was in the folder is still there.
    """
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} exists and is not a folder: several files need one")
    stores = {part.path.name: part.path.suffix.lower() == ".zarr" for part in source.parts}
    for name, store in stores.items():
        check_replaceable(path / name, store)
    target = Path(os.path.realpath(path))
    place = target if target.exists() else target.parent
    for one in {place, target.parent}:
        remove_stale(target, one)
    temporary = part_of(target, place)
    try:
        temporary.mkdir()
        with ExitStack() as stack:
            yield FolderWriter(temporary, source, stack, change)
        if not path.exists():
            os.rename(temporary, path)
            return
        for name, store in stores.items():
            target = Path(os.path.realpath(path / name))
            move_into_place(temporary / name, target, store)
    except BaseException as error:
        if isinstance(error, OSError) and isinstance(error.filename, str):
            broken = Path(error.filename)
            if broken.is_relative_to(temporary):
                error.filename = os.fspath(path / broken.relative_to(temporary))
                error.filename2 = None
        raise
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary)
