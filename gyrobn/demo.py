r"""``gyrobn demo``: normalise points on every geometry, on NumPy, and show that the theorem holds.

Each geometry of the registry gets points around a centre, :math:`x_i = \gamma \oplus
\operatorname{Exp}_e(c_i)`, with the same normal coordinates up to size, so that the models of one
space show one and the same cloud. After GyroBN with bias :math:`\beta` and scale s, their mean must
be :math:`\beta` and their variance :math:`s^2 v^2/(v^2+\epsilon)`.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.frechet import frechet
from gyrobn.gyrospace import GyroSpace
from gyrobn.manifolds import REGISTRY
from gyrobn.normalize import Stats, normalize
from gyrobn.plot import Panel, can_plot, plot_overview

__all__ = ["EPS", "Row", "demonstrate", "run", "table"]

EPS = 1e-5
r"""The :math:`\epsilon` that the demo gives to :func:`~gyrobn.normalize`."""


class Row(NamedTuple):
    """What happened on one geometry: one line of the table, and the points for the figure."""

    name: str
    """Name in the registry."""
    manifold: GyroSpace
    scale: float
    """Standard deviation s that was asked for."""
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


def demonstrate(name: str, samples: int = 200, seed: int = 0) -> Row:
    """Normalise random points on one geometry of the registry.

    Parameters
    ----------
    name
        Name of the geometry in the registry.
    samples
        Number of points.
    seed
        Seed of the points.

    Examples
    --------
    >>> row = demonstrate("sphere")
    >>> row.distance_before > 0.5, row.distance_after < 1e-12
    (True, True)
    """
    examples = REGISTRY[name].examples()
    manifold = next((m for m in examples if m.dim == 2), examples[0])
    # small enough to keep data of positive curvature in a hemisphere, where its mean is unique
    size = min(1.2, 0.5 * manifold.convexity_radius)
    scale = round(0.42 * size, 1)
    cloud = manifold.random(samples, rng=seed, spread=0.3 * size)
    x = manifold.add(_polar(manifold, size, 2.8), cloud)
    target = _polar(manifold, 0.5 * size, -1.0)

    begin = time.perf_counter()
    before = frechet(manifold, x)
    stats = Stats(before.mean, before.variance)
    y = normalize(manifold, x, stats, bias=target, scale=scale, eps=EPS)
    seconds = time.perf_counter() - begin

    after = frechet(manifold, y)
    v2 = np.asarray(before.variance)  # one a block; the table has room for their average
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


def table(rows: list[Row]) -> str:
    """Return the rows as aligned text, less than 100 columns wide."""
    head = (
        f"{'':30}{'mean to target':^16}  {'variance':^28}",
        f"{'geometry':21}  {'scale':>5}  {'before':>6}  {'after':>8}  "
        f"{'before':>8}  {'after':>8}  {'expected':>8}  {'iterations':>10}  {'time (ms)':>9}",
    )
    lines = [
        f"{row.name:21}  {row.scale:5.2f}  {row.distance_before:6.4f}  {row.distance_after:8.1e}  "
        f"{row.variance_before:8.6f}  {row.variance_after:8.6f}  {row.variance_expected:8.6f}  "
        f"{row.iterations:10d}  {1e3 * row.seconds:9.1f}"
        for row in rows
    ]
    return "\n".join([*(line.rstrip() for line in head), "-" * len(head[-1]), *lines])


def run(output: Path, samples: int = 200, seed: int = 0) -> None:
    """Normalise points on every geometry, print the table and write the figure.

    Without matplotlib there is no figure, and a line that says how to get it. Progress goes to
    stderr, if that is a terminal.

    Parameters
    ----------
    output
        Where to write the figure; its suffix is the format.
    samples, seed
        As in :func:`demonstrate`.
    """
    rows = []
    for i, name in enumerate(REGISTRY):
        if sys.stderr.isatty():
            print(f"[{i + 1}/{len(REGISTRY)}] {name}", file=sys.stderr)
        rows.append(demonstrate(name, samples, seed))
    print(f"Points on each geometry: {samples}. Computed with NumPy.\n\n{table(rows)}\n")
    print("The mean must arrive at the target, and the variance at s^2 v^2 / (v^2 + eps),")
    print(f"where s is the scale, v^2 the variance before and eps = {EPS:g}.\n")
    title = "GyroBN: the mean goes to the target β, the variance to s²"
    try:
        figure = plot_overview(list(_panels(rows)), title=title)
    except ImportError as error:
        print(f"No figure: {error}")
        return
    # the format is named, or matplotlib would add a suffix to a path that has none
    figure.savefig(output, dpi=110, format=output.suffix[1:] or "png")
    print(f"Figure: {output}")


def _panels(rows: list[Row]) -> Iterator[Panel]:
    for row in rows:
        if can_plot(row.manifold):
            after = f"{row.distance_after:.0e}" if row.distance_after else "0"
            caption = (
                f"mean to target: {row.distance_before:.2f} → {after}\n"
                f"variance: {row.variance_before:.3f} → {row.variance_after:.3f}"
            )
            yield Panel(row.manifold, row.x, row.y, row.target, caption=caption)


def _polar(manifold: GyroSpace, radius: float, angle: float) -> Any:
    """Return the point at ``radius`` from the identity, in a direction of the first two axes."""
    c = np.zeros(manifold.dim)
    c[:2] = radius * np.asarray([np.cos(angle), np.sin(angle)])[: manifold.dim]
    return manifold.from_normal(c)
