r"""How the points of a geometry are shown, and what stands behind them.

The background comes from the geometry itself: rings of equal distance from the identity are
:math:`\operatorname{Exp}_e` of circles, and so are the surfaces.
"""

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from gyrobn.manifolds import Correlation, Grassmannian, Product
from gyrobn.manifolds.gyrospace import GyroSpace

FACE, GRID, INK = "#EEF1F4", "#CBD2D9", "#222222"
RING = 0.5
"""Distance between two grey rings."""
_GREY = {"color": GRID, "linewidth": 0.8, "zorder": 2, "label": "distance rings, 0.5 apart"}
_EDGE = {"color": INK, "linewidth": 1.3, "zorder": 2, "label": "boundary"}

_ANGLE = np.linspace(0.0, 2.0 * math.pi, 121)
CIRCLE = np.stack([np.cos(_ANGLE), np.sin(_ANGLE)], axis=-1)
"""The unit circle, one point per row."""

_Place = Callable[[GyroSpace, Any], Any]
"""Where points are drawn: two numbers per point, or three, the last upwards."""


class Scene(NamedTuple):
    """How the points of one kind of geometry are drawn."""

    projection: str
    """Kind of axes."""
    place: _Place
    background: Callable[[Any, GyroSpace, _Place, Any, Any], Any]
    """Prepare axes for points, and a curve in coordinates; return the direction of the eye if a
    surface hides what is on its far side, else None."""


def scene_of(manifold: GyroSpace) -> Scene | None:
    """Return how to draw this geometry, or None. Add a new kind of picture here."""
    match manifold:
        case Product():
            return None
        case Grassmannian(n=3, p=1):
            return Scene("rectilinear", _line, _plane)
        case Correlation(n=3):
            return Scene("3d", lambda _, x: x[..., (1, 2, 2), (0, 0, 1)], _elliptope)
        case GyroSpace(dim=2, point_shape=(2,)):
            return Scene("rectilinear", lambda _, x: x, _plane)
        case GyroSpace(dim=2, point_shape=(3,)):
            # the first coordinate upwards, so that the identity is at the top or bottom
            return Scene("3d", lambda _, x: np.roll(x, 2, axis=-1), _surface)
    return None


def _line(manifold: GyroSpace, x: Any) -> Any:
    """Show a line through the origin where it meets the upper hemisphere, seen from above."""
    u = manifold.to_inside(x)[..., 0]
    return np.where(u[..., :1] < 0, -u, u)[..., 1:]


# ---------------------------------------------------------------------- backgrounds


def _plane(ax: Any, manifold: GyroSpace, place: _Place, points: Any, line: Any) -> None:
    """Prepare a panel for points with two coordinates, on a disc if they cannot leave it."""
    curvature = getattr(manifold, "curvature", 0.0)
    edge = abs(curvature or 1.0) ** -0.5
    disc = abs(place(manifold, manifold.from_normal(3.0 * edge * CIRCLE))).max() <= edge
    reach = max(edge * (curvature > 0), float(abs(place(manifold, points)).max())) or 1.0
    limits = -1.04 * (edge if disc else reach), 1.04 * (edge if disc else reach)
    ax.set(aspect="equal", xlim=limits, ylim=limits, xticks=[], yticks=[])
    ax.set(facecolor="none" if disc else FACE)
    ax.spines[:].set_visible(False)
    _rings(ax, manifold, place, float(manifold.norm(points).max()))
    if disc:
        ax.fill(*(edge * CIRCLE).T, color=FACE, zorder=1)
    if disc or curvature > 0:  # opposite points of an equator are the same, or equally far
        equator = {} if curvature < 0 else {"label": "equator", "linestyle": ":"}
        ax.plot(*(edge * CIRCLE).T, **_EDGE | equator)


