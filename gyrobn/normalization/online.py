"""Statistics of a domain whose samples arrive one by one, with a prior from other domains."""

from dataclasses import dataclass

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats, merge_stats
from gyrobn.numerics.checks import check_number


@dataclass(frozen=True, eq=False)
class OnlineStats:
    """What is known of a domain after some of its samples."""

    count: int
    """Number t of samples so far; the prior does not count."""
    mean: Array
    """Running barycentre, shape (*channels, *point_shape)."""
    var: Array
    """Running variance, shape (*channels,), or (*channels, blocks)."""

    @property
    def stats(self) -> Stats:
        """Mean and variance, to normalize with."""
        return Stats(self.mean, self.var)


def check_strength(prior_strength: float) -> float:
    """Check the number of samples that the prior counts as."""
    return check_number("prior_strength", prior_strength, 0.0)


def online_stats(
    manifold: GyroSpace, start: OnlineStats, x: Array, prior_strength: float = 4.0
) -> list[OnlineStats]:
    r"""Return the statistics after each sample, in the order of the samples.

    The prior, :math:`\mu_0` and :math:`v_0^2`, counts as :math:`\kappa` samples. Sample t moves
    the mean along the geodesic towards itself, by its share of all samples so far:

    .. math:: \eta_t = \frac1{\kappa + t}, \qquad
              \mu_t = \mu_{t-1} \oplus (\eta_t \odot (\ominus\mu_{t-1} \oplus x_t)), \qquad
              v_t^2 = (1 - \eta_t)\, v_{t-1}^2
                      + \eta_t\, d(\mu_{t-1}, x_t)\, d(\mu_t, x_t) .

    The last product is Welford's: one distance to the mean before, one to the mean after, per
    block. On a flat geometry both are exact at every t. They are the mean
    :math:`(\kappa\mu_0 + \sum x_i)/(\kappa + t)` and the variance of the samples together with
    :math:`\kappa` samples that have the statistics of the prior. On a curved geometry the
    mean is an inductive mean, which depends on the order of the samples. With independent samples
    of one distribution, within the convexity radius, it converges to their Fréchet mean as t
    grows, and the variance to their Fréchet variance.

    Each step is that of :func:`~gyrobn.merge_stats` with a single sample.

    Parameters
    ----------
    manifold
        The geometry.
    start
        The prior with a count of 0, or what an earlier call returned last.
    x
        The new samples, shape ``(batch, *channels, *point_shape)``.
    prior_strength
        The number :math:`\kappa \ge 0` of samples that the prior counts as. With 0 it counts
        nothing, and the first sample is its own mean, with a variance of zero.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean
    >>> from gyrobn.normalization.online import OnlineStats, online_stats
    >>> prior = OnlineStats(0, np.asarray([0.0]), np.asarray(1.0))
    >>> x = np.asarray([[3.0], [6.0]])
    >>> [float(s.mean[0]) for s in online_stats(Euclidean(1), prior, x, prior_strength=1.0)]
    [1.5, 3.0]
    """
    strength, states = check_strength(prior_strength), []
    nothing = 0.0 * start.var
    for i in range(x.shape[0]):
        count = start.count + 1
        alone = Stats(x[i, ...], nothing)
        after = merge_stats(manifold, start.stats, alone, 1.0 / (strength + count))
        start = OnlineStats(count, *after)
        states.append(start)
    return states
