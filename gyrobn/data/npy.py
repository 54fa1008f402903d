"""The header of a ``.npy`` file, checked before anything is believed."""

import io
import math
import sys
import warnings
from pathlib import Path

from numpy.lib import format as npy

HEAD = 1 << 14
"""Bytes in which a header ends: NumPy allows it 10,000."""
AXES, MOST = 64, sys.maxsize  # the most axes of a NumPy array, and the longest axis
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class Header:
    """What the first bytes of a ``.npy`` file say, after checks.

    ``head`` holds up to ``HEAD`` bytes, ``size`` is the number of bytes in the file, and ``path``
    is for messages.
    """

    def __init__(self, path: Path | str, head: bytes, size: int) -> None:
        if not head:
            raise ValueError("it is empty")
        stream = io.BytesIO(head)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a header that Python 2 wrote, or odd text
            version = npy.read_magic(stream)
            if version not in READERS:
                raise ValueError(f"version {version} of the format, for values with named fields")
            shape, self.fortran, self.dtype = READERS[version](stream)
        if len(shape) > AXES or any(isinstance(n, bool) or not 0 <= n <= MOST for n in shape):
            raise ValueError(f"invalid shape {shape}")
        if self.dtype.kind not in "biufcSU" or self.dtype.subdtype is not None:
            raise ValueError(f"{path} holds values of dtype {self.dtype}: expected numbers")
        self.shape = shape
        self.offset = stream.tell()
        needed = self.offset + math.prod(shape) * self.dtype.itemsize
        if needed > size:
            raise ValueError(
                f"it is cut off: an array of shape {shape} and dtype {self.dtype} takes "
                f"{needed:,} bytes, there are {size:,}"
            )
