r"""Pictures of a normalization: the points that came in, those that came out, and both means.

Any two-dimensional geometry whose points have two coordinates (drawn in the plane) or three (drawn
on their surface) can be shown. The background comes from the geometry itself: rings of equal
distance from the identity are :math:`\operatorname{Exp}_e` of circles, and so is the surface.

matplotlib is imported when a picture is asked for, never before, and pyplot not at all: nothing
here depends on a display or touches the figures of the caller.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of
from gyrobn.frechet import frechet_mean
from gyrobn.gyrospace import GyroSpace

__all__ = ["Panel", "can_plot", "plot_normalization", "plot_overview"]

# Okabe and Ito's palette: told apart with any kind of colour vision. The two clouds differ in
# lightness and marker too, so the picture survives a black-and-white printer.
BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
FACE, GRID, INK = "#EEF1F4", "#CBD2D9", "#222222"

RING = 0.5
"""Distance between two grey rings."""


class Panel(NamedTuple):
    """What :func:`plot_overview` draws in one panel; see :func:`plot_normalization`."""

    manifold: GyroSpace
    x: Array
    y: Array
    bias: Array | None = None
    title: str | None = None
    caption: str | None = None


def can_plot(manifold: GyroSpace) -> bool:
    """Tell whether there is a picture for this geometry.

    >>> from gyrobn import Sphere
    >>> can_plot(Sphere(2)), can_plot(Sphere(5))
    (True, False)
    """
    return manifold.dim == 2 and manifold.point_shape in _SCENES


def plot_normalization(
    manifold: GyroSpace,
    x: Array,
    y: Array,
    bias: Array | None = None,
    ax: Any = None,
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Any:
    r"""Draw points before and after normalization on a two-dimensional geometry.

    The line between the two means is the geodesic
    :math:`t \mapsto \mu_x \oplus (t \odot (\ominus\mu_x \oplus \mu_y))`. A solid circle is the
    boundary of the space (K < 0), a dotted one the equator (K > 0), both of radius
    :math:`1/\sqrt{|K|}`; grey rings are half a unit of distance apart.

    Parameters
    ----------
    manifold
        A geometry of dimension 2 with points of shape (2,) or (3,).
    x, y
        Points before and after, shape ``(N, *point_shape)``, of any library.
    bias
        The target that was given to :func:`~gyrobn.normalize`, drawn as an open ring.
    ax
        Axes to draw in, three-dimensional (``projection="3d"``) for points of shape (3,). By
        default the axes of a new figure, ``ax.figure``, that pyplot does not know of.
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
    >>> x = M.random(50)
    >>> ax = plot_normalization(M, x, normalize(M, x, batch_stats(M, x), scale=0.5))
    >>> ax.get_title()
    'PoincareBall,  K = −1'
    >>> ax.figure.savefig("ball.png")  # doctest: +SKIP
    """
    if not can_plot(manifold):
        raise ValueError(
            f"{manifold!r} has points of shape {manifold.point_shape} and dimension "
            f"{manifold.dim}: only 2-dimensional geometries with points of shape (2,) or (3,) "
            "can be drawn"
        )
    scene = _SCENES[manifold.point_shape]
    if ax is None:
        ax = _figure(figsize=(4.5, 4.5)).add_subplot(projection=scene.projection)
    elif ax.name != scene.projection:
        raise ValueError(
            f"points of {manifold!r} are drawn on {scene.projection!r} axes, got {ax.name!r}: "
            f"make them with figure.add_subplot(projection={scene.projection!r})"
        )
    # from here on NumPy: points, and a curvature that may be a tensor, become plain numbers
    constant = manifold.detached()
    plain = {name: float(getattr(constant, name)) for name in constant.parameters}
    manifold = replace(constant, **plain)
    x, y = (np.asarray(backend_of(p).to_numpy(p), dtype=np.float64) for p in (x, y))
    mean_x, mean_y = frechet_mean(manifold, x), frechet_mean(manifold, y)
    path = manifold.geodesic(mean_x, mean_y, np.linspace(0.0, 1.0, 101))

    scene.background(ax, manifold, np.concatenate([x, y]), path)
    for name, points, order, style in (
        ("input", x, 3, {"s": 9, "color": BLUE, "alpha": 0.75, "linewidths": 0}),
        ("output", y, 4, {"s": 11, "color": ORANGE, "alpha": 0.85, "linewidths": 0, "marker": "^"}),
    ):
        _scatter(ax, points, name, order, **style)
    ax.plot(*_place(path), color=GREEN, linewidth=2, zorder=5, label="geodesic between the means")
    edge = {"edgecolors": "white", "linewidths": 1.0}
    _scatter(ax, mean_x, "input mean", 6, s=75, color=BLUE, marker="D", **edge)
    _scatter(ax, mean_y, "output mean", 7, s=150, color=VERMILION, marker="*", **edge)
    if bias is not None:
        ring = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.3}
        _scatter(ax, backend_of(bias).to_numpy(bias), "target β", 8, s=230, marker="o", **ring)

    ax.set_title(_title(manifold) if title is None else title, fontsize=13, color=INK)
    if caption is not None:  # an annotation, because axes in space have no label below them
        style = {"ha": "center", "va": "top", "fontsize": 11, "color": INK}
        ax.annotate(caption, (0.5, -0.03), xycoords="axes fraction", **style)
    return ax


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
    >>> panels = [Panel(M, M.random(9, spread=0.2), M.random(9, spread=0.1))
    ...           for M in (Euclidean(2), Sphere(2))]
    >>> len(plot_overview(panels).axes)  # two panels and the legend's
    3
    """
    columns = min(columns, len(panels) + 1)
    rows = math.ceil((len(panels) + 1) / columns)
    figure = _figure(figsize=(3.2 * columns, 3.5 * rows), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.14)
    if title is not None:
        figure.suptitle(title, fontsize=15, color=INK)
    entries: dict[str, Any] = {}
    for i, panel in enumerate(panels):
        scene = _SCENES[panel.manifold.point_shape]
        ax = figure.add_subplot(rows, columns, i + 1, projection=scene.projection)
        plot_normalization(*panel[:4], ax, title=panel.title, caption=panel.caption)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    cell = figure.add_subplot(rows, columns, len(panels) + 1)
    cell.set_axis_off()
    labels = [label for label in _LEGEND if label in entries]
    handles = [entries[label] for label in labels]
    legend = cell.legend(handles, labels, loc="center", frameon=False, fontsize=12)
    for label, handle in zip(labels, legend.legend_handles, strict=True):
        if label in ("input", "output"):  # dots of the size they are drawn in show no colour
            handle.set_sizes([40])
    return figure


