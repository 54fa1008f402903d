"""How the estimator applies Algorithm 1 to samples, or undoes it, and what it checks on the way."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn import get_config
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.data.chunks import Chunks, take
from gyrobn.estimator.fitting import find_stats, search_of
from gyrobn.estimator.labels import check_given, check_policy, check_unseen, labels_for
from gyrobn.estimator.models import settle
from gyrobn.estimator.validation import (
    affine_for,
    as_array,
    channels_of,
    check_output,
    reason,
    result_shape,
    sample_shape,
    takes_coordinates,
)
from gyrobn.manifolds import Euclidean
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import adapt_stats, average_stats, by_domain, places_of
from gyrobn.normalization.normalize import (
    Road,
    Stats,
    goes_as_far,
    multiplier,
    route,
    scale_for,
    warn_of_distances,
)
from gyrobn.normalization.online import OnlineStats, online_stats
from gyrobn.numerics.arrays import blocks_of, blockwise, length
from gyrobn.numerics.checks import host, parameter_error
from gyrobn.statistics.points import Moved, describe, is_hyperbolic, may_be_far_out, on_manifold


def apply(bn: Any, X: Any, domains: Any, method: str) -> Array:
    """Check samples and normalize them, or undo it."""
    if not hasattr(bn, "mean_"):  # scikit-learn's check looks at every attribute
        check_is_fitted(bn)
    X = as_array(bn, X, method)
    check_table(bn, X, method)
    small = type(X) is np.ndarray and bn.domains_ is None and domains is None
    if small and bn.on_invalid == "raise" and bn.output == "points":
        out = _apply_small(bn, X, method)
        if out is not None:
            return out
    moved = Moved()
    X = checked(bn, X, method, moved=moved)
    moved.warn(bn.manifold_, X, method)
    return apply_chunk(bn, X, stats_for(bn, X, domains, method), method)


def checked(bn: Any, X: Array, method: str, first: Any = 0, moved: Moved | None = None) -> Array:
    """Return samples that are points, or coordinates of shape (N, *channels, dim), or refuse them.

    ``first`` and ``moved`` are as in :func:`~gyrobn.statistics.points.on_manifold`.
    """
    if takes_coordinates(bn, method):
        dim = bn.manifold_.dim
        c = namespace_of(X).reshape(X, (X.shape[0], *channels_of(bn), dim))
        return on_manifold(Euclidean(dim), c, first=first)  # finite
    project = bn.on_invalid == "project"
    return on_manifold(bn.manifold_, X, project=project, first=first, moved=moved)


def _apply_small(bn: Any, X: Array, method: str) -> Array | None:
    """Normalize a small array, and check input and output together, in half the time.

    Return None if anything is wrong. The caller then checks the input first, and the error names
    the sample.
    """
    if len(blocks_of(X)) > 1:
        return None
    action = _Action(bn, X, method)
    try:
        with np.errstate(all="ignore"):
            out, stays = action.on(X, in_dtype_of(bn.manifold_, Stats(bn.mean_, bn.var_), X))
            good = bn.manifold_.contains(np.stack([X, out]))
            return out if stays and good.all() else None
    except Exception:  # a sample off the manifold can make any step fail
        return None


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
        found = Found(labels_for(domains, raw.count), {})
    else:
        found = stats_for(bn, ready(None), domains, method)

    def results(moved: Moved) -> Iterator[Array]:
        for rows, x in ready(moved).numbered():
            labels = None if found.labels is None else found.labels[rows]
            own = stats_for(bn, x, labels, method) if in_order else Found(labels, found.stats)
            yield apply_chunk(bn, x, own, method, int(rows[0]))
        moved.warn(bn.manifold_, bn.mean_, method)

    return results(Moved() if moved is None else moved)


class Found(NamedTuple):
    """Which statistics each sample gets."""

    labels: Any
    """One label per sample, or None if all samples have the same statistics."""
    stats: dict[Any, Stats]
    """The statistics of each label that occurs."""
    online: dict[Any, OnlineStats] | None = None
    """What ``unseen="online"`` knows after these samples; None if they change nothing."""


def apply_chunk(
    bn: Any, X: Array, found: Found, method: str, first: int = 0, view: Centred | None = None
) -> Array:
    """Normalize points, or undo it, check the output, and keep what ``unseen="online"`` found.

    ``first`` is the number of the first sample, for messages. ``view`` holds the samples as they
    are seen from their mean, if known.
    """
    manifold, action = bn.manifold_, _Action(bn, X, method, first)
    stays = []

    def carry(x: Array, own: Stats) -> Array:
        out, as_far = action.on(x, own, view)
        stays.append(as_far)
        return out

    places = {None: None} if found.labels is None else places_of(found.labels)
    own = [in_dtype_of(manifold, found.stats[d], X) for d in places]
    at = None if found.labels is None else list(places.values())
    with np.errstate(all="ignore"):  # the checks name what fails
        if at is None:
            out = blockwise(lambda x: carry(x, own[0]), X)
        else:
            out = by_domain(carry, X, at, own)
        if not backend_of(X).traced(out):
            action.check_output(X, out, own, at)
            if not all(stays):
                action.check_distances(X, out, own, at)
    if found.online is not None:  # only now: a call that fails leaves everything as it was
        bn.online_ = found.online
    if bn.output == "coordinates" and method == "transform":
        return namespace_of(out).reshape(out, (X.shape[0], *result_shape(bn, method)))
    return out


def known_stats(bn: Any) -> dict[Any, Stats]:
    """Return the statistics of each domain that fit saw; of all samples by the label None."""
    return {label: Stats(*fitted[:2]) for label, fitted in bn._known.items()}


def stats_for(bn: Any, X: Array | Chunks, domains: Any, method: str) -> Found:
    """Return which statistics each sample gets, and find those of new domains."""
    check_given(bn.domains_, domains, method)
    known = known_stats(bn)
    if bn.domains_ is None:
        return Found(None, known)
    labels = labels_for(domains, X.count if isinstance(X, Chunks) else X.shape[0])
    new = {d: at for d, at in places_of(labels).items() if d not in known}
    if new:
        check_policy(bn)
        check_unseen(bn.domains_, labels, list(new), bn.unseen, method)
        if bn.unseen == "online":
            return _online(bn, X, labels, known, new)
        X = X if isinstance(X, Chunks) else backend_of(X).stop_gradient(X)
        found, _ = find_stats(bn.manifold_, X, new, None, method, **search_of(bn))
        batch = unseen_stats(bn, Stats(found.mean, found.variance))
        known |= {d: Stats(*(a[k, ...] for a in batch)) for k, d in enumerate(new)}
    return Found(labels, known)


def _online(bn: Any, X: Array, labels: Any, known: dict[Any, Stats], new: dict[Any, Any]) -> Found:
    """Follow the samples of new domains, each of which gets a label and statistics of its own."""
    shim, manifold = backend_of(X), bn.manifold_
    if shim.traced(X):
        raise TypeError(
            "unseen='online' keeps what it learns from each sample, and in a traced function "
            "samples have no values: call transform() outside of jax.jit and vmap"
        )
    x = shim.stop_gradient(X)
    if x.dtype != bn.mean_.dtype:
        x = settle(manifold, namespace_of(x).astype(x, bn.mean_.dtype))
    online = dict(bn.online_)
    first = [label for label in new if label not in online]
    if first:
        seen = Stats(bn.mean_, bn.var_)
        average = average_stats(manifold, seen, tol=bn.tol, max_iter=bn.max_iter)
        online |= dict.fromkeys(first, OnlineStats(0, *average))
    numbers = {label: k for k, label in enumerate(known)}
    own = np.asarray([numbers.get(label, -1) for label in labels.tolist()])
    stats = dict(enumerate(known.values()))
    for label, at in new.items():
        states = online_stats(manifold, online[label], take(x, at), bn.prior_strength)
        own[at] = range(len(stats), len(stats) + len(at))
        stats |= {k: state.stats for k, state in zip(own[at].tolist(), states, strict=True)}
        online[label] = states[-1]
    return Found(own, stats, online)


def unseen_stats(bn: Any, batch: Stats) -> Stats:
    """Return the statistics to use for domains that fit did not see, from those of a batch."""
    if bn.unseen != "adapt":
        return batch
    seen = in_dtype_of(bn.manifold_, Stats(bn.mean_, bn.var_), batch.mean)
    return adapt_stats(bn.manifold_, seen, batch, bn.adapt_rate, tol=bn.tol, max_iter=bn.max_iter)


def check_table(bn: Any, X: Array, method: str, lazy: bool = False) -> None:
    """Refuse the table that ``set_output`` asks for if the output cannot fill one.

    The output of ``lazy`` samples is a Dask array, and a table would compute all of it at once.
    """
    own = getattr(bn, "_sklearn_output_config", {}).get("transform")
    wanted = own or get_config()["transform_output"]
    if method != "transform" or wanted == "default":
        return
    if X.ndim != 2 and bn.output == "points":
        raise not_a_table(
            f"set_output(transform={wanted!r}) makes a table with one column per feature",
            tuple(X.shape[1:]),
        )
    if lazy:
        raise ValueError(
            f"set_output(transform={wanted!r}) would compute all of a Dask array at once: leave it "
            "at set_output(transform='default')"
        )


def not_a_table(why: str, shape: tuple[int, ...]) -> ValueError:
    """Return the error for an output that is not a table."""
    return ValueError(
        f"{why}, and samples of shape {shape} are not rows of a table: choose "
        "output='coordinates', which returns normal coordinates, one named column each, or leave "
        "set_output at transform='default'"
    )


def check_action(bn: Any, X: Array, method: str) -> None:
    """Refuse a bias or a scale that does not fit samples of the shape of X."""
    _Action(bn, X, method)


class _Action:
    """What one call does: normalize, or undo it, with a bias and a scale that fit the samples."""

    def __init__(self, bn: Any, X: Array, method: str, first: int = 0) -> None:
        self.manifold, self.eps = bn.manifold_, bn.eps
        self.method, self.first = method, first
        self.inverse = method == "inverse_transform"
        self.closed = self.manifold.convexity_radius < float("inf")
        check_output(bn)
        self.coordinates = bn.output == "coordinates"
        like = X
        if takes_coordinates(bn, method):  # of which a bias and a scale do not know the shape
            like = namespace_of(X).empty((0, *sample_shape(bn)), dtype=X.dtype, device=device_of(X))
        self.bias, self.scale = affine_for(self.manifold, like, bn.bias, bn.scale)
        if self.inverse and not np.all(host(self.scale)):
            raise ValueError(
                f"scale={bn.scale!r} takes all samples to one point, which cannot be undone: "
                "inverse_transform needs a scale other than 0"
            )

    def on(self, x: Array, stats: Stats, view: Centred | None = None) -> tuple[Array, bool]:
        """Return the output, and whether it surely is as far from the target as it should be.

        Then no point came back from the other side of a closed space, or was held where coordinates
        end. It is not looked at if values cannot be seen.
        """
        manifold = self.manifold
        if self.coordinates:
            return self._on_coordinates(x, stats, view)
        road = self.road(x, stats)
        hidden = backend_of(x).traced(x)
        stays = hidden or not may_be_far_out(manifold, *map(_constant, (x, *road)))
        if view is None:
            if not self.closed:
                return manifold.standardize(x, *road), stays
            view = manifold.inside.centred(manifold.to_inside(road.centre), manifold.to_inside(x))
        target = None if road.target is None else manifold.to_inside(road.target)
        out = manifold.from_inside(view.standardize(road.factor, target))
        if self.closed and stays and not hidden:
            xp, t = namespace_of(x), manifold.expand_blocks(road.factor)
            reach = float(xp.max(xp.sum(t * t * view.squares, axis=-1)))
            stays = reach <= (2.0 * manifold.convexity_radius) ** 2
        return out, stays

    def _on_coordinates(self, x: Array, stats: Stats, view: Centred | None) -> tuple[Array, bool]:
        """Return scaled normal coordinates of points seen from the mean, or undo it."""
        manifold, xp = self.manifold, namespace_of(x)
        factor = multiplier(x, stats, scale_for(manifold, self.scale), self.eps, None)
        t = manifold.by_coordinate(factor)
        if not self.inverse:  # coordinates are not confined
            c = manifold.relative_normal(stats.mean, x) if view is None else view.normal
            return t * c, True
        c = x / t
        out = manifold.shift(stats.mean, c)
        if backend_of(x).traced(x):
            return out, True
        near = float(xp.max(xp.sum(c * c, axis=-1))) <= (2.0 * manifold.convexity_radius) ** 2
        return out, near and not is_hyperbolic(manifold)

    def road(self, x: Array, stats: Stats) -> Road:
        """Return where samples go."""
        return route(self.manifold, x, stats, self.bias, self.scale, self.eps, None, self.inverse)

    def check_output(
        self, X: Array, out: Array, stats: Sequence[Stats], places: Sequence[Any] | None
    ) -> None:
        """Refuse an output that is not on the manifold, and name the sample."""
        xp, manifold = namespace_of(X), self.manifold
        if self.coordinates and not self.inverse:
            good = xp.all(xp.isfinite(out), axis=-1)
        else:
            good = blockwise(manifold.contains, out)
        if bool(xp.all(good)):
            return
        what, i = describe(good, self.first)
        if self.coordinates and self.inverse:
            raise ValueError(
                f"GyroBN.{self.method}() finds no point of {manifold!r} for the coordinates of "
                f"{what}, of length {float(length(X[(*i, ...)])):.4g}. {reason(manifold, X)}"
            )
        k = 0 if places is None else next(k for k, at in enumerate(places) if i[0] in at)
        target = manifold.origin(X) if self.bias is None else self.bias
        target = xp.broadcast_to(target, X.shape[1:])
        x, m, b = X[(*i, ...)], *(a[(*i[1:], ...)] for a in (stats[k].mean, target))
        c, name = (b, "bias") if self.inverse else (m, "mean")
        kind = "coordinates on" if self.coordinates else "point of"
        text = (
            f"GyroBN.{self.method}() finds no {kind} {manifold!r} for {what}, at distance "
            f"{float(manifold.dist(c, x)):.4g} from the {name}; from the identity, the mean "
            f"is at {float(manifold.norm(m)):.4g}, the bias at {float(manifold.norm(b)):.4g}. "
            + reason(manifold, X)
        )
        if self.coordinates or self.inverse:
            raise ValueError(text)
        raise parameter_error(
            text + "; if you need features for a classifier, not points, ",
            "coordinates",
            " returns the scaled normal coordinates and makes no points of them",
            spelling="output='coordinates'",
        )

    def check_distances(
        self, X: Array, out: Array, stats: Sequence[Stats], places: Sequence[Any] | None
    ) -> None:
        """Warn if the coordinates of the output are not the scaled coordinates of the input.

        On a closed space (sphere, Grassmannian, rotations) such samples came back from the other
        side. On a hyperbolic space they were held where coordinates end, or lost their digits.
        """
        manifold = self.manifold
        good = np.ones(out.shape[: out.ndim - len(manifold.point_shape)], dtype=np.bool_)
        for own, at in zip(stats, [slice(None)] if places is None else places, strict=True):
            x, y = (X, out) if places is None else (take(a, at) for a in (X, out))
            unit = np.sqrt(host(own.var).max()) if self.inverse else np.abs(host(self.scale)).max()
            if self.coordinates:
                factor = multiplier(x, own, scale_for(manifold, self.scale), self.eps, None)
                c, target = x / manifold.by_coordinate(factor), own.mean
            else:
                centre, factor, target = self.road(x, own)
                c = manifold.by_coordinate(factor) * manifold.relative_normal(centre, x)
            good[at] = goes_as_far(manifold, c, y, target, float(unit))
        if not np.all(good):
            more = (
                "; if you need features for a classifier, not points, choose output='coordinates'"
            )
            warn_of_distances(
                f"GyroBN.{self.method}()",
                manifold,
                X,
                good,
                self.first,
                self.closed,
                "" if self.inverse else more,
            )


def _constant(x: Array | None) -> Array | None:
    return None if x is None else backend_of(x).stop_gradient(x)


def in_dtype_of(manifold: GyroSpace, stats: Stats, x: Array) -> Stats:
    """Return statistics in the dtype of the samples."""
    if stats.mean.dtype == x.dtype:
        return stats
    mean, variance = (namespace_of(x).astype(a, x.dtype) for a in stats)
    return Stats(settle(manifold, mean), variance)
