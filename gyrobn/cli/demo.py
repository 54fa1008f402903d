r"""The command demo: normalize points on every geometry, and show that the theorem holds.

After GyroBN with bias :math:`\beta` and scale s, the mean of the output must be :math:`\beta` and
its variance :math:`s^2 v^2/(v^2+\epsilon)`.

Each geometry gets a cloud of random points around a centre,
:math:`x_i = \gamma \oplus \operatorname{Exp}_e(c_i)`, with the same normal coordinates up to size:
models of one space show the same cloud. Then come data of scikit-learn, with the identity as the
target.
"""

import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.cli.command import progress
from gyrobn.data.writing import check_replaceable
from gyrobn.manifolds import REGISTRY, SPD, Correlation, Grassmannian
from gyrobn.manifolds.correlation import covariance_to_correlation
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.plot import Panel, can_plot, plot_overview
from gyrobn.plot.figures import NEEDS_MATPLOTLIB, check_format, name_of, save_figure
from gyrobn.statistics.frechet import frechet

EPS = 1e-5

SHAPES = (2,), (3,), (3, 1), (3, 3)
"""Shapes of the points that pictures show."""

REAL = {
    "digits": "100 sets of 40 images of a 7, the plane that holds most of each",
    "wine": "correlations of 13 measurements, 3 x 50 sets of 40 wines of a cultivar",
    "iris": "covariances of 4 lengths, 3 x 50 sets of 25 flowers of a species",
}
"""Data of scikit-learn, and what they are."""


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
    names = progress(options, "demo", [*REGISTRY, *REAL])
    rows = [demonstrate(name, options.samples, options.seed) for name in names]
    figure: Any = out
    try:
        panels = [
            Panel(row.manifold, row.x, row.y, row.target, _caption(row))
            for row in rows[: len(REGISTRY)]
            if can_plot(row.manifold)
        ]
        save_figure(plot_overview(panels), out, dpi=110)
    except ImportError:
        figure = f"none: {NEEDS_MATPLOTLIB}"
    tables = [dict(zip(Row._fields[:9], row[:9], strict=True)) for row in rows]
    promise = f"the mean arrives at the target, the variance at s² v² / (v² + {EPS:g})"
    values = {"samples": options.samples, "theorem": promise, "geometries": tables[: len(REGISTRY)]}
    values |= {"data": tables[len(REGISTRY) :]}
    about = {row.name: f"{name_of(row.manifold)}: {REAL[row.name]}" for row in rows[len(REGISTRY) :]}
    return values | about | {"figure": figure}


def _caption(row: Row) -> str:
    return (
        f"{name_of(row.manifold)}\n"
        f"mean to target: {row.distance_before:.2f} → {row.distance_after:.0e}\n"
        f"variance: {row.variance_before:.3f} → {row.variance_after:.3f}"
    )


def demonstrate(name: str, samples: int = 200, seed: int = 0) -> Row:
    """Normalize random points on a geometry of the registry, or data of scikit-learn.

    >>> row = demonstrate("sphere")
    >>> row.distance_before > 0.5, row.distance_after < 1e-12
    (True, True)
    >>> demonstrate("iris").manifold
    SPD(n=4, metric='affine_invariant', theta=1.0)
    """
    if name in REAL:
        manifold, x, scale = _real(name, np.random.default_rng(seed))
        return _normalized(name, manifold, x, manifold.origin(x), scale)
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
    variances = (float(np.mean(v)) for v in (before.variance, after.variance, expected))
    steps = int(before.iterations)
    return Row(name, scale, far, near, *variances, steps, milliseconds, manifold, x, y, target)


# ---------------------------------------------------------------------- real data


def _real(name: str, rng: np.random.Generator) -> tuple[GyroSpace, Any, float]:
    """Return geometry, points and scale for data of scikit-learn: statistics of random sets."""
    from sklearn import datasets

    rows, label = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "digits":
        # In principal directions the identity is the plane that fits all images best; in pixels
        # it would be the plane of two corners, which are always white.
        _, _, directions = np.linalg.svd(rows, full_matrices=False)
        sets = _draws((rows @ directions[:16].T)[label == 7], 100, 40, rng)
        _, _, bases = np.linalg.svd(sets, full_matrices=False)
        return Grassmannian(16, 2), np.swapaxes(bases[:, :2], -1, -2), 0.3
    size = 40 if name == "wine" else 25
    sets = np.concatenate([_draws(rows[label == k], 50, size, rng) for k in range(3)])
    centred = sets - sets.mean(axis=1, keepdims=True)
    covariances = np.swapaxes(centred, -1, -2) @ centred / (size - 1)
    if name == "wine":
        return Correlation(13), covariance_to_correlation(covariances), 1.0
    return SPD(4), covariances, 1.0


def _draws(rows: Any, sets: int, size: int, rng: np.random.Generator) -> Any:
    """Return sets of rows, each drawn without replacement."""
    return np.stack([rng.permutation(rows)[:size] for _ in range(sets)])
