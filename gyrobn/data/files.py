"""Arrays in files, read in slices: ``.npy``, ``.npz``, zarr, ``.csv``, MATLAB's ``.mat`` and HDF5.

The libraries of the formats read them, and nothing here runs code from a file.
"""

import csv
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from gyrobn.data.chunks import read
from gyrobn.numerics.checks import check_choice, is_number, warn_caller


def layouts(length: int) -> dict[str, int]:
    """Return how a row of numbers can hold an n × n matrix, with n for each layout.

    >>> layouts(16), layouts(10), layouts(7)
    ({'matrix': 4}, {'upper': 4, 'strict': 5}, {})
    """
    square, side = math.isqrt(length), (math.isqrt(8 * length + 1) - 1) // 2
    found = {"matrix": square} if square**2 == length else {}
    if side * (side + 1) == 2 * length:
        found |= {"upper": side, "strict": side + 1}
    return found


def pack(samples: Any, layout: str | None) -> Any:
    """Return samples as rows of numbers."""
    if layout in ("upper", "strict"):
        return samples[:, *np.triu_indices(samples.shape[-1], int(layout == "strict"))]
    return samples.reshape(len(samples), -1)


def _unpack(rows: Any, layout: str, n: int) -> Any:
    if layout == "matrix":
        return rows.reshape(-1, n, n)
    i, j = np.triu_indices(n, int(layout == "strict"))
    samples = np.broadcast_to(np.eye(n, dtype=rows.dtype), (len(rows), n, n)).copy()
    samples[:, i, j] = samples[:, j, i] = rows
    return samples


@dataclass(eq=False)
class StoredArray:
    """An array in a file, of which slices along the first axis are read; see :func:`open_array`."""

    path: Path
    array: Any
    """What the library of the format returns."""
    given: dict[str, Any] | None = None
    """The arguments of :func:`open_array`, to open the file again in another process."""
    names: tuple[str, ...] = ()
    """The names of the columns of a table."""
    labels: Any = None
    """A label for each sample, from a column of a table."""
    layout: str | None = None
    axis: str | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.array.shape)
        if not shape:
            raise ValueError(f"{self.path} holds a single number: expected samples")
        if self.layout is not None:
            n = layouts(shape[1]).get(self.layout) if len(shape) == 2 else None
            if n is None:
                raise ValueError(
                    f"{self.path} of shape {shape} does not hold matrices in layout={self.layout!r}"
                )
            shape = shape[0], n, n
        self.shape, self.ndim = shape, len(shape)
        self.dtype = np.dtype(self.array.dtype).newbyteorder("=")
        self.chunks = getattr(self.array, "chunks", None)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        """Read samples."""
        rows = rows[0] if isinstance(rows, tuple) else rows
        with reading(self.path):
            x = read(self.array, rows).astype(self.dtype, copy=False)
        return x if self.layout is None else _unpack(x, self.layout, self.shape[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Read all samples."""
        return np.asarray(self[:], dtype=dtype)

    def __reduce__(self) -> Any:
        return (partial(open_array, **self.given), ()) if self.given else super().__reduce__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part in getattr(self.array, "parts", [self]):
            if file := getattr(part.array, "file", None):  # of HDF5
                file.close()


def open_array(
    path: str | PathLike[str],
    key: str | None = None,
    *,
    axis: str | None = None,
    layout: str | None = None,
    columns: str | None = None,
    header: str | None = None,
    labels: str | None = None,
) -> StoredArray:
    """Open an array in a file.

    Parameters
    ----------
    path
        A file ``.npy``, ``.npz``, ``.csv``, ``.mat``, ``.h5`` or ``.hdf5``, or a directory
        ``.zarr``.
    key
        Name of the array, if the file holds several.
    axis
        The axis of a ``.mat`` file that counts the samples, ``"first"`` or ``"last"``. It may be
        left out if the other two axes of three have the same length.
    layout
        What a row of numbers holds, if not a vector: ``"matrix"``, a square matrix, row by row;
        ``"upper"``, the upper triangle of a symmetric matrix, row by row; ``"strict"``, that
        without the diagonal, which is 1.
    columns
        The columns of a ``.csv`` file to read, counted from 1, such as ``"1-3,5"``.
    header
        ``"yes"`` if the first line of a ``.csv`` file holds names, ``"no"`` if not. It may be left
        out if the line has no numbers, or only numbers.
    labels
        The column of a ``.csv`` file with a label for each sample: its name, or its number.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from gyrobn.data import create_array, open_array
    >>> path = Path(tempfile.mkdtemp()) / "x.npy"
    >>> with create_array(path, (3, 2), np.float32) as out:
    ...     out.write(np.zeros((1, 2)))
    ...     out.write(np.ones((2, 2)))
    >>> with open_array(path) as x:
    ...     print(x.shape, x.dtype, x[1:2])
    (3, 2) float32 [[1. 1.]]
    >>> _ = path.with_suffix(".csv").write_text("id,a,b,c\\n7,2,1,3\\n")
    >>> with open_array(path.with_suffix(".csv"), columns="2-4", layout="upper") as x:
    ...     print(x.shape, x[:].tolist())
    (1, 2, 2) [[[2.0, 1.0], [1.0, 3.0]]]
    """
    path = Path(path)
    table = {"columns": columns, "header": header, "labels": labels}
    suffix, options = suffix_of(path), {"axis": axis} | table
    for name, value in options.items():
        if value is not None and suffix != (".mat" if name == "axis" else ".csv"):
            raise ValueError(f"{name} does not apply to {path}, a {suffix} file")
    path.stat()
    with reading(path):
        if suffix == ".csv":
            if key is not None:
                raise ValueError(f"{path} holds one array without a name, got key={key!r}")
            found = _open_table(path, **table)
        else:
            found = StoredArray(path, _open(path, suffix, key, axis), axis=axis)
    given = {"path": path.absolute(), "key": key, "layout": layout} | options
    return replace(found, given=given, layout=layout)


def join(parts: Sequence[StoredArray]) -> StoredArray:
    """Return the samples of several files, one after the other, as one array."""
    first, *rest = parts
    for part in rest:
        if (part.shape[1:], part.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(
                f"{part.path} holds samples of shape {part.shape[1:]}, {part.dtype}, {first.path} "
                f"of shape {first.shape[1:]}, {first.dtype}: both must agree"
            )
    labels = None if first.labels is None else np.concatenate([part.labels for part in parts])
    path = Path(f"{first.path} and {len(rest)} more")
    return StoredArray(path, Joined(parts), names=first.names, labels=labels, axis=first.axis)


class Joined:
    """Several arrays, one after the other."""

    def __init__(self, parts: Sequence[StoredArray]) -> None:
        self.parts, self.dtype = parts, parts[0].dtype
        self.starts = np.cumsum([0, *map(len, parts)]).tolist()
        self.shape = (self.starts[-1], *parts[0].shape[1:])

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        each = zip(self.parts, self.starts, strict=False)
        found = [part[max(0, start - n) : max(0, stop - n)] for part, n in each]
        return np.concatenate(found)

    def place(self, row: int) -> tuple[Path, int]:
        """Return the file of a sample, and its number there."""
        k = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.parts[k].path, row - self.starts[k]


# ---------------------------------------------------------------------- formats

SUFFIXES = (".npy", ".npz", ".zarr", ".csv", ".mat", ".h5", ".hdf5")


def suffix_of(path: Path) -> str:
    """Return the suffix of a file, after checking that it is that of a format."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has the suffix {suffix!r}: expected {', '.join(SUFFIXES)}")
    return suffix


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in the errors of a damaged one; readers can raise anything."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        named = getattr(error, "filename", None) or str(path) in str(error)
        if named and isinstance(error, (OSError, ValueError)):
            raise
        what = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"cannot read {path}: {what}") from error


