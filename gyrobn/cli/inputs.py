"""What the options name: samples, a geometry for them, labels, a bias."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.gyrospace import GyroSpace
from gyrobn.manifolds import REGISTRY, Grassmannian
from gyrobn.storage import StoredArray, open_array
from gyrobn.storage.stored import SUFFIXES

__all__ = ["geometry_of", "open_samples", "projectors_of", "read_bias", "read_labels"]


def open_samples(path: Path, key: str | None) -> StoredArray:
    """Open samples, an array of float32 or float64 with at least two axes."""
    source = open_array(path, key)
    try:
        if source.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"{path} holds {source.dtype}, expected float32 or float64: convert it first, "
                "with x.astype(numpy.float64) for example"
            )
        if source.ndim < 2 or 0 in source.shape:
            raise ValueError(
                f"{path} has shape {source.shape}, expected (N, *channels, *point_shape), "
                "no length 0"
            )
    except BaseException:
        source.close()
        raise
    return source


def geometry_of(options: Namespace, source: StoredArray) -> GyroSpace:
    """Return the geometry of the options, with its sizes from the samples."""
    parameters = dict(options.parameters)
    if parameters.get("representation") == "projector":
        return projectors_of(source)
    try:
        manifold = REGISTRY[options.manifold].for_shape(source.shape[1:])
    except ValueError as error:
        raise ValueError(
            f"{source.path} of shape {source.shape} holds no points of {options.manifold}: {error}"
        ) from error
    return replace(manifold, **parameters)


def projectors_of(source: StoredArray) -> Grassmannian:
    """Return the geometry of projectors, whose rank is the trace of the first one."""
    shape = source.shape
    if len(shape) < 3 or shape[-1] != shape[-2]:
        raise ValueError(f"projectors are square, shape (N, ..., n, n), got {shape}")
    n = shape[-1]
    trace = float(np.trace(source[:1].reshape(-1, n, n)[0]))
    if not 0.5 <= trace < n - 0.5:
        raise ValueError(
            f"the first sample of {source.path} has trace {trace:.4g}, which is not the rank of "
            f"a projector to a subspace of {n} dimensions, from 1 to {n - 1}"
        )
    return Grassmannian(n, round(trace), "projector")


def read_bias(path: Path | None) -> Any:
    """Return the point in a file, or None if no file is given."""
    if path is None:
        return None
    with open_array(path) as bias:
        if bias.dtype.kind not in "iuf":
            raise ValueError(f"{path} holds {bias.dtype}, expected the numbers of a point")
        return bias[:].astype(np.float64)


def read_labels(path: Path | None) -> Any:
    """Return the labels in a file, an array or lines of text, or None if no file is given."""
    if path is None:
        return None
    if path.suffix.lower() in SUFFIXES:
        with open_array(path) as labels:
            return labels[:]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is neither an array nor text with a label a line") from error
    return np.asarray([line.strip() for line in lines], dtype=np.str_)
