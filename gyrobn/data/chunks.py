"""Samples that are read in chunks, as often as needed, because memory may not hold them all."""

import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import partial
from typing import Any

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, device_of, namespace_of
from gyrobn.numerics.checks import check_integer

BYTES = 2**23
"""Default size of a chunk. Computing with a chunk takes about ten times as much memory."""

Rows = Any
"""Numbers of the samples in a chunk, a NumPy array of integers."""

Part = tuple[int, int, Callable[[], Array]]
"""The numbers of the first sample and of the one after the last, and a function that reads them."""


class Chunks:
    """Samples of shape (N, *channels, *point_shape), read in chunks, as often as needed.

    ``GyroBN.fit``, ``GyroBN.transform_chunks``, :func:`~gyrobn.frechet` and
    :func:`~gyrobn.batch_stats` take them in place of an array.

    Parameters
    ----------
    source
        An array on disk (``np.load(path, mmap_mode="r")``, a zarr array, an h5py dataset: anything
        with a shape, a dtype and slices); or an iterable of arrays that can be iterated again; or a
        function that returns an iterator over arrays, a new one at each call.
    size
        Samples per chunk of an array on disk; by default as many as fit in 8 MB.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Chunks, PoincareBall, frechet
    >>> M = PoincareBall(2)
    >>> x = M.random(1000, rng=0)
    >>> chunks = Chunks(lambda: (x[i : i + 100] for i in range(0, 1000, 100)))
    >>> bool(np.allclose(frechet(M, chunks).mean, frechet(M, x).mean, rtol=0, atol=1e-14))
    True
    """

    def __init__(self, source: Any, size: int | None = None) -> None:
        if compat.is_array_api_obj(source):
            namespace_of(source)  # refuses Dask, before the first chunk is read
        self._source, self._size = source, 0
        self._length: list[int] = []  # shared by all that map and select return
        self._each: tuple[Callable[[Array, Rows], Array], ...] = ()
        self._at: Rows | None = None
        if hasattr(source, "shape") and hasattr(source, "__getitem__"):
            shape = tuple(source.shape)
            if len(shape) < 2 or 0 in shape:
                raise ValueError(
                    "expected samples of shape (N, *channels, *point_shape), no length 0, got "
                    f"{shape}"
                )
            self._length.append(int(shape[0]))
            self._size = rows_per_chunk(source) if size is None else check_integer("size", size, 1)
        elif size is not None:
            raise ValueError(
                "size is for arrays on disk: an iterable and a function choose their own chunks"
            )
        elif not callable(source) and not isinstance(source, Iterable):
            raise TypeError(
                "Chunks needs an array on disk, an iterable of arrays, or a function that "
                f"returns an iterator over arrays, got {type(source).__name__}"
            )
        elif not callable(source) and iter(source) is source:
            raise TypeError(
                f"a {type(source).__name__} can be read only once, and the mean needs several "
                "passes: give a function that returns a new one, Chunks(lambda: (... for ...)), "
                "or use partial_fit"
            )

    @property
    def count(self) -> int:
        """The number of samples."""
        return self.total if self._at is None else len(self._at)

    @property
    def total(self) -> int:
        """The number of samples before ``select``; of an iterable, it takes one pass over it."""
        if not self._length:
            list(self._iterated())
        return self._length[0]

    def __iter__(self) -> Iterator[Array]:
        for _, x in self.numbered():
            yield x

    def numbered(self) -> Iterator[tuple[Rows, Array]]:
        """Yield the chunks, each with the numbers of its samples."""
        for start, stop, load in self._sliced() if self._size else self._iterated():
            rows = own = np.arange(start, stop)
            if self._at is not None:
                own = self._at[slice(*np.searchsorted(self._at, (start, stop)))]
            if len(own):
                x = load()
                for function in self._each:
                    x = function(x, rows)
                yield own, x if self._at is None else take(x, own - start)

    def map(self, function: Callable[[Array, Rows], Array]) -> "Chunks":
        """Return the chunks, changed by a function of a chunk and the numbers of its samples."""
        other = copy(self)
        other._each = (*self._each, function)
        return other

    def select(self, at: Rows) -> "Chunks":
        """Return some of the samples, by their sorted numbers; chunks without any are not read."""
        other = copy(self)
        other._at = at
        return other

    def _sliced(self) -> Iterator[Part]:
        """Yield the parts of an array on disk."""
        for start in range(0, self.total, self._size):
            stop = min(start + self._size, self.total)
            yield start, stop, partial(read, self._source, slice(start, stop))

    def _iterated(self) -> Iterator[Part]:
        """Yield the arrays of an iterable, or of the iterator that a function returns."""
        start, kind = 0, None
        for i, x in enumerate(self._source() if callable(self._source) else self._source):
            if isinstance(x, (list, tuple)) and len(x) == 1 and compat.is_array_api_obj(x[0]):
                x = x[0]  # a batch of torch's TensorDataset
            if not compat.is_array_api_obj(x) or x.ndim < 2:
                raise TypeError(
                    f"chunk {i} must be an array of shape (n, *channels, *point_shape), got "
                    f"{_described(x)}"
                )
            own = (tuple(x.shape[1:]), str(x.dtype), namespace_of(x).__name__, str(device_of(x)))
            if kind not in (None, own):
                raise ValueError(
                    "chunks must agree in the shape of their samples, dtype, library and device: "
                    f"chunk 0 has {kind}, chunk {i} has {own}"
                )
            kind, stop = own, start + x.shape[0]
            yield start, stop, partial(lambda x: x, x)
            start = stop
        if start == 0 or self._length not in ([], [start]):
            before = f", where there were {self._length[0]} before" if self._length else ""
            raise ValueError(
                f"the chunks hold {start} samples{before}: they must be the same at each reading; "
                "of a generator, give the function that makes it"
            )
        self._length[:] = [start]


