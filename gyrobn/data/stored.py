"""What all formats share: an array that is read in slices, and errors that name the file."""

import math
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.layouts import Layout
from gyrobn.numerics.checks import parameter_error

ARRAYS = (".npy", ".npz", ".zarr")
"""The suffixes of arrays of any shape, with the samples along the first axis."""

TABLES = (".csv", ".tsv", ".parquet")
"""The suffixes of tables, which have one row of numbers per sample."""

SUFFIXES = (*ARRAYS, ".mat", *TABLES)
"""The suffixes of the formats."""


@dataclass(frozen=True, eq=False)
class Form:
    """How a file holds samples, where its format leaves a choice; the output gets the same."""

    axis: str = "first"
    """The axis of a ``.mat`` file that counts the samples, first or last."""
    table: bool = False
    """Whether it is a table."""
    layout: Layout | None = None
    """How a row of a table holds a sample; None for a vector."""
    names: tuple[str, ...] | None = None
    """The names of the columns of a table, or None without a header."""
    labels: Any = None
    """One label per sample, from a column of a table, or None."""
    column: int = 0
    """The place of the column of labels."""


PLAIN = Form()


class StoredArray(AbstractContextManager["StoredArray"]):
    """An array in a file; slices along the first axis are read on demand.

    Made by :func:`~gyrobn.data.open_array`. Slices in ascending order are fast in every format.

    Parameters
    ----------
    path
        The file.
    key
        Name of the array inside the file, or None if it has no name.
    shape
        Shape of the whole array.
    stored
        The dtype in the file, in its byte order.
    form
        What else the file says, and a file of the same form would repeat.
    file
        What :meth:`close` closes, or None.
    """

    def __init__(
        self,
        path: Path,
        key: str | None,
        shape: tuple[int, ...],
        stored: Any,
        form: Form = PLAIN,
        file: Any = None,
    ) -> None:
        if not shape:
            raise ValueError(f"{path} holds a single number: expected samples along a first axis")
        self.path, self.key, self.shape = path, key, shape
        self.form = form
        """Header, layout, labels and axis, where the format has them; for ``create_array``."""
        self.stored: np.dtype[Any] = np.dtype(stored)
        self.dtype: np.dtype[Any] = self.stored.newbyteorder("=")
        """The dtype of the slices, in the byte order of the machine."""
        self.chunks: tuple[int, ...] | None = None
        """Shape of the parts that the format unpacks at once, or None."""
        self._file = file

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of bytes in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Any:
        """Read samples; only slices with a step of one."""
        if not isinstance(rows, slice):
            raise TypeError(f"{self.path} is read in slices, such as x[:10], got {rows!r}")
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise ValueError(f"{self.path} is read in slices of neighbours, got the step {step}")
        return self._read(start, max(start, stop)).astype(self.dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read all samples."""
        if copy is False:
            raise ValueError(f"{self.path} is read from disk, which makes a copy")
        samples = self[:]
        return samples if dtype is None else samples.astype(dtype, copy=False)

    @abstractmethod
    def _read(self, start: int, stop: int) -> Any:
        """Return samples as they are in the file."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class SlicedArray(StoredArray):
    """An array of a library that takes slices, in memory or on disk."""

    def __init__(self, path: Path, key: str | None, array: Any, form: Form = PLAIN) -> None:
        super().__init__(path, key, tuple(array.shape), array.dtype, form)
        self._array, self.chunks = array, getattr(array, "chunks", None)

    def _read(self, start: int, stop: int) -> Any:
        with reading(self.path):
            return np.asarray(self._array[start:stop])


class KeptArray(StoredArray):
    """An array that is read at the first use, and then stays in memory; its file is closed."""

    def __init__(self, source: StoredArray) -> None:
        super().__init__(source.path, source.key, source.shape, source.stored, source.form, source)
        self.chunks = source.chunks
        self._samples: Any = None

    def load(self) -> "KeptArray":
        """Read the array now, unless it is in memory already, and close its file."""
        if self._samples is None:
            with self._file:
                self._samples = self._file[:]
            self._samples.flags.writeable = False
        return self

    def _read(self, start: int, stop: int) -> Any:
        return self.load()._samples[start:stop]


SHARE = 4
"""An array is kept if it takes at most the free memory divided by this number."""

LITTLE = 2**28
"""The most bytes to keep if the system does not tell how much memory is free."""


def fits(source: StoredArray, kept: int = 0) -> bool:
    """Return whether an array fits in memory beside the given number of bytes of others."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        free = LITTLE * SHARE
    return kept + source.size <= (free + kept) // SHARE


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in the errors of a damaged one; parsers can raise anything."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        what = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            byte = error.object[error.start]
            what = (
                f"byte {byte:#04x} is not UTF-8: convert the file to utf-8, with iconv for example"
            )
        raise ValueError(f"cannot read {path}: {what}") from error


def format_of(path: Path) -> str:
    """Return the suffix, after checking that it is that of a format."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}: expected {', '.join(SUFFIXES)}")
    return suffix


def choose(path: Path, names: Iterable[str], key: str | None) -> str:
    """Return the name of the array to read: the given one, or the only one."""
    known = sorted(names)
    listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "") if known else "none"
    if key is None and len(known) == 1:
        return known[0]
    if key is None:
        before = f"{path} holds {len(known)} arrays ({listed}): choose one by "
        raise parameter_error(before, "key", spelling="its key")
    if key not in known:
        raise ValueError(f"{path} holds no array {key!r}, but {listed}")
    return key


def library(name: str, suffix: str) -> Any:
    """Import a library that a format needs, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{suffix} files need {name.partition('.')[0]}: install it with pip install "
            f"'gyrobn[{suffix[1:]}]'"
        ) from error


def check_dtype(path: Path | str, dtype: "np.dtype[Any]") -> None:
    """Refuse all but plain numbers and strings of fixed length."""
    if dtype.kind not in "biufcSU" or dtype.subdtype is not None or dtype.itemsize == 0:
        why = ", a pickle, which could run anything when read" if dtype.hasobject else ""
        raise ValueError(f"{path} holds values of dtype {dtype}{why}: expected numbers")
