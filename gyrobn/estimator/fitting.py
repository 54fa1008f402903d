"""How the estimator learns: the statistics of samples, per domain, and how to add more samples.

Samples in memory, in chunks and in a Dask array differ in their source only.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

import array_api_compat as compat
import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.estimator import validation as check
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.rebased import seen_from
from gyrobn.normalization.domains import average_stats, domain_stats, places_of
from gyrobn.normalization.normalize import Stats, merge_stats
from gyrobn.numerics.arrays import cast, real_dtype
from gyrobn.numerics.checks import host, warn_caller
from gyrobn.statistics.frechet import FrechetResult, check_search, frechet, of_source
from gyrobn.statistics.points import Moved, describe, on_manifold
from gyrobn.statistics.uniqueness import Domains as Named
from gyrobn.statistics.uniqueness import FrechetWarning


class Fitted(NamedTuple):
    """The statistics of a domain; of several, with a leading axis."""

    mean: Array
    var: Array
    weight: Array
    """Sum of the weights, shape (*channels,)."""
    n_iter: Array
    converged: Array


ATTRIBUTES = "mean_", "var_", "weight_sum_", "n_iter_", "converged_"
"""Where the estimator stores them."""

Domains = dict[Any, Fitted]
"""The statistics of each domain by its label; without domains, of all samples by the label None."""


def by_label(labels: Iterable[Any] | None, fitted: Fitted) -> Domains:
    """Return the statistics of each domain."""
    if labels is None:
        return {None: fitted}
    return {d: Fitted(*(a[k, ...] for a in fitted)) for k, d in enumerate(labels)}


def domains_of(bn: Any) -> Domains:
    """Return the statistics of each domain of a fitted estimator."""
    labels = None if bn.domains_ is None else bn.domains_.tolist()
    return by_label(labels, Fitted(*(getattr(bn, name) for name in ATTRIBUTES)))


def store(bn: Any, fitted: Fitted) -> None:
    """Store statistics as attributes; what is one number without channels is a plain one."""
    vars(bn).update(zip(ATTRIBUTES, fitted, strict=True))
    if not fitted.n_iter.ndim:
        bn.n_iter_, bn.converged_ = int(fitted.n_iter), bool(fitted.converged)


def merge(manifold: GyroSpace, old: Fitted, new: Fitted) -> Fitted:
    """Put two sets of samples together by their weights, in the dtype of the old set.

    Iterations and convergence are those of the new samples.
    """
    xp = namespace_of(old.mean)
    if not bool(xp.all(old.weight > 0)):
        raise ValueError("weight_sum_ is 0: set it to what the earlier samples should count as")
    *batch, weight = (cast(a, real_dtype(old.mean)) for a in new[:3])
    total = old.weight + weight
    stats = merge_stats(manifold, Stats(*old[:2]), Stats(*batch), weight / total)
    return Fitted(*stats, total, new.n_iter, new.converged)


def learn(bn: Any, X: Any, y: Any, weights: Any, domains: Any, method: str) -> None:
    """Find the statistics of samples, merge them with earlier ones, and store them."""
    check.check_target(bn, y, domains, method)
    check.check_parameters(bn)
    more, lazy = method == "partial_fit" and hasattr(bn, "mean_"), compat.is_dask_array(X)
    if more:
        check.check_given(bn.domains_, domains, method)
    X, head, like, count = _in_dask(bn, X, method) if lazy else _in_memory(bn, X, method)
    manifold = bn.manifold_ if more else check.geometry_for(bn, head)
    shape = tuple(like.shape[1:])
    check.affine_for(bn, manifold, shape, like, method)
    reference = bn.reference_ if more else check.reference_for(bn, manifold, shape, like)
    batch = (count, *like.shape[1 : like.ndim - len(manifold.point_shape)])
    weights = check.weights_for(batch, like, weights)
    labels = check.labels_for(domains, count, lazy)
    moved = Moved()
    if not lazy:
        X = ready(bn, X, method, moved, manifold)
    weights = valid_weights(bn, X, weights, moved)
    found = find_stats(bn, manifold, X, labels, weights, method, moved)
    moved.warn(manifold, like, method)
    if more:
        if labels is not None:
            check.check_kind(bn.domains_, check.as_labels(list(found)))
        old = domains_of(bn)
        found = old | found | {d: merge(manifold, old[d], found[d]) for d in old.keys() & found}
    names, fitted = None, found.get(None)
    if fitted is None:
        names, xp = check.as_labels(sorted(found)), namespace_of(like)
        rows = zip(*(found[label] for label in sorted(found)), strict=True)
        fitted = Fitted(*(xp.stack(list(row)) for row in rows))
    if reference is None and bn.reference is not None:
        reference = fitted.mean
        if names is not None:
            own = Stats(fitted.mean, fitted.var)
            reference = average_stats(manifold, own, tol=bn.tol, max_iter=bn.max_iter).mean
    _check_cut_locus(bn, seen_from(manifold, reference, like), fitted.mean, method)
    store(bn, fitted)
    bn.manifold_, bn.domains_, bn.online_, bn.reference_ = manifold, names, {}, reference
    bn.n_samples_seen_ = count - moved.lost + (bn.n_samples_seen_ if more else 0)
    bn.n_projected_ = moved.count + (bn.n_projected_ if more else 0)


# ---------------------------------------------------------------------- sources

Source = tuple[Any, Array, Array, int]
"""Samples; the first of them; an array like them, perhaps without values; and their number."""


def _in_memory(bn: Any, X: Any, method: str) -> Source:
    if type(X) is not np.ndarray and not isinstance(X, Chunks) and check.in_chunks(bn, X, method):
        X = Chunks(X)
    streamed = isinstance(X, Chunks)
    head = check.as_array(bn, next(iter(X)) if streamed else X, method)
    if backend_of(head).traced(head):
        raise TypeError(
            f"GyroBN.{method}() stores what it finds, which in a traced function has no value: "
            "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
        )
    return (X, head, head, X.count) if streamed else (head, head, head, int(head.shape[0]))


def _in_dask(bn: Any, X: Any, method: str) -> Source:
    from gyrobn.data.dask import counted, lazy_samples, stand_in

    X = counted(lazy_samples(X))
    head = like = check.as_array(bn, stand_in(X, X.shape[0]), method)
    if check.depends_on_values(bn, X.shape):
        first = next(k for k, count in enumerate(X.chunks[0]) if count)
        head = X.blocks[first][:100].compute()
    return X, head, like, X.shape[0]


def ready(
    bn: Any,
    X: Any,
    method: str,
    moved: Moved,
    manifold: GyroSpace | None = None,
    first: int = 0,
) -> Any:
    """Return samples that are checked, and projected if that is the option.

    Chunks are checked at their first reading, and projected at each. ``first`` is the number of the
    first sample, ``manifold`` that of samples to fit to.
    """
    space, project = manifold or check.spaces(bn, method)[0], bn.on_invalid == "project"
    good: set[int] = set()

    def checked(x: Array, first: int) -> Array:
        if manifold is None:  # coordinates come as rows of a table
            shape = (x.shape[0], *check.channels_of(bn), *space.point_shape)
            x = namespace_of(x).reshape(x, shape)
        if bn.on_invalid == "drop" and (method != "transform" or bn.unseen != "online"):
            return moved.drop(space, x, first)
        if first not in good or project:
            count = None if first in good else moved
            x = on_manifold(space, x, project=project, first=first, moved=count)
        good.add(first)
        return x

    if isinstance(X, Chunks):
        return X.map(lambda x, rows: checked(check.as_array(bn, x, method), int(rows[0])))
    return checked(X, first)


def valid_weights(bn: Any, X: Any, weights: Any, moved: Moved) -> Any:
    """Return the weights of samples that are :func:`ready`, 0 for points that are dropped."""
    if bn.on_invalid != "drop":
        return weights
    if compat.is_dask_array(X):
        raise ValueError(
            "on_invalid='drop' is for samples in memory or in chunks: drop those of a Dask array "
            "before, X[manifold.contains(X)]"
        )
    if isinstance(X, Chunks):
        for _ in X:  # which finds the invalid ones
            pass
    if not moved.valid:  # in a traced function
        return weights
    valid = np.concatenate([host(moved.valid[first]) for first in sorted(moved.valid)])
    moved.lost = int(np.sum(~valid.reshape(len(valid), -1).any(axis=1)))
    if moved.lost == len(valid):
        raise ValueError(f"none of the {len(valid)} samples is on the manifold: all were dropped")
    each = host(1.0 if weights is None else weights)
    return check.like((valid.T * each.T).T, next(iter(X)))  # weights may be one per channel


# ---------------------------------------------------------------------- statistics

Survey = tuple[Iterable[Any] | None, Any, Any, Callable[[], FrechetResult]]
"""Of each domain the label, the number of samples and the sum of weights; and what finds means."""


def find_stats(
    bn: Any,
    manifold: GyroSpace,
    X: Any,
    labels: Any,
    weights: Any,
    method: str,
    moved: Moved,
    known: Collection[Any] = (),
) -> Domains:
    """Return mean and variance of the samples, or of each domain that is not among the known.

    If there is none, the error says of which samples. ``moved`` counts what is projected in a Dask
    array; other samples are :func:`ready`.
    """
    look = _survey_dask if compat.is_dask_array(X) else _survey
    names, counts, totals, solve = look(bn, manifold, X, labels, weights, moved, known)
    for label, count in zip([None] if names is None else names, counts, strict=True):
        if count < 2 and method != "partial_fit":  # to which more may come
            which, advice = f" of domain {label!r}", ", or leave it out"
            if names is None:
                which, advice = "", ", or give them one after the other to partial_fit()"
                advice *= method == "fit"
            got = "1 sample" if count == 1 else f"{count} samples"
            raise ValueError(
                f"GyroBN.{method}() needs at least 2 samples{which} (with a weight other than 0) "
                f"to find a variance, got {got}: give more{advice}"
            )
    if not len(counts):
        return {}
    with np.errstate(all="ignore"):  # the check names what fails
        mean, variance, iterations, residual, converged = found = solve()
    if not backend_of(mean).traced(mean):
        _check_found(manifold, found, names, method)
    totals = np.asarray(totals if names is not None else totals[0])
    totals = totals.reshape((*totals.shape, *(1,) * (residual.ndim - totals.ndim)))
    weight = check.like(np.broadcast_to(totals, residual.shape), mean)
    return by_label(names, Fitted(mean, variance, weight, iterations, converged))


def split(labels: Any, count: int, known: Collection[Any]) -> dict[Any, Any]:
    """Return the indices of the samples of each domain that is not among the known."""
    places = places_of(check.labels_for(labels, count))
    return {label: at for label, at in places.items() if label not in known}


def _survey(
    bn: Any, manifold: GyroSpace, X: Any, labels: Any, weights: Any, moved: Moved, known: Any
) -> Survey:
    count = X.count if isinstance(X, Chunks) else X.shape[0]
    w = np.broadcast_to(1.0, count) if weights is None else host(weights, dtype=np.float64)
    places = None if labels is None else split(labels, count, known)
    parts = [w] if places is None else [w[at] for at in places.values()]
    counts = [np.count_nonzero(part.reshape(len(part), -1).any(axis=1)) for part in parts]
    search = {"tol": bn.tol, "max_iter": bn.max_iter}

    def stop(x: Array, rows: Any = None) -> Array:
        return backend_of(x).stop_gradient(x)

    X = X.map(stop) if isinstance(X, Chunks) else stop(X)

    def solve() -> FrechetResult:
        if places is None:
            return frechet(manifold, X, weights, **search)
        return domain_stats(manifold, X, places, weights, **search)

    return places, counts, [part.sum(axis=0) for part in parts], solve


def _survey_dask(
    bn: Any, manifold: GyroSpace, X: Any, labels: Any, weights: Any, moved: Moved, known: Any
) -> Survey:
    """Look at all samples for the first time, by one compute."""
    from gyrobn.data.dask import DaskBlocks
    from gyrobn.statistics import lazy

    blocks, manifold = DaskBlocks(X, weights, labels), manifold.detached()
    read = partial(split, known=frozenset(known))
    reading = lazy.Reading(manifold, read, check=True, project=bn.on_invalid == "project")
    survey = lazy.survey(blocks, reading)
    moved.add(survey.moved)
    names, each = [*survey.domains], survey.domains.values()

    def solve() -> FrechetResult:
        # no samples are given to the warning: all were checked
        source, search = (
            lazy.Parts(blocks, reading, survey),
            check_search(bn.tol, bn.max_iter, None),
        )
        named = Named(names, np.zeros((0, len(names)), dtype=int)) if labels is not None else None
        return of_source(manifold, source, [], search, domains=named)

    counts, totals = [d.weighted for d in each], [d.weight for d in each]
    return names if labels is not None else None, counts, totals, solve


def _check_found(
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


def _check_cut_locus(bn: Any, space: GyroSpace, mean: Array, method: str) -> None:
    """Warn of a mean that is close to the cut locus of the identity, or of the reference."""
    angle = float(np.degrees(host(space.cut_locus_angle(mean)).min()))
    if angle < 10.0:
        seen, advice = "identity", "reference='fit'"
        if bn.reference is not None:
            seen, advice = "reference", "a reference nearer to the data"
        warn_caller(
            f"GyroBN.{method}() on {bn.manifold!r}: the mean is {angle:.2g}° from the cut locus of "
            f"the {seen}, where small changes of the mean move the centred samples far: give "
            f"{advice} to normalize from there",
            FrechetWarning,
        )