_LEGEND = (
    "input",
    "input mean",
    "output",
    "output mean",
    "target β",
    "geodesic between the means",
    "boundary (K < 0)",
    "equator (K > 0)",
    "distance rings, 0.5 apart",
)
"""The labels of all artists, in the order of reading."""


# ---------------------------------------------------------------------- the two kinds of panel


def _plane(ax: Any, manifold: GyroSpace, points: Any, path: Any) -> None:
    """Prepare a panel for points with two coordinates."""
    curvature = getattr(manifold, "curvature", 0.0)
    edge = abs(curvature) ** -0.5 if curvature else 0.0
    size = edge if curvature < 0 else max(edge, float(abs(points).max())) or 1.0
    ax.set(aspect="equal", xlim=(-1.04 * size, 1.04 * size), ylim=(-1.04 * size, 1.04 * size))
    ax.set(xticks=[], yticks=[], facecolor="none" if curvature < 0 else FACE)
    ax.spines[:].set_visible(False)
    for radius in _radii(float(manifold.norm(points).max())):
        ax.plot(*_place(_ring(manifold, radius)), **_GREY)
    if curvature:
        circle = edge * _circle()
        style, label = ("-", "boundary (K < 0)") if curvature < 0 else (":", "equator (K > 0)")
        ax.plot(*circle, style, color=INK, linewidth=1.3, zorder=2, label=label)
    if curvature < 0:
        ax.fill(*circle, color=FACE, zorder=1)


