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
from gyrobn.manifolds.definite import reduce_rank
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
    return files.about(source) | _rank(source) | values


def _model(options: Namespace) -> dict[str, Any]:
    bn = GyroBN.load(options.file)
    values = {"input": options.file, "manifold": repr(bn.manifold_), "samples": bn.n_samples_seen_}
    values |= {"sample_shape": sample_shape(bn), "dtype": str(bn.mean_.dtype)}
    given = {"bias": bn.bias, "reference": bn.reference_, "on_invalid": bn.on_invalid}
    return values | files.describe(bn) | given


def _counted(
    options: Namespace, source: StoredArray, manifolds: list[GyroSpace]
) -> list[dict[str, Any]]:
    """Count the points on each geometry, and find the worst."""
    found: list[dict[str, Any]] = []
    for M in manifolds:
        points = math.prod(source.shape[: source.ndim - len(M.point_shape)])
        found.append({"manifold": repr(M), "points": points, "on_manifold": 0, "nan": 0, "inf": 0})
        found[-1] |= {"worst_violation": -math.inf, "worst_index": None, "worst": None}
    with files.watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            for M, values in zip(manifolds, found, strict=True):
                for key, good in (
                    ("nan", np.isnan(x)),
                    ("inf", np.isinf(x)),
                    ("on_manifold", M.contains(x)),
                ):
                    values[key] += int(good.sum())
                off = M.violation(x)
                off = np.where(np.isfinite(off), off, -math.inf)  # NaN and infinity have no measure
                first, *rest = at = np.unravel_index(off.argmax(), off.shape)
                if off[at] > values["worst_violation"]:
                    index, why = (int(rows[first]), *map(int, rest)), flaw(M, x[at]) or None
                    values |= {
                        "worst_violation": float(off[at]),
                        "worst_index": index,
                        "worst": why,
                    }
    return found


def _samples(options: Namespace, manifold: GyroSpace, source: StoredArray) -> dict[str, Any]:
    """Count the points of a geometry; find mean and distances of the samples that are points."""
    (values,) = _counted(options, source, [manifold])

    def good() -> Iterator[Any]:
        for x in chunks:
            whole = manifold.contains(x).reshape(len(x), -1).all(axis=1)
            yield from [x[whole]] * bool(whole.any())

    with (
        files.watched(options, "mean", Chunks(source)) as chunks,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        if next(good(), None) is None:
            return values | {"mean": "no sample is on the manifold, so there is no mean"}
        found = frechet(manifold, Chunks(good))
        spans = [(d.min(), d.max()) for d in (manifold.dist(found.mean, x) for x in good())]
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    values |= files.about_mean(manifold, *found[:3], found.converged)
    # there is one FrechetWarning per reason to doubt the mean
    values["unique"] = not any(issubclass(one.category, FrechetWarning) for one in caught)
    values |= {"nearest": float(np.min(spans)), "farthest": float(np.max(spans))}
    return values | {"convexity_radius": manifold.convexity_radius}


def _rank(source: StoredArray) -> dict[str, Any]:
    """Return the rank of the mean of symmetric matrices, and nothing for other samples."""
    if source.ndim < 3 or source.shape[-1] != source.shape[-2]:
        return {}
    total = np.zeros(source.shape[-2:])
    for x in Chunks(source):
        x = x[np.isfinite(x).all(axis=(-2, -1))]
        if x.size and not np.allclose(x, np.swapaxes(x, -1, -2), atol=1e-6 * abs(x).max()):
            return {}
        total += x.sum(axis=0)
    rank = reduce_rank(total.astype(source.dtype))[1].shape[1]
    if rank == len(total):
        return {"rank": rank}
    return {"rank": rank, "advice": "gyrobn.reduce_rank leads to the common subspace"}


# ---------------------------------------------------------------------- no geometry


def _fitting(options: Namespace, source: StoredArray) -> dict[str, Any]:
    """Count the points of each geometry that has points of such a shape."""
    # fewer dimensions per number first
    candidates = dict(
        sorted(_candidates(source), key=lambda one: one[1].dim / math.prod(one[1].point_shape))
    )
    counts = _counted(options, source, list(candidates.values()))
    names = "manifold", "points", "on_manifold"
    found = [
        {"options": words} | {name: values[name] for name in names}
        for words, values in zip(candidates, counts, strict=True)
        if values["on_manifold"]
    ]
    found.sort(key=lambda row: -row["on_manifold"] / row["points"])
    words = [f"--layout {name} ({n} × {n})" for name, n in layouts(source.shape[-1]).items()]
    rows_are_vectors = source.ndim == 2 and options.layout is None
    return {"geometries": found, "or_rows_of_matrices": (rows_are_vectors and words) or None}


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
                fits = manifold.complex_points == (source.dtype.kind == "c")
                if fits and manifold.point_shape not in shapes:
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
    names = "geometry", "curvature", "interval", "error", "flat_error", "hyperbolicity"
    return {"fitted_to": what} | {name: getattr(found, name) for name in names}
