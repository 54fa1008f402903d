r"""How the points of a geometry are shown, and what stands behind them.

The background comes from the geometry itself: rings of equal distance from the identity are
:math:`\operatorname{Exp}_e` of circles, and so are the surfaces.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.manifolds import Correlation, Grassmannian, Product
from gyrobn.manifolds.gyrospace import GyroSpace

FACE, GRID, INK = "#EEF1F4", "#CBD2D9", "#222222"
RING = 0.5
"""Distance between two grey rings."""
_GREY = {"color": GRID, "linewidth": 0.8, "zorder": 2, "label": "distance rings, 0.5 apart"}
_EDGE = {"color": INK, "linewidth": 1.3, "zorder": 2}

_ANGLE = np.linspace(0.0, 2.0 * math.pi, 121)
CIRCLE = np.stack([np.cos(_ANGLE), np.sin(_ANGLE)], axis=-1)
"""The unit circle, one point per row."""

_Place = Callable[[GyroSpace, Any], Any]
"""Where points are drawn: two numbers per point, or three, the last upwards."""
_View = tuple[float, float]
"""Elevation and azimuth of the eye."""


class Scene(NamedTuple):
    """How the points of one kind of geometry are drawn."""

    projection: str
    """Kind of axes."""
    coordinates: _Place
    background: Callable[[Any, GyroSpace, Any, Any], Any]
    """Prepare axes for points, and a curve in coordinates; return the direction of the eye if a
    surface hides what is on its far side, else None."""
    longest: float = math.inf
    """A longer step along a curve goes over an edge whose opposite points are the same."""


def scene_of(manifold: GyroSpace) -> Scene | None:
    """Return how to draw this geometry, or None. Add a new kind of picture here."""
    match manifold:
        case Product():  # a cylinder, a torus: nobody has tried those
            return None
        case Grassmannian(n=3, p=1):
            return Scene("3d", _lines, _dome, longest=1.0)
        case Correlation(n=3):
            return Scene("3d", lambda _, x: x[..., (1, 2, 2), (0, 0, 1)], _elliptope)
        case GyroSpace(dim=2, point_shape=(2,)):
            return Scene("rectilinear", lambda _, x: x, _plane)
        case GyroSpace(dim=2, point_shape=(3,)):
            return Scene("3d", _upright, _surface)
    return None


def _upright(manifold: GyroSpace, x: Any) -> Any:
    """Draw the first of three coordinates upwards, so that the identity is at the top or bottom."""
    return np.roll(x, 2, axis=-1)


def _lines(manifold: GyroSpace, x: Any) -> Any:
    """Show a line through the origin by its unit vector of the upper hemisphere."""
    u = manifold.to_inside(x)[..., 0]
    return _upright(manifold, np.where(u[..., :1] < 0, -u, u))


# ---------------------------------------------------------------------- backgrounds


def _plane(ax: Any, manifold: GyroSpace, points: Any, line: Any) -> None:
    """Prepare a panel for points with two coordinates."""
    curvature = getattr(manifold, "curvature", 0.0)
    edge = abs(curvature) ** -0.5 if curvature else 0.0
    if curvature < 0 and bool(manifold.contains(np.asarray([2.0 * edge, 0.0]))):
        curvature = 0.0  # a model of all vectors has no boundary
    size = 1.04 * (edge if curvature < 0 else max(edge, float(abs(points).max())) or 1.0)
    ax.set(aspect="equal", xlim=(-size, size), ylim=(-size, size), xticks=[], yticks=[])
    ax.set(facecolor="none" if curvature < 0 else FACE)
    ax.spines[:].set_visible(False)
    _rings(ax, manifold, _as_it_is, float(manifold.norm(points).max()))
    if curvature:
        style, label = ("-", "boundary") if curvature < 0 else (":", "equator")
        ax.plot(*(edge * CIRCLE).T, style, label=label, **_EDGE)
    if curvature < 0:
        ax.fill(*(edge * CIRCLE).T, color=FACE, zorder=1)


def _surface(ax: Any, manifold: GyroSpace, points: Any, line: Any) -> Any:
    """Prepare a panel for points with three coordinates: a sphere, or else a bowl."""
    curvature = getattr(manifold, "curvature", 0.0)
    if curvature > 0:  # seen from above the middle of the path
        size = curvature**-0.5
        return _globe(ax, manifold, _upright, math.pi * size, size, _angles(line[len(line) // 2]))
    reach = float(manifold.norm(points).max()) or 1.0
    # from above the rim, so that the mean moves to the right
    view = 0.25 * math.pi, _angles(line[-1] - line[0])[1] - 0.5 * math.pi
    mesh = _shaded(ax, manifold, _upright, reach, view)
    _rings(ax, manifold, _upright, reach)
    ax.plot(*mesh[0].T, **_GREY)
    low, high = mesh.min(axis=(0, 1)), mesh.max(axis=(0, 1))
    high[2] += 0.6 * (high[2] - low[2])  # brings the bowl to the middle of the panel
    _stage(ax, low, high, view, 1.4)
    return None


def _dome(ax: Any, manifold: GyroSpace, points: Any, line: Any) -> Any:
    """Prepare a panel for lines: the upper hemisphere, opposite points of its edge are the same."""
    elevation, azimuth = _angles(line[len(line) // 2])
    view = min(elevation, 0.7), azimuth  # from not too far above, or it would look like a disc
    if min(line[[0, -1]] @ _direction(view)) < 0.2:
        view = 0.5 * math.pi, azimuth  # a mean at the horizon: only the top view shows all
    # not quite to the edge, where a line has two places
    eye = _globe(ax, manifold, _lines, 0.5 * math.pi - 1e-6, 1.0, view, lift=0.25)
    edge = np.pad(CIRCLE, ((0, 0), (0, 1)))
    ax.plot(*_near(edge, eye).T, ":", label="equator", **_EDGE)
    return eye


def _globe(
    ax: Any,
    manifold: GyroSpace,
    place: _Place,
    reach: float,
    size: float,
    view: _View,
    lift: float = 0.0,
) -> Any:
    """Draw a sphere of radius ``size``, or its cap up to the distance ``reach`` from the top."""
    _shaded(ax, manifold, place, reach, view)
    eye = _direction(view)
    horizon = size * CIRCLE @ np.linalg.svd(eye[None])[2][1:]
    horizon[horizon[:, 2] < size * math.cos(reach / size) - 1e-5] = np.nan  # below the cap
    _rings(ax, manifold, place, reach, eye)
    ax.plot(*_near(horizon, eye).T, **_GREY)
    centre = np.asarray([0.0, 0.0, lift])  # the lower half of a cap is missing
    _stage(ax, centre - size, centre + size, view, 1.6)
    return eye


def _elliptope(ax: Any, manifold: GyroSpace, points: Any, line: Any) -> None:
    r"""Prepare a panel for 3 × 3 correlation matrices, inside the surface of the singular ones.

    There the variables are unit vectors of a plane, with correlations
    :math:`(\cos a, \cos b, \cos(a - b))`.
    """
    a, b = np.meshgrid(np.linspace(0.0, math.pi, 41), np.linspace(0.0, 2.0 * math.pi, 81))
    shell, grey = (np.cos(a), np.cos(b), np.cos(a - b)), {"color": GRID, "zorder": 1}
    ax.plot_surface(*shell, alpha=0.16, shade=False, linewidth=0, rasterized=True, **grey)
    ax.plot_wireframe(*shell, rcount=17, ccount=9, linewidth=0.6, **grey)
    # where a correlation is 1 or −1, the other two are equal or opposite: six straight edges
    behind = _EDGE | {"linewidth": 0.5, "linestyle": (0, (6, 4))}
    for k in range(3):
        front = (-1.0, 1.0, 1.0)[k]
        for sign in (-1.0, 1.0):
            ends = np.empty((2, 3))
            ends[:, k], ends[:, k - 1], ends[:, k - 2] = sign, (1.0, -1.0), (sign, -sign)
            ax.plot(*ends.T, **_EDGE | {"label": "boundary"} if sign == front else behind)
    for name, *place, ha, va in (
        ("C₂₁ = −1", -1.18, -0.06, 0.0, "left", "center"),
        ("C₃₁ = 1", 0.08, 1.16, 0.0, "right", "center"),
        ("C₃₂ = 1", 0.0, 0.0, 1.1, "center", "bottom"),
    ):
        ax.text(*place, name, ha=ha, va=va, fontsize=9, color=INK, zorder=9)
    corner = np.asarray([1.0, 1.0, 0.9])  # room for the corner that points downwards
    _stage(ax, corner - 2.0, corner, (0.44, 2.19), 1.15)  # the three solid edges are in front


# ---------------------------------------------------------------------- what they are made of


def _as_it_is(manifold: GyroSpace, x: Any) -> Any:
    return x


def _ring(manifold: GyroSpace, radius: float) -> Any:
    """Return points at one distance from the identity, in all directions."""
    return manifold.from_normal(radius * CIRCLE)


def _rings(ax: Any, manifold: GyroSpace, place: _Place, reach: float, eye: Any = None) -> None:
    """Draw the rings that show distances up to ``reach``."""
    for radius in RING * np.arange(1, int(reach / RING) + 1):
        line = place(manifold, _ring(manifold, radius))
        ax.plot(*(line if eye is None else _near(line, eye)).T, **_GREY)


def _near(line: Any, eye: Any) -> Any:
    """Return a line without its part on the far side of the origin."""
    return np.where((line @ eye < -1e-9)[:, None], np.nan, line)


def _shaded(ax: Any, manifold: GyroSpace, place: _Place, reach: float, view: _View) -> Any:
    """Draw the surface up to a distance from the identity, lit from the eye; return its mesh."""
    from matplotlib.colors import LightSource

    disc = np.linspace(reach, 0.0, 41)  # inwards, so that the visible side is lit
    mesh = place(manifold, np.stack([_ring(manifold, r) for r in disc]))
    elevation, azimuth = np.degrees(view)
    light = LightSource(azdeg=90.0 - azimuth, altdeg=elevation)
    # without seams; thousands of facets would make a drawing slow to open
    style = {"rstride": 1, "cstride": 1, "linewidth": 0, "antialiased": False, "rasterized": True}
    ax.plot_surface(*np.moveaxis(mesh, -1, 0), color=FACE, lightsource=light, zorder=1, **style)
    return mesh


def _stage(ax: Any, low: Any, high: Any, view: _View, zoom: float) -> None:
    """Set limits and view of axes in space, all three coordinates to one scale."""
    # matplotlib sorts whole artists by depth, which would hide points behind their own surface
    ax.computed_zorder = False
    ax.set_axis_off()
    ax.set_proj_type("ortho")
    ax.view_init(*np.degrees(view))
    limits = zip(("xlim", "ylim", "zlim"), zip(low, high, strict=True), strict=True)
    ax.set(**dict(limits))
    ax.set_box_aspect(high - low, zoom=zoom)


def _angles(v: Any) -> _View:
    return math.atan2(v[2], math.hypot(v[0], v[1])), math.atan2(v[1], v[0])


def _direction(view: _View) -> Any:
    """Return the unit vector to the eye."""
    elevation, azimuth = view
    x, y = math.cos(elevation) * np.asarray([math.cos(azimuth), math.sin(azimuth)])
    return np.asarray([x, y, math.sin(elevation)])
