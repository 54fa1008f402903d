"""The pictures: what all of them share, panels of geometries, tangent spaces, and convergence."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array
from gyrobn.data import replacing
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import cast
from gyrobn.numerics.checks import host
from gyrobn.plot.scenes import CIRCLE, INK, Scene, scene_of
from gyrobn.statistics.frechet import FrechetResult, frechet, frechet_mean, least_residual
from gyrobn.statistics.points import check_finite, plain_geometry
from gyrobn.statistics.uniqueness import FrechetWarning

# Okabe and Ito's palette, for any kind of colour vision. Whatever differs in colour also differs in
# marker, for black-and-white printers.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
COLOURS = (BLUE, ORANGE, GREEN, "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">")

_WHITE_EDGE: dict[str, Any] = {"edgecolors": "white", "linewidths": 1.0, "color": INK}
MEAN_BEFORE = _WHITE_EDGE | {"label": "input mean", "marker": "D", "s": 75}
MEAN_AFTER = _WHITE_EDGE | {"label": "output mean", "marker": "*", "s": 150}
TARGET: dict[str, Any] = {"label": "target β", "marker": "o", "s": 230}
TARGET |= {"facecolors": "none", "edgecolors": INK, "linewidths": 1.3}
"""How the means and the target are drawn."""

LABELS = "input", "input mean", "output", "output mean", "target β", "geodesic between the means"
"""The first labels of a legend, in order."""

NEEDS_MATPLOTLIB = "pictures need matplotlib: install it with pip install 'gyrobn[plot]'"


def new_figure(**options: Any) -> Any:
    """Return a new figure that pyplot does not know."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(NEEDS_MATPLOTLIB) from error
    return Figure(layout="constrained", **options)


