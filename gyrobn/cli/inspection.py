"""The command inspect: describe a file of samples, or a model."""

import math
import warnings
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.cli.console import Console, Report
from gyrobn.cli.inputs import geometry_of, is_model, open_samples, projectors_of
from gyrobn.cli.pipes import PIPE
from gyrobn.cli.statistics import about_mean, describe, load
from gyrobn.data import StoredArray
from gyrobn.data.chunks import Chunks
from gyrobn.data.layouts import Layout
from gyrobn.data.layouts import suggest as suggest_layouts
from gyrobn.manifolds import REGISTRY, Hyperboloid, Sphere
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.statistics.frechet import frechet
from gyrobn.statistics.points import at_index
from gyrobn.statistics.uniqueness import FrechetWarning
from gyrobn.suggestion import suggest


def run(options: Namespace, console: Console) -> None:
    """Describe a file: a model, samples of a geometry, or samples of an unknown geometry."""
    if options.input != PIPE and is_model(options.input):
        if options.manifold is not None or options.key is not None or options.suggest:
            raise ValueError(
                f"{options.input} is a model, which has a geometry: --manifold, --key and "
                "--suggest are for samples"
            )
        values, lines = _model(options.input)
    else:
        with open_samples(options.input, options) as source:
            if options.suggest:
                values, lines = _suggestion(source)
            elif options.manifold is None:
                values, lines = _guesses(source, console)
            else:
                values, lines = _samples(geometry_of(options, source), source, console)
            shape, dtype = source.shape, str(source.stored)
        values = {"shape": shape, "dtype": dtype, "samples": shape[0]} | values
        lines.insert(0, f"{options.input}: {shape[0]} samples, shape {shape}, {dtype}")
    values = {"input": options.input} | values
    values["seconds"] = console.seconds
    console.report(values, lines)


# ---------------------------------------------------------------------- models


def _model(path: Path) -> Report:
    bn = load(path)
    values, lines = describe(bn)
    shape = bn.mean_.shape[0 if bn.domains_ is None else 1 :]
    values |= {"sample_shape": shape, "samples": bn.n_samples_seen_, "dtype": str(bn.mean_.dtype)}
    values |= {"on_invalid": bn.on_invalid, "bias": bn.bias}
    lines = [
        f"{path}: a model of {bn.manifold_!r}, fitted to {bn.n_samples_seen_} samples of shape "
        f"{shape}, {bn.mean_.dtype}",
        *lines,
        f"  eps                 {bn.eps:g}",
        f"  bias                {'the identity' if bn.bias is None else 'a point of its own'}",
        f"  off the manifold    {bn.on_invalid}",
    ]
    if bn.domains_ is not None:
        first = ", ".join(map(str, bn.domains_[:10])) + (", …" if len(bn.domains_) > 10 else "")
        lines.append(f"  their names         {first}")
    return values, lines


# ---------------------------------------------------------------------- samples of a geometry


class _Count:
    """Counts of points on one geometry, chunk by chunk."""

    def __init__(self, manifold: GyroSpace) -> None:
        self.manifold = manifold
        self.points = self.good = self.rows = 0
        """Points; points on the manifold; samples with all points on the manifold."""
        self.worst = -math.inf
        self.index: list[int] | None = None
        self.odd: list[int] | None = None
        """Index of the worst point, and of the first one with NaN or infinity."""

    def add(self, x: Any, rows: Any) -> None:
        """Count the points of a chunk; ``rows`` are the numbers of its samples."""
        good, off = self.manifold.contains(x), self.manifold.violation(x)
        self.points += good.size
        self.good += int(good.sum())
        self.rows += int(_whole(good).sum())
        measured = np.isfinite(off)
        if self.odd is None and not measured.all():
            self.odd = _place(rows, measured.argmin(), off.shape)
        off = np.where(measured, off, -math.inf)  # NaN and infinity have no measure
        if off.max() > self.worst:
            self.worst = float(off.max())
            self.index = _place(rows, off.argmax(), off.shape)


def _whole(good: Any) -> Any:
    """Return which samples have all their points on the manifold."""
    return good.reshape(len(good), -1).all(axis=1)


