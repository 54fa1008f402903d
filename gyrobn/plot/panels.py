"""Points before and after a normalization, drawn on their own space."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.plot.canvas import (
    BLUE,
    GREEN,
    INK,
    MEAN_AFTER,
    MEAN_BEFORE,
    ORANGE,
    TARGET,
    VERMILION,
    add_legend,
    clouds_of,
    groups_of,
    legend_below,
    legend_entries,
    name_of,
    new_figure,
    target_of,
)
from gyrobn.plot.scenes import Scene, scene_of
from gyrobn.statistics.frechet import frechet_mean
from gyrobn.statistics.points import plain_geometry


class Panel(NamedTuple):
    """What :func:`plot_overview` draws in one panel; see :func:`plot_normalization`."""

    manifold: GyroSpace
    x: Array
    y: Array
    bias: Array | None = None
    title: str | None = None
    caption: str | None = None


def can_plot(manifold: GyroSpace) -> bool:
    """Return whether :func:`plot_normalization` has a picture for this geometry.

    >>> from gyrobn import Correlation, Sphere
    >>> can_plot(Sphere(2)), can_plot(Sphere(5)), can_plot(Correlation(3))
    (True, False, True)
    """
    return scene_of(manifold) is not None


def plot_normalization(
    manifold: GyroSpace,
    x: Array,
    y: Array,
    bias: Array | None = None,
    ax: Any = None,
    *,
    labels: Any = None,
    title: str | None = None,
    caption: str | None = None,
) -> Any:
    r"""Draw points before and after normalization, on a geometry that fits on paper.

    These are: geometries of dimension 2 with points of shape (2,), drawn in the plane, or (3,),
    drawn on their surface; ``Grassmannian(3, 1)``, whose lines through the origin are drawn on a
    hemisphere (opposite points of its edge are the same line); and ``Correlation(3)``, whose three
    correlations are coordinates inside the elliptope. :func:`plot_tangent` draws any geometry.

    The line between the two means is the geodesic
    :math:`t \mapsto \mu_x \oplus (t \odot (\ominus\mu_x \oplus \mu_y))`. A solid line is the
    boundary of the space, a dotted one the equator; both have the radius :math:`1/\sqrt{|K|}` if
    the space has a curvature K. Grey rings are half a unit of distance apart. What lies behind the
    horizon of a sphere is faint.

    Parameters
    ----------
    manifold
        A geometry for which :func:`can_plot` is true.
    x, y
        Points before and after, shape ``(N, *point_shape)``, of any library.
    bias
        The target that was given to :func:`~gyrobn.normalize`, drawn as an open ring.
    ax
        Axes to draw in, three-dimensional (``projection="3d"``) for anything but the plane; the
        artists have labels for a legend. By default the axes of a new figure with a legend,
        ``ax.figure``, that pyplot does not know.
    labels
        N values: one colour and marker for the points of each, such as classes or subjects, open
        before and filled after.
    title
        Text above the axes; the name of the geometry and its curvature by default.
    caption
        Text below the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from gyrobn import PoincareBall, batch_stats, normalize
    >>> M = PoincareBall(2)
    >>> x = M.random(50, rng=0)
    >>> ax = plot_normalization(M, x, normalize(M, x, batch_stats(M, x), scale=0.5))
    >>> ax.get_title()
    'PoincareBall,  K = −1'
    >>> ax.figure.savefig("ball.png")  # doctest: +SKIP
    """
    scene = _scene(manifold)
    own = ax is None
    if own:
        ax = new_figure(figsize=(5.0, 5.6)).add_subplot(projection=scene.projection)
    elif ax.name != scene.projection:
        raise ValueError(
            f"points of {manifold!r} are drawn on {scene.projection!r} axes, got {ax.name!r}: "
            f"make them with figure.add_subplot(projection={scene.projection!r})"
        )
    manifold = plain_geometry(manifold)
    x, y = clouds_of(manifold, x, y)
    if labels is not None and len(x) != len(y):
        raise ValueError(
            f"labels need as many points before as after, got {len(x)} and {len(y)}: "
            "give as many of both"
        )
    groups = None if labels is None else groups_of(labels, len(x))
    means = frechet_mean(manifold, x), frechet_mean(manifold, y)
    time = np.linspace(0.0, 1.0, 101)
    path = manifold.geodesic(*means, time if not manifold.block_shape else time[:, None])
    line = scene.coordinates(manifold, path)
    eye = scene.background(ax, manifold, np.concatenate([x, y]), line)
    drawing = _Drawing(ax, scene, manifold, eye)
    drawing.clouds(x, y, groups)
    # with labels, all colours are theirs
    drawing.means(*means, line, (GREEN, BLUE, VERMILION) if groups is None else (INK, INK, INK))
    if bias is not None:
        drawing.scatter(target_of(manifold, bias), 8, **TARGET)
    ax.set_title(_title(manifold) if title is None else title, fontsize=13, color=INK)
    if caption is not None:  # an annotation, because axes in space have no label below them
        style = {"ha": "center", "va": "top", "fontsize": 11, "color": INK}
        ax.annotate(caption, (0.5, -0.03), xycoords="axes fraction", **style)
    if own:
        legend_below([ax], 2, _LEGEND)
    return ax


class _Drawing(NamedTuple):
    """Axes to draw points of a geometry in."""

    ax: Any
    scene: Scene
    manifold: GyroSpace
    eye: Any
    """Direction of the eye, if a surface hides what is behind it; else None."""

    def scatter(
        self, points: Any, order: int, label: str | None, filled: bool = True, **style: Any
    ) -> None:
        """Draw points; those of a cloud, which has an ``alpha``, are faint behind the horizon."""
        places = np.atleast_2d(self.scene.coordinates(self.manifold, points))
        if self.ax.name == "3d":
            style["depthshade"] = False
        if self.eye is not None and "alpha" in style:
            from matplotlib.colors import to_rgba_array

            alpha = style.pop("alpha") * np.where(places @ self.eye < 0, 0.3, 1.0)
            style["color"] = to_rgba_array([style["color"]] * len(places), alpha)
        if not filled:
            style |= {"facecolors": "none", "edgecolors": style.pop("color"), "linewidths": 0.8}
        self.ax.scatter(*places.T, label=label, zorder=order, **style)

    def clouds(self, x: Any, y: Any, groups: Any) -> None:
        """Draw the points before and after, in one style each or in one style per group."""
        if groups is None:
            self.scatter(x, 3, "input", alpha=0.75, s=9, color=BLUE, linewidths=0)
            self.scatter(y, 4, "output", alpha=0.85, s=11, color=ORANGE, linewidths=0, marker="^")
            return
        for name, at, look in groups:
            self.scatter(x[at], 3, None, filled=False, alpha=0.75, s=14, **look)
            self.scatter(y[at], 4, name, alpha=0.75, s=14, linewidths=0, **look)
        for side in ("input", "output"):  # only for the legend
            self.scatter(x[:0], 3, side, filled=side == "output", s=14, color=INK)

    def means(self, before: Any, after: Any, line: Any, colours: tuple[str, str, str]) -> None:
        """Draw the two means and the geodesic between them."""
        over = np.linalg.norm(np.diff(line, axis=0), axis=-1) > self.scene.longest
        line = np.insert(line, np.flatnonzero(over) + 1, np.nan, axis=0)
        style = {"color": colours[0], "linewidth": 2, "zorder": 5}
        self.ax.plot(*line.T, label="geodesic between the means", **style)
        self.scatter(before, 6, color=colours[1], **MEAN_BEFORE)
        self.scatter(after, 7, color=colours[2], **MEAN_AFTER)


def plot_overview(panels: Sequence[Panel], columns: int = 4, title: str | None = None) -> Any:
    """Draw one figure with a panel for each geometry and one legend, in a cell of its own.

    Parameters
    ----------
    panels
        What to draw, in the order of reading.
    columns
        Panels in a row, at most.
    title
        Text above the figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure; write it with ``figure.savefig(path)``.

    Examples
    --------
    >>> from gyrobn import Euclidean, Sphere
    >>> panels = [Panel(M, M.random(9, rng=0, spread=0.2), M.random(9, rng=0, spread=0.1))
    ...           for M in (Euclidean(2), Sphere(2))]
    >>> len(plot_overview(panels).axes)  # two panels and the legend's
    3
    """
    columns = min(columns, len(panels) + 1)
    rows = math.ceil((len(panels) + 1) / columns)
    figure = new_figure(figsize=(3.2 * columns, 3.5 * rows))
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.14)
    if title is not None:
        figure.suptitle(title, fontsize=15, color=INK)
    axes = []
    for i, panel in enumerate(panels):
        projection = _scene(panel.manifold).projection
        ax = figure.add_subplot(rows, columns, i + 1, projection=projection)
        axes.append(plot_normalization(*panel[:4], ax, title=panel.title, caption=panel.caption))
    cell = figure.add_subplot(rows, columns, len(panels) + 1)
    cell.set_axis_off()
    add_legend(cell, legend_entries(axes, _LEGEND), loc="center", fontsize=12)
    return figure


_LEGEND = (
    "input",
    "input mean",
    "output",
    "output mean",
    "target β",
    "geodesic between the means",
    "boundary",
    "equator",
    "distance rings, 0.5 apart",
)
"""The labels of all artists, in the order of reading."""


def _scene(manifold: GyroSpace) -> Scene:
    scene = scene_of(manifold)
    if scene is None:
        raise ValueError(
            f"{manifold!r} has points of shape {manifold.point_shape} and dimension "
            f"{manifold.dim}: only 2-dimensional geometries with points of shape (2,) or (3,), "
            "Grassmannian(3, 1) and Correlation(3) can be drawn; plot_tangent draws any geometry"
        )
    return scene


def _title(manifold: GyroSpace) -> str:
    """Return the name of the geometry with its curvature; for matrices, with its sizes."""
    if len(manifold.point_shape) > 1:
        return name_of(manifold)
    value = f"{getattr(manifold, 'curvature', 0.0):g}".replace("-", "−")
    return f"{type(manifold).__name__},  K = {value}"