def check_format(path: Path) -> None:
    """Refuse a suffix that is not a format of matplotlib."""
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in {"", *known}:
        names = ", ".join(f".{name}" for name in sorted(known))
        raise ValueError(f"{path} has the suffix {path.suffix!r}: expected one of {names}")


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure, completely or not at all, in the format of the suffix; PNG without one."""
    with replacing(path) as draft:
        # the suffix of the draft does not give the format
        figure.savefig(draft, dpi=dpi, format=path.suffix[1:].lower() or "png")


def _checked(
    manifold: GyroSpace, x: Any, y: Any, bias: Any, labels: Any
) -> tuple[GyroSpace, Any, Any, Any, list[tuple[str, Any, dict[str, Any]]]]:
    """Return all as NumPy arrays; for each label its name, where it is, and its colour and marker.

    There are 63 different pairs of a colour and a marker.
    """
    manifold = plain_geometry(manifold)
    x, y = cast(host(x, "x"), np.float64), cast(host(y, "y"), np.float64)
    for name, points in ("x", x), ("y", y):
        if points.shape[1:] != manifold.point_shape:
            raise ValueError(
                f"expected {name} of shape (N, {', '.join(map(str, manifold.point_shape))}), got "
                f"{points.shape}: draw one channel at a time"
            )
        check_finite(manifold, points, name, 0, "leave such points out, before and after")
    if bias is not None:
        bias = cast(host(bias, "bias"), np.float64)
        if bias.shape != manifold.point_shape:
            raise ValueError(
                f"bias must be a point of {manifold!r}, shape {manifold.point_shape}, got shape "
                f"{bias.shape}"
            )
    if labels is None:
        return manifold, x, y, bias, []
    names = np.asarray(labels)
    if not names.shape == x.shape[:1] == y.shape[:1]:
        raise ValueError(
            f"expected a label for each of the {len(x)} points before, and for the same points "
            f"after, got labels of shape {names.shape} and {len(y)} points after"
        )
    groups = [
        (str(name), names == name, {"color": COLOURS[k % 7], "marker": MARKERS[k % 9]})
        for k, name in enumerate(np.unique(names))
    ]
    return manifold, x, y, bias, groups


def _legend(place: Any, axes: Sequence[Any], columns: int = 1, **options: Any) -> None:
    """Add the legend of axes to a cell, or below them to their figure, which then grows."""
    found: dict[str, Any] = {}
    for ax in axes:
        found = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True)) | found
    found = {label: found[label] for label in (*LABELS, *found) if label in found}
    if place is axes[0].figure:
        columns, options["loc"] = min(columns, len(found)), "outside lower center"
        more = max(0, math.ceil(len(found) / columns) - 6)
        place.set_figheight(place.get_figheight() + 0.22 * more)
    legend = place.legend(found.values(), found.keys(), frameon=False, ncols=columns, **options)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):  # large and dark enough to show their colour
            handle.set(sizes=np.maximum(handle.get_sizes(), 40.0), alpha=0.85)


def name_of(manifold: GyroSpace) -> str:
    """Return the name of a geometry with its sizes and curvature, such as ``Sphere(2), K = 1``."""
    sizes = [str(getattr(manifold, one.name)) for one in fields(manifold) if one.default is MISSING]
    curvature = getattr(manifold, "curvature", None)
    name = f"{type(manifold).__name__}({', '.join(sizes)})"
    return name if curvature is None else f"{name}, K = {curvature:g}".replace("-", "−")


# ---------------------------------------------------------------------- points on their own space


class Panel(NamedTuple):
    """What :func:`plot_overview` draws in one panel; see :func:`plot_normalization`."""

    manifold: GyroSpace
    x: Array
    y: Array
    bias: Array | None = None
    title: str | None = None


def can_plot(manifold: GyroSpace) -> bool:
    """Return whether :func:`plot_normalization` has a picture for this geometry.

    >>> from gyrobn import Correlation, Sphere
    >>> can_plot(Sphere(2)), can_plot(Sphere(5)), can_plot(Correlation(3))
    (True, False, True)
    """
    return scene_of(manifold) is not None


def _scene(manifold: GyroSpace) -> Scene:
    scene = scene_of(manifold)
    if scene is None:
        raise ValueError(
            f"{manifold!r} has points of shape {manifold.point_shape} and dimension "
            f"{manifold.dim}: only 2-dimensional geometries with points of shape (2,) or (3,), "
            "Grassmannian(3, 1) and Correlation(3) can be drawn; plot_tangent draws any geometry"
        )
    return scene


def plot_normalization(
    manifold: GyroSpace,
    x: Array,
    y: Array,
    bias: Array | None = None,
    ax: Any = None,
    *,
    labels: Any = None,
    title: str | None = None,
) -> Any:
    r"""Draw points before and after normalization, on a geometry that fits on paper.

    These are: geometries of dimension 2 with points of shape (2,), drawn in the plane, or (3,),
    drawn on their surface; ``Grassmannian(3, 1)``, whose lines through the origin are drawn where
    they meet a hemisphere, seen from above (opposite points of its edge are the same line); and
    ``Correlation(3)``, whose three correlations are coordinates inside the elliptope.
    :func:`plot_tangent` draws any geometry.

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
    'PoincareBall(2), K = −1'
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
    manifold, x, y, bias, groups = _checked(manifold, x, y, bias, labels)
    means = frechet_mean(manifold, x), frechet_mean(manifold, y)
    time = np.linspace(0.0, 1.0, 101)[(..., *(None,) * len(manifold.block_shape))]
    line = scene.place(manifold, manifold.geodesic(*means, time))
    eye = scene.background(ax, manifold, scene.place, np.concatenate([x, y]), line)
    depth = {"depthshade": False} if ax.name == "3d" else {}
    from matplotlib.colors import to_rgba_array

    def draw(points: Any, order: int, **style: Any) -> None:
        places = np.atleast_2d(scene.place(manifold, points))
        if eye is not None and "alpha" in style:  # faint behind the horizon
            alpha = np.where(places @ eye < 0, 0.3, 1.0) * style.pop("alpha")
            color = to_rgba_array([style.pop("color")] * len(places), alpha)
            style["edgecolors" if "facecolors" in style else "facecolors"] = color
        ax.scatter(*places.T, zorder=order, **style, **depth)

    for name, at, look in groups:  # open before, filled after
        draw(x[at], 3, facecolors="none", linewidths=0.8, alpha=0.75, s=14, **look)
        draw(y[at], 4, label=name, linewidths=0, alpha=0.75, s=14, **look)
    if groups:
        draw(x[:0], 3, label="input", s=14, facecolors="none", edgecolors=INK, linewidths=0.8)
        draw(y[:0], 4, label="output", s=14, color=INK)
    else:
        draw(x, 3, label="input", alpha=0.75, s=9, color=BLUE, linewidths=0)
        draw(y, 4, label="output", alpha=0.85, s=11, color=ORANGE, linewidths=0, marker="^")
    # a step over half of the picture goes over an edge whose opposite points are the same
    over = np.linalg.norm(np.diff(line, axis=0), axis=-1) > 0.5 * np.ptp(ax.get_xlim())
    line = np.insert(line, np.flatnonzero(over) + 1, np.nan, axis=0)
    ax.plot(*line.T, label=LABELS[-1], color=INK if groups else GREEN, linewidth=2, zorder=5)
    draw(means[0], 6, **MEAN_BEFORE)
    draw(means[1], 7, **MEAN_AFTER)
    if bias is not None:
        draw(bias, 8, **TARGET)
    ax.set_title(name_of(manifold) if title is None else title, fontsize=11, color=INK)
    if own:
        _legend(ax.figure, [ax], 2)
    return ax


