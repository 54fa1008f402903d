r"""The command demo: normalize points on every geometry, and show that the theorem holds.

After GyroBN with bias :math:`\beta` and scale s, the mean of the output must be :math:`\beta` and
its variance :math:`s^2 v^2/(v^2+\epsilon)`.

Each geometry gets a cloud of random points around a centre,
:math:`x_i = \gamma \oplus \operatorname{Exp}_e(c_i)`, with the same normal coordinates up to size:
models of one space show the same cloud. Then come covariances of scikit-learn's irises, with the
identity as the target.
"""

import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.cli.command import progress
from gyrobn.data.writing import check_replaceable
from gyrobn.manifolds import REGISTRY, SPD
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.plot import Panel, can_plot, plot_overview
from gyrobn.plot.figures import NEEDS_MATPLOTLIB, check_format, name_of, save_figure
from gyrobn.statistics.frechet import frechet

EPS = 1e-5

SHAPES = (2,), (3,), (3, 1), (3, 3)
"""Shapes of the points that pictures show."""


class Row(NamedTuple):
    """The result on one geometry: a row of the table, and the points for the figure."""

    name: str
    scale: float
    distance_before: float
    """Distance of the mean from the target."""
    distance_after: float
    variance_before: float
    variance_after: float
    variance_expected: float
    r"""What the theorem promises, :math:`s^2 v^2/(v^2+\epsilon)`."""
    iterations: int
    milliseconds: float
    manifold: GyroSpace
    x: Any
    y: Any
    target: Any


def run(options: Namespace) -> dict[str, Any]:
    """Normalize points and real data, report mean and variance, write a figure."""
    if options.samples < 1 or options.seed < 0:
        raise ValueError("--samples must be positive, and --seed not negative")
    out = options.out or Path("gyrobn-demo.png")
    check_replaceable(out)
    with suppress(ImportError):  # without matplotlib there are only tables
        check_format(out)
    names = progress(options, "demo", [*REGISTRY, "iris"])
    rows = [demonstrate(name, options.samples, options.seed) for name in names]
    panels = [
        Panel(row.manifold, row.x, row.y, row.target, _caption(row))
        for row in rows
        if can_plot(row.manifold)
    ]
    values: dict[str, Any] = {
        "points": f"{options.samples} on each geometry; iris: 150 covariances of 25 flowers each",
        "theorem": f"the mean arrives at the target, the variance at s² v² / (v² + {EPS:g})",
        "geometries": [dict(zip(Row._fields[:9], row[:9], strict=True)) for row in rows],
        "figure": out,
    }
    try:
        save_figure(plot_overview(panels), out, dpi=110)
    except ImportError:
        values["figure"] = f"none: {NEEDS_MATPLOTLIB}"
    return values


def _caption(row: Row) -> str:
    return (
        f"{name_of(row.manifold)}\nto β: {row.distance_before:.2f} → "
        f"{row.distance_after:.0e}, v²: {row.variance_before:.2f} → {row.variance_after:.2f}"
    )


def demonstrate(name: str, samples: int = 200, seed: int = 0) -> Row:
    """Normalize random points on a geometry of the registry, or covariances of irises.

    >>> row = demonstrate("sphere")
    >>> row.distance_before > 0.5, row.distance_after < 1e-12
    (True, True)
    >>> demonstrate("iris").manifold
    SPD(n=4, metric='affine_invariant', theta=1.0, alpha=1.0, beta=0.0)
    """
    if name == "iris":
        x = _iris(np.random.default_rng(seed))
        return _normalized(name, SPD(4), x, np.eye(4), 1.0)
    manifold = _small(REGISTRY[name])
    # small enough for the points to have one mean if the curvature is positive
    size = min(1.2, 0.5 * manifold.convexity_radius)
    distance = min(1.2, manifold.convexity_radius)
    cloud = manifold.random(samples, rng=seed, spread=0.3 * size)
    x = manifold.add(_polar(manifold, distance, 2.8), cloud)
    target = _polar(manifold, 0.5 * distance, -1.0)
    return _normalized(name, manifold, x, target, round(0.42 * size, 1))


def _small(cls: type[GyroSpace]) -> GyroSpace:
    """Return a geometry of a class that can be drawn, or else its first example."""
    for shape in SHAPES:
        with suppress(ValueError):
            if can_plot(manifold := cls.for_shape(shape)):
                return manifold
    return cls.examples()[0]


def _polar(manifold: GyroSpace, radius: float, angle: float) -> Any:
    """Return the point at ``radius`` from the identity, in a direction of the first two axes."""
    c = np.zeros(manifold.dim)
    c[:2] = radius * np.asarray([np.cos(angle), np.sin(angle)])[: manifold.dim]
    return manifold.from_normal(c)


def _normalized(name: str, manifold: GyroSpace, x: Any, target: Any, scale: float) -> Row:
    """Normalize points and measure mean and variance before and after."""
    begin = time.perf_counter()
    before = frechet(manifold, x)
    stats = Stats(before.mean, before.variance)
    y = normalize(manifold, x, stats, bias=target, scale=scale, eps=EPS)
    milliseconds = 1e3 * (time.perf_counter() - begin)
    after = frechet(manifold, y)
    far, near = (float(manifold.dist(found.mean, target)) for found in (before, after))
    expected = scale**2 * before.variance / (before.variance + EPS)
    # one variance per block; the table shows their average
    variances = [float(np.mean(v)) for v in (before.variance, after.variance, expected)]
    numbers: list[Any] = [far, near, *variances, int(before.iterations), milliseconds]
    return Row._make([name, scale, *numbers, manifold, x, y, target])


def _iris(rng: np.random.Generator) -> Any:
    """Return covariances of random sets of 25 flowers of one species, 50 of each."""
    from sklearn.datasets import load_iris

    rows, label = load_iris(return_X_y=True)
    species = [rows[label == k] for k in (0, 1, 2) for _ in range(50)]
    sets = np.stack([rng.permutation(own)[:25] for own in species])
    centred = sets - sets.mean(axis=1, keepdims=True)
    return np.swapaxes(centred, -1, -2) @ centred / 24
