"""Statistics per domain (a subject, a session, a site), and statistics for an unseen domain.

The estimator and the layers call these functions. Algorithm 1 itself, in
:mod:`gyrobn.normalization.normalize`, does not know of domains.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gyrobn.backends import Array, device_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.normalize import Stats
from gyrobn.numerics.arrays import sum_samples, weighted_sum
from gyrobn.statistics.frechet import FrechetResult, frechet, locate, result_of
from gyrobn.statistics.samples import Group, arrange, check_weights
from gyrobn.statistics.uniqueness import Domains, warn_of

UNSEEN = ("error", "refit", "adapt", "online")
"""What to do with a domain without statistics: refuse it, compute them from the samples at hand
(:func:`domain_stats`), move the average of the known domains (:func:`average_stats`) towards those
(:func:`~gyrobn.update_stats`), or towards one sample after the other, from call to call
(:func:`~gyrobn.normalization.online.online_stats`)."""

Place = Any
"""Indices of the samples of one domain, a NumPy array of integers."""


def not_seen(who: str, new: Any, known: Any, advice: str) -> ValueError:
    """Return the error for domains without statistics."""
    return ValueError(
        f"{who} did not see domain {listed(new)} (it saw {listed(known)}), and there are no "
        f"statistics of it: {advice}"
    )


def one_sample(k: Any, more: str = "") -> ValueError:
    """Return the error for a domain with one sample in a batch of training."""
    return ValueError(
        f"domain {k} has one sample in this batch, and training needs at least two of each domain: "
        f"use larger batches, or a sampler that draws several samples per domain{more}"
    )


def check_labels(x: Array, labels: Array, total: int, integers: bool, convert: str) -> None:
    """Check the shape of labels, and that they are integers."""
    if tuple(labels.shape) != tuple(x.shape[:1]):
        raise ValueError(
            f"domains must have the shape of the batch, {tuple(x.shape[:1])}, "
            f"got {tuple(labels.shape)}"
        )
    if not integers:
        raise TypeError(
            f"domains must be integers from 0 to {total - 1}, got {labels.dtype}: "
            f"convert them, for example with domains.{convert}"
        )


def check_range(labels: Any, total: int) -> None:
    """Check sorted labels, of which there is at least one."""
    low, high = labels[0], labels[-1]
    if not 0 <= low <= high < total:
        raise ValueError(f"domains must be from 0 to {total - 1}, got {low} to {high}")


def listed(labels: Any) -> str:
    """Return labels for a message, at most ten of them.

    >>> listed(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    first = ", ".join(map(repr, np.asarray(labels)[:10].tolist()))
    return first if len(labels) <= 10 else f"{first} and {len(labels) - 10} more"


def places_of(labels: Any) -> dict[Any, Place]:
    """Return the indices of the samples of each domain, by sorted label.

    Parameters
    ----------
    labels
        One label per sample, a NumPy array of integers or strings.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn.normalization.domains import places_of
    >>> places_of(np.asarray(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    found, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(which, kind="stable")
    return dict(zip(found.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True))


def domain_stats(
    manifold: GyroSpace,
    x: Array,
    places: Sequence[Place] | Mapping[Any, Place],
    weights: Array | None = None,
    warn: Callable[..., None] = warn_of,
    group: Group | None = None,
    **options: Any,
) -> FrechetResult:
    """Find the Fréchet mean and variance of each domain.

    Domains of similar size are solved together, as channels of one batch.

    Parameters
    ----------
    manifold
        The geometry of the points.
    x
        Samples, shape ``(batch, *channels, *point_shape)``, or :class:`~gyrobn.Chunks` of them.
    places
        Indices of the samples of each domain: what :func:`places_of` returns, or its values.
        Warnings name a domain by its label, or by its number.
    weights
        Weights of the samples, shape ``(batch,)`` or ``(batch, *channels)``.
    warn, group
        As in :func:`gyrobn.statistics.frechet.locate`. On each rank a domain may have no samples.
    **options
        ``tol``, ``max_iter``, ``steps`` and ``mean_gradient`` of :func:`~gyrobn.frechet`.

    Returns
    -------
    FrechetResult
        What :func:`~gyrobn.frechet` returns, with a leading axis of the domains.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Euclidean
    >>> from gyrobn.normalization.domains import domain_stats, places_of
    >>> places = places_of(np.asarray(["a", "b", "a", "b"]))
    >>> x = np.asarray([[1.0], [10.0], [3.0], [16.0]])
    >>> found = domain_stats(Euclidean(1), x, list(places.values()))
    >>> found.mean[:, 0], found.variance
    (array([ 2., 13.]), array([1., 9.]))
    """
    named = places if isinstance(places, Mapping) else dict(enumerate(places))
    labels, places = list(named), list(named.values())
    if isinstance(x, Chunks):  # these find the weights by the numbers of their samples
        each = [frechet(manifold, x.select(place), weights, **options) for place in places]
        return FrechetResult(*map(namespace_of(each[0].mean).stack, zip(*each, strict=True)))
    xp, groups = namespace_of(x), [np.arange(len(places))]
    samples, w = arrange(manifold, x, weights, 0, group)
    if group is None:
        groups = _groups(places, math.prod(x.shape[1:]))
    else:  # in place of a domain without samples here
        e = xp.broadcast_to(manifold.origin(samples), (1, *samples.shape[1:]))
        samples, w = xp.concat([samples, e]), xp.concat([w, xp.zeros_like(w[:1, ...])])
    found = []
    for some in groups:
        rows = padded([places[k] for k in some])
        mass = _take_rows(w, rows)
        padding = xp.asarray(rows < 0, device=device_of(x))
        mass = xp.where(padding[(..., *(None,) * (mass.ndim - 2))], 0.0, mass)
        if group is None:
            total = sum_samples(mass)
            check_weights(mass, total)
            mass = mass / total
        named_warn = partial(warn, domains=Domains([labels[k] for k in some], rows))
        given = manifold, _take_rows(samples, rows), mass
        found.append(result_of(locate(*given, warn=named_warn, group=group, **options)))
    order = np.argsort(np.concatenate(groups))
    return FrechetResult(*(take(xp.concat(list(f)), order) for f in zip(*found, strict=True)))


LARGEST = 2**22
"""Largest number of array entries to gather for several domains at once."""


def _groups(places: Sequence[Place], size: int) -> "list[np.ndarray[Any, Any]]":
    """Return the numbers of the domains to compute together.

    The domains of a group are padded to the size of the largest, which at most doubles the work.
    """
    counts = np.asarray([len(place) for place in places])
    groups: list[list[int]] = []
    for k in np.argsort(-counts, kind="stable").tolist():
        if groups:
            most = counts[groups[-1][0]]
            if counts[k] * 2 >= most and (len(groups[-1]) + 1) * most * size <= LARGEST:
                groups[-1].append(k)
                continue
        groups.append([k])
    return [np.asarray(group) for group in groups]


def padded(places: Sequence[Place]) -> "np.ndarray[Any, Any]":
    """Return the numbers of the samples of several domains, (most, domains), −1 for padding."""
    rows = np.full((max([1, *map(len, places)]), len(places)), -1)
    for j, place in enumerate(places):
        rows[: len(place), j] = place
    return rows


def _take_rows(x: Array, rows: "np.ndarray[Any, Any]") -> Array:
    """Return samples by their numbers, (most, domains, ...).

    Padding is the first sample of the same domain, so it is never the farthest from the mean; the
    last sample of all if the domain has none.
    """
    filled = np.where(rows < 0, rows[0], rows).reshape(-1) % x.shape[0]
    return namespace_of(x).reshape(take(x, filled), (*rows.shape, *x.shape[1:]))


def average_stats(
    manifold: GyroSpace, known: Stats, weights: Array | None = None, **options: Any
) -> Stats:
    r"""Return the average domain: the Fréchet mean of the means, and the mean of the variances.

    .. math:: \bar\mu = \operatorname{argmin}_y \sum_k d^2(\mu_k, y), \qquad
              \bar v^2 = \frac1K \sum_k v_k^2

    Each domain counts once, however many samples it has. The variance is that within a domain; the
    distances between domains do not count.

    Parameters
    ----------
    manifold
        The geometry.
    known
        Statistics with a leading axis of the domains.
    weights
        How often each domain counts, shape ``(domains,)`` or ``(domains, *channels)``; once by
        default.
    **options
        As in :func:`~gyrobn.frechet`, for the mean of the means.
    """
    means, w = arrange(manifold, known.mean, weights, 0)
    found = locate(manifold, means, w, **options)
    var = weighted_sum(w, manifold.expand_blocks(known.var))
    return Stats(found.mean, manifold.squeeze_blocks(var))


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
        Takes samples ``(batch, domains, ...)`` and statistics ``(domains, ...)``, of several
        domains of similar size at once, and returns an array of the same batch shape.
    x
        Samples, shape ``(batch, *channels, *point_shape)``.
    places, stats
        Indices and statistics of each domain; every sample belongs to one domain.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Stats
    >>> from gyrobn.normalization.domains import by_domain
    >>> x, places = np.asarray([[1.0], [10.0], [3.0]]), [np.asarray([0, 2]), np.asarray([1])]
    >>> stats = [Stats(np.asarray([m]), np.asarray(1.0)) for m in (2.0, 9.0)]
    >>> by_domain(lambda own, s: own - s.mean, x, places, stats)[:, 0]
    array([-1.,  1.,  1.])
    """
    xp, parts, numbers = namespace_of(x), [], []
    for group in _groups(places, math.prod(x.shape[1:])):
        rows = padded([places[k] for k in group])
        together = Stats(*(xp.stack([stats[k][i] for k in group]) for i in range(2)))
        out = function(_take_rows(x, rows), together)
        flat = xp.reshape(out, (rows.size, *out.shape[2:]))
        kept = np.flatnonzero(rows.reshape(-1) >= 0)
        parts.append(flat if len(kept) == rows.size else take(flat, kept))
        numbers.append(rows[rows >= 0])
    return take(xp.concat(parts), np.argsort(np.concatenate(numbers)))
