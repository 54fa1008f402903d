"""Arrays on disk: ``.npy``, ``.npz`` and zarr, read and written in parts; tables; MATLAB's files.

Files are read and not mapped into memory: if another process truncates a mapped file, a signal ends
the process, where a read raises an error.

Nothing here runs code from a file: object arrays, which are pickles, are refused, and so are zarr
codecs that are not known to be harmless. A damaged file raises ValueError or OSError.
"""

import os
import stat
from pathlib import Path
from typing import Any

from gyrobn.data.layouts import Layout
from gyrobn.data.matlab import open_mat
from gyrobn.data.npy import NpyArray, open_npz
from gyrobn.data.parquet import open_parquet
from gyrobn.data.stored import TABLES, StoredArray, format_of, reading
from gyrobn.data.tables import DELIMITERS, open_text
from gyrobn.data.writing import ArrayWriter, RegionWriter, create_array, create_regions, replacing
from gyrobn.data.zarr import open_zarr
from gyrobn.numerics.checks import parameter_error

__all__ = [
    "OPTIONS",
    "ArrayWriter",
    "RegionWriter",
    "StoredArray",
    "check_options",
    "create_array",
    "create_regions",
    "open_array",
    "replacing",
]


def open_array(
    path: str | os.PathLike[str],
    key: str | None = None,
    *,
    axis: str | None = None,
    layout: str | Layout | None = None,
    header: str | None = None,
    domain_column: str | None = None,
) -> StoredArray:
    """Open an array on disk.

    Parameters
    ----------
    path
        A file ``.npy``, ``.npz``, ``.mat``, ``.csv``, ``.tsv`` or ``.parquet``, or a directory
        ``.zarr``.
    key
        Name of the array, if the file holds several.
    axis
        The axis of a ``.mat`` file that counts the samples, ``"first"`` or ``"last"``. It may be
        left out if the other two axes of three have the same length.
    layout
        How a row of a table holds a sample; by default it is a vector. ``"4x4"`` is the shape of
        a sample that is flattened row by row, ``"4x4:columns"`` column by column. ``"upper"`` and
        ``"lower"`` are triangles of symmetric matrices with their diagonals, row by row.
    header
        ``"yes"`` if the first line of a ``.csv`` or ``.tsv`` file holds names, ``"no"`` if not. It
        may be left out if the line has no numbers, or only numbers.
    domain_column
        Name of a column of a table that holds one label per sample. They are in ``form.labels``.

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
    >>> _ = path.with_suffix(".csv").write_text("a,b,c\\n2,1,3\\n")
    >>> with open_array(path.with_suffix(".csv"), layout="upper") as x:
    ...     print(x.shape, x[:].tolist())
    (1, 2, 2) [[[2.0, 1.0], [1.0, 3.0]]]
    """
    path = Path(path)
    kind = format_of(path)
    given = {"axis": axis, "layout": layout, "header": header, "domain_column": domain_column}
    check_options(path, kind, given)
    found = path.stat()
    if not (stat.S_ISDIR if kind == ".zarr" else stat.S_ISREG)(found.st_mode):
        raise ValueError(f"{path} is not a {'directory' if kind == '.zarr' else 'regular file'}")
    layout = Layout.parse(layout) if isinstance(layout, str) else layout
    with reading(path):
        if kind == ".zarr":
            return open_zarr(path, key)
        if kind == ".npz":
            return open_npz(path, key)
        if kind == ".mat":
            return open_mat(path, key, axis)
        if key is not None:
            raise ValueError(f"it holds one array without a name, got the key {key!r}")
        if kind == ".parquet":
            return open_parquet(path, layout, domain_column)
        if kind in DELIMITERS:
            with path.open(encoding="utf-8-sig", newline="") as text:
                return open_text(path, text, DELIMITERS[kind], layout, header, domain_column)
        return NpyArray(path, None, path.open("rb", buffering=0), found.st_size)


OPTIONS = {
    "axis": (".mat",),
    "layout": TABLES,
    "header": tuple(DELIMITERS),
    "domain_column": TABLES,
}
"""Options of :func:`open_array`, each with the formats that have it."""


def check_options(path: Path, kind: str, given: dict[str, Any]) -> None:
    """Refuse options that the format does not have."""
    for name, value in given.items():
        if value is not None and kind not in OPTIONS[name]:
            known = ", ".join(OPTIONS[name])
            raise parameter_error(f"{path} is a {kind} file, and ", name, f" is for {known}")
