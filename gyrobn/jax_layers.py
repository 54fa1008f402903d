"""What the layers of Flax and Equinox share besides :mod:`gyrobn.normalization.layers`."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from gyrobn.backends.jax import auto_sharded, traced, varies, varying
from gyrobn.normalization.domains import (
    average_stats,
    check_labels,
    check_range,
    not_seen,
    one_sample,
)
from gyrobn.normalization.layers import (
    Batch,
    Learnt,
    Settings,
    State,
    apply,
    first_reference,
    learn,
    prepare,
    statistics,
)
from gyrobn.normalization.layers import forward as any_forward
from gyrobn.normalization.normalize import Stats, update_stats
from gyrobn.numerics.arrays import cast, check_floating, real_dtype
from gyrobn.numerics.checks import check_number
from gyrobn.statistics.samples import Group


def check_momentum(momentum: Any) -> float:
    """Check the fraction of the running statistics to keep, and return it."""
    name = "momentum, the fraction of the running statistics to keep,"
    return check_number(name, momentum, 0.0, 1.0)


def arguments(bn: Any, dtype: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return an estimator in NumPy, the options of a layer like it, and the layer's dtype."""
    from gyrobn.estimator.conversion import fitted
    from gyrobn.estimator.validation import channels_of

    model = fitted(bn)
    dtype = jax.dtypes.canonicalize_dtype(model.var_.dtype if dtype is None else dtype)
    given = {"tol": model.tol, "max_iter": model.max_iter, "channels": channels_of(model)}
    given["reference"] = model.reference_
    given |= {"scale": None} if model.scale is None else {}
    return model, given, dtype


def start(layer: Any, model: Any, dtype: Any) -> tuple[Learnt, Stats]:
    """Return parameters and running statistics of a layer that does what an estimator does."""
    from gyrobn.estimator.conversion import values_for

    wide = np.float64 if dtype == jnp.float64 else np.float32
    has = layer.bias is not None, layer.scale is not None
    values = values_for(layer.settings, model, *has, tracked=True, dtype=wide)
    learnt, stats = jax.tree.map(jnp.asarray, values)
    return jax.tree.map(lambda a: a.astype(dtype), learnt), stats


def forward(
    settings: Settings,
    learnt: Learnt,
    state: State,
    x: Array,
    weights: Array | None,
    momentum: float = 1.0,
    training: bool = True,
) -> tuple[Array, State]:
    """Do what ``layers.forward`` does, with statistics of the batch on all devices of an axis."""
    check_floating(x, half=True, complex_points=settings.geometry.complex_points)
    name, groups = settings.axis_name, settings.axis_index_groups
    alone: Any = ()  # one example under a named axis has no axis of the batch
    if name is not None and x.shape == (*settings.channels, *settings.geometry.point_shape):
        alone = (None,) * len(settings.axis or ())
        x, weights = x[alone], None if weights is None else weights[alone]
    typed = name is not None and training and bool(varies(x))
    group = None
    if name is not None and training and _size(name, groups) != 1:
        group = Group((name, groups))
    if typed:
        learnt = jax.tree.map(lambda a: varying(a, name), learnt)

    _check_rate(settings)
    rates = 1.0 - momentum, training, group, settings.train_momentum

    def run(x: Array, learnt: Learnt, state: State, weights: Array | None) -> Any:
        return any_forward(settings, learnt, state, x, weights, *rates)

    y, new = auto_sharded(run, x, learnt, state, weights)
    if typed and groups is None:  # they are equal on all devices, and JAX shall know that
        new = jax.tree.map(partial(jax.lax.pmax, axis_name=name), new)
    return y[(0,) * len(alone)] if alone else y, new


def _check_rate(settings: Settings) -> None:
    if callable(settings.train_momentum):
        raise TypeError("train_momentum is a number in layers of JAX, which count no batches")


# ---------------------------------------------------------------------- domains


class DomainState(NamedTuple):
    """What a layer with domains keeps; the statistics have a leading axis of the domains."""

    state: State
    counts: Array
    """The number of training batches with each domain, shape (domains,)."""


def per_domain(domains: int, tree: Any) -> Any:
    """Return arrays with a leading axis of the domains; None stays None."""
    return jax.tree.map(lambda a: jnp.repeat(a[None], domains, axis=0), tree)