def _place(rows: Any, k: Any, shape: tuple[int, ...]) -> list[int]:
    """Return the index of a point, the k-th of a chunk, in all samples."""
    first, *rest = np.unravel_index(int(k), shape)
    return [int(rows[first]), *map(int, rest)]


def _samples(manifold: GyroSpace, source: StoredArray, console: Console) -> Report:
    count, odd = _Count(manifold), {"nan": 0, "inf": 0}
    with console.reading("check", source) as chunks:
        for rows, x in chunks.numbered():
            odd["nan"] += int(np.isnan(x).sum())
            odd["inf"] += int(np.isinf(x).sum())
            count.add(x, rows)
    channels = source.shape[1 : source.ndim - len(manifold.point_shape)]
    values: dict[str, Any] = {"manifold": repr(manifold), "channels": channels}
    values |= {"points": count.points, "on_manifold": count.good, **odd}
    values |= {"first_not_finite": count.odd}
    values |= {"worst_violation": count.worst, "worst_index": count.index}
    lines = [
        f"  geometry            {manifold!r}" + (f", channels {channels}" if channels else ""),
        f"  on the manifold     {count.good} of {count.points} points",
        f"  NaN, inf            {odd['nan']} and {odd['inf']} values"
        + (f", the first {at_index(tuple(count.odd))}" if count.odd is not None else ""),
    ]
    if count.index is not None:
        where = f", {at_index(tuple(count.index))}" if count.worst > 0 else ""
        lines.append(f"  worst violation     {count.worst:.3g}{where}")
    if count.rows:
        more, text = _statistics(count, source, console)
        if count.rows < len(source):
            lines.append(f"  of the {count.rows} samples that are on the manifold:")
        return values | more, lines + text
    return values, [*lines, "  no sample is on the manifold, so there is no mean"]


def _statistics(count: _Count, source: StoredArray, console: Console) -> Report:
    """Return mean, deviation and distances of the samples that are on the manifold."""
    manifold = count.manifold

    def good() -> Iterator[Any]:
        for x in watched:
            if count.rows < len(source):
                x = x[_whole(manifold.contains(x))]
            if len(x):
                yield x

    with console.reading("mean", source) as watched:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = frechet(manifold, Chunks(good))
        nearest, farthest = math.inf, -math.inf
        for x in good():
            distance = manifold.dist(found.mean, x)
            nearest = float(np.minimum(nearest, distance.min()))  # keeps NaN
            farthest = float(np.maximum(farthest, distance.max()))
    for warning in caught:
        warnings.warn(warning.message, stacklevel=2)
    # there is one FrechetWarning per reason to doubt the mean
    unique = not any(issubclass(warning.category, FrechetWarning) for warning in caught)
    values, lines = about_mean(
        manifold, found.mean, found.variance, found.iterations, found.converged
    )
    values |= {"unique": unique, "convexity_radius": manifold.convexity_radius}
    values |= {"nearest": nearest, "farthest": farthest}
    lines[0] += "; unique" if unique else "; NOT sure to be unique"
    return values, [*lines, f"  distance from mean  {nearest:.4g} to {farthest:.4g}"]


# ---------------------------------------------------------------------- no geometry given


def _guesses(source: StoredArray, console: Console) -> Report:
    """Count the points of each geometry that has points of such a shape."""
    counts = {option: _Count(manifold) for option, manifold in _candidates(source)}
    matrices = list(_as_matrices(source))
    with console.reading("check", source) as chunks:
        for rows, x in chunks.numbered():
            for count in counts.values():
                count.add(x, rows)
            for layout, _, count in matrices:
                count.add(layout.unpack(x), rows)
    ranked = sorted(counts.items(), key=lambda item: _rank(item[1]))
    lines = ["  points of these geometries, as the options that choose them:"]
    lines += [f"  {_part(count)}  --manifold {name}" for name, count in ranked if count.good]
    if len(lines) == 1:
        lines.append(f"  {'none':>18}")
    values: dict[str, Any] = {"geometries": [_found(*item) for item in ranked]}
    fitting = [
        (layout, name, count)
        for layout, name, count in matrices
        if 2 * count.good > count.points and _share(count) < _share(ranked[0][1])
    ]
    if fitting:
        lines.append(f"  do the rows of {source.shape[1]} numbers hold matrices? Then they are")
        lines += [
            f"  {_part(count)}  {_chosen(source, layout, name)}" for layout, name, count in fitting
        ]
        values["as_matrices"] = [
            {"layout": str(layout)} | _found(name, count) for layout, name, count in fitting
        ]
    return values, lines


