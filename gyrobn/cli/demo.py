r"""The command demo: normalize points on every geometry, and show that the theorem holds.

After GyroBN with bias :math:`\beta` and scale s, the mean of the output must be :math:`\beta` and
its variance :math:`s^2 v^2/(v^2+\epsilon)`.

Each geometry of the registry gets a cloud of random points around a centre,
:math:`x_i = \gamma \oplus \operatorname{Exp}_e(c_i)`, with the same normal coordinates up to size:
models of one space show the same cloud. Then come data of scikit-learn, with the identity as the
target.
"""

import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.cli.console import Console
from gyrobn.cli.inputs import check_place
from gyrobn.manifolds import REGISTRY, SPD, Correlation, Grassmannian
from gyrobn.manifolds.correlation import covariance_to_correlation
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, normalize
from gyrobn.plot import Panel, plot_overview
from gyrobn.plot.canvas import NEEDS_MATPLOTLIB, check_format, name_of, save_figure
from gyrobn.statistics.frechet import frechet

EPS = 1e-5
r"""The :math:`\epsilon` that the demo gives to :func:`~gyrobn.normalize`."""

FIGURE = (
    "grassmannian",
    "poincare_ball",
    "projected_hypersphere",
    "hyperboloid",
    "sphere",
    "klein",
    "correlation",
)
"""The geometries in the figure, as in that of the paper."""


class Row(NamedTuple):
    """The result on one geometry: one line of the table, and the points for the figure."""

    name: str
    """Name in the registry, or of the data."""
    manifold: GyroSpace
    scale: float
    """Standard deviation s of the output, as given."""
    distance_before: float
    """Distance of the input's mean from the target."""
    distance_after: float
    """Distance of the output's mean from the target."""
    variance_before: float
    variance_after: float
    variance_expected: float
    r"""What the theorem promises, :math:`s^2 v^2/(v^2+\epsilon)`."""
    iterations: int
    """Iterations of the input's mean."""
    seconds: float
    """Time of mean, variance and normalization."""
    x: Any
    y: Any
    target: Any

    def numbers(self) -> dict[str, Any]:
        """Return what the report says of the row, besides its name."""
        left_out = ("name", "x", "y", "target")
        return {name: value for name, value in self._asdict().items() if name not in left_out}


def run(options: Namespace, console: Console) -> None:
    """Normalize points and real data, print mean and variance, write a figure."""
    check_place(options.output)
    with suppress(ImportError):  # without matplotlib there are only tables
        check_format(options.output)
    rows: list[Row] = []
    real: list[Row] = []
    with console.progress("demo", STEPS) as bar:
        for name in REGISTRY:
            bar.update(len(rows))
            rows.append(demonstrate(name, options.samples, options.seed))
        for name in REAL:
            bar.update(len(rows) + len(real))
            real.append(demonstrate_real(name, options.seed))
        bar.update(len(rows) + len(real))
        figure = _draw(rows, options.output)
    values = {
        "geometries": {row.name: row.numbers() for row in rows},
        "data": {row.name: row.numbers() for row in real},
        "figure": figure,
    }
    console.report(values, _lines(rows, real, figure))


def demonstrate(name: str, samples: int = 200, seed: int = 0) -> Row:
    """Normalize random points on a geometry, by its name in the registry.

    >>> row = demonstrate("sphere")
    >>> row.distance_before > 0.5, row.distance_after < 1e-12
    (True, True)
    """
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
    return _normalised(name, manifold, x, target, round(0.42 * size, 1))


def demonstrate_real(name: str, seed: int = 0) -> Row:
    """Normalize data of scikit-learn, by their name in :data:`REAL`.

    >>> row = demonstrate_real("iris")
    >>> row.manifold.point_shape, len(row.x)
    ((4, 4), 150)
    >>> row.distance_before > 1.0, row.distance_after < 1e-12
    (True, True)
    """
    manifold, x, scale = REAL[name].load(np.random.default_rng(seed))
    return _normalised(name, manifold, x, manifold.origin(x), scale)


def _table(rows: list[Row], heading: str = "geometry") -> list[str]:
    """Return the rows as a table under a heading, less than 100 columns wide."""
    head = (
        f"{'':30}{'mean to target':^16}  {'variance':^28}",
        f"{heading:21}  {'scale':>5}  {'before':>6}  {'after':>8}  "
        f"{'before':>8}  {'after':>8}  {'expected':>8}  {'iterations':>10}  {'time (ms)':>9}",
    )
    lines = [
        f"{row.name:21}  {row.scale:5.2f}  {row.distance_before:6.4f}  {row.distance_after:8.1e}  "
        f"{row.variance_before:8.6f}  {row.variance_after:8.6f}  {row.variance_expected:8.6f}  "
        f"{row.iterations:10d}  {1e3 * row.seconds:9.1f}"
        for row in rows
    ]
    return [*(line.rstrip() for line in head), "-" * len(head[-1]), *lines]


