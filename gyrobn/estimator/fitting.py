"""How the estimator learns: what it finds in samples, by domain, and how more add to it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.estimator.labels import as_labels, check_given, check_kind, check_policy, labels_for
from gyrobn.estimator.validation import (
    Moved,
    affine_for,
    as_array,
    chunked,
    found_for,
    geometry_for,
    on_manifold,
    weight_sums,
    weights_for,
)
from gyrobn.manifolds.centred import Decomposed
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import places_of
from gyrobn.normalization.normalize import Stats, merge_stats
from gyrobn.numerics.arrays import blocks_of
from gyrobn.numerics.checks import check_choice, check_number
from gyrobn.statistics.newton import check_search

__all__ = ["Finding", "Fitted", "by_label", "find", "merge", "stacked"]


class Fitted(NamedTuple):
    """What is known of some samples; of those of several domains with a leading axis."""

    mean: Array
    var: Array
    weight: Array
    """Sum of the weights, shape (*channels,)."""
    iterations: Array
    converged: Array


def by_label(labels: Any, fitted: Fitted) -> dict[Any, Fitted]:
    """Return what is known of each domain; of all samples, by the label None, without domains."""
    if labels is None:
        return {None: fitted}
    return {d: Fitted(*(a[k, ...] for a in fitted)) for k, d in enumerate(labels.tolist())}


def stacked(known: dict[Any, Fitted]) -> tuple[Any, Fitted]:
    """Undo :func:`by_label`, the domains in order."""
    if None in known:
        return None, known[None]
    labels = sorted(known)
    xp = namespace_of(known[labels[0]].mean)
    rows = zip(*(known[d] for d in labels), strict=True)
    return as_labels(labels), Fitted(*(xp.stack(list(row)) for row in rows))


def merge(manifold: GyroSpace, old: Fitted, new: Fitted) -> Fitted:
    """Put samples together, each counted by its weight, in the dtype of the old ones.

    The search of the mean that is told of is that of the new samples.
    """
    xp = namespace_of(old.mean)
    if not bool(xp.all(old.weight > 0)):
        raise ValueError(
            "partial_fit() weighs new samples against those before, and statistics that come from "
            "a layer do not tell how many those were: set bn.weight_sum_ to what they should count "
            "as, or fit() anew"
        )
    mean, var, weight = (xp.astype(a, old.mean.dtype, copy=False) for a in new[:3])
    total = old.weight + weight
    stats = merge_stats(manifold, Stats(old.mean, old.var), Stats(mean, var), weight / total)
    return Fitted(*stats, total, new.iterations, new.converged)


class Finding(NamedTuple):
    """What :func:`find` finds."""

    manifold: GyroSpace
    known: dict[Any, Fitted]
    """What is to be known of each domain."""
    total: int
    """How many samples there are."""
    moved: int
    """How many of their points were moved onto the manifold."""
    samples: Array | Chunks
    """The samples, checked."""
    view: Decomposed | None
    """The samples seen from the mean, if they are matrices that need not be decomposed again."""


def find(estimator: Any, X: Any, sample_weight: Any, domains: Any, method: str) -> Finding:
    """Check samples, and find what there is to be known of them."""
    check_choice("on_invalid", estimator.on_invalid, ("raise", "project"))
    check_number("eps", estimator.eps, 0.0)
    check_search(estimator.tol, estimator.max_iter, None)
    check_policy(estimator.unseen, estimator.adapt_rate)
    more = method == "partial_fit" and hasattr(estimator, "mean_")
    if more:
        check_given(estimator.domains_, domains, method)
    raw, X = None, chunked(estimator, X, method)
    if isinstance(X, Chunks):
        raw, X = X, next(iter(X))
    X = as_array(estimator, X, method)
    if backend_of(X).hides_values(X):
        raise TypeError(
            f"GyroBN.{method}() keeps what it finds, which in a traced function has no value: "
            "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
        )
    manifold = estimator.manifold_ if more else geometry_for(estimator, X)
    affine_for(manifold, X, estimator.bias, estimator.scale)
    moved = Moved()
    checked: Array | Chunks
    if raw is None:
        checked, count = _ready(estimator, X, manifold, moved), int(X.shape[0])
        samples = backend_of(X).stop_gradient(checked)
    else:
        checked, count = raw.map(_ready_once(estimator, manifold, method, moved)), raw.count
        samples = checked
    batch = (count, *X.shape[1 : X.ndim - len(manifold.point_shape)])
    weights = weights_for(batch, X, sample_weight)
    labels = places = None
    if domains is not None:
        labels = labels_for(domains, count)
        places = places_of(labels)
        if more:
            check_kind(estimator.domains_, labels)
        labels = np.asarray(list(places), dtype=labels.dtype)
    options = {"tol": estimator.tol, "max_iter": estimator.max_iter}
    found, view = found_for(manifold, samples, places, weights, method, **options)
    moved.warn(manifold, X, method, 4)
    total = weight_sums(batch, found.mean, places, weights)
    fitted = Fitted(found.mean, found.variance, total, found.iterations, found.converged)
    if len(blocks_of(X)) > 1 or backend_of(X).differentiable(X) or not isinstance(view, Decomposed):
        view = None  # it was not kept, is a constant, or saves nothing
    return Finding(manifold, by_label(labels, fitted), count, moved.count, checked, view)


def _ready(
    estimator: Any, X: Array, manifold: GyroSpace, moved: Moved | None, first: int = 0
) -> Array:
    """Return samples, numbered from ``first`` on, that are points."""
    project = estimator.on_invalid == "project"
    return on_manifold(manifold, X, project=project, first=first, moved=moved)


def _ready_once(
    estimator: Any, manifold: GyroSpace, method: str, moved: Moved
) -> Callable[[Array, Any], Array]:
    """Return the same for chunks, of which those that were good are not looked at again."""
    good: set[int] = set()

    def ready(x: Array, rows: Any) -> Array:
        x, first = as_array(estimator, x, method), int(rows[0])
        x = backend_of(x).stop_gradient(x)
        if first in good and estimator.on_invalid == "raise":
            return x
        x = _ready(estimator, x, manifold, None if first in good else moved, first)
        good.add(first)
        return x

    return ready
