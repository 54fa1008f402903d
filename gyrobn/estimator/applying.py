"""How the estimator applies Algorithm 1 to samples, or undoes it, and checks the output."""

from collections.abc import Iterator, Mapping
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.estimator import validation as check
from gyrobn.estimator.fitting import domains_of, find_stats
from gyrobn.estimator.validation import UNDO
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization import normalize as algorithm
from gyrobn.normalization.domains import average_stats, by_domain, places_of
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.numerics.arrays import blocks_of, blockwise, length
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import Moved, describe, is_hyperbolic


def apply(bn: Any, X: Any, domains: Any, method: str) -> Array:
    """Check samples and normalize them, or undo it; in a Dask array, describe how to."""
    if compat.is_dask_array(X):
        from gyrobn.estimator import lazy

        return lazy.apply(bn, X, domains, method)
    if not hasattr(bn, "mean_"):  # scikit-learn's check takes longer
        check_is_fitted(bn)
    X, moved = check.as_array(bn, X, method), Moved()
    if method != UNDO:
        check.check_table(bn, X.shape[1:])
    X = check.checked(bn, X, method, moved=moved)
    moved.warn(bn.manifold_, X, method)
    check.check_given(bn.domains_, domains, method)
    labels = check.labels_for(domains, X.shape[0])
    return apply_block(bn, X, labels, stats_for(bn, X, labels, method), method)


def apply_chunks(bn: Any, X: Any, domains: Any, method: str) -> Iterator[Array]:
    """Check chunks of samples and normalize them, or undo it."""
    check_is_fitted(bn)
    if isinstance(X, Iterator) and domains is None:  # one reading is enough
        X = Chunks(X.__iter__)
    chunks = X if isinstance(X, Chunks) else Chunks(X)

    def ready(moved: Moved | None) -> Chunks:
        def checked(x: Array, rows: Any) -> Array:
            return check.checked(bn, check.as_array(bn, x, method), method, rows, moved)

        return chunks.map(checked)

    def results() -> Iterator[Array]:
        moved = Moved()
        for rows, x in ready(moved).numbered():
            own = None if labels is None else labels[rows]
            yield apply_block(bn, x, own, stats, method, int(rows[0]))
        moved.warn(bn.manifold_, bn.mean_, method)

    check.check_given(bn.domains_, domains, method)
    labels = None if domains is None else check.labels_for(domains, chunks.count)
    stats = stats_for(bn, ready(None), labels, method)
    return results()


# ---------------------------------------------------------------------- statistics per domain


def stats_for(bn: Any, X: Array | Chunks, labels: Any, method: str) -> dict[Any, Any]:
    """Return mean and variance of each domain, also of new ones if ``unseen`` finds them in X."""
    stats, places = domains_of(bn), {} if labels is None else places_of(labels)
    new = check.unseen_among(bn, places, stats, method)
    if new and bn.unseen != "online":
        X = X if isinstance(X, Chunks) else backend_of(X).stop_gradient(X)
        own = {d: places[d] for d in new}
        stats |= adapted(bn, find_stats(bn, bn.manifold_, X, len(labels), own, None, method))
    return stats


def adapted(bn: Any, found: dict[Any, Any]) -> dict[Any, Any]:
    """Return the statistics for domains that are not in fit, from those of their samples."""
    if bn.unseen == "refit" or not found:
        return found
    M, average, rate = bn.manifold_, _average(bn), bn.adapt_rate
    average = in_dtype_of(M, average, next(iter(found.values())).mean)
    return {d: algorithm.update_stats(M, average, own, rate) for d, own in found.items()}


def _average(bn: Any) -> Stats:
    search = {"tol": bn.tol, "max_iter": bn.max_iter}
    return average_stats(bn.manifold_, Stats(bn.mean_, bn.var_), **search)


def _online(
    bn: Any, X: Array, labels: Any, stats: dict[Any, Any], new: Mapping[Any, Any]
) -> tuple[Any, dict[Any, Any], dict[Any, OnlineStats]]:
    """Follow the samples of new domains, each of which gets a label and statistics of its own."""
    if backend_of(X).traced(X):
        raise TypeError(
            "unseen='online' stores what it learns from each sample, and in a traced function "
            "samples have no values: call transform() outside of jax.jit and vmap"
        )
    x = as_points(bn.manifold_, backend_of(X).stop_gradient(X), bn.mean_)
    online = dict(bn.online_)
    if new.keys() - online.keys():
        online = dict.fromkeys(new, OnlineStats(0, *_average(bn))) | online
    each, own = list(stats.values()), np.searchsorted(bn.domains_, labels)
    for label, at in new.items():
        states = online_stats(bn.manifold_, online[label], take(x, at), bn.prior_strength)
        own[at] = range(len(each), len(each) + len(at))
        each += states
        online[label] = states[-1]
    return own, dict(enumerate(each)), online


def in_dtype_of(manifold: GyroSpace, stats: Any, x: Array) -> Stats:
    """Return mean and variance in the dtype of the samples."""
    var = namespace_of(x).astype(stats.var, x.dtype, copy=False)
    return Stats(as_points(manifold, stats.mean, x), var)


