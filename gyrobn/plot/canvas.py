"""What all pictures share: colours, figures outside pyplot, legends."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyrobn.data import replacing
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import check_finite

# Okabe and Ito's palette, for any kind of colour vision. Whatever differs in colour also differs in
# marker, for black-and-white printers.
BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, "#CC79A7", "#56B4E9", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">")
FACE, GRID, INK = "#EEF1F4", "#CBD2D9", "#222222"

_WHITE_EDGE: dict[str, Any] = {"edgecolors": "white", "linewidths": 1.0}
MEAN_BEFORE = _WHITE_EDGE | {"label": "input mean", "marker": "D", "s": 75}
MEAN_AFTER = _WHITE_EDGE | {"label": "output mean", "marker": "*", "s": 150}
TARGET: dict[str, Any] = {"label": "target β", "marker": "o", "s": 230}
TARGET |= {"facecolors": "none", "edgecolors": INK, "linewidths": 1.3}
"""How the means and the target are drawn."""

NEEDS_MATPLOTLIB = "pictures need matplotlib: install it with pip install 'gyrobn[plot]'"


def new_figure(**options: Any) -> Any:
    """Return a new figure that pyplot does not know."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(NEEDS_MATPLOTLIB) from error
    return Figure(layout="constrained", **options)


def clouds_of(manifold: GyroSpace, x: Any, y: Any) -> tuple[Any, Any]:
    """Return the points before and after as NumPy arrays, or say why they cannot be drawn."""
    clouds = host(x, "x", np.float64), host(y, "y", np.float64)
    for name, points in zip("xy", clouds, strict=True):
        if points.shape[1:] != manifold.point_shape:
            raise ValueError(
                f"expected {name} of shape (N, {', '.join(map(str, manifold.point_shape))}), got "
                f"{points.shape}: draw one channel at a time"
            )
        check_finite(manifold, points, name, 0, "leave such points out, before and after")
    return clouds


def target_of(manifold: GyroSpace, bias: Any) -> Any:
    """Return the bias as a NumPy array; refuse what is not one point."""
    point = host(bias, "bias", np.float64)
    if point.shape != manifold.point_shape:
        raise ValueError(
            f"bias must be a point of {manifold!r}, shape {manifold.point_shape}, got shape "
            f"{point.shape}"
        )
    return point


def groups_of(labels: Any, count: int) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return for each label its name, which of the points have it, and colour and marker."""
    names = np.asarray(labels)
    if names.shape != (count,):
        raise ValueError(
            f"expected a label for each of the {count} points, got an array of shape {names.shape}"
        )
    groups = []
    for k, name in enumerate(np.unique(names)):
        # 7 colours and 9 markers give 63 different pairs
        style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
        groups.append((str(name), names == name, style))
    return groups


def check_format(path: Path) -> None:
    """Refuse a suffix that is not a format of matplotlib."""
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in {"", *known}:
        raise ValueError(
            f"{path} has the suffix {path.suffix!r}: expected one of "
            + ", ".join(f".{name}" for name in sorted(known))
        )


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure, completely or not at all, in the format of the suffix; PNG without one."""
    with replacing(path) as draft:
        # the suffix of the draft does not give the format
        figure.savefig(draft, dpi=dpi, format=path.suffix[1:].lower() or "png")


def add_legend(place: Any, entries: dict[str, Any], **options: Any) -> None:
    """Add a legend to axes or to a figure, with dots large and dark enough to show their colour."""
    legend = place.legend(entries.values(), entries.keys(), frameon=False, **options)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set(sizes=np.maximum(handle.get_sizes(), 40.0), alpha=0.85)


def legend_below(axes: Sequence[Any], columns: int, order: Sequence[str] = ()) -> None:
    """Put one legend below all axes of their figure.

    The figure grows with a long legend, so that the axes keep their size.
    """
    entries, figure = legend_entries(axes, order), axes[0].figure
    columns = min(columns, len(entries))
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + 0.22 * max(0, rows - 6))
    add_legend(figure, entries, loc="outside lower center", ncols=columns)


def legend_entries(axes: Sequence[Any], order: Sequence[str] = ()) -> dict[str, Any]:
    """Return an artist for each label in the axes, the labels in ``order`` first."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return {label: found[label] for label in (*order, *found) if label in found}


def name_of(manifold: GyroSpace) -> str:
    """Return the name of a geometry with its sizes, such as ``Grassmannian(5, 2)``."""
    sizes = [str(value) for value in vars(manifold).values() if isinstance(value, int)]
    return f"{type(manifold).__name__}({', '.join(sizes)})" if sizes else type(manifold).__name__
