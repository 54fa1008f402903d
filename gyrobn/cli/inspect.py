"""The command inspect: describe a file of samples, or a model."""

import math
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from gyrobn.cli import normalize as files
from gyrobn.data.chunks import Chunks
from gyrobn.data.files import StoredArray, layouts
from gyrobn.estimator.transformer import GyroBN
from gyrobn.estimator.validation import geometry_for, sample_shape
from gyrobn.manifolds import REGISTRY
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.statistics.frechet import frechet
from gyrobn.statistics.points import flaw
from gyrobn.statistics.uniqueness import FrechetWarning


def run(options: Namespace) -> dict[str, Any]:
    """Describe a file: a model, samples of a geometry, or samples of an unknown geometry."""
    if options.manifold is None and options.key is None and files.is_model(options.file):
        return _model(options)
    options.input, bn = [options.file], options.manifold and files.estimator(options)
    source = files.opened(options, bn)
    if options.suggest:
        values = _suggestion(source)
    elif bn is None:
        values = _fitting(options, source)
    else:
        values = _samples(options, geometry_for(bn, source[:100]), source)
    return files.about(source) | values


def _model(options: Namespace) -> dict[str, Any]:
    bn = GyroBN.load(options.file)
    values = {"input": options.file, "manifold": repr(bn.manifold_), "samples": bn.n_samples_seen_}
    values |= {"sample_shape": sample_shape(bn), "dtype": str(bn.mean_.dtype)}
    return values | files.describe(bn) | {"bias": bn.bias, "on_invalid": bn.on_invalid}


class _Count:
    """Counts of points on one geometry, chunk by chunk."""

    def __init__(self, manifold: GyroSpace, words: str | None = None) -> None:
        self.manifold, self.samples = manifold, 0
        """Samples with all points on the manifold."""
        self.values: dict[str, Any] = {} if words is None else {"options": words}
        self.values |= {"manifold": repr(manifold), "points": 0, "on_manifold": 0}
        self.values |= {"worst_violation": -math.inf, "worst_index": None, "worst": None}

    def add(self, x: Any, rows: Any) -> None:
        """Count the points of a chunk; ``rows`` are the numbers of its samples."""
        good, off = self.manifold.contains(x), self.manifold.violation(x)
        self.values["points"] += good.size
        self.values["on_manifold"] += int(good.sum())
        self.samples += int(_whole(good).sum())
        off = np.where(np.isfinite(off), off, -math.inf)  # NaN and infinity have no measure
        first, *rest = at = np.unravel_index(off.argmax(), off.shape)
        if off[at] > self.values["worst_violation"]:
            index, why = (int(rows[first]), *map(int, rest)), flaw(self.manifold, x[at])
            self.values |= {"worst_violation": float(off[at]), "worst_index": index}
            self.values["worst"] = why or None


def _whole(good: Any) -> Any:
    """Return which samples have all their points on the manifold."""
    return good.reshape(len(good), -1).all(axis=1)


def _samples(options: Namespace, manifold: GyroSpace, source: StoredArray) -> dict[str, Any]:
    """Count the points of a geometry; find mean and distances of the samples that are points."""
    count, nan, inf = _Count(manifold), 0, 0
    with files.watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            count.add(x, rows)
            nan, inf = nan + int(np.isnan(x).sum()), inf + int(np.isinf(x).sum())
    values = count.values | {"channels": source.shape[1 : source.ndim - len(manifold.point_shape)]}
    values |= {"nan": nan, "inf": inf, "samples_on_manifold": count.samples}
    if not count.samples:
        return values | {"mean": "no sample is on the manifold, so there is no mean"}

    def good() -> Iterator[Any]:
        yield from filter(len, (x[_whole(manifold.contains(x))] for x in chunks))

    with (
        files.watched(options, "mean", Chunks(source)) as chunks,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        found = frechet(manifold, Chunks(good))
        spans = [(d.min(), d.max()) for d in (manifold.dist(found.mean, x) for x in good())]
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    values |= files.about_mean(manifold, *found[:3], found.converged)
    # there is one FrechetWarning per reason to doubt the mean
    values["unique"] = not any(issubclass(one.category, FrechetWarning) for one in caught)
    values |= {"nearest": float(np.min(spans)), "farthest": float(np.max(spans))}
    return values | {"convexity_radius": manifold.convexity_radius}


# ---------------------------------------------------------------------- no geometry


def _fitting(options: Namespace, source: StoredArray) -> dict[str, Any]:
    """Count the points of each geometry that has points of such a shape."""
    counts = [_Count(manifold, words) for words, manifold in _candidates(source)]
    with files.watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            for count in counts:
                count.add(x, rows)
    # more of the points first, then the smaller dimension
    counts.sort(key=lambda count: (-count.values["on_manifold"], count.manifold.dim))
    found = [count.values for count in counts if count.values["on_manifold"]]
    words = [f"--layout {name} ({n} × {n})" for name, n in layouts(source.shape[-1]).items()]
    rows_are_vectors = source.ndim == 2 and options.layout is None
    return {"geometries": found, "or_matrices_as_rows": (rows_are_vectors and words) or None}


def _candidates(source: StoredArray) -> Iterator[tuple[str, GyroSpace]]:
    """Yield geometries with points of the shape of samples, and the options that choose them.

    A word of an option is tried, too: it matters if it changes the shape of the points.
    """
    for name, cls in REGISTRY.items():
        shapes, choices = set[Any](), list[dict[str, Any]]([{}])
        for key, one in cls.options().items():
            choices += [{key: word} for word in one.metadata.get("choices", ())]
        for given in choices:
            with suppress(ValueError, IndexError):
                manifold = geometry_for(GyroBN(name, **given), source[:100])
                if manifold.point_shape not in shapes:
                    words = [f"--manifold {name}", *(f"--{k} {v}" for k, v in given.items())]
                    yield " ".join(words), manifold
                shapes.add(manifold.point_shape)


def _suggestion(source: StoredArray) -> dict[str, Any]:
    """Return which curvature in two dimensions fits vectors, or a matrix of distances."""
    from gyrobn.suggestion import suggest

    if source.ndim != 2:
        raise ValueError(
            f"--suggest takes vectors, shape (N, n), or a square matrix of distances; "
            f"{source.path} has shape {source.shape}: save M.dist(x[:, None], x) for a geometry M"
        )
    x, what = source[:2000], "distances along the graph of nearest neighbours"
    square = x.shape == (len(source),) * 2
    if square and np.allclose(x, x.T) and np.allclose(np.diag(x), 0.0):
        found, what = suggest(distances=x), "distances"
    else:
        found = suggest(x)
    values = {"fitted_to": what, "suggested": repr(found.geometry), "curvature": found.curvature[0]}
    values |= {"interval": [*found.interval[0]], "error": found.error}
    return values | {"flat_error": found.flat_error, "hyperbolicity": found.hyperbolicity}
