"""Read the files that the options name: samples, labels, a bias."""

import errno
import os
import re
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.pipes import PIPE, open_pipe
from gyrobn.data import OPTIONS, StoredArray, open_array
from gyrobn.data.chunks import rows_per_chunk
from gyrobn.data.joined import JoinedArray
from gyrobn.data.layouts import suggest
from gyrobn.data.stored import ARRAYS, KeptArray, fits
from gyrobn.manifolds import REGISTRY, Grassmannian
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import Parameter

FEW = 100
"""Number of samples whose traces are checked."""

OF_SAMPLES = re.compile(r"(?:X|GyroBN|domains)\b")
"""How an error begins whose indices are those of samples, and not those of channels of the bias."""
AT = re.compile(r"at index \(?(\d+)")


def open_inputs(options: Namespace) -> StoredArray:
    """Open the samples of a command that takes several files, joined if there are several."""
    if not options.joined:
        return open_samples(options.input[0], options)
    parts: list[StoredArray] = []
    kept = 0
    with ExitStack() as stack:
        for path in options.input:
            part = stack.enter_context(_opened(path, options))
            if fits(part, kept):  # read now: a process can open only a limited number of files
                kept += part.size
                part = KeptArray(part).load()
            parts.append(part)
        joined = JoinedArray(parts)
        stack.pop_all()  # they stay open
        return joined


def open_samples(path: Path, options: Namespace) -> StoredArray:
    """Open samples, an array of float32 or float64 with at least two axes.

    An array that fits in memory is read from disk once. It is processed in chunks anyway, so that
    the results do not depend on the memory that is free.
    """
    source = _opened(path, options)
    return KeptArray(source) if fits(source) else source


def open_other(path: Path, options: Namespace, *without: str) -> StoredArray:
    """Open an array other than the samples, with the options that its format has."""
    suffix = path.suffix.lower()
    names = [name for name in OPTIONS if suffix in OPTIONS[name] and name not in without]
    try:
        return open_array(path, **{name: getattr(options, name) for name in names})
    except ValueError as error:
        parameter = getattr(error, "parameter", None)
        if isinstance(parameter, Parameter) and parameter.name == "key":
            del vars(error)["parameter"]  # the option --key is for the samples only
        raise


def _opened(path: Path, options: Namespace) -> StoredArray:
    """Open samples and check their dtype and shape."""
    given = {name: getattr(options, name) for name in OPTIONS}
    if path == PIPE:
        source = open_pipe(options.format, given)
    else:
        source = open_array(path, options.key, **given)
    return check_samples(source)


def check_samples(source: StoredArray) -> StoredArray:
    """Return an array of float32 or float64 with at least two axes, or close it and say why not."""
    if source.dtype not in (np.float32, np.float64):
        hint = "convert it first, with x.astype(numpy.float64) for example"
        if source.dtype.kind == "c":
            hint = "no geometry here has complex points"
        problem = f"holds {source.dtype}, expected float32 or float64: {hint}"
    elif source.ndim < 2 or 0 in source.shape:
        expected = "expected (N, *channels, *point_shape), no length 0"
        problem = f"has shape {source.shape}, {expected}"
    else:
        return source
    source.close()
    raise ValueError(f"{source.path} {problem}")


@contextmanager
def naming_the_file(source: StoredArray) -> Iterator[None]:
    """Add the files, if there are several, to an error that names samples by their index."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if OF_SAMPLES.match(text):
            if isinstance(source, JoinedArray):
                for index in dict.fromkeys(AT.findall(text)):
                    path, row = source.place(int(index))
                    error.add_note(f"sample {row} of {path}")
            if " samples, the first at index" in text and rows_per_chunk(source) < len(source):
                error.add_note("the file was read up to there: gyrobn inspect counts all")
        raise


def domains_of(options: Namespace, source: StoredArray) -> Any:
    """Return the label of each sample, or None: from a file, a column, or the names of files."""
    if getattr(options, "domain_per_file", False) and isinstance(source, JoinedArray):
        stems = [part.path.stem for part in source.parts]
        return np.repeat(np.asarray(stems, dtype=np.str_), [len(part) for part in source.parts])
    if options.domain_column is not None:
        return source.form.labels
    return None if options.domains is None else labels_in(options.domains, options)


def labels_in(path: Path, options: Namespace) -> Any:
    """Return the labels in a file, an array or lines of text."""
    if path.suffix.lower() in ARRAYS:
        with open_other(path, options) as array:
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


def geometry_of(options: Namespace, source: StoredArray) -> GyroSpace:
    """Return the geometry of the options, with its sizes from the samples."""
    if options.parameters.get("representation") == "projector":
        return projectors_of(source)
    try:
        manifold = REGISTRY[options.manifold].for_shape(source.shape[1:])
    except ValueError as error:
        raise ValueError(
            f"{source.path} of shape {source.shape} holds no points of {options.manifold}: {error}"
            + _layouts(source)
        ) from error
    return replace(manifold, **options.parameters)


def _layouts(source: StoredArray) -> str:
    """Return a hint how to say that the rows of a table are matrices."""
    if not source.form.table or source.form.layout is not None:
        return ""
    words = [f"--layout {word}" for word in suggest(source.shape[1])] or ["--layout 5x2"]
    return f"; if its rows hold matrices, say in which order: {' or '.join(words)}, for example"


def projectors_of(source: StoredArray) -> Grassmannian:
    """Return the geometry of projectors; their rank is the most common trace of the first ones."""
    try:
        return of_projectors(source[:FEW])
    except ValueError as error:
        raise ValueError(f"{source.path}: {error}") from error


def read_bias(options: Namespace) -> Any:
    """Return the point in the file of the bias, or None if there is none."""
    path = getattr(options, "bias", None)
    if path is None:
        return None
    with open_other(path, options, "domain_column") as bias:
        if bias.dtype.kind not in "iuf":
            raise ValueError(f"{path} holds {bias.dtype}, expected the numbers of a point")
        point = bias[:].astype(np.float64)
        is_row = bias.form.table and len(bias) == 1
    return point[0] if is_row else point


def is_model(path: Path) -> bool:
    """Return whether a file is a model, damaged or not."""
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
