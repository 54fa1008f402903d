"""How the estimator applies Algorithm 1 to samples, or undoes it, and checks the output.

Of a Dask array ``apply`` only describes what to compute: a task does one block of samples.
"""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import array_api_compat as compat
import numpy as np
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.estimator import validation as check
from gyrobn.estimator.fitting import domains_of, find_stats, ready, valid_weights
from gyrobn.estimator.validation import UNDO
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.rebased import seen_from
from gyrobn.normalization import normalize as algorithm
from gyrobn.normalization.domains import average_stats, by_domain, places_of
from gyrobn.normalization.normalize import Stats
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.numerics.arrays import blocks_of, blockwise, cast, length, real_dtype
from gyrobn.numerics.checks import host
from gyrobn.statistics.points import Moved, describe, is_hyperbolic


def apply(bn: Any, X: Any, domains: Any, method: str) -> Array:
    """Check samples and normalize them, or undo it; in a Dask array, describe how to."""
    if not hasattr(bn, "mean_"):  # scikit-learn's check takes longer
        check_is_fitted(bn)
    if compat.is_dask_array(X):
        return _apply_dask(bn, X, domains, method)
    X, moved = check.as_array(bn, X, method), Moved()
    if method != UNDO:
        check.check_table(bn, X.shape[1:])
    X = ready(bn, X, method, moved)
    moved.warn(bn.manifold_, X, method)
    labels = check.labels_of(bn, domains, X.shape[0], method)
    stats = stats_for(bn, X, labels, method, moved)
    return apply_block(bn, X, labels, stats, method, moved)


def apply_chunks(bn: Any, X: Any, domains: Any, method: str) -> Iterator[Array]:
    """Check chunks of samples and normalize them, or undo it."""
    check_is_fitted(bn)
    if isinstance(X, Iterator) and domains is bn.domains_ is None:  # one reading is enough
        X = Chunks(X.__iter__)
    chunks, moved = X if isinstance(X, Chunks) else Chunks(X), Moved()
    labels = check.labels_of(bn, domains, 0 if domains is None else chunks.count, method)
    chunks = ready(bn, chunks, method, moved)
    stats = stats_for(bn, chunks, labels, method, moved)

    def results() -> Iterator[Array]:
        for rows, x in chunks.numbered():
            own = None if labels is None else labels[rows]
            yield apply_block(bn, x, own, stats, method, moved, int(rows[0]))
        moved.warn(bn.manifold_, bn.mean_, method)

    return results()


def _apply_dask(bn: Any, X: Any, domains: Any, method: str) -> Any:
    """Return the Dask array of results; only the statistics of new domains are computed."""
    from dask import delayed

    from gyrobn.data.dask import cut_like, lazy_samples, stand_in

    X = lazy_samples(X)
    like = check.as_array(bn, stand_in(X, 1), method)
    if method != UNDO:
        check.check_table(bn, X.shape[1:], lazy=True)
    check.affine_for(bn, bn.manifold_, check.sample_shape(bn), like, method)
    labels = check.labels_of(bn, domains, X.shape[0], method, lazy=True)
    stats = stats_for(bn, X, labels, method, Moved())
    tail = check.row_shape(bn, check.spaces(bn, method)[1])
    meta = namespace_of(X._meta).reshape(X._meta[:0, ...], (0,) * (1 + len(tail)))
    options = {"dtype": X.dtype, "meta": meta, "token": f"gyrobn-{method.replace('_', '-')}"}
    if tail != X.shape[1:]:
        options["chunks"] = (X.chunks[0], *((n,) for n in tail))
        options["drop_axis"], options["new_axis"] = [*range(1, X.ndim)], [*range(1, 1 + len(tail))]
    # a copy, since a later fit() must not change what was described before
    options["there"] = delayed((copy(bn), stats, method, tail), pure=True, traverse=False)
    if labels is None:
        return X.map_blocks(_apply_block, **options)
    labels = cut_like(labels, X.chunks[0], "domains")
    return X.map_blocks(_apply_block, labels[:, *(None,) * (X.ndim - 1)], **options)