def as_points(manifold: GyroSpace, points: Array, like: Array) -> Array:
    """Return points in the dtype of ``like``; those that are then not on the manifold, projected.

    A point to the digits of float32 may not be one to those of float64.
    """
    if points.dtype == like.dtype:
        return points
    return settled(manifold, namespace_of(points).astype(points, like.dtype))


def settled(manifold: GyroSpace, points: Array) -> Array:
    """Return the points; those that are not on the manifold are projected."""
    good = manifold.contains(points)[(..., *(None,) * len(manifold.point_shape))]
    return namespace_of(points).where(good, points, manifold.project(points))


# ---------------------------------------------------------------------- Algorithm 1


def apply_block(
    bn: Any,
    x: Array,
    labels: Any,
    stats: dict[Any, Any],
    method: str,
    first: int = 0,
    ordered: bool = True,
) -> Array:
    """Normalize points, or undo it, and check the output.

    ``stats`` are those of each label, ``first`` is the number of the first sample, for messages.
    """
    M, undo, online = bn.manifold_, method == UNDO, bn.online_
    places = {None: None} if labels is None else places_of(labels)
    new = check.unseen_among(bn, places, stats, method, ordered)
    if new:
        own = {d: places[d] for d in new}
        labels, stats, online = _online(bn, x, labels, stats, own)
        places = places_of(labels)
    bias, scale = check.affine_for(bn, M, check.sample_shape(bn), x, method)
    function = algorithm.denormalize if undo else algorithm.normalize

    def run(x: Array, own: Stats) -> Array:
        if bn.output == "points":
            return function(M, x, own, bias, scale, bn.eps, check=False)
        t = M.by_coordinate(algorithm.multiplier(x, own, scale, bn.eps, None))
        return M.shift(own.mean, x / t) if undo else t * M.relative_normal(own.mean, x)

    each = [in_dtype_of(M, stats[label], x) for label in places]
    with np.errstate(all="ignore"):  # the checks name what fails
        if labels is None:
            out = blockwise(lambda x: run(x, each[0]), x)
        else:
            out = by_domain(run, x, list(places.values()), each)
        if not backend_of(x).traced(out):
            _check(bn, x, out, bias, scale, labels, each, method, first)
    bn.online_ = online  # only now: a call that fails leaves everything as it was
    shape = check.row_shape(bn, check.spaces(bn, method)[1])
    return namespace_of(out).reshape(out, (x.shape[0], *shape))


def _check(
    bn: Any,
    x: Array,
    out: Array,
    bias: Any,
    scale: Any,
    labels: Any,
    each: list[Stats],
    method: str,
    first: int,
) -> None:
    """Refuse an output that is not on the manifold; warn if it is not as far out as it should be.

    ``each`` holds the statistics of all samples, or of each domain by its sorted label.
    """
    M, xp, undo = bn.manifold_, namespace_of(x), method == UNDO
    taken, wanted = check.spaces(bn, method)

    def of(rows: slice) -> Stats:
        """Return the statistics of the samples in a range: of all, or of each of them."""
        if labels is None:
            return each[0]
        which = np.unique(labels, return_inverse=True)[1][rows]
        return Stats(*(take(xp.stack(list(a)), which) for a in zip(*each, strict=True)))

    good = blockwise(wanted.contains, out)
    if not bool(xp.all(good)):
        what, i = describe(good, first)
        why, kind = check.reason(M, x), "point of" if wanted is M else "coordinates on"
        if taken is not M:
            what = f"the coordinates of {what}, of length {float(length(x[(*i, ...)])):.4g}"
        else:
            centre = M.origin(x) if bias is None else bias
            ends = (xp.broadcast_to(a, x.shape)[(*i, ...)] for a in (of(slice(None)).mean, centre))
            mean, centre = ends
            far = float(M.dist(centre if undo else mean, x[(*i, ...)]))
            what += (
                f", at distance {far:.4g} from the {'bias' if undo else 'mean'}; from the identity "
                f"the mean is at {float(M.norm(mean)):.4g}, the bias at {float(M.norm(centre)):.4g}"
            )
            if wanted is M and not undo:
                why += (
                    "; if you need features for a classifier, output='coordinates' returns the "
                    "scaled normal coordinates and makes no points of them"
                )
        raise ValueError(f"GyroBN.{method}() finds no {kind} {M!r} for {what}. {why}")

    closed = M.convexity_radius < float("inf")
    if wanted is not M or not (closed or is_hyperbolic(M)):
        return
    parts = []
    for rows in blocks_of(x):
        y, own = out[rows, ...], of(rows)
        unit = float(np.sqrt(host(own.var).max()) if undo else np.abs(host(scale)).max())
        if taken is M:
            road = algorithm.route(M, x[rows, ...], own, bias, scale, bn.eps, None, undo)
            part = algorithm.arrived(M, x[rows, ...], y, road, unit, closed)
        else:
            c = x[rows, ...] / M.by_coordinate(algorithm.multiplier(y, own, scale, bn.eps, None))
            part = algorithm.goes_as_far(M, c, y, own.mean, unit)
        parts.append(np.broadcast_to(part, good[rows, ...].shape))
    near = np.concatenate(parts)
    if not near.all():
        more = "; if you need features for a classifier, choose output='coordinates'"
        given = f"GyroBN.{method}()", M, x, near, first, closed
        algorithm.warn_of_distances(*given, "" if undo else more)
