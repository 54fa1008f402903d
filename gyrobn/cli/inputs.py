"""Read the files that the options name: samples, labels, a bias."""

import errno
import os
import zipfile
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data import StoredArray, open_array
from gyrobn.data.kept import KeptArray, fits
from gyrobn.data.stored import SUFFIXES
from gyrobn.manifolds import REGISTRY, Grassmannian
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace

__all__ = [
    "check_place",
    "geometry_of",
    "is_model",
    "open_samples",
    "projectors_of",
    "read_bias",
    "read_labels",
]


FEW = 100
"""Number of samples whose traces are checked."""


def open_samples(path: Path, key: str | None) -> StoredArray:
    """Open samples, an array of float32 or float64 with at least two axes.

    An array that fits in memory is read from disk once. It is processed in chunks anyway, so that
    the results do not depend on the memory that is free.
    """
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
        return KeptArray(source) if fits(source) else source
    except BaseException:
        source.close()
        raise


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
    """Return the geometry of projectors; their rank is the most common trace of the first ones."""
    try:
        return of_projectors(source[:FEW])
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error


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
        with open_array(path) as array:
            labels = array[:]
        try:
            return np.char.decode(labels, "utf-8") if labels.dtype.kind == "S" else labels
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} holds bytes that are no text in UTF-8") from error
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is neither an array nor text with one label per line") from error
    words = [line.strip() for line in lines]
    if "" in words:
        raise ValueError(f"line {words.index('') + 1} of {path} is empty: give one label per line")
    return np.asarray(words, dtype=np.str_)


def is_model(path: Path) -> bool:
    """Tell whether a file is a model, damaged or not."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    # imported here, because it imports scikit-learn, which takes longer than most inspections
    from gyrobn.estimator.files import HEADER

    try:
        with zipfile.ZipFile(path) as archive:
            return HEADER in archive.namelist()
    except Exception:  # a damaged archive can raise anything, and its reader reports it
        return False


def check_place(path: Path | None, model: bool = False) -> None:
    """Refuse, before the work, a path that cannot be written or that holds something else."""
    if path is None:
        return
    parent = path.parent
    if not parent.is_dir():
        number = errno.ENOTDIR if parent.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))
    if model and path.exists() and not is_model(path):
        raise FileExistsError(f"{path} exists and is not a model: remove it first, or name another")