def plot_overview(panels: Sequence[Panel], columns: int = 4) -> Any:
    """Draw one figure with a panel for each geometry and one legend, in a cell of its own.

    Parameters
    ----------
    panels
        What to draw, in the order of reading.
    columns
        Panels in a row, at most.

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
    figure, axes = new_figure(figsize=(3.2 * columns, 3.7 * rows)), []
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.14)
    for i, panel in enumerate(panels, 1):
        ax = figure.add_subplot(rows, columns, i, projection=_scene(panel.manifold).projection)
        axes.append(plot_normalization(*panel[:4], ax, title=panel.title))
    cell = figure.add_subplot(rows, columns, len(panels) + 1)
    cell.set_axis_off()
    _legend(cell, axes, loc="center", fontsize=12)
    return figure


# ---------------------------------------------------------------------- points in a tangent space


def plot_tangent(
    manifold: GyroSpace,
    x: Array,
    y: Array,
    bias: Array | None = None,
    axes: Sequence[Any] | None = None,
    *,
    labels: Any = None,
    title: str | None = None,
) -> tuple[Any, Any]:
    r"""Draw points before and after normalization as they are seen from their mean.

    The input is drawn by its normal coordinates :math:`\operatorname{Log}_e(\ominus\mu_x \oplus
    x_i)`, the output by :math:`\operatorname{Log}_e(\ominus\beta \oplus y_i)`, both on the first
    two principal axes of the input. The radius of a circle is the standard deviation. After GyroBN
    the second picture is the first one, scaled to the given standard deviation, with the output
    mean on the target. Both pictures have the same scale, unless one standard deviation is ten
    times the other: then the smaller cloud would be a dot, and its title says how much it is
    enlarged.

    Parameters
    ----------
    manifold
        Any geometry, of any dimension.
    x, y
        Points before and after, shape ``(N, *point_shape)``, of any library.
    bias
        The target :math:`\beta` that was given to :func:`~gyrobn.normalize`; the mean of the output
        by default.
    axes
        Two axes to draw in; the artists have labels for a legend. By default those of a new figure
        with a legend, ``axes[0].figure``, that pyplot does not know.
    labels
        N values: one colour and marker for the points of each, such as classes or subjects.
    title
        Text above a new figure; the geometry by default.

    Returns
    -------
    tuple of two matplotlib.axes.Axes
        The axes of the input and of the output.

    Examples
    --------
    >>> from gyrobn import SPD, batch_stats, normalize
    >>> M = SPD(8)  # of dimension 36
    >>> x = M.random(60, rng=0, spread=2.0)
    >>> y = normalize(M, x, batch_stats(M, x), scale=1.0)
    >>> before, after = plot_tangent(M, x, y, labels=["rest", "move"] * 30)
    >>> before.get_title(), after.get_title()
    ('input, v = 1.98', 'output, v = 1')
    """
    manifold, x, y, bias, groups = _checked(manifold, x, y, bias, labels)
    if axes is not None and len(axes) != 2:
        raise ValueError(f"expected two axes, for input and output, got {len(axes)}")
    before, after = frechet(manifold, x), frechet(manifold, y)
    target = after.mean if bias is None else bias
    c = manifold.relative_normal(before.mean, x)
    plane, share = _principal(c)
    clouds = c @ plane, manifold.relative_normal(target, y) @ plane
    means = np.zeros(2), manifold.relative_normal(target, after.mean) @ plane
    deviations = [float(np.sqrt(np.sum(result.variance))) for result in (before, after)]
    sizes = [max(abs(q).max(), v) or 1.0 for q, v in zip(clouds, deviations, strict=True)]
    largest = max(sizes)
    if not differ_by_ten(*deviations):
        sizes = [largest, largest]
    own = axes is None
    if axes is None:
        figure = new_figure(figsize=(8.0, 5.0))
        figure.suptitle(name_of(manifold) if title is None else title, color=INK)
        axes = figure.subplots(1, 2)
    style = {"s": 14, "alpha": 0.75, "linewidths": 0, "zorder": 3}
    looks = ("input", BLUE, "o", MEAN_BEFORE), ("output", ORANGE, "^", MEAN_AFTER)
    for k, (ax, (side, color, marker, mean)) in enumerate(zip(axes, looks, strict=True)):
        whole = (side, slice(None), {"color": color, "marker": marker})
        for name, at, look in groups or [whole]:
            ax.scatter(*clouds[k][at].T, label=name, **look, **style)
        ax.scatter(*means[k], zorder=6, **mean)
        circle = deviations[k] * CIRCLE.T
        ax.plot(*circle, "--", color=INK, linewidth=1.0, zorder=5, label="standard deviation v")
        larger = f", enlarged {largest / sizes[k]:.3g} times" if sizes[k] < largest else ""
        limits = -1.06 * sizes[k], 1.06 * sizes[k]
        ax.set(aspect="equal", xlim=limits, ylim=limits)
        ax.set_title(f"{side}, v = {deviations[k]:.3g}{larger}")
        ax.set_xlabel(f"principal axis 1 ({share[0]:.0%})")
    axes[0].set_ylabel(f"principal axis 2 ({share[1]:.0%})")
    if bias is not None:
        axes[1].scatter(0.0, 0.0, zorder=7, **TARGET)
    if own:
        _legend(axes[0].figure, axes, 4)
    return axes[0], axes[1]


def differ_by_ten(one: float, other: float) -> bool:
    """Return whether two standard deviations are too different for axes of the same scale."""
    return max(one, other) >= 10.0 * min(one, other) > 0.0


def _principal(c: Any) -> tuple[Any, Any]:
    """Return two principal axes of centred coordinates as columns, and their parts of the variance.

    If there is only one axis, the other one is zero.
    """
    missing = max(0, 2 - min(c.shape))
    _, values, axes = np.linalg.svd(c, full_matrices=False)
    # an axis has no sign: make its largest coordinate positive
    largest = np.take_along_axis(axes, abs(axes).argmax(axis=-1, keepdims=True), axis=-1)
    axes = np.pad(axes * np.where(largest < 0, -1.0, 1.0), ((0, missing), (0, 0)))
    return axes[:2].T, np.pad(values**2 / (np.sum(values**2) or 1.0), (0, missing))[:2]


# ---------------------------------------------------------------------- convergence


def plot_convergence(
    manifold: GyroSpace,
    x: Array,
    ax: Any = None,
    *,
    tol: float | None = None,
    max_iter: int = 64,
    title: str | None = None,
) -> Any:
    r"""Draw the residual of the Fréchet mean against the number of evaluations.

    The residual is the length of the gradient over the standard deviation,
    :math:`\|\sum_i w_i \operatorname{Log}_\mu x_i\|/v`, at the best mean so far, on a logarithmic
    axis; zero is drawn at the lower end. The dashed line is the tolerance of
    :func:`~gyrobn.frechet`. Rounding errors can keep the residual a little above it.

    Parameters
    ----------
    manifold
        Any geometry.
    x
        Samples, shape ``(N, *channels, *point_shape)``, of any library; one line per channel.
    ax
        Axes to draw in; the lines have labels for a legend. By default the axes of a new figure
        with a legend, ``ax.figure``, that pyplot does not know.
    tol, max_iter
        As in :func:`~gyrobn.frechet`.
    title
        Text above the axes; the geometry by default.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> from gyrobn import SPD
    >>> ax = plot_convergence(SPD(3), SPD(3).random(50, 2, rng=0))  # two channels
    >>> ax.get_legend_handles_labels()[1]
    ['channel 0', 'channel 1', 'tolerance']
    >>> ax.get_yscale()
    'log'
    """
    manifold, x = plain_geometry(manifold), host(x)
    results: list[FrechetResult] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrechetWarning)  # the picture shows it
        # frechet returns no steps in between, so it starts again each time, with the same steps
        while not results or (len(results) < max_iter and not np.all(results[-1].converged)):
            results.append(frechet(manifold, x, tol=tol, max_iter=len(results) + 1))
    mean = manifold.to_inside(results[-1].mean)
    variance = manifold.expand_blocks(results[-1].variance)
    deviation = np.sqrt(np.sum(variance, axis=-1))
    # if all samples are equal, the residual is a rounding error and has no unit
    unit = np.where(deviation > 0, deviation, 1.0)
    # the largest residual of each block that frechet takes for zero
    by_block = least_residual(variance, manifold.inside.resolutions(mean), tol)
    tolerance = np.sqrt(np.sum(by_block**2, axis=-1)) / unit
    residual = np.stack([r.residual / unit for r in results])
    least = float(np.min(residual, initial=math.inf, where=residual > 0))
    residual = np.maximum(residual, min(0.1 * tolerance.min(), least))
    counts = np.stack([r.iterations for r in results])
    own = ax is None
    if own:
        ax = new_figure(figsize=(6.0, 4.0)).add_subplot()
    channels = list(np.ndindex(tolerance.shape))
    for k, channel in enumerate(channels):
        color, label = COLOURS[k % 7], f"channel {', '.join(map(str, channel))}"
        if len(channels) > 7:
            label = "_" if k else f"{len(channels)} channels"  # one entry for all
        # a channel that has converged is not evaluated again
        evaluations, first = np.unique(counts[:, *channel], return_index=True)
        label = label if channel else "residual"
        ax.plot(evaluations, residual[first, *channel], label=label, marker="o", color=color)
        ax.axhline(tolerance[channel], linestyle="--", linewidth=1.0, color=color)
    ax.plot([], [], "--", color=INK, linewidth=1.0, label="tolerance")
    ax.set(yscale="log", xlabel="evaluations", ylabel="residual / standard deviation")
    ax.set_title(f"Mean on {name_of(manifold)}" if title is None else title)
    ax.xaxis.get_major_locator().set_params(integer=True)
    if own:
        _legend(ax.figure, [ax], 4)
    return ax
