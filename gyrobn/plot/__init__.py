"""Pictures: points before and after a normalization, and how the mean converges.

matplotlib is imported when a picture is drawn, and pyplot never: nothing here depends on a display
or touches the figures of the caller. A function draws in the given axes and leaves the legend to
the caller; without axes it makes a figure with a legend below.
"""

from gyrobn.plot.figures import (
    Panel,
    can_plot,
    plot_convergence,
    plot_normalization,
    plot_overview,
    plot_tangent,
)

__all__ = [
    "Panel",
    "can_plot",
    "plot_convergence",
    "plot_normalization",
    "plot_overview",
    "plot_tangent",
]
