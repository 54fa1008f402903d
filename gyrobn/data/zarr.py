"""Arrays of zarr, which is imported on first use."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data.stored import SlicedArray, StoredArray, check_dtype, choose, library
from gyrobn.numerics.checks import warn_caller

CHUNK = 1 << 23  # bytes, about

ZEROS_TOO = {"write_empty_chunks": True}
"""Write chunks of zeros, too: a missing chunk means damage."""

CODECS = frozenset(
    {"blosc", "bytes", "bz2", "crc32c", "delta", "fletcher32", "gzip", "lz4", "lzma", "shuffle"}
    | {"sharding_indexed", "transpose", "zlib", "zstd"}
)
"""Codecs that are safe; ``pickle``, for example, would run code from the file."""


def open_zarr(path: Path, key: str | None) -> StoredArray:
    """Open the array of a store, or one of a group."""
    node = library("zarr", ".zarr").open(str(path), mode="r")
    if hasattr(node, "array_keys"):
        key = choose(path, node.array_keys(), key)
        node = node[key]
    elif key is not None:
        raise ValueError(f"it holds one array without a name, got the key {key!r}")
    _check_codecs(path, node.metadata.to_dict())
    check_dtype(path, np.dtype(node.dtype))
    array = SlicedArray(path, key, node)
    if not all(node.chunks) and all(node.shape):
        raise ValueError(f"{path} has chunks of shape {node.chunks}, which hold nothing")
    missing = node.nchunks - node.nchunks_initialized
    if missing:  # zarr is silent about it, but a partly copied store is damaged
        warn_caller(
            f"{path} has {missing} of {node.nchunks} chunks missing, which are read as "
            f"{node.fill_value}: copy it again, unless that is what was written",
        )
    return array


def create_zarr(
    path: Path, shape: tuple[int, ...], dtype: "np.dtype[Any]", rows: int | None = None
) -> Callable[[int, Any], Any]:
    """Make a store with one array; return a function that puts samples at an index.

    ``rows`` is the number of samples per chunk, about 8 MB of them by default.
    """
    row = max(1, math.prod(shape[1:]) * dtype.itemsize)
    rows = max(1, CHUNK // row) if rows is None else rows
    chunks = (min(rows, max(1, shape[0])), *shape[1:])
    array = library("zarr", ".zarr").create_array(
        str(path), shape=shape, dtype=dtype, chunks=chunks, config=ZEROS_TOO
    )

    def put(start: int, chunk: Any) -> None:
        array[start : start + len(chunk)] = chunk

    return put


def write_zarr(path: Path, start: int, chunk: Any) -> None:
    """Put samples into a store at an index, from any process; they must fill whole chunks."""
    array = library("zarr", ".zarr").open_array(str(path), mode="r+", config=ZEROS_TOO)
    array[start : start + len(chunk)] = chunk


def is_zarr(path: Path) -> bool:
    """Return whether a directory is a store."""
    return any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def _check_codecs(path: Path, metadata: Any) -> None:
    """Refuse an array that needs a codec not known to be harmless, wherever it is nested."""
    if isinstance(metadata, dict):
        for name in ("codecs", "index_codecs", "filters", "compressor"):
            found = metadata.get(name) or ()
            for codec in (found,) if isinstance(found, dict) else found:
                known = str(codec.get("name", codec.get("id"))).removeprefix("numcodecs.")
                if known not in CODECS:
                    raise ValueError(f"{path} needs the codec {known!r}, which is not trusted here")
        metadata = list(metadata.values())
    if isinstance(metadata, (list, tuple)):
        for part in metadata:
            _check_codecs(path, part)