def _apply_block(x: Any, labels: Any = None, *, there: Any, block_info: Any = None) -> Any:
    """Normalize a block, or undo it, in a task of ``map_blocks``."""
    bn, stats, method, tail = there
    if not x.shape[0]:
        return namespace_of(x).reshape(x, (0, *tail))
    start, moved = block_info[0]["array-location"][0][0], Moved()
    first = 0 if np.isnan(start) else int(start)
    try:
        labels = None if labels is None else check.labels_for(labels.reshape(-1), x.shape[0])
        x = ready(bn, x, method, moved, first=first)
        out = apply_block(bn, x, labels, stats, method, moved, first, ordered=False)
    except ValueError as error:
        if np.isnan(start):
            number = block_info[0]["chunk-location"][0]
            error.add_note(f"The index counts from the start of block {number} of X.")
        raise
    moved.warn(bn.manifold_, x, method)
    return out


# ---------------------------------------------------------------------- statistics per domain


def stats_for(bn: Any, X: Any, labels: Any, method: str, moved: Moved) -> dict[Any, Any]:
    """Return the statistics of each domain, also of new ones if ``unseen`` finds them in X.

    ``moved`` knows which points are invalid.
    """
    stats: dict[Any, Any] = dict(domains_of(bn))
    if labels is None:
        new = None not in stats
        if new:
            check.check_parameters(bn)
    elif compat.is_dask_array(labels):  # a task refuses new ones where they are not welcome
        new = method == "transform" and bn.unseen in ("refit", "adapt")
    else:
        ordered = not compat.is_dask_array(X)
        new = bool(check.unseen_among(bn, np.unique(labels).tolist(), stats, method, ordered))
    if not new or bn.unseen == "online":
        return stats
    weights = valid_weights(bn, X, None, moved)
    found = find_stats(bn, bn.manifold_, X, labels, weights, method, Moved(), known=stats)
    check.unseen_among(bn, found, stats, method)
    if bn.unseen == "refit" or not found:
        return stats | found
    average = in_dtype_of(bn.manifold_, _average(bn), next(iter(found.values())).mean)
    for label, (mean, var, *_) in found.items():
        own = Stats(mean, var)
        stats[label] = algorithm.update_stats(bn.manifold_, average, own, bn.adapt_rate)
    return stats


def _average(bn: Any) -> Stats:
    search = {"tol": bn.tol, "max_iter": bn.max_iter}
    return average_stats(bn.manifold_, Stats(bn.mean_, bn.var_), **search)


