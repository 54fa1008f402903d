"""Pictures: a normalization on geometries that fit on paper, or in the tangent space of any; and
how the mean converges.

matplotlib is imported when a picture is asked for, never before, and pyplot not at all: nothing
here depends on a display or touches the figures of the caller. A function that is given axes draws
in them and leaves the legend to the caller; otherwise it makes a figure and puts the legend below.
"""

from gyrobn.plot.convergence import plot_convergence
from gyrobn.plot.panels import Panel, can_plot, plot_normalization, plot_overview
from gyrobn.plot.tangent import plot_tangent

__all__ = [
    "Panel",
    "can_plot",
    "plot_convergence",
    "plot_normalization",
    "plot_overview",
    "plot_tangent",
]
