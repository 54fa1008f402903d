"""Arrays written in chunks, and files that appear only when they are complete."""

import math
import os
import platform
import re
import secrets
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from gyrobn.data.matlab import create_mat
from gyrobn.data.parquet import create_parquet
from gyrobn.data.stored import PLAIN, Form, format_of
from gyrobn.data.tables import DELIMITERS, create_text, flat
from gyrobn.data.zarr import create_zarr, is_zarr, write_zarr

PARALLEL = (".npy", ".zarr")
"""The suffixes of files that several processes can read and write."""


class ArrayWriter:
    """Takes the samples of a new array in chunks, in order. See :func:`create_array`."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, put: Callable[[int, Any], Any]) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.count = 0
        """Number of samples written so far."""
        self._put = put

    def write(self, chunk: Any) -> None:
        """Append samples, shape ``(k, *shape[1:])``."""
        chunk = np.asarray(chunk)
        if chunk.shape[1:] != self.shape[1:] or self.count + len(chunk) > self.shape[0]:
            raise ValueError(
                f"a chunk of shape {chunk.shape} does not fit an array of shape {self.shape} of "
                f"which {self.count} samples are written"
            )
        chunk = np.ascontiguousarray(chunk.astype(self.dtype, casting="same_kind", copy=False))
        self._put(self.count, chunk)
        self.count += len(chunk)


@contextmanager
def create_array(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    dtype: Any,
    key: str | None = None,
    form: Form = PLAIN,
) -> Iterator[ArrayWriter]:
    """Write an array to disk in chunks; it appears at its path when it is complete.

    If the block ends in an error, or before all samples are written, nothing is left behind, and a
    file that was at ``path`` is still there.

    Parameters
    ----------
    path
        The file to write; its suffix is the format, one of those of
        :func:`~gyrobn.data.open_array`. A ``.mat`` file is written at the end, from memory.
    shape, dtype
        Of the whole array; the dtype with its byte order.
    key
        Name of the array in a ``.npz`` file, ``arr_0`` by default, as in NumPy; in a ``.mat`` file,
        where the default is ``X``.
    form
        The ``form`` of an opened array of the same shape. A table gets its header, layout and
        labels, a ``.mat`` file its axis. By default a sample fills a row of a table row by row.

    Examples
    --------
    See :func:`~gyrobn.data.open_array`.
    """
    path, shape, dtype = Path(path), tuple(shape), np.dtype(dtype)
    kind = format_of(path)
    with (
        replacing(path, store=kind == ".zarr") as temporary,
        _creating(temporary, kind, shape, dtype, key, form) as put,
    ):
        writer = ArrayWriter(shape, dtype, put)
        yield writer
        if writer.count != shape[0]:
            raise ValueError(f"{writer.count} of {shape[0]} samples of {path} were written")


def _creating(
    path: Path, kind: str, shape: tuple[int, ...], dtype: Any, key: str | None, form: Form
) -> AbstractContextManager[Callable[[int, Any], Any]]:
    """Return a context that makes a file, and yields a function that puts samples into it."""
    if kind == ".zarr":
        return nullcontext(create_zarr(path, shape, dtype))
    if kind == ".mat":
        return create_mat(path, shape, dtype, key, form)
    if kind == ".parquet":
        width = flat(np.broadcast_to(0.0, (1, *shape[1:])), form).shape[1]
        return create_parquet(path, width, dtype, form)
    if kind in DELIMITERS:
        return create_text(path, form, DELIMITERS[kind])
    return _create_file(path, shape, dtype, f"{key or 'arr_0'}.npy" if kind == ".npz" else None)


class RegionWriter(NamedTuple):
    """Writes samples anywhere into a new array, from any process, which opens it by its path.

    See :func:`create_regions`.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: Any
    offset: int | None
    """Where the numbers begin in a ``.npy`` file; None in a zarr store."""

    def write(self, start: int, chunk: Any) -> None:
        """Write samples from an index on."""
        chunk = np.ascontiguousarray(chunk.astype(self.dtype, casting="same_kind", copy=False))
        if self.offset is None:
            write_zarr(self.path, start, chunk)
            return
        with self.path.open("r+b") as file:
            file.seek(self.offset + start * math.prod(self.shape[1:]) * chunk.itemsize)
            file.write(chunk.reshape(-1).view(np.uint8).data)


@contextmanager
def create_regions(
    path: str | os.PathLike[str], shape: Sequence[int], dtype: Any, rows: int
) -> Iterator[RegionWriter]:
    """Write an array to disk from several processes; it appears when the block ends well.

    The file, ``.npy`` or ``.zarr``, is on a disk that all processes see. Each writes regions that
    begin at a multiple of ``rows`` samples. ``shape`` and ``dtype`` are as in :func:`create_array`.
    """
    path, shape, dtype = Path(path), tuple(shape), np.dtype(dtype)
    kind = format_of(path)
    if kind not in PARALLEL:
        raise ValueError(
            f"{path} is a {kind} file, into which only one process can write: name a "
            ".npy or .zarr file"
        )
    with replacing(path, store=kind == ".zarr") as temporary:
        offset = None
        if kind == ".zarr":
            create_zarr(temporary, shape, dtype, rows)
        else:
            with _create_file(temporary, shape, dtype, None):
                pass
            offset = temporary.stat().st_size
            os.truncate(temporary, offset + math.prod(shape) * dtype.itemsize)
        yield RegionWriter(temporary, shape, dtype, offset)