def _online(
    bn: Any, X: Array, labels: Any, stats: dict[Any, Any], new: dict[Any, Any]
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
    var = namespace_of(x).astype(stats.var, real_dtype(x), copy=False)
    return Stats(as_points(manifold, stats.mean, x), var)


def as_points(manifold: GyroSpace, points: Array, like: Array) -> Array:
    """Return points in the dtype of ``like``; those that are then not on the manifold, projected.

    A point to the digits of float32 may not be one to those of float64.
    """
    dtype = real_dtype(like)
    return points if real_dtype(points) == dtype else settled(manifold, cast(points, dtype))


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
    moved: Moved,
    first: int = 0,
    ordered: bool = True,
) -> Array:
    """Normalize points, or undo it, and check the output; what was dropped becomes NaN.

    ``stats`` are those of each label, ``first`` is the number of the first sample.
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
    reference = None if bn.reference_ is None else as_points(M, bn.reference_, x)
    space = seen_from(M, reference, reference)  # x may be coordinates

    def run(x: Array, own: Stats) -> Array:
        if bn.output == "points":
            return function(space, x, own, bias, scale, bn.eps, check=False)
        t = M.by_coordinate(algorithm.multiplier(x, own, scale, bn.eps, None))
        return space.shift(own.mean, x / t) if undo else t * space.relative_normal(own.mean, x)

    each = [in_dtype_of(M, stats[label], x) for label in places]
    which = None if labels is None else np.unique(labels, return_inverse=True)[1]

    def of(rows: slice) -> Stats:
        """Return the statistics of the samples in a range: of all, or of each of them."""
        if which is None:
            return each[0]
        stacks = map(namespace_of(x).stack, map(list, zip(*each, strict=True)))
        return Stats(*(take(stack, which[rows]) for stack in stacks))

    with np.errstate(all="ignore"):  # the checks name what fails
        if labels is None:
            out = blockwise(lambda x: run(x, each[0]), x)
        else:
            out = by_domain(run, x, list(places.values()), each)
        if not backend_of(x).traced(out):
            _check(bn, space, x, out, bias, scale, of, method, first)
    bn.online_ = online  # only now: a call that fails leaves everything as it was
    xp, space = namespace_of(out), check.spaces(bn, method)[1]
    if first in moved.valid:
        valid = moved.valid[first][(..., *(None,) * len(space.point_shape))]
        out = xp.where(valid, out, float("nan"))
    return xp.reshape(out, (x.shape[0], *check.row_shape(bn, space)))


def _check(
    bn: Any,
    space: GyroSpace,
    x: Array,
    out: Array,
    bias: Any,
    scale: Any,
    of: Callable[[slice], Stats],
    method: str,
    first: int,
) -> None:
    """Refuse an output that is not on the manifold; warn if it is not as far out as it should be.

    ``of`` returns the statistics of the samples in a range; ``space`` is the geometry as it is seen
    from the reference.
    """
    M, xp, undo = bn.manifold_, namespace_of(x), method == UNDO
    (taken, wanted), output = check.spaces(bn, method), ""
    if not undo and wanted is M:
        output = "; if you need features for a classifier, choose output='coordinates'"
    good = blockwise(wanted.contains, out)
    if not bool(xp.all(good)):
        what, i = describe(good, first)
        if taken is not M:
            what = f"the coordinates of {what}, of length {float(length(x[(*i, ...)])):.4g}"
        else:
            ends = of(slice(i[0], i[0] + 1)).mean, space.origin(x) if bias is None else bias
            mean, centre = (xp.broadcast_to(a, (1, *x.shape[1:]))[(0, *i[1:], ...)] for a in ends)
            far = float(M.dist(centre if undo else mean, x[(*i, ...)]))
            seen = "identity" if space is M else "reference"
            m, b = (float(space.norm(point)) for point in (mean, centre))
            what += (
                f", at distance {far:.4g} from the {'bias' if undo else 'mean'}; from the {seen} "
                f"the mean is at {m:.4g}, the bias at {b:.4g}"
            )
        kind = "point of" if wanted is M else "coordinates on"
        raise ValueError(
            f"GyroBN.{method}() finds no {kind} {M!r} for {what}. {check.reason(M, x)}{output}"
        )
    closed = M.convexity_radius < float("inf")
    if wanted is not M or not (closed or is_hyperbolic(M)):
        return
    parts = []
    for rows in blocks_of(x):
        y, own = out[rows, ...], of(rows)
        deviation = np.sqrt(host(own.var).max())
        unit = float(deviation if undo or scale is None else np.abs(host(scale)).max())
        if taken is M:
            route = algorithm.route(space, x[rows, ...], own, bias, scale, bn.eps, None, undo)
            part = algorithm.arrived(space, x[rows, ...], y, route, unit, closed)
        else:
            c = x[rows, ...] / M.by_coordinate(algorithm.multiplier(y, own, scale, bn.eps, None))
            part = algorithm.goes_as_far(space, c, y, own.mean, unit)
        parts.append(np.broadcast_to(part, good[rows, ...].shape))
    near = np.concatenate(parts)
    if not near.all():
        given = f"GyroBN.{method}()", M, x, near, first, closed
        algorithm.warn_of_distances(*given, output)
