"""Arrays on disk, read and written in parts: ``.npy``, ``.npz`` and zarr.

Files are read and not mapped into memory: if another process truncates a mapped file, a signal ends
the process, where a read raises an error.

Nothing here runs code from a file: object arrays, which are pickles, are refused, and so are zarr
codecs that are not known to be harmless. A damaged file raises ValueError or OSError.
"""

import os
import stat
from pathlib import Path

from gyrobn.data.npy import NpyArray, open_npz
from gyrobn.data.stored import StoredArray, format_of, reading
from gyrobn.data.writing import ArrayWriter, RegionWriter, create_array, create_regions, replacing
from gyrobn.data.zarr import open_zarr

__all__ = [
    "ArrayWriter",
    "RegionWriter",
    "StoredArray",
    "create_array",
    "create_regions",
    "open_array",
    "replacing",
]


def open_array(path: str | os.PathLike[str], key: str | None = None) -> StoredArray:
    """Open an array on disk.

    Parameters
    ----------
    path
        A file ``.npy`` or ``.npz``, or a directory ``.zarr``.
    key
        Name of the array, if the file holds several.

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
    """
    path = Path(path)
    kind = format_of(path)
    found = path.stat()
    if not (stat.S_ISDIR if kind == ".zarr" else stat.S_ISREG)(found.st_mode):
        raise ValueError(f"{path} is not a {'directory' if kind == '.zarr' else 'regular file'}")
    with reading(path):
        if kind == ".zarr":
            return open_zarr(path, key)
        if kind == ".npz":
            return open_npz(path, key)
        if key is not None:
            raise ValueError(f"it holds one array without a name, got the key {key!r}")
        return NpyArray(path, None, path.open("rb", buffering=0), found.st_size)
