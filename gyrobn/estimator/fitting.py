"""How the estimator learns: the statistics of samples, per domain, and how to add more samples."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import array_api_compat as compat
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


def domains_of(bn: Any) -> Domains:
    """Return the statistics of each domain of a fitted estimator."""
    fitted = Fitted(bn.mean_, bn.var_, bn.weight_sum_, bn.n_iter_, bn.converged_)
    return by_label(None if bn.domains_ is None else bn.domains_.tolist(), fitted)


def stacked(domains: Domains) -> tuple[Any, Fitted]:
    """Return the sorted labels, and the statistics of all domains with a leading axis."""
    if None in domains:
        return None, domains[None]
    labels = sorted(domains)
    xp = namespace_of(domains[labels[0]].mean)
    rows = zip(*(domains[d] for d in labels), strict=True)
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


def learn(bn: Any, X: Any, y: Any, weights: Any, domains: Any, method: str) -> None:
    """Find the statistics of samples, merge them with earlier ones, and store them."""
    check.check_target(bn, y, domains, method)
    check.check_parameters(bn)
    more, search = method == "partial_fit" and hasattr(bn, "mean_"), find
    if more:
        check.check_given(bn.domains_, domains, method)
    if compat.is_dask_array(X):
        from gyrobn.estimator.lazy import find as search
    manifold, found, count, moved = search(bn, X, weights, domains, method, more)
    if more:
        if domains is not None:
            check.check_kind(bn.domains_, check.as_labels(list(found)))
        old, count, moved = domains_of(bn), count + bn.n_samples_seen_, moved + bn.n_projected_
        found = old | found | {d: merge(manifold, old[d], found[d]) for d in old.keys() & found}
    bn.domains_, fitted = stacked(found)
    bn.mean_, bn.var_, bn.weight_sum_, bn.n_iter_, bn.converged_ = fitted
    if not fitted.n_iter.ndim:
        bn.n_iter_, bn.converged_ = int(fitted.n_iter), bool(fitted.converged)
    bn.manifold_, bn.online_, bn.n_samples_seen_, bn.n_projected_ = manifold, {}, count, moved


Finding = tuple[GyroSpace, Domains, int, int]
"""The geometry, the statistics, and the numbers of samples and of points that were projected."""


def find(bn: Any, X: Any, sample_weight: Any, domains: Any, method: str, more: bool) -> Finding:
    """Check samples, an array or chunks, and find their statistics.

    ``more`` says whether they are added to those of earlier calls.
    """
    chunks = X if isinstance(X, Chunks) else None
    if chunks is None and check.in_chunks(bn, X, method):
        chunks = Chunks(X)
    head = check.as_array(bn, X if chunks is None else next(iter(chunks)), method)
    if backend_of(head).traced(head):
        raise TypeError(
            f"GyroBN.{method}() stores what it finds, which in a traced function has no value: "
            "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
        )
    manifold = bn.manifold_ if more else check.geometry_for(bn, head)
    check.affine_for(bn, manifold, tuple(head.shape[1:]), head, method)
    moved, project, good = Moved(), bn.on_invalid == "project", set[int]()

    def ready(x: Array, first: int) -> Array:
        """Check samples at their first reading, and project them at each."""
        if first not in good or project:
            count = None if first in good else moved
            x = on_manifold(manifold, x, project=project, first=first, moved=count)
        good.add(first)
        return backend_of(x).stop_gradient(x)

    def chunk(x: Array, rows: Any) -> Array:
        return ready(check.as_array(bn, x, method), int(rows[0]))

    samples = ready(head, 0) if chunks is None else chunks.map(chunk)
    count = int(head.shape[0]) if chunks is None else chunks.count
    batch = (count, *head.shape[1 : head.ndim - len(manifold.point_shape)])
    weights = check.weights_for(batch, head, sample_weight)
    places = None if domains is None else places_of(check.labels_for(domains, count))
    found = find_stats(bn, manifold, samples, count, places, weights, method)
    moved.warn(manifold, head, method)
    return manifold, found, count, moved.count


def find_stats(
    bn: Any,
    manifold: GyroSpace,
    X: Array | Chunks,
    count: int,
    places: Mapping[Any, Any] | None,
    weights: Array | None,
    method: str,
) -> Domains:
    """Return mean and variance of the samples, or of each domain, or say why there is none."""
    w = np.broadcast_to(1.0, count) if weights is None else host(weights, dtype=np.float64)
    parts = [w] if places is None else [w[at] for at in places.values()]
    for label, part in zip(places or [None], parts, strict=True):
        some = part.reshape(len(part), -1).any(axis=1)
        check_enough(label, int(np.count_nonzero(some)), method)
    totals = np.stack([part.sum(axis=0) for part in parts])
    search = {"tol": bn.tol, "max_iter": bn.max_iter}
    with np.errstate(all="ignore"):  # the check below names what fails
        if places is None:
            found, totals = frechet(manifold, X, weights, **search), totals[0]
        else:
            found = domain_stats(manifold, X, places, weights, **search)
    if not backend_of(found.mean).traced(found.mean):
        check_found(manifold, found, places, method)
    return fitted_domains(found, totals, places)


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
    of, got, advice = " of a domain", f"of domain {label!r}", "leave it out"
    if label is None:
        of, got = "", "sample" if count == 1 else "samples"
        advice = "give them one after the other to partial_fit()"
    raise ValueError(
        f"GyroBN.{method}() needs at least 2 samples{of} (with a weight other than 0) to find a "
        f"variance, got {count} {got}: give more, or {advice}"
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
