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
    shape, count = bn.mean_.shape[0 if bn.domains_ is None else 1 :], bn.n_samples_seen_
    values |= {"input": path, "sample_shape": shape, "samples": count, "bias": bn.bias}
    values |= {"dtype": str(bn.mean_.dtype), "on_invalid": bn.on_invalid}
    lines = [
        f"{path}: a model of {bn.manifold_!r}, fitted to {count} samples of shape {shape}, "
        f"{bn.mean_.dtype}",
        *lines,
        f"  eps                 {bn.eps:g}",
        f"  bias                {'the identity' if bn.bias is None else 'a point of its own'}",
        f"  off the manifold    {bn.on_invalid}",
    ]
    if bn.domains_ is not None:
        first = ", ".join(map(str, bn.domains_[:10])) + (", …" if len(bn.domains_) > 10 else "")
        lines.append(f"  their names         {first}")
    return values, lines


class _Count:
    """Counts of points on one geometry, chunk by chunk."""

    def __init__(self, manifold: GyroSpace) -> None:
        self.manifold = manifold
        self.points = self.good = self.rows = 0
        """Points; points on the manifold; samples with all points on the manifold."""
        self.worst, self.flaw = -math.inf, ""
        self.index: tuple[int, ...] | None = None
        self.odd: tuple[int, ...] | None = None
        """Index of the worst point, and of the first one with NaN or infinity."""

    def add(self, x: Any, rows: Any) -> None:
        """Count the points of a chunk; ``rows`` are the numbers of its samples."""
        good, off = self.manifold.contains(x), self.manifold.violation(x)
        self.points += good.size
        self.good += int(good.sum())
        self.rows += int(_whole(good).sum())
        finite = np.isfinite(off)
        off = np.where(finite, off, -math.inf)  # NaN and infinity have no measure
        places = [np.unravel_index(k, off.shape) for k in (finite.argmin(), off.argmax())]
        odd, index = ((int(rows[first]), *map(int, rest)) for first, *rest in places)
        if self.odd is None and not finite.all():
            self.odd = odd
        if off.max() > self.worst:
            self.worst, self.index = float(off.max()), index
            self.flaw = flaw(self.manifold, x[np.unravel_index(off.argmax(), off.shape)])


def _whole(good: Any) -> Any:
    """Return which samples have all their points on the manifold."""
    return good.reshape(len(good), -1).all(axis=1)


# ---------------------------------------------------------------------- a geometry


def _samples(options: Namespace, manifold: GyroSpace, source: StoredArray) -> Report:
    count, nan, inf = _Count(manifold), 0, 0
    with watched(options, "check", Chunks(source)) as chunks:
        for rows, x in chunks.numbered():
            nan, inf = nan + int(np.isnan(x).sum()), inf + int(np.isinf(x).sum())
            count.add(x, rows)
    channels = source.shape[1 : source.ndim - len(manifold.point_shape)]
    values = {"manifold": repr(manifold), "channels": channels, "points": count.points}
    values |= {"on_manifold": count.good, "nan": nan, "inf": inf, "first_not_finite": count.odd}
    values |= {"worst_violation": count.worst, "worst_index": count.index}
    values["worst"] = count.flaw
    odd = "" if count.odd is None else f", the first {at_index(count.odd)}"
    lines = [
        f"  geometry            {manifold!r}" + (f", channels {channels}" if channels else ""),
        f"  on the manifold     {count.good} of {count.points} points",
        f"  NaN, inf            {nan} and {inf} values{odd}",
    ]
    if count.worst > -math.inf:
        where = f", {at_index(count.index)}" if count.index and count.worst > 0 else ""
        rank = f", {count.flaw}" if count.flaw else ""
        lines.append(f"  worst violation     {count.worst:.3g}{where}{rank}")
    if not count.rows:
        return values, [*lines, "  no sample is on the manifold, so there is no mean"]
    if count.rows < len(source):
        lines.append(f"  of the {count.rows} samples that are on the manifold:")
    more, text = _statistics(options, count, source)
    return values | more, lines + text