def _open(path: Path, suffix: str, key: str | None, axis: str | None) -> Any:
    """Return the array of a file, as the library of the format has it."""
    if suffix == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            members = archive.zip.namelist()
            return _chosen(path, archive, [n for n in archive.files if f"{n}.npy" in members], key)
    if suffix in (".h5", ".hdf5"):
        return _chosen(path, *_datasets(path), key)
    if suffix == ".mat":
        return _open_mat(path, key, axis)
    if suffix == ".zarr":
        array = library("zarr", suffix).open(str(path), mode="r")
        if hasattr(array, "array_keys"):
            array, key = _chosen(path, array, array.array_keys(), key), None
        if re.search("pickle|dill|object", str(array.metadata.to_dict())):
            raise ValueError(f"{path} holds pickles, which could run anything when read")
        if missing := array.nchunks - array.nchunks_initialized:  # zarr is silent about it
            warn_caller(
                f"{path} has {missing} of {array.nchunks} chunks missing, which are read as "
                f"{array.fill_value}: copy it again, unless that is what was written"
            )
    else:
        array = np.lib.format.open_memmap(path, mode="r")
    if key is not None:
        raise ValueError(f"{path} holds one array without a name, got key={key!r}")
    return array


def _chosen(path: Path, arrays: Any, names: Iterable[str], key: str | None) -> Any:
    """Return the array of a name, or the only one."""
    names = list(names)
    if key is None and len(names) == 1:
        key = names[0]
    if key not in names:
        listed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        got = "" if key is None else f", got {key!r}"
        raise ValueError(f"{path} holds the arrays {listed or '(none)'}: choose one by key{got}")
    return arrays[key]