def _part(count: _Count) -> str:
    """Say how many of the points are on the manifold."""
    good = "all" if count.good == count.points else f"{count.good} of {count.points}"
    return f"{good:>18}"


def _found(options: str, count: _Count) -> dict[str, Any]:
    return {
        "options": options,
        "manifold": repr(count.manifold),
        "points": count.points,
        "on_manifold": count.good,
        "worst_violation": count.worst,
        "worst_index": count.index,
    }


def _as_matrices(source: StoredArray) -> Iterator[tuple[Layout, str, _Count]]:
    """Yield how vectors could hold matrices, one number after the other, and of which geometry."""
    if source.ndim != 2:
        return
    for layout in map(Layout.parse, suggest_layouts(source.shape[1])):
        shape = layout.shape_of(source.shape[1])
        for name, cls in REGISTRY.items():
            try:
                manifold = cls.for_shape(shape)
            except (ValueError, IndexError):
                continue
            if manifold.point_shape == shape and manifold.dim < math.prod(shape):
                yield layout, name, _Count(manifold)


def _chosen(source: StoredArray, layout: Layout, name: str) -> str:
    """Say how the samples are read as matrices: by an option if the file is a table."""
    if source.form.table:
        return f"--layout {layout} --manifold {name}"
    n, _ = layout.shape_of(source.shape[1])
    if layout.triangle is None:
        return f"--manifold {name} of x.reshape(-1, {n}, {n})"
    return f"--manifold {name} of {n} x {n} matrices, of which the rows are {layout} triangles"


def _suggestion(source: StoredArray) -> Report:
    """Return which curvature in two dimensions fits vectors, or a matrix of distances."""
    if source.ndim != 2:
        raise ValueError(
            f"--suggest takes vectors, shape (N, n), or a square matrix of distances; "
            f"{source.path} has shape {source.shape}: save M.dist(x[:, None], x) for a geometry M"
        )
    x = source[: min(len(source), 2000)]
    square = x.shape[0] == x.shape[1] and len(x) == len(source)
    as_distances = square and not np.diag(x).any() and np.allclose(x, x.T, rtol=1e-6)
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


def _rank(count: _Count) -> tuple[float, float]:
    """Rank geometries with more of the points first, then those of the smaller dimension."""
    return -count.good / count.points, _share(count)


def _share(count: _Count) -> float:
    """Return the dimension over the number of coordinates: small for a special geometry."""
    return count.manifold.dim / math.prod(count.manifold.point_shape)


def _candidates(source: StoredArray) -> Iterator[tuple[str, GyroSpace]]:
    """Yield geometries with points of the shape of samples, and the options that choose them."""
    for name, cls in REGISTRY.items():
        try:
            manifold = cls.for_shape(source.shape[1:])
        except (ValueError, IndexError):
            continue
        yield name, manifold
        if cls in (Hyperboloid, Sphere):
            curvature = _curvature(manifold, source)
            if curvature is not None:
                yield f"{name} --curvature {curvature}", cls(manifold.dim, curvature)
    try:
        yield "grassmannian --representation projector", projectors_of(source)
    except ValueError:
        return


def _curvature(manifold: Any, source: StoredArray) -> float | None:
    """Return 1/⟨x, x⟩ of the first sample, if it is a curvature other than the default."""
    x = source[:1].reshape(-1, *manifold.point_shape)[0].astype(np.float64)
    signs = np.asarray([math.copysign(1.0, manifold.curvature)] + [1.0] * (len(x) - 1))
    square = float(signs @ (x * x))
    ratio = square * manifold.curvature
    if not 1e-300 < ratio < 1e300 or math.isclose(ratio, 1.0, rel_tol=1e-3):
        return None
    exact = 1.0 / square
    short = float(f"{exact:.6g}")
    return short if type(manifold)(manifold.dim, short).contains(x) else exact