def _surface(ax: Any, manifold: GyroSpace, place: _Place, points: Any, line: Any) -> Any:
    """Prepare a panel for points with three coordinates: a sphere, or else a bowl."""
    from matplotlib.colors import LightSource

    closed = manifold.convexity_radius < math.inf
    reach = 2.0 * manifold.convexity_radius if closed else float(manifold.norm(points).max()) or 1.0
    disc = np.linspace(reach, 0.0, 41)  # inwards, so that the visible side is lit
    mesh = place(manifold, np.stack([_ring(manifold, r) for r in disc]))
    # without seams; thousands of facets would make a drawing slow to open
    style = {"rstride": 1, "cstride": 1, "linewidth": 0, "antialiased": False, "rasterized": True}
    if closed:  # seen from above the middle of the path
        eye = line[len(line) // 2] / np.linalg.norm(line[len(line) // 2])
    else:  # from above the rim, so that the mean moves to the right
        x, y, _ = line[-1] - line[0]
        eye = np.asarray([y, -x, math.hypot(x, y) or 1.0])
        ax.plot(*mesh[0].T, **_GREY)
    _stage(ax, mesh.min(axis=(0, 1)), mesh.max(axis=(0, 1)), eye, 1.5 if closed else 1.25)
    light = LightSource(azdeg=90.0 - ax.azim, altdeg=ax.elev)
    ax.plot_surface(*np.moveaxis(mesh, -1, 0), color=FACE, lightsource=light, zorder=1, **style)
    _rings(ax, manifold, place, reach, eye if closed else None)
    return eye if closed else None


def _elliptope(ax: Any, manifold: GyroSpace, place: _Place, points: Any, line: Any) -> None:
    r"""Prepare a panel for 3 × 3 correlation matrices, inside the surface of the singular ones.

    There the variables are unit vectors of a plane, with correlations
    :math:`(\cos a, \cos b, \cos(a - b))`. Its four corners are joined by straight edges.
    """
    a, b = np.meshgrid(np.linspace(0.0, math.pi, 41), np.linspace(0.0, 2.0 * math.pi, 81))
    shell, grey = (np.cos(a), np.cos(b), np.cos(a - b)), {"color": GRID, "zorder": 1}
    ax.plot_surface(*shell, alpha=0.16, shade=False, linewidth=0, rasterized=True, **grey)
    ax.plot_wireframe(*shell, rcount=17, ccount=9, linewidth=0.6, **grey)
    for ends in combinations([(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)], 2):
        ax.plot(*np.transpose(ends), **_EDGE | {"linewidth": 0.8})
    for name, middle in ("C₂₁ = −1", (-1, 0, 0)), ("C₃₁ = 1", (0, 1, 0)), ("C₃₂ = 1", (0, 0, 1)):
        ax.text(*1.15 * np.asarray(middle), name, ha="center", fontsize=9, color=INK, zorder=9)
    _stage(ax, -np.ones(3), np.ones(3), np.asarray([-0.5, 0.7, 0.4]), 1.15)


# ---------------------------------------------------------------------- what they are made of


def _ring(manifold: GyroSpace, radius: float) -> Any:
    """Return points at one distance from the identity, in all directions."""
    return manifold.from_normal(radius * CIRCLE)


def _rings(ax: Any, manifold: GyroSpace, place: _Place, reach: float, eye: Any = None) -> None:
    """Draw the rings that show distances up to ``reach``, without their part behind a surface."""
    for radius in RING * np.arange(1, int(reach / RING) + 1):
        ring = place(manifold, _ring(manifold, radius))
        if eye is not None:
            ring = np.where((ring @ eye < -1e-9)[:, None], np.nan, ring)
        ax.plot(*ring.T, **_GREY)


def _stage(ax: Any, low: Any, high: Any, eye: Any, zoom: float) -> None:
    """Set limits and view of axes in space, all three coordinates to one scale."""
    # matplotlib sorts whole artists by depth, which would hide points behind their own surface
    ax.computed_zorder = False
    ax.set_axis_off()
    ax.set_proj_type("ortho")
    x, y, z = eye
    ax.view_init(*np.degrees([math.atan2(z, math.hypot(x, y)), math.atan2(y, x)]))
    limits = zip(("xlim", "ylim", "zlim"), zip(low, high, strict=True), strict=True)
    ax.set(**dict(limits))
    ax.set_box_aspect(high - low, zoom=zoom)
