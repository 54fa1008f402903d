"""Arrays that are read from disk once and then stay in memory."""

import os
from functools import cached_property
from typing import Any

from gyrobn.data.stored import StoredArray

__all__ = ["KeptArray", "fits"]

SHARE = 4
"""An array is kept if it takes at most the free memory divided by this number."""

LITTLE = 2**28
"""The most bytes to keep if the system does not tell how much memory is free."""


def fits(source: StoredArray, kept: int = 0) -> bool:
    """Return whether an array fits in memory beside the given number of bytes of others."""
    size = kept + source.size
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        free = LITTLE * SHARE
    return size <= (free + kept) // SHARE


class KeptArray(StoredArray):
    """An array in a file that it reads at the first use, and closes."""

    def __init__(self, source: StoredArray) -> None:
        super().__init__(source.path, source.key, source.shape, source.stored, source.form)
        self.chunks, self._source = source.chunks, source

    @cached_property
    def _samples(self) -> Any:
        with self._source:
            samples = self._source[:]
        samples.flags.writeable = False
        return samples

    def load(self) -> "KeptArray":
        """Read the array now, and close its file."""
        self._samples  # noqa: B018 (a cached property)
        return self

    def _read(self, start: int, stop: int) -> Any:
        return self._samples[start:stop]

    def close(self) -> None:
        """Close the file."""
        self._source.close()
