"""How the iteration for a mean converges."""

import math
import warnings
from typing import Any

import numpy as np

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.checks import host
from gyrobn.plot.canvas import BLUE, COLOURS, INK, MARKERS, legend_below, name_of, new_figure
from gyrobn.statistics.frechet import FrechetResult, frechet, least_residual
from gyrobn.statistics.points import plain_geometry
from gyrobn.statistics.uniqueness import FrechetWarning


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
    results = _history(manifold, x, tol, max_iter)
    counts = np.stack([r.iterations for r in results])
    own = ax is None
    if own:
        ax = new_figure(figsize=(6.0, 4.0)).add_subplot()
    _draw_lines(ax, counts, *_relative(manifold, results, tol))
    ax.set(
        yscale="log",
        xlim=(0.5, counts.max() + 0.5),
        xlabel="evaluations",
        ylabel="residual / standard deviation",
        title=f"Mean on {name_of(manifold)}" if title is None else title,
    )
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    if own:
        legend_below([ax], columns=4)
    return ax


def _relative(
    manifold: GyroSpace, results: list[FrechetResult], tol: float | None
) -> tuple[Any, Any]:
    """Return the residuals and the tolerance of each channel, over the standard deviation."""
    mean = manifold.to_inside(results[-1].mean)
    variance = manifold.expand_blocks(results[-1].variance)
    deviation = np.sqrt(np.sum(variance, axis=-1))
    # if all samples are equal, the residual is a rounding error and has no unit
    unit = np.where(deviation > 0, deviation, 1.0)
    # the largest residual of each block that frechet takes for zero
    by_block = least_residual(variance, manifold.inside.resolutions(mean), tol)
    tolerance = np.sqrt(np.sum(by_block**2, axis=-1)) / unit
    relative = np.stack([r.residual / unit for r in results])
    least = float(np.min(relative, initial=math.inf, where=relative > 0))
    return np.maximum(relative, min(0.1 * tolerance.min(), least)), tolerance


def _draw_lines(ax: Any, counts: Any, relative: Any, tolerance: Any) -> None:
    """Draw one line per channel, and its tolerance."""
    channels = list(np.ndindex(tolerance.shape))
    few = len(channels) <= len(COLOURS)
    for k, channel in enumerate(channels):
        # a channel that has converged is not evaluated again
        evaluations, first = np.unique(counts[:, *channel], return_index=True)
        color, alpha = (COLOURS[k], 1.0) if few else (BLUE, 0.4)
        style = {}
        if few:
            name = f"channel {', '.join(map(str, channel))}" if channel else "residual"
            style = {"marker": MARKERS[k], "label": name}
        elif k == 0:  # more lines than colours: one entry for all
            style = {"label": f"{len(channels)} channels"}
        ax.plot(evaluations, relative[first, *channel], color=color, alpha=alpha, **style)
        ax.axhline(tolerance[channel], color=color, alpha=alpha, linestyle="--", linewidth=1.0)
    ax.plot([], [], "--", color=INK, linewidth=1.0, label="tolerance")


def _history(manifold: GyroSpace, x: Any, tol: float | None, max_iter: int) -> list[FrechetResult]:
    """Return the results after 1, 2, ... evaluations, until all channels converge.

    ``frechet`` shows no steps in between, so it starts again each time and takes the same steps.
    """
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrechetWarning)  # the picture shows it
        for limit in range(1, max_iter + 1):
            results.append(frechet(manifold, x, tol=tol, max_iter=limit))
            if np.all(results[-1].converged):
                break
    return results
