"""Points of any geometry before and after a normalization, in the tangent space at their mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.plot.canvas import (
    BLUE,
    INK,
    MEAN_AFTER,
    MEAN_BEFORE,
    ORANGE,
    TARGET,
    clouds_of,
    groups_of,
    legend_below,
    name_of,
    new_figure,
    target_of,
)
from gyrobn.plot.scenes import unit_circle
from gyrobn.statistics.frechet import frechet
from gyrobn.statistics.points import plain_geometry


def plot_tangent(
    manifold: GyroSpace,
    x: Array,
    y: Array,
    bias: Array | None = None,
    axes: Sequence[Any] | None = None,
    *,
    labels: Any = None,
    same_scale: bool | None = None,
    title: str | None = None,
) -> tuple[Any, Any]:
    r"""Draw points before and after normalization as they are seen from their mean.

    The input is drawn by its normal coordinates :math:`\operatorname{Log}_e(\ominus\mu_x \oplus
    x_i)`, the output by :math:`\operatorname{Log}_e(\ominus\beta \oplus y_i)`, both on the first
    two principal axes of the input. The radius of a circle is the standard deviation. After GyroBN
    the second picture is the first one, scaled to the given standard deviation, with the output
    mean on the target.

    Parameters
    ----------
    manifold
        Any geometry, of any dimension.
    x, y
        Points before and after, both of shape ``(N, *point_shape)``, of any library.
    bias
        The target :math:`\beta` that was given to :func:`~gyrobn.normalize`; the mean of the output
        by default.
    axes
        Two axes to draw in; the artists have labels for a legend. By default those of a new figure
        with a legend, ``axes[0].figure``, that pyplot does not know.
    labels
        N values: one colour and marker for the points of each, such as classes or subjects.
    same_scale
        Whether both axes have the same scale, which shows how the standard deviation changes. By
        default they have, unless one standard deviation is ten times the other: then the smaller
        cloud would be a dot, and the title of its axes says that their scale is another one.
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
    manifold = plain_geometry(manifold)
    x, y = clouds_of(manifold, x, y)
    if len(y) != len(x):
        raise ValueError(
            f"expected as many points before as after, got shapes {x.shape} and {y.shape}"
        )
    groups = None if labels is None else groups_of(labels, len(x))
    if axes is not None and len(axes) != 2:
        raise ValueError(f"expected two axes, for input and output, got {len(axes)}")

    before, after = frechet(manifold, x), frechet(manifold, y)
    target = after.mean if bias is None else target_of(manifold, bias)
    c = manifold.relative_normal(before.mean, x)
    plane, share = _principal(c)
    clouds = c @ plane, manifold.relative_normal(target, y) @ plane
    means = np.zeros(2), manifold.relative_normal(target, after.mean) @ plane
    deviations = [float(np.sqrt(np.sum(result.variance))) for result in (before, after)]
    sizes = [max(abs(q).max(), v) or 1.0 for q, v in zip(clouds, deviations, strict=True)]
    if same_scale is None:
        same_scale = not differ_by_ten(*deviations)
    if same_scale:
        sizes = [max(sizes)] * 2

    own = axes is None
    if axes is None:
        figure = new_figure(figsize=(8.0, 5.0))
        figure.suptitle(name_of(manifold) if title is None else title, color=INK)
        axes = figure.subplots(1, 2)
    for k, side in enumerate(("input", "output")):
        _draw_side(axes[k], side, clouds[k], means[k], deviations[k], sizes[k], groups)
        axes[k].set_xlabel(f"principal axis 1 ({share[0]:.0%})")
        if not same_scale and sizes[k] < max(sizes):
            axes[k].set_title(f"{axes[k].get_title()}, enlarged {max(sizes) / sizes[k]:.3g} times")
    left, right = axes
    left.set_ylabel(f"principal axis 2 ({share[1]:.0%})")
    if bias is not None:
        right.scatter(0.0, 0.0, zorder=7, **TARGET)
    if own:
        legend_below([left, right], columns=4)
    return left, right


def differ_by_ten(one: float, other: float) -> bool:
    """Return whether two standard deviations are too different for axes of the same scale."""
    return max(one, other) >= 10.0 * min(one, other) > 0.0


def _draw_side(
    ax: Any, side: str, points: Any, mean: Any, deviation: float, size: float, groups: Any
) -> None:
    """Draw the input or the output: the cloud, its mean, and a circle for its deviation."""
    style = {"s": 14, "alpha": 0.75, "linewidths": 0, "zorder": 3}
    if groups is None:
        color, marker = (BLUE, "o") if side == "input" else (ORANGE, "^")
        ax.scatter(*points.T, color=color, marker=marker, label=side, **style)
    for name, at, own in groups or ():
        ax.scatter(*points[at].T, label=name, **own, **style)
    ax.scatter(*mean, zorder=6, color=INK, **MEAN_BEFORE if side == "input" else MEAN_AFTER)
    circle = {"color": INK, "linewidth": 1.0, "label": "standard deviation v"}
    ax.plot(*(deviation * unit_circle()).T, "--", zorder=5, **circle)
    limits = -1.06 * size, 1.06 * size
    ax.set(aspect="equal", xlim=limits, ylim=limits, title=f"{side}, v = {deviation:.3g}")
    ax.spines[["top", "right"]].set_visible(False)


def _principal(c: Any) -> tuple[Any, Any]:
    """Return two principal axes of centred coordinates as columns, and their parts of the variance.

    If there is only one axis, the other one is zero.
    """
    _, values, axes = np.linalg.svd(c, full_matrices=False)
    # an axis has no sign: make its largest coordinate positive
    largest = np.take_along_axis(axes, abs(axes).argmax(axis=-1, keepdims=True), axis=-1)
    axes = axes * np.where(largest < 0, -1.0, 1.0)
    share = values**2 / (np.sum(values**2) or 1.0)
    missing = max(0, 2 - len(axes))
    return np.pad(axes, ((0, missing), (0, 0)))[:2].T, np.pad(share, (0, missing))[:2]
