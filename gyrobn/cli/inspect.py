"""The command inspect: describe a file of samples, or a model."""

import math
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.command import Report
from gyrobn.cli.normalize import about_mean, describe, geometry_of, opened, watched
from gyrobn.data.chunks import Chunks
from gyrobn.data.files import StoredArray, layouts
from gyrobn.manifolds import REGISTRY, Hyperboloid, Sphere
from gyrobn.manifolds.grassmannian import of_projectors
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.statistics.frechet import frechet
from gyrobn.statistics.points import at_index, flaw
from gyrobn.statistics.uniqueness import FrechetWarning


def run(options: Namespace) -> Report:
    """Describe a file: a model, samples of a geometry, or samples of an unknown geometry."""
    if options.manifold is None and options.key is None and _is_model(options.file):
        return _model(options.file)
    options.input = [options.file]
    source = opened(options)
    if options.suggest:
        values, lines = _suggestion(source)
    elif options.manifold is None:
        values, lines = _guesses(options, source)
    else:
        values, lines = _samples(options, geometry_of(options, source), source)
    shape, dtype = source.shape, str(source.dtype)
    about = {"input": source.path, "shape": shape, "dtype": dtype, "samples": shape[0]}
    return about | values, [f"{source.path}: {shape[0]} samples, shape {shape}, {dtype}", *lines]


def _is_model(path: Path) -> bool:
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(name.startswith("header.") for name in archive.namelist())
    return False


def _model(path: Path) -> Report:
    from gyrobn import GyroBN

    bn = GyroBN.load(path)
    values, lines = describe(bn)
    shape, dtype = bn.mean_.shape[0 if bn.domains_ is None else 1 :], str(bn.mean_.dtype)
    values |= {"input": path, "sample_shape": shape, "samples": bn.n_samples_seen_}
    values |= {"bias": bn.bias, "dtype": dtype, "on_invalid": bn.on_invalid}
    lines = [
        f"{path}: a model of {bn.manifold_!r}, fitted to {bn.n_samples_seen_} samples of shape "
        f"{shape}, {dtype}",
        *lines,
        f"  eps                 {bn.eps:g}",
        f"  bias                {'the identity' if bn.bias is None else 'a point of its own'}",
        f"  off the manifold    {bn.on_invalid}",
    ]
    if bn.domains_ is not None:
        names = ", ".join(map(str, bn.domains_[:10])) + ", …" * (len(bn.domains_) > 10)
        lines.append(f"  their names         {names}")
    return values, lines


class _Count:
    """Counts of points on one geometry, chunk by chunk."""

    def __init__(self, manifold: GyroSpace) -> None:
        self.manifold, self.worst, self.flaw = manifold, -math.inf, ""
        self.points = self.good = self.samples = 0
        """Points; points on the manifold; samples with all points on the manifold."""
        self.index: tuple[int, ...] | None = None
        """Of the worst point."""

    def add(self, x: Any, rows: Any) -> None:
        """Count the points of a chunk; ``rows`` are the numbers of its samples."""
        good, off = self.manifold.contains(x), self.manifold.violation(x)
        self.points += good.size
        self.good += int(good.sum())
        self.samples += int(_whole(good).sum())
        off = np.where(np.isfinite(off), off, -math.inf)  # NaN and infinity have no measure
        first, *rest = at = np.unravel_index(off.argmax(), off.shape)
        if off[at] > self.worst:
            self.worst, self.index = float(off[at]), (int(rows[first]), *map(int, rest))
            self.flaw = flaw(self.manifold, x[at])


def _whole(good: Any) -> Any:
    """Return which samples have all their points on the manifold."""
    return good.reshape(len(good), -1).all(axis=1)


# ---------------------------------------------------------------------- a geometry


def _samples(options: Namespace, manifold: GyroSpace, source: StoredArray) -> Report:
    count, nan, inf, odd = _Count(manifold), 0, 0, None
    axes = source.ndim - len(manifold.point_shape)
    with watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            count.add(x, rows)
            nan, inf = nan + int(np.isnan(x).sum()), inf + int(np.isinf(x).sum())
            if odd is None and nan + inf:
                row, *rest = np.argwhere(~np.isfinite(x))[0][:axes].tolist()
                odd = int(rows[row]), *rest
    channels = source.shape[1:axes]
    values = {"manifold": repr(manifold), "channels": channels, "points": count.points}
    values |= {"on_manifold": count.good, "nan": nan, "inf": inf, "first_not_finite": odd}
    values |= {"worst_violation": count.worst, "worst_index": count.index, "worst": count.flaw}
    lines = [
        f"  geometry            {manifold!r}" + (f", channels {channels}" if channels else ""),
        f"  on the manifold     {count.good} of {count.points} points",
        f"  NaN, inf            {nan} and {inf} values"
        + (f", the first {at_index(odd)}" if odd else ""),
    ]
    if count.index:
        where = [at_index(count.index)] if count.worst > 0 else []
        words = [f"{count.worst:.3g}", *where, *filter(None, [count.flaw])]
        lines.append(f"  worst violation     {', '.join(words)}")
    if not count.samples:
        return values, [*lines, "  no sample is on the manifold, so there is no mean"]
    if count.samples < len(source):
        lines.append(f"  of the {count.samples} samples that are on the manifold:")
    more, text = _statistics(options, manifold, source)
    return values | more, lines + text


