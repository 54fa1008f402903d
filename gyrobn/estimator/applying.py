"""How the estimator applies Algorithm 1 to samples, or undoes it, and what it checks on the way."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.estimator import fitting
from gyrobn.estimator import validation as check
from gyrobn.estimator.validation import UNDO, is_coordinates
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization import normalize as algorithm
from gyrobn.normalization.domains import average_stats, by_domain, places_of
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.numerics.arrays import blocks_of, blockwise, length
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import Moved, describe, is_hyperbolic

Given = tuple[Any, dict[Any, Stats], dict[Any, OnlineStats]]
"""A label per sample, the statistics of each label, and the new value of ``online_``."""


def apply(bn: Any, X: Any, domains: Any, method: str) -> Array:
    """Check samples and normalize them, or undo it."""
    if not hasattr(bn, "mean_"):  # scikit-learn's check looks at every attribute
        check_is_fitted(bn)
    X, moved = check.as_array(bn, X, method), Moved()
    if method != UNDO:
        check.check_table(bn, X.shape[1:])
    X = check.checked(bn, X, method, moved=moved)
    moved.warn(bn.manifold_, X, method)
    return apply_checked(bn, X, domains, method)


def apply_checked(bn: Any, X: Array, domains: Any, method: str, first: int = 0) -> Array:
    """Normalize samples that are points, or undo it; the first has the number ``first``."""
    labels, stats, online = stats_for(bn, X, domains, method)
    out = apply_block(bn, X, labels, stats, method, first)
    bn.online_ = online  # only now: a call that fails leaves everything as it was
    return out


def apply_chunks(
    bn: Any, X: Any, domains: Any, method: str, moved: Moved | None = None
) -> Iterator[Array]:
    """Check chunks of samples and normalize them, or undo it; ``moved`` counts the projected."""
    check_is_fitted(bn)
    if isinstance(X, Iterator) and domains is None:  # one reading is enough
        X = Chunks(X.__iter__)
    raw = X if isinstance(X, Chunks) else Chunks(X)

    def ready(moved: Moved | None) -> Chunks:
        def checked(x: Array, rows: Any) -> Array:
            return check.checked(bn, check.as_array(bn, x, method), method, rows, moved)

        return raw.map(checked)

    check.check_given(bn.domains_, domains, method)
    labels = None if domains is None else check.labels_for(domains, raw.count)
    in_order = bn.unseen == "online" and labels is not None
    stats = {} if in_order else stats_for(bn, ready(None), labels, method)[1]

    def results(moved: Moved) -> Iterator[Array]:
        for rows, x in ready(moved).numbered():
            own, first = None if labels is None else labels[rows], int(rows[0])
            if in_order:
                yield apply_checked(bn, x, own, method, first)
            else:
                yield apply_block(bn, x, own, stats, method, first)
        moved.warn(bn.manifold_, bn.mean_, method)

    return results(Moved() if moved is None else moved)


# ---------------------------------------------------------------------- statistics per sample


def known_stats(bn: Any) -> dict[Any, Stats]:
    """Return the statistics of each domain that fit saw; of all samples by the label None."""
    mean, var = bn.mean_, bn.var_
    if bn.domains_ is None:
        return {None: Stats(mean, var)}
    return {d: Stats(mean[k, ...], var[k, ...]) for k, d in enumerate(bn.domains_.tolist())}


def stats_for(bn: Any, X: Array | Chunks, domains: Any, method: str) -> Given:
    """Return the statistics of the samples; the labels are None if all have the same."""
    check.check_given(bn.domains_, domains, method)
    stats = known_stats(bn)
    if domains is None:
        return None, stats, bn.online_
    labels = check.labels_for(domains, X.count if isinstance(X, Chunks) else X.shape[0])
    places = places_of(labels)
    new = {d: places[d] for d in check.unseen_among(bn, places, stats, method)}
    if new and bn.unseen == "online":
        return _online(bn, X, labels, stats, new)
    if new:
        X = X if isinstance(X, Chunks) else backend_of(X).stop_gradient(X)
        stats |= unseen_stats(bn, fitting.find_stats(bn, bn.manifold_, X, new, None, method))
    return labels, stats, bn.online_


def unseen_stats(bn: Any, found: fitting.Domains) -> dict[Any, Stats]:
    """Return the statistics for domains that fit did not see, from those of their samples."""
    batch, manifold = {d: Stats(*own[:2]) for d, own in found.items()}, bn.manifold_
    if bn.unseen == "refit" or not batch:
        return batch
    average = in_dtype_of(manifold, _average(bn), next(iter(batch.values())).mean)
    update, rate = algorithm.update_stats, bn.adapt_rate
    return {d: update(manifold, average, own, rate) for d, own in batch.items()}


def _average(bn: Any) -> Stats:
    search = {"tol": bn.tol, "max_iter": bn.max_iter}
    return average_stats(bn.manifold_, Stats(bn.mean_, bn.var_), **search)


def _online(
    bn: Any, X: Array, labels: Any, stats: dict[Any, Stats], new: Mapping[Any, Any]
) -> Given:
    """Follow the samples of new domains, each of which gets a label and statistics of its own."""
    if backend_of(X).traced(X):
        raise TypeError(
            "unseen='online' stores what it learns from each sample, and in a traced function "
            "samples have no values: call transform() outside of jax.jit and vmap"
        )
    x = as_points(bn.manifold_, backend_of(X).stop_gradient(X), bn.mean_)
    online = dict(bn.online_)
    first = [label for label in new if label not in online]
    if first:
        online |= dict.fromkeys(first, OnlineStats(0, *_average(bn)))
    each, own = list(stats.values()), np.searchsorted(bn.domains_, labels)
    for label, at in new.items():
        states = online_stats(bn.manifold_, online[label], take(x, at), bn.prior_strength)
        own[at] = range(len(each), len(each) + len(at))
        each += [state.stats for state in states]
        online[label] = states[-1]
    return own, dict(enumerate(each)), online


def in_dtype_of(manifold: GyroSpace, stats: Stats, x: Array) -> Stats:
    """Return statistics in the dtype of the samples."""
    if stats.mean.dtype == x.dtype:
        return stats
    return Stats(as_points(manifold, stats.mean, x), namespace_of(x).astype(stats.var, x.dtype))


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
    bn: Any, x: Array, labels: Any, stats: Mapping[Any, Stats], method: str, first: int = 0
) -> Array:
    """Normalize points, or undo it, and check the output.

    ``stats`` are those of each label, ``first`` is the number of the first sample, for messages.
    """
    manifold, undo, eps = bn.manifold_, method == UNDO, bn.eps
    bias, scale = affine_of(bn, x, method)
    function = algorithm.denormalize if undo else algorithm.normalize

    def run(x: Array, own: Stats) -> Array:
        if bn.output == "points":
            return function(manifold, x, own, bias, scale, eps, check=False)
        t = manifold.by_coordinate(algorithm.multiplier(x, own, scale, eps, None))
        if undo:
            return manifold.shift(own.mean, x / t)
        return t * manifold.relative_normal(own.mean, x)

    places = {None: None} if labels is None else places_of(labels)
    each = [in_dtype_of(manifold, stats[label], x) for label in places]
    with np.errstate(all="ignore"):  # the checks name what fails
        if labels is None:
            out = blockwise(lambda x: run(x, each[0]), x)
        else:
            out = by_domain(run, x, list(places.values()), each)
        if not backend_of(x).traced(out):
            block = Block(bn, method, x, out, bias, scale, each, labels, first)
            block.check_points()
            block.check_distances()
    if is_coordinates(bn, method, given=False):
        shape = (x.shape[0], *check.shape_of(bn, method, given=False))
        return namespace_of(out).reshape(out, shape)
    return out


def affine_of(bn: Any, x: Array, method: str) -> tuple[Any, Any]:
    """Return bias and scale for samples like x, or refuse those that do not fit."""
    check.check_output(bn)
    if bn.output == "coordinates":  # of which a bias and a scale do not know the shape
        shape = (0, *check.sample_shape(bn))
        x = namespace_of(x).empty(shape, dtype=x.dtype, device=device_of(x))
    return check.affine_for(bn.manifold_, x, bn.bias, bn.scale, method)


class Block(NamedTuple):
    """Some samples and what became of them, to check."""

    bn: Any
    method: str
    x: Array
    out: Array
    bias: Any
    scale: Any
    each: Sequence[Stats]
    """The statistics of all samples, or of each domain by its sorted label."""
    labels: Any
    first: int

    def stats(self, rows: slice) -> Stats:
        """Return the statistics of the samples in a range: of all, or of each of them."""
        if self.labels is None:
            return self.each[0]
        which = np.unique(self.labels, return_inverse=True)[1][rows]
        values, xp = zip(*self.each, strict=True), namespace_of(self.x)
        return Stats(*(take(xp.stack(list(a)), which) for a in values))

    def check_points(self) -> None:
        """Refuse an output that is not on the manifold, and name the sample."""
        bn, method, x, manifold = self.bn, self.method, self.x, self.bn.manifold_
        xp, undo, kind = namespace_of(x), method == UNDO, "point of"
        if is_coordinates(bn, method, given=False):
            good, kind = xp.all(xp.isfinite(self.out), axis=-1), "coordinates on"
        else:
            good = blockwise(manifold.contains, self.out)
        if bool(xp.all(good)):
            return
        what, i = describe(good, self.first)
        point, why = x[(*i, ...)], check.reason(manifold, x)
        if is_coordinates(bn, method, given=True):
            what = f"the coordinates of {what}, of length {float(length(point)):.4g}"
        else:
            bias = manifold.origin(x) if self.bias is None else self.bias
            mean = self.stats(slice(None)).mean
            mean, bias = (xp.broadcast_to(a, x.shape)[(*i, ...)] for a in (mean, bias))
            far = float(manifold.dist(bias if undo else mean, point))
            what += (
                f", at distance {far:.4g} from the {'bias' if undo else 'mean'}; from the identity "
                f"the mean is at {float(manifold.norm(mean)):.4g}, the bias at "
                f"{float(manifold.norm(bias)):.4g}"
            )
            if not undo and bn.output == "points":
                why += (
                    "; if you need features for a classifier, output='coordinates' returns the "
                    "scaled normal coordinates and makes no points of them"
                )
        raise ValueError(f"GyroBN.{method}() finds no {kind} {manifold!r} for {what}. {why}")

    def check_distances(self) -> None:
        """Warn if the coordinates of the output are not the scaled coordinates of the input."""
        bn, method, manifold = self.bn, self.method, self.bn.manifold_
        closed, undo = manifold.convexity_radius < float("inf"), method == UNDO
        edge = closed or is_hyperbolic(manifold)
        if not edge or is_coordinates(bn, method, given=False):
            return
        good = np.ones(self.x.shape[: self.out.ndim - len(manifold.point_shape)], dtype=np.bool_)
        for rows in blocks_of(self.x):
            x, y, stats = self.x[rows, ...], self.out[rows, ...], self.stats(rows)
            unit = float(np.sqrt(host(stats.var).max()) if undo else np.abs(host(self.scale)).max())
            if is_coordinates(bn, method, given=True):
                t = algorithm.multiplier(x, stats, self.scale, bn.eps, None)
                c = x / manifold.by_coordinate(t)
                good[rows] = algorithm.goes_as_far(manifold, c, y, stats.mean, unit)
            else:
                road = algorithm.route(
                    manifold, x, stats, self.bias, self.scale, bn.eps, None, undo
                )
                good[rows] = algorithm.arrived(manifold, x, y, road, unit, closed)
        if not good.all():
            more = "; if you need features for a classifier, choose output='coordinates'"
            given = f"GyroBN.{method}()", manifold, self.x, good, self.first, closed
            algorithm.warn_of_distances(*given, "" if undo else more)