def _surface(ax: Any, manifold: GyroSpace, points: Any, path: Any) -> None:
    """Prepare a panel for points with three coordinates, the first of them drawn upwards."""
    from matplotlib.colors import LightSource

    curvature = getattr(manifold, "curvature", 0.0)
    reach = float(manifold.norm(points).max()) or 1.0
    radius = math.pi * curvature**-0.5 if curvature > 0 else reach
    disc = np.linspace(radius, 0.0, 41)  # inwards, so that the side that is lit is the one seen
    mesh = _place(np.stack([_ring(manifold, r) for r in disc]))
    start, camera, end = _place(path[[0, len(path) // 2, -1]]).T
    if curvature > 0:  # a sphere is seen from above the middle of the data
        azimuth = math.atan2(camera[1], camera[0])
        elevation = math.atan2(camera[2], math.hypot(camera[0], camera[1]))
    else:  # a bowl from above its rim, so that the mean moves to the right
        azimuth = math.atan2(end[1] - start[1], end[0] - start[0]) - 0.5 * math.pi
        elevation = 0.25 * math.pi
    azimuth, elevation = math.degrees(azimuth), math.degrees(elevation)
    light = LightSource(azdeg=90.0 - azimuth, altdeg=elevation)
    smooth = {"rstride": 1, "cstride": 1, "linewidth": 0, "antialiased": False}  # shows no seams
    ax.plot_surface(*mesh, color=FACE, lightsource=light, zorder=1, **smooth)
    rings = [_place(_ring(manifold, r)) for r in (*_radii(radius), radius)]
    if curvature > 0:  # of a sphere only the near side is in sight, up to the horizon
        rings = [np.where(camera @ ring > 0, ring, np.nan) for ring in rings]
        rings.append(curvature**-0.5 * np.linalg.svd(camera[None])[2][1:].T @ _circle())
    for ring in rings:
        ax.plot(*ring, **_GREY)
    # matplotlib sorts whole artists by depth, which would hide points behind their own surface
    ax.computed_zorder = False
    ax.set_axis_off()
    ax.set_proj_type("ortho")
    ax.view_init(elev=elevation, azim=azimuth)
    low, high = mesh.min(axis=(1, 2)), mesh.max(axis=(1, 2))
    if curvature <= 0:  # room above the rim brings the bowl to the middle of the panel
        high[2] += 0.6 * (high[2] - low[2])
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    ax.set_box_aspect(high - low, zoom=1.6 if curvature > 0 else 1.4)


_GREY = {"color": GRID, "linewidth": 0.8, "zorder": 2, "label": "distance rings, 0.5 apart"}


class _Scene(NamedTuple):
    """How the points of one shape are drawn."""

    projection: str
    background: Callable[[Any, GyroSpace, Any, Any], None]


_SCENES: dict[tuple[int, ...], _Scene] = {
    (2,): _Scene("rectilinear", _plane),
    (3,): _Scene("3d", _surface),
}
"""By the shape of a point; a later geometry with another shape adds its scene here."""


def _radii(reach: float) -> Any:
    """Return the radii of the rings that show distances up to ``reach``."""
    return RING * np.arange(1, int(reach / RING) + 1)


def _ring(manifold: GyroSpace, radius: float) -> Any:
    """Return points at one distance from the identity, all the way around."""
    return manifold.from_normal(radius * _circle().T)


def _circle() -> Any:
    """Return the unit circle, one row a coordinate."""
    angle = np.linspace(0.0, 2.0 * math.pi, 121)
    return np.stack([np.cos(angle), np.sin(angle)])


def _place(points: Any) -> Any:
    """Return one array a coordinate, as matplotlib takes them; of three, the first goes upwards."""
    return np.moveaxis(np.roll(points, 2, axis=-1), -1, 0)


def _scatter(ax: Any, points: Any, label: str, order: int, **style: Any) -> None:
    if ax.name == "3d":
        style["depthshade"] = False
    ax.scatter(*_place(points), label=label, zorder=order, **style)


def _title(manifold: GyroSpace) -> str:
    """Return the name of the geometry and its curvature, 0 where it has no such parameter."""
    value = f"{getattr(manifold, 'curvature', 0.0):g}".replace("-", "−")
    return f"{type(manifold).__name__},  K = {value}"


def _figure(**options: Any) -> Any:
    """Return a new figure outside pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib: install it with pip install 'gyrobn[plot]'"
        ) from error
    return Figure(**options)
