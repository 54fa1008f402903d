"""How the estimator learns: the statistics of samples, per domain, and how to add more samples."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.estimator import validation as check
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import domain_stats, places_of
from gyrobn.normalization.normalize import Stats, merge_stats
from gyrobn.numerics.checks import host
from gyrobn.statistics.frechet import FrechetResult, frechet
from gyrobn.statistics.points import Moved, describe, on_manifold


class Fitted(NamedTuple):
    """The statistics of a domain; of several, with a leading axis."""

    mean: Array
    var: Array
    weight: Array
    """Sum of the weights, shape (*channels,)."""
    n_iter: Array
    converged: Array


Domains = dict[Any, Fitted]
"""The statistics of each domain by its label; without domains, of all samples by the label None."""


def by_label(labels: Iterable[Any] | None, fitted: Fitted) -> Domains:
    """Return the statistics of each domain."""
    if labels is None:
        return {None: fitted}
    return {d: Fitted(*(a[k, ...] for a in fitted)) for k, d in enumerate(labels)}


def stacked(known: Domains) -> tuple[Any, Fitted]:
    """Return the sorted labels, and the statistics of all domains with a leading axis."""
    if None in known:
        return None, known[None]
    labels = sorted(known)
    xp = namespace_of(known[labels[0]].mean)
    rows = zip(*(known[d] for d in labels), strict=True)
    return check.as_labels(labels), Fitted(*(xp.stack(list(row)) for row in rows))


def merge(manifold: GyroSpace, old: Fitted, new: Fitted) -> Fitted:
    """Put two sets of samples together by their weights, in the dtype of the old set.

    Iterations and convergence are those of the new samples.
    """
    xp = namespace_of(old.mean)
    if not bool(xp.all(old.weight > 0)):
        raise ValueError("weight_sum_ is 0: set it to what the earlier samples should count as")
    *batch, weight = (xp.astype(a, old.mean.dtype, copy=False) for a in new[:3])
    total = old.weight + weight
    stats = merge_stats(manifold, Stats(*old[:2]), Stats(*batch), weight / total)
    return Fitted(*stats, total, new.n_iter, new.converged)


class Finding(NamedTuple):
    """What a call of ``fit`` or ``partial_fit`` finds."""

    manifold: GyroSpace
    domains: Domains
    number: int
    """Number of samples."""
    moved: int
    """Number of points that were projected onto the manifold."""
    samples: Any = None
    """The samples, checked; None if they are in a Dask array."""


def find(bn: Any, X: Any, sample_weight: Any, domains: Any, method: str, more: bool) -> Finding:
    """Check samples, an array or chunks, and find their statistics.

    ``more`` says whether they are added to those of earlier calls.
    """
    moved, samples = Moved(), check.chunked(bn, X, method)
    in_chunks, project = isinstance(samples, Chunks), bn.on_invalid == "project"
    head = check.as_array(bn, next(iter(samples)) if in_chunks else X, method)
    if backend_of(head).traced(head):
        raise TypeError(
            f"GyroBN.{method}() stores what it finds, which in a traced function has no value: "
            "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
        )
    manifold = bn.manifold_ if more else check.geometry_for(bn, head)
    check.affine_for(manifold, head, bn.bias, bn.scale, method)
    count = samples.count if in_chunks else int(head.shape[0])
    if in_chunks:
        samples = constant = _checked_once(bn, manifold, samples, method, moved)
    else:
        samples = on_manifold(manifold, head, project=project, moved=moved)
        constant = backend_of(samples).stop_gradient(samples)
    batch = (count, *head.shape[1 : head.ndim - len(manifold.point_shape)])
    weights = check.weights_for(batch, head, sample_weight)
    labels = None if domains is None else check.labels_for(domains, count)
    if more and labels is not None:
        check.check_kind(bn.domains_, labels)
    places = None if labels is None else places_of(labels)
    found = find_stats(bn, manifold, constant, places, weights, method)
    moved.warn(manifold, head, method)
    return Finding(manifold, found, count, moved.count, samples)


def _checked_once(
    bn: Any, manifold: GyroSpace, chunks: Chunks, method: str, moved: Moved
) -> Chunks:
    """Return chunks that are checked at their first reading only."""
    good: set[int] = set()
    project = bn.on_invalid == "project"

    def ready(x: Array, rows: Any) -> Array:
        x, first = check.as_array(bn, x, method), int(rows[0])
        x = backend_of(x).stop_gradient(x)
        if first not in good or project:
            count = None if first in good else moved
            x = on_manifold(manifold, x, project=project, first=first, moved=count)
        good.add(first)
        return x

    return chunks.map(ready)


def find_stats(
    bn: Any,
    manifold: GyroSpace,
    X: Array | Chunks,
    places: Mapping[Any, Any] | None,
    weights: Array | None,
    method: str,
) -> Domains:
    """Return mean and variance of the samples, or of each domain, or say why there is none."""
    count = X.count if isinstance(X, Chunks) else int(X.shape[0])
    w, sums = None if weights is None else host(weights), []
    for label, at in ({None: range(count)} if places is None else places).items():
        number, own = len(at), None if w is None else w[at]
        if own is not None:
            number = int(np.count_nonzero(own.reshape(number, -1).any(axis=1)))
        check_enough(label, number, method)
        sums.append(float(number) if own is None else own.sum(axis=0, dtype=np.float64))
    search = {"tol": bn.tol, "max_iter": bn.max_iter}
    with np.errstate(all="ignore"):  # the check below names what fails
        if places is None:
            found = frechet(manifold, X, weights, **search)
        else:
            found = domain_stats(manifold, X, places, weights, **search)
    if not backend_of(found.mean).traced(found.mean):
        check_found(manifold, found, places, method)
    return fitted_domains(found, np.asarray(sums[0] if places is None else sums), places)


def fitted_domains(found: FrechetResult, total: Any, labels: Iterable[Any] | None) -> Domains:
    """Return the statistics of each domain; the sums of its weights are per channel, or one."""
    mean, variance, iterations, residual, converged = found
    total = total.reshape((*total.shape, *(1,) * (residual.ndim - total.ndim)))
    weight = check.like(np.broadcast_to(total, residual.shape), mean)
    return by_label(labels, Fitted(mean, variance, weight, iterations, converged))


def check_enough(label: Any, count: int, method: str) -> None:
    """Refuse a domain with fewer than two samples; the label None stands for all samples."""
    if count >= 2 or method == "partial_fit":  # to which more may come
        return
    of, got = ("", f"sample{'s' * (count != 1)}")
    advice = "give more, or give them one after the other to partial_fit()"
    if label is not None:
        of, got, advice = " of a domain", f"of domain {label!r}", "give more, or leave it out"
    raise ValueError(
        f"GyroBN.{method}() needs at least 2 samples{of} (with a weight other than 0) to find a "
        f"variance, got {count} {got}: {advice}"
    )


def check_found(
    manifold: GyroSpace, found: FrechetResult, labels: Iterable[Any] | None, method: str
) -> None:
    """Say of which samples, or of which domain, there is no mean."""
    xp = namespace_of(found.mean)
    good = xp.all(xp.isfinite(manifold.expand_blocks(found.variance)), axis=-1)
    good = xp.logical_and(good, xp.isfinite(found.residual))
    if not bool(xp.all(good)):
        which, why = "these samples", check.reason(manifold, found.mean)
        if labels is not None:
            which = f"domain {list(labels)[describe(good)[1][0]]!r}"
        raise ValueError(f"GyroBN.{method}() finds no mean of {which}. {why}")