def library(name: str, suffix: str) -> Any:
    """Import the library of a format, or say how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        extra = {"h5py": "hdf5"}.get(name, name)
        raise ImportError(
            f"{suffix} files need {name}: install it with pip install 'gyrobn[{extra}]'"
        ) from error


def _datasets(path: Path) -> tuple[Any, list[str]]:
    """Return a file of HDF5, and the names of its arrays."""
    file, names = library("h5py", path.suffix).File(path, "r"), list[str]()
    file.visititems(lambda name, one: names.append(name) if hasattr(one, "shape") else None)
    return file, [name for name in names if not name.startswith("#")]  # of MATLAB


def _open_mat(path: Path, key: str | None, axis: str | None) -> Any:
    """Open a variable of MATLAB, which often counts samples along the last axis."""
    from scipy.io import loadmat

    try:
        variables = {k: v for k, v in loadmat(path).items() if not k.startswith("__")}
        array = _chosen(path, variables, variables, key)
        shape = array.shape
    except NotImplementedError:  # version 7.3 is HDF5, with axes in reverse order
        array = _chosen(path, *_datasets(path), key)
        shape = array.shape[::-1]
    square = len(shape) == 3 and (shape[0] == shape[1]) != (shape[1] == shape[2])
    if axis is None and not square:
        raise ValueError(
            f"{path} holds an array of shape {shape}: say which axis counts the samples by "
            "axis='first' or 'last'"
        )
    last = axis == "last" or (axis is None and shape[0] == shape[1])
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(np.moveaxis(array, -1, 0)) if last else array
    return _Reversed(array, last)


class _Reversed:
    """A variable of MATLAB in HDF5, its samples first."""

    def __init__(self, array: Any, last: bool) -> None:
        self.array, self.last, self.dtype, self.file = array, last, array.dtype, array.file
        *others, end = array.shape[::-1]
        self.shape = (end, *others) if last else (*others, end)

    def __getitem__(self, rows: slice) -> Any:
        if self.last:
            return np.moveaxis(self.array[rows].T, -1, 0)
        return self.array[..., rows].T


# ---------------------------------------------------------------------- tables


def _open_table(
    path: Path, columns: str | None, header: str | None, labels: str | None
) -> StoredArray:
    """Read a table; a quoted field may hold commas."""
    with path.open(encoding="utf-8-sig", newline="") as text:
        first = next(csv.reader(text), [])
    every, column, words = list(range(len(first))), None, None
    if labels is not None:
        column = int(labels) - 1 if labels.isdecimal() else (*first, labels).index(labels)
        if column not in every:
            raise ValueError(f"{path} has no column {labels}: its first line is {','.join(first)}")
    at = [k for k in every if k != column] if columns is None else _numbers(path, columns, first)
    named = bool(first) and _is_header(path, [first[k] for k in at], header)

    def load(used: list[int], dtype: Any = np.float64) -> Any:
        options: dict[str, Any] = {"delimiter": ",", "comments": None, "quotechar": '"', "ndmin": 2}
        options |= {"encoding": "utf-8-sig", "skiprows": int(named), "dtype": dtype}
        # if all columns are used, the fields of each line are counted
        return np.loadtxt(path, usecols=None if used == every else used, **options)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a file without numbers
        try:
            rows = load(at)
        except ValueError as error:
            raise ValueError(
                f"cannot read {path}: {error} (rows{' after the header' * named} from 0): choose "
                "columns of numbers by columns, such as 1-3,5"
            ) from error
        if column is not None:
            words = load([column], np.str_)[:, 0]
    if not rows.size:
        raise ValueError(f"{path} holds no rows of numbers")
    names = tuple(first[k] for k in at) if named else ()
    return StoredArray(path, rows, names=names, labels=words)


def _numbers(path: Path, columns: str, first: Sequence[str]) -> list[int]:
    """Return the indices of columns such as 1-3,5.

    >>> _numbers(Path("x.csv"), "1-3,5", "abcde")
    [0, 1, 2, 4]
    """
    found: list[int] = []
    for word in columns.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= len(first):
            raise ValueError(
                f"columns of {path} must be numbers from 1 to {len(first)}, such as 1-3,5, got "
                f"{columns!r}"
            )
        found += range(low - 1, high)
    return found


def _is_header(path: Path, fields: Sequence[str], header: str | None) -> bool:
    """Return whether the first line holds names; names are not numbers."""
    if header is not None:
        return check_choice("header", header, ("yes", "no")) == "yes"
    numbers = [is_number(field) for field in fields]
    counted = len(fields) > 1 and list(fields) == [str(k) for k in range(len(fields))]
    if counted or any(numbers) != all(numbers):
        raise ValueError(
            f"the first line of {path} is {','.join(fields)}: say whether these are names by "
            "header='yes' or 'no', or choose columns of numbers by columns, such as 1-3,5"
        )
    return not all(numbers)
