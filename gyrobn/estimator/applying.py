"""How the estimator applies Algorithm 1 to samples, or undoes it, and what it checks on the way."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.estimator.fitting import Domains, find_stats
from gyrobn.estimator.labels import check_given, labels_for, unseen_among
from gyrobn.estimator.validation import (
    UNDO,
    affine_for,
    as_array,
    check_output,
    check_table,
    checked,
    reason,
    result_shape,
    sample_shape,
)
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import average_stats, by_domain, places_of
from gyrobn.normalization.normalize import (
    Stats,
    denormalize,
    goes_as_far,
    multiplier,
    normalize,
    update_stats,
    warn_of_distances,
)
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.numerics.arrays import blocks_of, blockwise, length
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import Moved, describe, is_hyperbolic, may_be_far_out


def apply(bn: Any, X: Any, domains: Any, method: str) -> Array:
    """Check samples and normalize them, or undo it."""
    if not hasattr(bn, "mean_"):  # scikit-learn's check looks at every attribute
        check_is_fitted(bn)
    X, moved = as_array(bn, X, method), Moved()
    check_table(bn, X, method)
    X = checked(bn, X, method, moved=moved)
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
        return raw.map(lambda x, rows: checked(bn, as_array(bn, x, method), method, rows, moved))

    in_order = bn.unseen == "online" and domains is not None
    if in_order:
        check_given(bn.domains_, domains, method)
        labels, stats = labels_for(domains, raw.count), {}
    else:
        labels, stats, _ = stats_for(bn, ready(None), domains, method)

    def results(moved: Moved) -> Iterator[Array]:
        for rows, x in ready(moved).numbered():
            own = None if labels is None else labels[rows]
            if in_order:
                yield apply_checked(bn, x, own, method, int(rows[0]))
            else:
                yield apply_block(bn, x, own, stats, method, int(rows[0]))
        moved.warn(bn.manifold_, bn.mean_, method)

    return results(Moved() if moved is None else moved)


# ---------------------------------------------------------------------- statistics per sample


def known_stats(bn: Any) -> dict[Any, Stats]:
    """Return the statistics of each domain that fit saw; of all samples by the label None."""
    mean, var = bn.mean_, bn.var_
    if bn.domains_ is None:
        return {None: Stats(mean, var)}
    return {d: Stats(mean[k, ...], var[k, ...]) for k, d in enumerate(bn.domains_.tolist())}


def stats_for(
    bn: Any, X: Array | Chunks, domains: Any, method: str
) -> tuple[Any, dict[Any, Stats], dict[Any, OnlineStats]]:
    """Return a label per sample, the statistics of each label, and the new value of ``online_``.

    The labels are None if all samples have the same statistics.
    """
    check_given(bn.domains_, domains, method)
    stats = known_stats(bn)
    if domains is None:
        return None, stats, bn.online_
    labels = labels_for(domains, X.count if isinstance(X, Chunks) else X.shape[0])
    places = places_of(labels)
    new = {d: places[d] for d in unseen_among(bn, list(places), stats, method)}
    if new and bn.unseen == "online":
        return _online(bn, X, labels, stats, new)
    if new:
        X = X if isinstance(X, Chunks) else backend_of(X).stop_gradient(X)
        stats |= unseen_stats(bn, find_stats(bn, bn.manifold_, X, new, None, method))
    return labels, stats, bn.online_


def unseen_stats(bn: Any, found: Domains) -> dict[Any, Stats]:
    """Return the statistics for domains that fit did not see, from those of their samples."""
    batch, manifold = {label: own.stats for label, own in found.items()}, bn.manifold_
    if bn.unseen == "refit" or not batch:
        return batch
    average = in_dtype_of(manifold, _average(bn), next(iter(batch.values())).mean)
    return {d: update_stats(manifold, average, own, bn.adapt_rate) for d, own in batch.items()}


def _average(bn: Any) -> Stats:
    fitted = Stats(bn.mean_, bn.var_)
    return average_stats(bn.manifold_, fitted, tol=bn.tol, max_iter=bn.max_iter)


def _online(
    bn: Any, X: Array, labels: Any, stats: dict[Any, Stats], new: Mapping[Any, Any]
) -> tuple[Any, dict[Any, Stats], dict[Any, OnlineStats]]:
    """Follow the samples of new domains, each of which gets a label and statistics of its own."""
    backend, manifold = backend_of(X), bn.manifold_
    if backend.traced(X):
        raise TypeError(
            "unseen='online' stores what it learns from each sample, and in a traced function "
            "samples have no values: call transform() outside of jax.jit and vmap"
        )
    x = as_points(manifold, backend.stop_gradient(X), bn.mean_)
    online = dict(bn.online_)
    first = [label for label in new if label not in online]
    if first:
        online |= dict.fromkeys(first, OnlineStats(0, *_average(bn)))
    numbers = {label: k for k, label in enumerate(stats)}
    own = np.asarray([numbers.get(label, -1) for label in labels.tolist()])
    each = list(stats.values())
    for label, at in new.items():
        states = online_stats(manifold, online[label], take(x, at), bn.prior_strength)
        own[at] = range(len(each), len(each) + len(at))
        each += [state.stats for state in states]
        online[label] = states[-1]
    return own, dict(enumerate(each)), online


def in_dtype_of(manifold: GyroSpace, stats: Stats, x: Array) -> Stats:
    """Return statistics in the dtype of the samples."""
    if stats.mean.dtype == x.dtype:
        return stats
    var = namespace_of(x).astype(stats.var, x.dtype)
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
    bn: Any, x: Array, labels: Any, stats: Mapping[Any, Stats], method: str, first: int = 0
) -> Array:
    """Normalize points, or undo it, and check the output.

    ``stats`` are those of each label, ``first`` is the number of the first sample, for messages.
    """
    manifold, places = bn.manifold_, None if labels is None else places_of(labels)
    bias, scale = affine_of(bn, x, method)
    options = {"bias": bias, "scale": scale, "eps": bn.eps}

    def run(x: Array, own: Stats) -> Array:
        if bn.output == "points":
            function = denormalize if method == UNDO else normalize
            return function(manifold, x, own, **options, check=False)
        t = manifold.by_coordinate(multiplier(x, own, scale, bn.eps, None))
        if method == UNDO:
            return manifold.shift(own.mean, x / t)
        return t * manifold.relative_normal(own.mean, x)

    each = [in_dtype_of(manifold, stats[d], x) for d in places or (None,)]
    with np.errstate(all="ignore"):  # the checks name what fails
        if places is None:
            out = blockwise(lambda x: run(x, each[0]), x)
        else:
            out = by_domain(run, x, list(places.values()), each)
        if not backend_of(x).traced(out):
            output = Output(bn, method, bias, scale, _per_sample(each, places, x), first)
            output.check(x, out)
            output.check_distances(x, out)
    if bn.output == "coordinates" and method != UNDO:
        return namespace_of(out).reshape(out, (x.shape[0], *result_shape(bn, method)))
    return out


def affine_of(bn: Any, x: Array, method: str) -> tuple[Any, Any]:
    """Return bias and scale for samples like x, or refuse those that do not fit."""
    check_output(bn)
    if bn.output == "coordinates":  # of which a bias and a scale do not know the shape
        x = namespace_of(x).empty((0, *sample_shape(bn)), dtype=x.dtype, device=device_of(x))
    return affine_for(bn.manifold_, x, bn.bias, bn.scale, method)


def _per_sample(
    stats: Sequence[Stats], places: Mapping[Any, Any] | None, x: Array
) -> Callable[[slice], Stats]:
    """Return a function of a range of samples that returns the statistics of each, or of all."""
    if places is None:
        return lambda rows: stats[0]
    which = np.empty(x.shape[0], dtype=np.int64)
    for k, at in enumerate(places.values()):
        which[at] = k
    xp = namespace_of(x)
    return lambda rows: Stats(*(take(xp.stack(a), which[rows]) for a in zip(*stats, strict=True)))


class Output(NamedTuple):
    """What is needed to check an output."""

    bn: Any
    method: str
    bias: Any
    scale: Any
    stats: Callable[[slice], Stats]
    """Return the statistics of the samples in a range."""
    first: int

    def check(self, x: Array, out: Array) -> None:
        """Refuse an output that is not on the manifold, and name the sample."""
        xp, bn, manifold, undo = namespace_of(x), self.bn, self.bn.manifold_, self.method == UNDO
        coordinates = bn.output == "coordinates"
        if coordinates and not undo:
            good = xp.all(xp.isfinite(out), axis=-1)
        else:
            good = blockwise(manifold.contains, out)
        if bool(xp.all(good)):
            return
        what, i = describe(good, self.first)
        point, why = x[(*i, ...)], reason(manifold, x)
        if coordinates and undo:
            raise ValueError(
                f"GyroBN.{self.method}() finds no point of {manifold!r} for the coordinates of "
                f"{what}, of length {float(length(point)):.4g}. {why}"
            )
        mean = xp.broadcast_to(self.stats(slice(None)).mean, x.shape)[(*i, ...)]
        bias = manifold.origin(x) if self.bias is None else self.bias
        bias = xp.broadcast_to(bias, x.shape)[(*i, ...)]
        centre, name = (bias, "bias") if undo else (mean, "mean")
        more = "; if you need features for a classifier, output='coordinates' returns the scaled "
        raise ValueError(
            f"GyroBN.{self.method}() finds no {'coordinates on' if coordinates else 'point of'} "
            f"{manifold!r} for {what}, at distance {float(manifold.dist(centre, point)):.4g} from "
            f"the {name}; from the identity, the mean is at {float(manifold.norm(mean)):.4g}, the "
            f"bias at {float(manifold.norm(bias)):.4g}. {why}"
            + ("" if coordinates or undo else more + "normal coordinates, which need no points")
        )

    def check_distances(self, x: Array, out: Array) -> None:
        """Warn if the coordinates of the output are not the scaled coordinates of the input.

        On a closed space (sphere, Grassmannian, rotations) such samples came back from the other
        side. On a hyperbolic space they were clamped where coordinates end, or lost their digits.
        """
        bn, manifold, undo = self.bn, self.bn.manifold_, self.method == UNDO
        closed = manifold.convexity_radius < float("inf")
        if (bn.output == "coordinates" and not undo) or not (closed or is_hyperbolic(manifold)):
            return
        good = np.ones(out.shape[: out.ndim - len(manifold.point_shape)], dtype=np.bool_)
        for rows in blocks_of(x):
            good[rows] = self._arrives(x[rows, ...], out[rows, ...], self.stats(rows), closed)
        if not good.all():
            advice = (
                "; if you need features for a classifier, not points, choose output='coordinates'"
            )
            name, more = f"GyroBN.{self.method}()", "" if undo else advice
            warn_of_distances(name, manifold, x, good, self.first, closed, more)

    def _arrives(self, x: Array, y: Array, stats: Stats, closed: bool) -> Any:
        """Return which samples are as far from the target as they should be."""
        bn, manifold, undo = self.bn, self.bn.manifold_, self.method == UNDO
        xp, (x, y) = namespace_of(x), map(backend_of(x).stop_gradient, (x, y))
        factor = multiplier(x, stats, self.scale, bn.eps, None)
        unit = np.sqrt(host(stats.var).max()) if undo else np.abs(host(self.scale)).max()
        centre, target, t = stats.mean, self.bias, manifold.by_coordinate(factor)
        if bn.output == "coordinates":
            c, target, far = x / t, stats.mean, is_hyperbolic(manifold)
        else:
            if undo:
                centre, target = manifold.origin(x) if target is None else target, stats.mean
                factor, t = 1.0 / factor, 1.0 / t
            far = may_be_far_out(manifold, x, centre, factor, target)
            if not far and not (closed and float(xp.max(xp.abs(factor))) > 1.0):
                return True
            c = t * manifold.relative_normal(centre, x)
        reach = float(xp.max(xp.sum(c * c, axis=-1)))
        if not far and reach <= (2.0 * manifold.convexity_radius) ** 2:
            return True
        return goes_as_far(manifold, c, y, target, float(unit))