def _statistics(options: Namespace, manifold: GyroSpace, source: StoredArray) -> Report:
    """Return mean, deviation and distances of the samples that are on the manifold."""

    def good() -> Iterator[Any]:
        yield from filter(len, (x[_whole(manifold.contains(x))] for x in chunks))

    with (
        watched(options, "mean", Chunks(source)) as chunks,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        found = frechet(manifold, Chunks(good))
        spans = [(d.min(), d.max()) for d in (manifold.dist(found.mean, x) for x in good())]
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    # there is one FrechetWarning per reason to doubt the mean
    unique = not any(issubclass(warning.category, FrechetWarning) for warning in caught)
    values, lines = about_mean(manifold, *found[:2], found.iterations, found.converged)
    nearest, farthest = float(np.min(spans)), float(np.max(spans))
    values |= {"unique": unique, "convexity_radius": manifold.convexity_radius}
    lines[0] += "; unique" if unique else "; NOT sure to be unique"
    lines.append(f"  distance from mean  {nearest:.4g} to {farthest:.4g}")
    return values | {"nearest": nearest, "farthest": farthest}, lines


# ---------------------------------------------------------------------- no geometry


def _guesses(options: Namespace, source: StoredArray) -> Report:
    """Count the points of each geometry that has points of such a shape."""
    counts = _counts(options, source)
    bounded = [_rank(count) for count in counts.values() if not _holds_all(count)]
    least = max([(len(source) // 2, 0), *bounded])
    if source.ndim == 2 and options.layout is None:  # do the rows hold matrices?
        for layout, n in layouts(source.shape[1]).items():
            # it must say more than that the rows are points of a bounded space
            for name, count in _counts(options, replace(source, layout=layout)).items():
                matrices = n > 1 and len(count.manifold.point_shape) == 2
                if matrices and _rank(count) > least and not _holds_all(count):
                    counts[f"{name} --layout {layout}"] = count
    values, lines = [], ["  points of these geometries, as the options that choose them:"]
    # more of the points first, then the smaller dimension
    for name, count in sorted(
        counts.items(),
        key=lambda item: (
            -item[1].good / item[1].points,
            item[1].manifold.dim / math.prod(item[1].manifold.point_shape),
        ),
    ):
        value = {"options": name, "manifold": repr(count.manifold), "points": count.points}
        value |= {"on_manifold": count.good, "worst_violation": count.worst}
        values.append(value | {"worst_index": count.index})
        good = "all" if count.good == count.points else f"{count.good} of {count.points}"
        lines += [f"  {good:>18}  --manifold {name}"] if count.good else []
    return {"geometries": values}, lines if lines[1:] else [*lines, f"  {'none':>18}"]


def _rank(count: _Count) -> tuple[int, int]:
    return count.good, -count.manifold.dim


def _holds_all(count: _Count) -> bool:
    return bool(count.manifold.contains(np.full(count.manifold.point_shape, 1e6)))


def _counts(options: Namespace, source: StoredArray) -> dict[str, _Count]:
    """Return counts for all geometries with points of the shape of the samples."""
    counts = {name: _Count(manifold) for name, manifold in _candidates(source)}
    with watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            for count in counts.values():
                count.add(x, rows)
    return counts


def _candidates(source: StoredArray) -> Iterator[tuple[str, GyroSpace]]:
    """Yield geometries with points of the shape of samples, and the options that choose them."""
    for name, cls in REGISTRY.items():
        with suppress(ValueError, IndexError):
            manifold = cls.for_shape(source.shape[1:])
            yield name, manifold
            if cls in (Hyperboloid, Sphere) and (curvature := _curvature(manifold, source)):
                yield f"{name} --curvature {curvature}", cls(manifold.dim, curvature)
    with suppress(ValueError):
        yield "grassmannian --representation projector", of_projectors(source[:100])


def _curvature(manifold: Any, source: StoredArray) -> float | None:
    """Return 1/⟨x, x⟩ of the first sample, if it is a curvature other than the default."""
    x = source[:1].reshape(-1, *manifold.point_shape)[0].astype(np.float64)
    square = float(np.sum(x[1:] ** 2) + math.copysign(x[0] ** 2, manifold.curvature))
    ratio = square * manifold.curvature
    if not 1e-300 < ratio < 1e300 or math.isclose(ratio, 1.0, rel_tol=1e-3):
        return None
    short = float(f"{1.0 / square:.6g}")
    return short if type(manifold)(manifold.dim, short).contains(x) else 1.0 / square


def _suggestion(source: StoredArray) -> Report:
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
    (curvature,), (interval,) = found.curvature, found.interval
    values = {"curvature": curvature, "interval": interval, "suggested": repr(found.geometry)}
    values |= {"error": found.error, "flat_error": found.flat_error}
    values |= {"hyperbolicity": found.hyperbolicity}
    lines = [f"  in two dimensions, fitted to {what}:", *(f"  {v}" for v in f"{found}".split("\n"))]
    return {"suggestion": values}, lines