def _statistics(options: Namespace, count: _Count, source: StoredArray) -> Report:
    """Return mean, deviation and distances of the samples that are on the manifold."""
    manifold = count.manifold

    def good() -> Iterator[Any]:
        for x in chunks:
            x = x if count.rows == len(source) else x[_whole(manifold.contains(x))]
            if len(x):
                yield x

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
    values |= {"nearest": nearest, "farthest": farthest}
    lines[0] += "; unique" if unique else "; NOT sure to be unique"
    return values, [*lines, f"  distance from mean  {nearest:.4g} to {farthest:.4g}"]


# ---------------------------------------------------------------------- no geometry


def _guesses(options: Namespace, source: StoredArray) -> Report:
    """Count the points of each geometry that has points of such a shape."""
    seen = {"": source}
    if source.ndim == 2 and options.layout is None:  # do the rows hold matrices?
        seen |= {f" --layout {name}": replace(source, layout=name) for name in _others(source)}
    for layout, samples in seen.items():
        own = [(f"{name}{layout}", _Count(manifold)) for name, manifold in _candidates(samples)]
        with watched(options, "check", Chunks(samples)) as chunks:
            for rows, x in chunks.numbered():
                for _, count in own:
                    count.add(x, rows)
        length = math.prod(source.shape[1:])
        found = [(count.good, -count.manifold.dim / length) for _, count in own]
        if not layout:
            each = zip(found, own, strict=True)
            bounded = [f for f, (_, count) in each if not _holds_all(count.manifold)]
            least, counts = max([(len(source) // 2, 0.0), *bounded]), own
        else:  # it must say more than that the rows are points of a bounded space
            counts += [
                item
                for f, item in zip(found, own, strict=True)
                if f > least
                and len(item[1].manifold.point_shape) == 2
                and not _holds_all(item[1].manifold)
            ]
    # more of the points first, then the smaller dimension
    counts.sort(key=lambda item: (-item[1].good / item[1].points, _share(item[1].manifold)))
    lines = ["  points of these geometries, as the options that choose them:"]
    for name, count in counts:
        good = "all" if count.good == count.points else f"{count.good} of {count.points}"
        lines += [f"  {good:>18}  --manifold {name}"] if count.good else []
    if len(lines) == 1:
        lines.append(f"  {'none':>18}")
    each_found = [
        {
            "options": name,
            "manifold": repr(count.manifold),
            "points": count.points,
            "on_manifold": count.good,
            "worst_violation": count.worst,
            "worst_index": count.index,
        }
        for name, count in counts
    ]
    return {"geometries": each_found}, lines


def _holds_all(manifold: GyroSpace) -> bool:
    return bool(manifold.contains(np.full(manifold.point_shape, 1e6)))


def _others(source: StoredArray) -> list[str]:
    return [name for name, n in layouts(source.shape[1]).items() if n > 1]


def _share(manifold: GyroSpace) -> float:
    """Return the dimension over the number of coordinates: small for a special geometry."""
    return manifold.dim / math.prod(manifold.point_shape)


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
    signs = np.asarray([math.copysign(1.0, manifold.curvature)] + [1.0] * (len(x) - 1))
    square = float(signs @ (x * x))
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
    x = source[: min(len(source), 2000)]
    square = x.shape[0] == x.shape[1] == len(source)
    as_distances = square and bool(np.allclose(x, x.T)) and bool(np.allclose(np.diag(x), 0.0))
    found = suggest(distances=x) if as_distances else suggest(x)
    (K,), ((low, high),) = found.curvature, found.interval
    values = {"curvature": K, "interval": [low, high], "suggested": repr(found.geometry)}
    values |= {"error": found.error, "flat_error": found.flat_error}
    values |= {"hyperbolicity": found.hyperbolicity}
    what = "distances" if as_distances else "distances along the graph of nearest neighbours"
    return {"suggestion": values}, [
        f"  in two dimensions, fitted to {what}:",
        *(f"  {line}" for line in str(found).splitlines()),
    ]
