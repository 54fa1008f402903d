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
from typing import Any, NamedTuple

import numpy as np

from gyrobn.cli.command import Report, progress
from gyrobn.data.writing import check_replaceable
from gyrobn.manifolds import REGISTRY, SPD, Correlation, Grassmannian
from gyrobn.manifolds.correlation import covariance_to_correlation
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.plot import Panel, plot_overview
from gyrobn.plot.figures import NEEDS_MATPLOTLIB, check_format, name_of, save_figure
from gyrobn.statistics.frechet import frechet

EPS = 1e-5

FIGURE: tuple[str, ...] = (
    "grassmannian",
    "poincare_ball",
    "projected_hypersphere",
    "hyperboloid",
    "sphere",
)
FIGURE += ("klein", "correlation")
"""The geometries in the figure, as in that of the paper."""

REAL = {
    "digits": "100 sets of 40 images of a 7, the plane that holds most of each",
    "wine": "correlations of 13 measurements, 3 x 50 sets of 40 wines of a cultivar",
    "iris": "covariances of 4 lengths, 3 x 50 sets of 25 flowers of a species",
}
"""Data of scikit-learn, and what they are."""


class Row(NamedTuple):
    """The result on one geometry: a line of the table, and the points for the figure."""

    name: str
    manifold: GyroSpace
    scale: float
    distance_before: float
    """Distance of the mean from the target."""
    distance_after: float
    variance_before: float
    variance_after: float
    variance_expected: float
    r"""What the theorem promises, :math:`s^2 v^2/(v^2+\epsilon)`."""
    iterations: int
    seconds: float
    x: Any
    y: Any
    target: Any


def run(options: Namespace) -> Report:
    """Normalize points and real data, print mean and variance, write a figure."""
    if options.samples < 1 or options.seed < 0:
        raise ValueError("--samples must be positive, and --seed not negative")
    check_replaceable(options.output)
    with suppress(ImportError):  # without matplotlib there are only tables
        check_format(options.output)
    rows = []
    with progress(options, "demo", len(REGISTRY) + len(REAL) + 1) as bar:
        for name in (*REGISTRY, *REAL):
            rows.append(demonstrate(name, options.samples, options.seed))
            bar.update()
        figure = None
        with suppress(ImportError):
            save_figure(_overview(rows), options.output, dpi=110)
            figure = options.output
    table, data = rows[: len(REGISTRY)], rows[len(REGISTRY) :]
    lines = [
        f"Points on each geometry: {options.samples}. Computed with NumPy.",
        "",
        *_table(table, "geometry"),
        "",
        "The mean must arrive at the target, and the variance at s^2 v^2 / (v^2 + eps),",
        f"where s is the scale, v^2 the variance before and eps = {EPS:g}.",
        "",
        "Data that come with scikit-learn. The target is the identity.",
        "",
        *_table(data, "data"),
        "",
        *(f"{row.name:7} {name_of(row.manifold)}: {REAL[row.name]}" for row in data),
        "",
        f"No figure: {NEEDS_MATPLOTLIB}" if figure is None else f"Figure: {figure}",
    ]
    numbers = {row.name: dict(zip(Row._fields[2:10], row[2:10], strict=True)) for row in rows}
    values: dict[str, Any] = {"geometries": {name: numbers.pop(name) for name in REGISTRY}}
    return values | {"data": numbers, "figure": figure}, lines


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
    examples = REGISTRY[name].examples()
    if name == "grassmannian":  # lines can be drawn
        examples = Grassmannian(3, 1), *examples
    manifold = next((m for m in examples if m.dim == 2), examples[0])
    # small enough for the points to have one mean if the curvature is positive
    size = min(1.2, 0.5 * manifold.convexity_radius)
    distance = min(1.2, manifold.convexity_radius)
    cloud = manifold.random(samples, rng=seed, spread=0.3 * size)
    x = manifold.add(_polar(manifold, distance, 2.8), cloud)
    target = _polar(manifold, 0.5 * distance, -1.0)
    return _normalized(name, manifold, x, target, round(0.42 * size, 1))


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
    seconds = time.perf_counter() - begin
    after = frechet(manifold, y)
    v2 = before.variance
    distances = [float(manifold.dist(found.mean, target)) for found in (before, after)]
    # one variance per block; the table shows their average
    variances = [float(np.mean(v)) for v in (v2, after.variance, scale**2 * v2 / (v2 + EPS))]
    numbers: list[Any] = [*distances, *variances, int(before.iterations), seconds]
    return Row._make([name, manifold, scale, *numbers, x, y, target])


def _table(rows: list[Row], heading: str) -> list[str]:
    """Return the rows as a table under a heading, less than 100 columns wide."""
    lines = [
        f"{'':30}{'mean to target':^16}  {'variance':^28}",
        f"{heading:21}  {'scale':>5}  {'before':>6}  {'after':>8}  "
        f"{'before':>8}  {'after':>8}  {'expected':>8}  {'iterations':>10}  {'time (ms)':>9}",
    ]
    lines.append("-" * len(lines[1]))
    for name, _, scale, far, near, *variances, iterations, seconds, _, _, _ in rows:
        numbers = "  ".join(f"{v:8.6f}" for v in variances)
        lines.append(
            f"{name:21}  {scale:5.2f}  {far:6.4f}  {near:8.1e}  {numbers}  {iterations:10d}  "
            f"{1e3 * seconds:9.1f}"
        )
    return [line.rstrip() for line in lines]


def _overview(rows: list[Row]) -> Any:
    """Return the figure of the geometries that fit on paper."""
    panels, by_name = [], {row.name: row for row in rows}
    for name in FIGURE:
        row = by_name[name]
        after = f"{row.distance_after:.0e}" if row.distance_after else "0"
        caption = (
            f"mean to target: {row.distance_before:.2f} → {after}\n"
            f"variance: {row.variance_before:.3f} → {row.variance_after:.3f}"
        )
        panels.append(Panel(row.manifold, row.x, row.y, row.target, caption=caption))
    return plot_overview(panels, title="GyroBN: the mean goes to the target β, the variance to s²")


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
