r"""Statistics a domain (a subject, a session, a site), and those of a domain that was never seen.

The estimator and the layers of the frameworks call these functions; Algorithm 1 itself is in
:mod:`gyrobn.normalize`, and does not know of domains.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gyrobn.backends import Array, namespace_of
from gyrobn.chunks import Chunks, take
from gyrobn.frechet import FrechetResult, frechet
from gyrobn.gyrospace import GyroSpace
from gyrobn.normalize import Stats, batch_stats, update_stats

__all__ = ["UNSEEN", "adapt_stats", "average_stats", "by_domain", "domain_stats", "places_of"]

UNSEEN = ("error", "refit", "adapt")
"""What can be done with a domain without statistics: refuse it, take those of the samples at hand
(:func:`domain_stats`), or move the average of the known domains towards them
(:func:`adapt_stats`)."""

Place = Any
"""Indices of the samples of one domain, a NumPy array of integers."""


def places_of(labels: Any) -> dict[Any, Place]:
    """Return which samples each domain has, by sorted label.

    Parameters
    ----------
    labels
        One label a sample, a NumPy array of integers or strings.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn.domains import places_of
    >>> places_of(np.asarray(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    found, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    return dict(zip(found.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True))


def domain_stats(
    manifold: GyroSpace,
    x: Array,
    places: Sequence[Place],
    weights: Array | None = None,
    **options: Any,
) -> FrechetResult:
    """Find the Fréchet mean and variance of each domain.

    Parameters
    ----------
    manifold
        The geometry of the points.
    x
        Samples, shape ``(batch, *channels, *point_shape)``, or :class:`~gyrobn.Chunks` of them.
    places
        Indices of the samples of each domain: the values of :func:`places_of`.
    weights
        Weights of the samples, shape ``(batch,)`` or ``(batch, *channels)``.
    **options
        As in :func:`~gyrobn.frechet`.

    Returns
    -------
    FrechetResult
        All that :func:`~gyrobn.frechet` finds, with a leading axis of the domains.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean
    >>> from gyrobn.domains import domain_stats, places_of
    >>> places = places_of(np.asarray(["a", "b", "a", "b"]))
    >>> x = np.asarray([[1.0], [10.0], [3.0], [16.0]])
    >>> found = domain_stats(Euclidean(1), x, list(places.values()))
    >>> found.mean[:, 0], found.variance
    (array([ 2., 13.]), array([1., 9.]))
    """

    def samples_of(place: Place) -> tuple[Any, Array | None]:
        if isinstance(x, Chunks):  # which find the weights by the numbers of their samples
            return x.select(place), weights
        return take(x, place), None if weights is None else take(weights, place)

    each = [frechet(manifold, *samples_of(place), **options) for place in places]
    xp = namespace_of(each[0].mean)
    return FrechetResult(*(xp.stack(field) for field in zip(*each, strict=True)))


def average_stats(manifold: GyroSpace, known: Stats, **options: Any) -> Stats:
    r"""Return the average domain: the Fréchet mean of the means, and the mean of the variances.

    .. math:: \bar\mu = \operatorname{argmin}_y \sum_k d^2(\mu_k, y), \qquad
              \bar v^2 = \frac1K \sum_k v_k^2

    Each domain counts once, however many samples it has. The variance is that within a domain:
    how far the domains are from each other does not enter.

    Parameters
    ----------
    manifold
        The geometry.
    known
        Statistics with a leading axis of the domains.
    **options
        As in :func:`~gyrobn.frechet`, for the mean of the means.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean, Stats
    >>> from gyrobn.domains import average_stats
    >>> known = Stats(np.asarray([[2.0], [13.0]]), np.asarray([1.0, 9.0]))
    >>> mean, var = average_stats(Euclidean(1), known)
    >>> float(mean[0]), float(var)
    (7.5, 5.0)
    """
    var = namespace_of(known.var).mean(known.var, axis=0)
    return Stats(batch_stats(manifold, known.mean, **options).mean, var)


def adapt_stats(
    manifold: GyroSpace, known: Stats, batch: Stats, rate: float = 0.1, **options: Any
) -> Stats:
    """Return statistics for a domain that has none: the average domain, moved towards a batch.

    Parameters
    ----------
    manifold
        The geometry.
    known
        Statistics of the other domains, with a leading axis of the domains.
    batch
        Statistics of the samples at hand of the new domain; of several with leading axes.
    rate
        Fraction of the batch, as in :func:`~gyrobn.update_stats`: 0 is the average domain
        (:func:`average_stats`), 1 the batch alone.
    **options
        As in :func:`~gyrobn.frechet`, for the mean of the means.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean, Stats
    >>> from gyrobn.domains import adapt_stats
    >>> known = Stats(np.asarray([[2.0], [13.0]]), np.asarray([1.0, 9.0]))
    >>> new = Stats(np.asarray([17.5]), np.asarray(25.0))
    >>> mean, var = adapt_stats(Euclidean(1), known, new, rate=0.1)
    >>> float(mean[0]), float(var)
    (8.5, 7.0)
    """
    return update_stats(manifold, average_stats(manifold, known, **options), batch, rate)


def by_domain(
    function: Callable[[Array, Stats], Array],
    x: Array,
    places: Sequence[Place],
    stats: Sequence[Stats],
) -> Array:
    """Apply a function to the samples of each domain, with its statistics, and keep their order.

    Parameters
    ----------
    function
        Takes samples and statistics and returns as many samples.
    x
        Samples, shape ``(batch, *channels, *point_shape)``.
    places, stats
        Indices and statistics of each domain; every sample belongs to one.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Stats
    >>> from gyrobn.domains import by_domain
    >>> x, places = np.asarray([[1.0], [10.0], [3.0]]), [np.asarray([0, 2]), np.asarray([1])]
    >>> stats = [Stats(np.asarray([2.0]), 1.0), Stats(np.asarray([9.0]), 1.0)]
    >>> by_domain(lambda own, s: own - s.mean, x, places, stats)[:, 0]
    array([-1.,  1.,  1.])
    """
    parts = [function(take(x, k), own) for k, own in zip(places, stats, strict=True)]
    return take(namespace_of(x).concat(parts), np.argsort(np.concatenate(places)))