def domain_forward(
    settings: Settings,
    learnt: Learnt,
    kept: DomainState,
    x: Array,
    domains: Array,
    weights: Array | None,
    momentum: float,
    training: bool,
) -> tuple[Array, DomainState]:
    """Normalize each sample with the statistics of its domain.

    The domains are channels of one batch, in which the samples of other domains have no weight: the
    domains of the batch, or all if the labels are traced. Then no error can be raised, and a sample
    whose domain has no statistics is NaN.
    """
    check_floating(x, half=True, complex_points=settings.geometry.complex_points)
    _check_rate(settings)
    rows, total = _check_domains(x, domains, kept.counts, training), kept.counts.shape[0]

    def run(x: Array, domains: Array, learnt: Learnt, kept: DomainState, weights: Any) -> Any:
        (running, own, reference), counts = kept
        domains = domains.astype(jnp.int32)
        inside, domains = (domains >= 0) & (domains < total), jnp.clip(domains, 0, total - 1)
        if learnt.bias is not None and learnt.bias.ndim > len(settings.channels) + 1:
            learnt = learnt._replace(bias=learnt.bias[domains])
        if not training:
            state = State(_rows(running, domains), None, reference)
            batch, good = prepare(settings, learnt, state, x, weights), counts[domains] > 0
            stats: Any = batch.running
        else:
            batch = prepare(settings, learnt, kept.state, x, weights, training=True)
            each, enough = _by_domain(batch, jnp.where(inside, domains, -1), rows)
            stats = statistics(each)
            some = ~each.empty[0]  # type: ignore[index]
            if settings.reference == "first_batch":
                means = jax.lax.stop_gradient(stats)
                given = batch.manifold.detached(), means, cast(some, stats.var.dtype)
                batch = first_reference(batch, lambda: average_stats(*given).mean)
                reference = cast(batch.reference, real_dtype(reference))
                each = each._replace(reference=batch.reference)
            pairs = (running, batch.running, 1.0 - momentum), (own, batch.training, rate)
            running, own = (_learn(each, rows, stats, *pair) for pair in pairs)
            if batch.training is not None:
                stats = update_stats(batch.manifold, _rows(batch.training, rows), stats, rate)
            at = jnp.searchsorted(jnp.asarray(rows), domains)
            stats, good = _rows(stats, at), enough[at]
            counts = counts.at[rows].add(jnp.any(some, axis=tuple(range(1, some.ndim))))
            kept = DomainState(State(running, own, reference), counts)
        y = apply(batch, batch.x, stats)
        good = (good & inside)[(..., *(None,) * (y.ndim - 1))]
        return batch.finish(jnp.where(good, y, jnp.nan)), kept

    rate = settings.train_momentum
    y, new = auto_sharded(run, x, domains, learnt, kept, weights)
    return y, new


def _rows(stats: Any, rows: Any) -> Stats:
    return Stats(stats.mean[rows], stats.var[rows])


def _by_domain(batch: Batch, domains: Array, rows: Any) -> tuple[Batch, Array]:
    """Return a batch with the domains ``rows`` as channels, and which have two samples or more."""
    mine = domains[:, None] == rows
    # padding is a sample of the same domain, so it is never the farthest from the mean
    index = jnp.where(mine, jnp.arange(mine.shape[0])[:, None], jnp.argmax(mine, axis=0))
    channels, enough = batch.settings.channels, jnp.sum(mine, axis=0) > 1
    w = jnp.ones((), real_dtype(batch.x)) if batch.weights is None else batch.weights[:, None]
    mine, several = (a[(..., *(None,) * len(channels))] for a in (mine, enough))
    w = jnp.broadcast_to(jnp.where(mine, w, 0.0), (*index.shape, *channels))
    empty = jnp.all(w == 0, axis=0) | ~several
    if batch.empty is not None:
        empty = empty | batch.empty[0]
    if traced(w):  # without weights there is no mean
        w = jnp.where(empty, 1.0, w)
    settings = replace(batch.settings, channels=(len(rows), *channels))
    hidden = batch.hidden or traced(w)
    batch = batch._replace(settings=settings, x=batch.x[index], weights=w, hidden=hidden)
    return batch._replace(empty=empty[None]), enough


def _learn(
    batch: Batch, rows: Any, stats: Stats, kept: Stats | None, now: Stats | None, rate: Any
) -> Stats | None:
    """Update the statistics of some domains; ``now`` is ``kept`` at the current curvature."""
    if kept is None or now is None:
        return None
    new: Any = learn(batch._replace(running=_rows(now, rows)), _rows(kept, rows), stats, rate)
    return Stats(*(a.at[rows].set(b) for a, b in zip(kept, new, strict=True)))


def _check_domains(x: Array, domains: Array, counts: Array, training: bool) -> Any:
    """Check the labels, and return the domains to compute, sorted."""
    total = counts.shape[0]
    integers = jnp.issubdtype(domains.dtype, jnp.integer)
    check_labels(x, domains, total, integers, "astype(int)")
    if traced(domains):
        return np.arange(total)
    rows, sizes = np.unique(np.asarray(domains), return_counts=True)
    if len(rows):
        check_range(rows, total)
    if training and 1 in sizes:
        raise one_sample(rows[sizes == 1][0])
    if not training and not traced(counts):
        seen = np.flatnonzero(np.asarray(counts))
        new = np.setdiff1d(rows, seen)
        if len(new):
            raise not_seen("training", new, seen, "train on it")
    return rows


def like(dtype: Any) -> Array:
    """Return an array of a dtype; JAX's default by default."""
    return jnp.zeros((), jnp.result_type(float) if dtype is None else dtype)


def _size(name: Any, groups: Any) -> int:
    """Return how many devices share a batch, or 0 if there is no such axis."""
    if groups is not None:
        return len(groups[0])
    try:
        return int(jax.lax.psum(1, name))  # type: ignore[no-untyped-call]
    except NameError:  # the first sum raises it again, if the input is right
        return 0