def _lines(rows: list[Row], real: list[Row], figure: Path | None) -> list[str]:
    """Return the tables and what they mean, as lines of text."""
    return [
        f"Points on each geometry: {len(rows[0].x)}. Computed with NumPy.",
        "",
        *_table(rows),
        "",
        "The mean must arrive at the target, and the variance at s^2 v^2 / (v^2 + eps),",
        f"where s is the scale, v^2 the variance before and eps = {EPS:g}.",
        "",
        "Data that come with scikit-learn. The target is the identity.",
        "",
        *_table(real, "data"),
        "",
        *(f"{row.name:7} {name_of(row.manifold)}: {REAL[row.name].caption}" for row in real),
        "",
        f"No figure: {NEEDS_MATPLOTLIB}" if figure is None else f"Figure: {figure}",
    ]


def _normalised(name: str, manifold: GyroSpace, x: Any, target: Any, scale: float) -> Row:
    """Normalize points and measure mean and variance before and after."""
    begin = time.perf_counter()
    before = frechet(manifold, x)
    stats = Stats(before.mean, before.variance)
    y = normalize(manifold, x, stats, bias=target, scale=scale, eps=EPS)
    seconds = time.perf_counter() - begin

    after = frechet(manifold, y)
    v2 = np.asarray(before.variance)  # one per block; the table shows their average
    return Row(
        name,
        manifold,
        scale,
        float(manifold.dist(before.mean, target)),
        float(manifold.dist(after.mean, target)),
        float(np.mean(v2)),
        float(np.mean(after.variance)),
        float(np.mean(scale**2 * v2 / (v2 + EPS))),
        int(before.iterations),
        seconds,
        x,
        y,
        target,
    )


def _polar(manifold: GyroSpace, radius: float, angle: float) -> Any:
    """Return the point at ``radius`` from the identity, in a direction of the first two axes."""
    c = np.zeros(manifold.dim)
    c[:2] = radius * np.asarray([np.cos(angle), np.sin(angle)])[: manifold.dim]
    return manifold.from_normal(c)


def _draw(rows: list[Row], output: Path) -> Path | None:
    """Write the figure, and return its path, or None without matplotlib."""
    panels = []
    for row in sorted((r for r in rows if r.name in FIGURE), key=lambda r: FIGURE.index(r.name)):
        after = f"{row.distance_after:.0e}" if row.distance_after else "0"
        caption = (
            f"mean to target: {row.distance_before:.2f} → {after}\n"
            f"variance: {row.variance_before:.3f} → {row.variance_after:.3f}"
        )
        panels.append(Panel(row.manifold, row.x, row.y, row.target, caption=caption))
    title = "GyroBN: the mean goes to the target β, the variance to s²"
    try:
        save_figure(plot_overview(panels, title=title), output, dpi=110)
    except ImportError:
        return None
    return output


# ---------------------------------------------------------------------- real data


class _Data(NamedTuple):
    """Data of the second table."""

    caption: str
    load: Callable[[np.random.Generator], tuple[GyroSpace, Any, float]]
    """Return geometry, points and scale."""


def _digits(rng: np.random.Generator) -> tuple[GyroSpace, Any, float]:
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    # In principal directions the identity is the plane that fits all images best; in pixels it
    # would be the plane of two corners, which are always white.
    _, _, directions = np.linalg.svd(images, full_matrices=False)
    sevens = (images @ directions[:16].T)[digit == 7]
    sets = _draws(sevens, 100, 40, rng)
    _, _, bases = np.linalg.svd(sets, full_matrices=False)
    return Grassmannian(16, 2), np.swapaxes(bases[:, :2], -1, -2), 0.3


def _wine(rng: np.random.Generator) -> tuple[GyroSpace, Any, float]:
    from sklearn.datasets import load_wine

    covariances = _covariances(_draws_by_class(load_wine, 40, rng))
    return Correlation(13), covariance_to_correlation(covariances), 1.0


def _iris(rng: np.random.Generator) -> tuple[GyroSpace, Any, float]:
    from sklearn.datasets import load_iris

    return SPD(4), _covariances(_draws_by_class(load_iris, 25, rng)), 1.0


def _draws_by_class(load: Callable[..., Any], size: int, rng: np.random.Generator) -> Any:
    """Return 50 sets of rows of each of the three classes of a data set."""
    rows, label = load(return_X_y=True)
    return np.concatenate([_draws(rows[label == k], 50, size, rng) for k in range(3)])


def _draws(rows: Any, sets: int, size: int, rng: np.random.Generator) -> Any:
    """Return sets of rows, each drawn without replacement."""
    return np.stack([rng.permutation(rows)[:size] for _ in range(sets)])


def _covariances(sets: Any) -> Any:
    """Return the covariance matrix of each set of rows."""
    centred = sets - sets.mean(axis=1, keepdims=True)
    return np.swapaxes(centred, -1, -2) @ centred / (sets.shape[1] - 1)


REAL: dict[str, _Data] = {
    "digits": _Data("100 sets of 40 images of a 7, the plane that holds most of each", _digits),
    "wine": _Data("correlations of 13 measurements, 3 x 50 sets of 40 wines of a cultivar", _wine),
    "iris": _Data("covariances of 4 lengths, 3 x 50 sets of 25 flowers of a species", _iris),
}
"""Data of scikit-learn, by name."""

STEPS = len(REGISTRY) + len(REAL) + 1
"""The steps of the progress: one per row, and the figure."""
