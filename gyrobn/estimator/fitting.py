"""How the estimator learns: the statistics of samples, per domain, and how to add more samples."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.estimator.labels import as_labels, check_given, check_kind, labels_for
from gyrobn.estimator.validation import (
    affine_for,
    as_array,
    check_parameters,
    check_scale,
    chunked,
    geometry_for,
    like,
    reason,
    weights_for,
)
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import domain_stats, places_of
from gyrobn.normalization.normalize import Stats, merge_stats
from gyrobn.numerics.arrays import blocks_of
from gyrobn.numerics.checks import host
from gyrobn.statistics.frechet import FrechetResult, frechet, locate, result_of
from gyrobn.statistics.points import Moved, describe, on_manifold
from gyrobn.statistics.samples import arrange


class Fitted(NamedTuple):
    """What is known of some samples; with several domains, with a leading axis."""

    mean: Array
    variance: Array
    weight: Array
    """Sum of the weights, shape (*channels,)."""
    iterations: Array
    converged: Array


def by_label(labels: Iterable[Any] | None, fitted: Fitted) -> dict[Any, Fitted]:
    """Return what is known of each domain; without domains, of all samples by the label None."""
    if labels is None:
        return {None: fitted}
    return {d: Fitted(*(a[k, ...] for a in fitted)) for k, d in enumerate(labels)}


def stacked(known: dict[Any, Fitted]) -> tuple[Any, Fitted]:
    """Undo :func:`by_label`, the domains in order."""
    if None in known:
        return None, known[None]
    labels = sorted(known)
    xp = namespace_of(known[labels[0]].mean)
    rows = zip(*(known[d] for d in labels), strict=True)
    return as_labels(labels), Fitted(*(xp.stack(list(row)) for row in rows))


def merge(manifold: GyroSpace, old: Fitted, new: Fitted) -> Fitted:
    """Put two sets of samples together by their weights, in the dtype of the old set.

    Iterations and convergence are those of the new samples.
    """
    xp = namespace_of(old.mean)
    if not bool(xp.all(old.weight > 0)):
        raise ValueError(
            "partial_fit() weighs new samples against those before, and statistics that come from "
            "a layer do not tell how many those were: set bn.weight_sum_ to what they should count "
            "as, or fit() anew"
        )
    *batch, weight = (xp.astype(a, old.mean.dtype, copy=False) for a in new[:3])
    total = old.weight + weight
    stats = merge_stats(manifold, Stats(*old[:2]), Stats(*batch), weight / total)
    return Fitted(*stats, total, new.iterations, new.converged)


class Finding(NamedTuple):
    """What :func:`find` finds."""

    manifold: GyroSpace
    known: dict[Any, Fitted]
    """The statistics of each domain."""
    total: int
    """Number of samples."""
    moved: int
    """Number of points that were moved onto the manifold."""
    samples: Array | Chunks | None
    """The samples, checked; None if they are in a Dask array."""
    view: Centred | None
    """The samples as they are seen from the mean, if they are matrices and decomposed already."""


def goes_on(estimator: Any, domains: Any, method: str) -> bool:
    """Check the parameters, and return whether the samples are added to those of earlier calls."""
    check_parameters(estimator)
    more = method == "partial_fit" and hasattr(estimator, "mean_")
    if more:
        check_given(estimator.domains_, domains, method)
    return more


def find(estimator: Any, X: Any, sample_weight: Any, domains: Any, method: str) -> Finding:
    """Check samples and find their statistics."""
    more = goes_on(estimator, domains, method)
    raw, X = None, chunked(estimator, X, method)
    if isinstance(X, Chunks):
        raw, X = X, next(iter(X))
    X = as_array(estimator, X, method)
    if backend_of(X).traced(X):
        raise TypeError(
            f"GyroBN.{method}() keeps what it finds, which in a traced function has no value: "
            "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
        )
    manifold = estimator.manifold_ if more else geometry_for(estimator, X)
    check_scale(affine_for(manifold, X, estimator.bias, estimator.scale)[1], estimator.scale)
    moved = Moved()
    checked: Array | Chunks
    if raw is None:
        project, count = estimator.on_invalid == "project", int(X.shape[0])
        checked = on_manifold(manifold, X, project=project, moved=moved)
        samples = backend_of(X).stop_gradient(checked)
    else:
        checked, count = raw.map(_ready_once(estimator, manifold, method, moved)), raw.count
        samples = checked
    batch = (count, *X.shape[1 : X.ndim - len(manifold.point_shape)])
    weights = weights_for(batch, X, sample_weight)
    places = None
    if domains is not None:
        labels = labels_for(domains, count)
        if more:
            check_kind(estimator.domains_, labels)
        places = places_of(labels)
    found, view = find_stats(manifold, samples, places, weights, method, **search_of(estimator))
    moved.warn(manifold, X, method)
    total = _weight_sums(batch, found.mean, places, weights)
    fitted = Fitted(found.mean, found.variance, total, found.iterations, found.converged)
    if len(blocks_of(X)) > 1 or backend_of(X).differentiable(X) or view is None or not view.saves:
        view = None  # it was computed in blocks, is a constant, or saves nothing
    return Finding(manifold, by_label(places, fitted), count, moved.count, checked, view)


def search_of(bn: Any) -> dict[str, Any]:
    """Return the options of the search for a mean."""
    return {"tol": bn.tol, "max_iter": bn.max_iter}


def find_stats(
    manifold: GyroSpace,
    X: Array | Chunks,
    places: dict[Any, Any] | None,
    weights: Array | None,
    method: str,
    **options: Any,
) -> tuple[FrechetResult, Centred | None]:
    """Return mean and variance of the samples, or of each domain, or say why there is none.

    Also return the samples as they are seen from the mean, if they are in memory and have one mean.
    """
    total = X.count if isinstance(X, Chunks) else int(X.shape[0])
    for label, at in (places or {None: np.arange(total)}).items():
        some = at if weights is None else at[host(weights)[at].reshape(len(at), -1).any(1)]
        check_enough(label, len(some), method)
    view = None
    with np.errstate(all="ignore"):  # the check below names what fails
        if places is not None:
            found = domain_stats(manifold, X, places, weights, **options)
        elif isinstance(X, Chunks):
            found = frechet(manifold, X, weights, **options)
        else:
            at = locate(manifold, *arrange(manifold, X, weights, 0), **options)
            found, view = result_of(at), at.view
    if not backend_of(found.mean).traced(found.mean):
        check_found(manifold, found, places, method)
    return found, view


def check_enough(label: Any, count: int, method: str) -> None:
    """Refuse a domain with fewer than two samples; the label None stands for all samples."""
    if count >= 2 or method == "partial_fit":  # to which more may come
        return
    if label is None:
        raise ValueError(
            f"GyroBN.{method}() needs at least 2 samples (with a weight other than 0) to find "
            f"their variance, got {count} sample{'s' * (count != 1)}: give more, or give them one "
            "after the other to partial_fit()"
        )
    raise ValueError(
        f"GyroBN.{method}() needs at least 2 samples of a domain (with a weight other "
        f"than 0) to find its variance, got {count} of domain {label!r}: give more, "
        "leave it out, or join it to another"
    )


def check_found(
    manifold: GyroSpace, found: FrechetResult, labels: Iterable[Any] | None, method: str
) -> None:
    """Say of which samples, or of which domain, there is no mean."""
    xp = namespace_of(found.mean)
    good = xp.all(xp.isfinite(manifold.expand_blocks(found.variance)), axis=-1)
    good = xp.logical_and(good, xp.isfinite(found.residual))
    if not bool(xp.all(good)):
        which = "these samples"
        if labels is not None:
            which = f"domain {list(labels)[describe(good)[1][0]]!r}"
        raise ValueError(
            f"GyroBN.{method}() finds no mean of {which}. {reason(manifold, found.mean)}"
        )


def _weight_sums(
    batch: tuple[int, ...], mean: Array, places: dict[Any, Any] | None, weights: Array | None
) -> Array:
    """Return the sum of the weights of each channel, of all samples or of each domain."""
    w = np.ones(batch[0]) if weights is None else host(weights)
    w = np.broadcast_to(w.reshape(*w.shape, *(1,) * (len(batch) - w.ndim)), batch)
    if places is None:
        return like(w.sum(axis=0, dtype=np.float64), mean)
    return like(np.stack([w[at].sum(axis=0, dtype=np.float64) for at in places.values()]), mean)


def _ready_once(
    estimator: Any, manifold: GyroSpace, method: str, moved: Moved
) -> Callable[[Array, Any], Array]:
    """Return a function that checks a chunk of samples, at its first reading only."""
    good: set[int] = set()
    project = estimator.on_invalid == "project"

    def ready(x: Array, rows: Any) -> Array:
        x, first = as_array(estimator, x, method), int(rows[0])
        x = backend_of(x).stop_gradient(x)
        if first not in good or project:
            count = None if first in good else moved
            x = on_manifold(manifold, x, project=project, first=first, moved=count)
        good.add(first)
        return x

    return ready