def _described(x: Any) -> str:
    """Say what came in place of a chunk, and what to do."""
    if compat.is_array_api_obj(x):
        return f"shape {tuple(x.shape)}"
    if hasattr(x, "to_numpy"):
        return f"a {type(x).__name__}: call its to_numpy() first"
    if isinstance(x, (list, tuple, Mapping)):
        at = "key" if isinstance(x, Mapping) else 0
        advice = f"take the samples out, fit(lambda: (b[{at}] for b in loader))"
        return f"{type(x).__name__} of {len(x)}: {advice}"
    return type(x).__name__


def is_streamed(x: Any, axes: int) -> bool:
    """Return whether samples come in chunks: from a disk, or from an iterable that is not an array.

    In a list, arrays with as many ``axes`` as a sample are samples, and arrays with more are
    chunks. Nested lists of numbers are an array. Any other list is refused.

    >>> import numpy as np
    >>> [is_streamed(x, 1) for x in (np.zeros((3, 2)), [[1.0, 2.0]], [np.zeros(2), np.zeros(2)])]
    [False, False, False]
    >>> is_streamed([np.zeros((10, 2)), np.zeros((5, 2))], 1), is_streamed(map(abs, [[1.0]]), 1)
    (True, True)
    """
    if isinstance(x, (Chunks, np.memmap)):
        return True
    if isinstance(x, (list, tuple)) and x:
        found = {len(part.shape) if hasattr(part, "shape") else -1 for part in x}
        if len(found) > 1 or (found == {-1} and any(map(_holds_arrays, x))):
            raise TypeError(
                f"X is a {type(x).__name__} of {len(x)} parts that are neither all samples, arrays "
                f"of {axes} axes, nor all chunks, arrays of more axes, nor lists of numbers: give "
                "an array (numpy.stack of samples, numpy.concatenate of chunks), or gyrobn.Chunks"
            )
        return max(found) > axes
    if not compat.is_array_api_obj(x) and hasattr(x, "shape") and hasattr(x, "chunks"):
        return True  # zarr, h5py
    if any(hasattr(x, name) for name in ("__array__", "__array_interface__", "shape", "iloc")):
        return False
    if callable(x):
        return not isinstance(x, type)
    return isinstance(x, Iterable) and not isinstance(x, (str, bytes, Sequence, Mapping, Set))


def _holds_arrays(x: Any) -> bool:
    """Return whether there is an array, other than a number, in a list or in the lists in it."""
    if isinstance(x, (list, tuple)):
        return any(map(_holds_arrays, x))
    return bool(getattr(x, "shape", ()))


def take(x: Array, rows: Rows) -> Array:
    """Return some of the samples of an array."""
    xp = namespace_of(x)
    return xp.take(x, xp.asarray(rows, device=device_of(x)), axis=0)


def rows_per_chunk(array: Any) -> int:
    """Return the default number of samples of an array on disk that are read at once."""
    each = 8 * math.prod(array.shape[1:])
    size: int = max(1, BYTES // each)
    stored = getattr(array, "chunks", None)
    # zarr and HDF5 unpack whole chunks: align with them, if they fit, to unpack each once
    if stored and stored[0] * each <= 8 * BYTES:
        size = max(stored[0], size // stored[0] * stored[0])
    return size


def read(array: Any, rows: slice) -> Array:
    """Return some samples of an array on disk, as an array of its library, NumPy as a rule."""
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(pages, "madvise") and array.mode != "c":
        # Pages read through a memory map count as memory of the process until they are released.
        # A copy-on-write map would lose what was written into it, so its pages stay.
        x = np.array(array[rows])
        pages.madvise(mmap.MADV_DONTNEED)
        return x
    return array[rows, ...] if compat.is_array_api_obj(array) else np.asarray(array[rows])
