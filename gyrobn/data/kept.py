"""Arrays that are read from disk once and then stay in memory."""

import os
from typing import Any

import numpy as np

from gyrobn.data.stored import StoredArray

__all__ = ["KeptArray", "fits"]

SHARE = 4
"""An array is kept if it takes at most the free memory divided by this number."""

LITTLE = 2**28
"""The most bytes to keep if the system does not tell how much memory is free."""


def fits(source: StoredArray) -> bool:
    """Tell whether all of an array can be kept in memory."""
    size = int(np.prod(source.shape, dtype=object)) * source.dtype.itemsize
    return size <= _free() // SHARE


def _free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return LITTLE * SHARE


class KeptArray(StoredArray):
    """An array in a file; each sample is read once, at its first use.

    Parameters
    ----------
    source
        The array, which it closes.
    """

    def __init__(self, source: StoredArray) -> None:
        super().__init__(source.path, source.key, source.shape, source.stored)
        self.chunks = source.chunks
        self._source = source
        self._data = np.empty(source.shape, source.dtype)
        self._known = np.zeros(len(source), np.bool_)

    def _read(self, start: int, stop: int) -> Any:
        missing = start + np.flatnonzero(~self._known[start:stop])
        if missing.size:
            first, last = int(missing[0]), int(missing[-1]) + 1
            self._data[first:last] = self._source[first:last]
            self._known[first:last] = True
        samples = self._data[start:stop]
        samples.flags.writeable = False
        return samples

    def close(self) -> None:
        """Close the file."""
        self._source.close()