@contextmanager
def _create_file(
    path: Path, shape: tuple[int, ...], dtype: "np.dtype[Any]", member: str | None
) -> Iterator[Callable[[int, Any], Any]]:
    """Make a ``.npy`` file, or an archive with one; yield a function that appends samples."""
    header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with path.open("xb") as file, ExitStack() as stack:
        stream: Any = file
        if member is not None:
            archive = stack.enter_context(zipfile.ZipFile(file, "w"))
            stream = stack.enter_context(archive.open(member, "w", force_zip64=True))
        npy.write_array_header_1_0(stream, header)
        yield lambda start, chunk: stream.write(chunk.reshape(-1).view(np.uint8).data)


@contextmanager
def replacing(path: str | os.PathLike[str], store: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, and rename it to ``path`` if the block succeeds.

    Otherwise remove what is at the temporary path. What was at ``path`` stays until the end; a link
    stays a link. A ``store`` is a directory of zarr. What a process that was killed has left of an
    earlier ``path`` is removed.
    """
    target = Path(os.path.realpath(os.fsdecode(path)))
    check_replaceable(path, store)
    remove_stale(target)
    temporary = part_of(target)
    try:
        yield temporary
        move_into_place(temporary, target, store)
    except BaseException as error:
        _remove(temporary, store)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = os.fsdecode(path), None
        raise


def check_replaceable(path: str | os.PathLike[str], store: bool) -> None:
    """Refuse a path that holds anything but a file, or but a zarr store if a ``store`` is meant."""
    target = Path(os.fsdecode(path))
    if target.exists() and not (is_zarr(target) if store else target.is_file()):
        kind = "zarr store" if store else "regular file"
        raise FileExistsError(f"{path} exists and is not a {kind}: it cannot be replaced")


def move_into_place(temporary: Path, target: Path, store: bool) -> None:
    """Rename a finished file or store; there may be another one at the target."""
    if store:
        _swap(temporary, target)
        return
    with temporary.open("rb") as file:
        os.fsync(file.fileno())  # the bytes must be on the disk before the name is
    if target.exists():
        shutil.copymode(target, temporary)
    os.replace(temporary, target)


def _remove(temporary: Path, store: bool) -> None:
    """Remove an incomplete file or store, if there is one."""
    if not store:
        with suppress(OSError):
            temporary.unlink()
        return
    # zarr writes in a thread of its own, which an interrupt does not end at once
    gone = 0
    for _ in range(40):
        shutil.rmtree(temporary, ignore_errors=True)
        time.sleep(0.05)
        gone = 0 if temporary.exists() else gone + 1
        if gone == 3:
            return


def _swap(temporary: Path, target: Path) -> None:
    """Replace one directory by another, which no portable system call does in one step."""
    old = temporary.with_name(f"{temporary.name}.old")
    try:
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(old, ignore_errors=True)


# ---------------------------------------------------------------------- killed processes

DAY = 86400.0
"""Seconds without a change after which the part of another machine, on a shared disk, is stale."""


def part_of(target: Path, place: Path | None = None) -> Path:
    """Return a new name, after the target, for what is not complete; beside it by default.

    It also names the machine and the process, by which :func:`remove_stale` knows whether the
    process still runs.
    """
    own = f"{_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
    return (place or target.parent) / f"{_prefix(target)}{own}.part"


def remove_stale(target: Path, place: Path | None = None) -> None:
    """Remove the parts of a target whose processes were killed, and so could not remove them."""
    place = place or target.parent
    name = re.compile(re.escape(_prefix(target)) + r"(\w*)-(\d+)-[0-9a-f]{8}\.part(\.old)?")
    with suppress(OSError):
        if _INSIDE.search(place.name):  # a part of this process; with many files, long to search
            return
        for entry in sorted(os.listdir(place)):
            found = name.fullmatch(entry)
            if found is not None and _is_stale(place / entry, found[1], int(found[2])):
                _discard(place / entry, target, is_old=found[3] is not None)


_INSIDE = re.compile(r"\.gyrobn-\w*-\d+-[0-9a-f]{8}\.part$")


def _prefix(target: Path) -> str:
    name = target.name
    while len(os.fsencode(name)) > 180:  # file systems take names of up to 255 bytes
        name = name[:-1]
    return f".{name}.gyrobn-"


def _machine() -> str:
    return re.sub(r"\W", "", platform.node(), flags=re.ASCII)[:20]


def _is_stale(part: Path, machine: str, process: int) -> bool:
    """Return whether the process that wrote a part has ended, as far as can be known."""
    if machine == _machine() and os.name == "posix":
        try:
            os.kill(process, 0)  # sends nothing
        except ProcessLookupError:
            return True
        except OSError:  # it runs, for another user
            pass
    # of a process elsewhere, or of one whose number another process has got since
    times = (one.stat().st_mtime for one in (part, *part.rglob("*")))
    return max(times) < time.time() - DAY


def _discard(part: Path, target: Path, is_old: bool) -> None:
    """Remove a stale part; put back a store that was moved away when the process was killed."""
    if is_old and not target.exists():
        os.rename(part, target)
    elif part.is_dir():
        for old in part.glob("*.old"):  # a folder may have stores
            if not (target / old.stem).exists():
                os.rename(old, target / old.stem)
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink()
