"""The call of a layer as a pure function, which the layers of all frameworks share.

A layer holds parameters and running statistics in the way of its framework and calls
:func:`forward`; the mathematics is in :mod:`gyrobn.normalization.normalize`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.axes import in_front
from gyrobn.normalization.domains import average_stats
from gyrobn.normalization.dtypes import cast, common_dtype, is_half
from gyrobn.normalization.normalize import (
    Output,
    Stats,
    normalize,
    normalize_to,
    rescale_to,
    route,
    update_stats,
)
from gyrobn.normalization.settings import LayerSettings, SetSettings, Settings
from gyrobn.numerics.arrays import all_true
from gyrobn.statistics.frechet import locate
from gyrobn.statistics.points import on_manifold
from gyrobn.statistics.samples import Group, arrange, only_weighted, set_aside, withdraw
from gyrobn.statistics.uniqueness import warn_of


class Learnt(NamedTuple):
    """The parameters of a layer; None for those that it does not learn."""

    bias: Array | None
    """Normal coordinates of the bias, shape (*channels, dim)."""
    scale: Array | None
    """Standard deviation of the output, shape (*channels,), or (*channels, blocks)."""
    raw_curvature: Array | None
    """Logarithm of the curvature's ratio to the initial one; the curvature itself if its sign is
    free."""


def initial(
    settings: LayerSettings, like: Array, bias: bool, scale: bool, copies: tuple[int, ...] = ()
) -> tuple[Learnt, Stats]:
    """Return the parameters and running statistics of a new layer, in the dtype of ``like``.

    The statistics are the identity and one, in float32 at least. ``copies`` is their shape in
    front of the channels.
    """
    xp, device = namespace_of(like), device_of(like)
    own = {"dtype": like.dtype, "device": device}
    wide = {"dtype": common_dtype(like), "device": device}
    channels, shape = settings.channels, settings.statistics_shape
    raw = settings.initial_curvature if settings.learn_curvature else None
    learnt = Learnt(
        xp.zeros((*channels, settings.geometry.dim), **own) if bias else None,
        xp.ones(shape, **own) if scale else None,
        None if raw is None else xp.asarray(raw, **own),
    )
    e = settings.geometry.origin(xp.zeros((), **wide))
    mean = xp.zeros((*copies, *channels, *e.shape), **wide) + e  # no view: it is written to
    return learnt, Stats(mean, xp.ones((*copies, *shape), **wide))


class Batch(NamedTuple):
    """What a layer computes with: all arrays in one dtype, the axes to average over in front."""

    manifold: GyroSpace
    learnt: Learnt
    running: Stats | None
    x: Array
    weights: Array | None
    axes: int
    """The number of axes to average over."""
    checked: Array
    """The input, with the identity in place of samples without weight."""
    empty: Array | None
    """Which sets have no weight, and which channels no good sample: their weights here are ones.
    None if there are no weights."""
    good: Array | None
    """Which samples are on the manifold, if no error can be raised: the others have a weight of
    zero here, and their output is NaN. None if values can be seen, or are not checked."""
    finish: Callable[[Array], Array]
    """Carries the output to the axes and the dtype of the input."""


def forward(
    settings: LayerSettings,
    learnt: Learnt,
    running: Stats | None,
    x: Array,
    weights: Array | None,
    rate: Any = 0.0,
    training: bool = True,
    group: Group | None = None,
) -> tuple[Array, Stats | None]:
    """Normalize a batch, or every set of points within each sample.

    Training uses the statistics of the batch or set, evaluation the running ones. The computation
    is in the widest dtype of all arrays, and in float32 at least. The output has that dtype, or
    half precision if the input has. The statistics keep their dtype.

    Parameters
    ----------
    settings, learnt
        The options and the parameters of the layer. ``SetSettings`` are those of a layer of sets.
    running
        The running statistics. With None, the layer keeps none and always uses those of the batch.
    x
        Points, shape ``(batch, *channels, *point_shape)``, or
        ``(batch, *channels, *positions, *point_shape)`` if they form sets.
    weights
        The weights of the samples. Those of points in sets have as many axes as x has in front of a
        point, of the same lengths or of length one; a set that weighs nothing is returned as it
        came.
    rate
        Fraction of the batch in the new running statistics.
    training
        Whether to use, and to learn, the statistics of the batch.
    group
        The ranks over which a training batch is spread; the statistics are those of all of it.

    Returns
    -------
    y, running
        The normalized batch, and the running statistics after it.
    """
    batch = prepare(settings, learnt, running, x, weights, group)
    manifold, old = batch.manifold, batch.running
    if not training and old is not None:
        y = apply(settings, batch, batch.x, settings.running(manifold, old))
        return batch.finish(y), running
    if training and group is None:
        check_count(settings, batch)
    given = manifold, batch.x, batch.weights, _output_of(settings, batch), batch.axes
    if not settings.centre:
        y, stats = rescale_to(*given)
    elif settings.formula is normalize:
        y, stats = normalize_to(*given, group=group, **_search_options(settings))
    else:
        stats = batch_stats(settings, batch, group)
        y = apply(settings, batch, batch.x, stats)
    check_variance(settings, batch, stats, group=group)
    if old is not None and running is not None:
        if isinstance(settings, SetSettings):
            new = _update_from_sets(settings, batch, old, stats, rate)
        else:
            new = update(settings, manifold, old, stats, rate)
        new = _valid(settings, batch, old, new)
        running = Stats(cast(new.mean, running.mean.dtype), cast(new.var, running.var.dtype))
    return batch.finish(y), running


def prepare(
    settings: LayerSettings,
    learnt: Learnt,
    running: Stats | None,
    given: Array,
    weights: Array | None,
    group: Group | None = None,
) -> Batch:
    """Check the input of a layer, and bring all arrays to one dtype and order of axes.

    An error on one rank is sent to the others of its group, which would wait for it otherwise.
    """
    dtype = common_dtype(given, *learnt, *(running or ()))
    try:
        x, weights, axes, undo = in_front(settings, given, weights)
        learnt = Learnt(*[cast(a, dtype) for a in learnt])
        manifold = settings.manifold(learnt.raw_curvature)
        checked = given if weights is None else undo(only_weighted(manifold, x, weights))
        hidden = _hides_values(manifold, checked)
        if not hidden and _is_checked(settings):
            _check_points(settings, manifold, checked)
    except (TypeError, ValueError) as error:
        if group is not None:
            like = namespace_of(given).zeros((), dtype=dtype, device=device_of(given))
            withdraw(settings.geometry, settings.channels, like, group, error)
        raise
    running = None if running is None else Stats(*[cast(a, dtype) for a in running])
    xp, good, empty, given_weights = namespace_of(x), None, None, weights
    if hidden and settings.check_input is True:
        good = _are_points(manifold, x, weights)
        x = xp.where(_at_points(manifold, good), x, manifold.origin(x))
        weights = xp.astype(good, dtype) * (1.0 if weights is None else _per_point(weights, good))
    if x.dtype != dtype:  # rounded to few digits, a point is not on the manifold
        x = manifold.project(cast(x, dtype))
    x, put_back = set_aside(manifold, x, given_weights)
    # Without weights there is no mean. Any weights give numbers, which are not used.
    front = tuple(range(axes))
    if weights is not None and isinstance(settings, SetSettings):
        empty = xp.all(weights == 0, axis=front, keepdims=True)
    elif good is not None and group is None:
        empty = xp.logical_not(xp.any(good, axis=front, keepdims=True))
    if empty is not None:
        weights = xp.where(empty, xp.ones_like(weights), weights)

    def finish(y: Array) -> Array:
        if empty is not None:
            y = xp.where(_at_points(manifold, empty), x, y)
        y = put_back(y)
        if good is not None:
            y = xp.where(_at_points(manifold, good), y, xp.nan)
        y = undo(y)
        return y if given.dtype == dtype or not is_half(given) else cast(y, given.dtype)

    return Batch(manifold, learnt, running, x, weights, axes, checked, empty, good, finish)


def _is_checked(settings: LayerSettings) -> bool:
    """Return whether to check this batch."""
    return settings.check_input is True or (settings.check_input == "first" and not settings.seen)


def _hides_values(manifold: GyroSpace, x: Array) -> bool:
    """Return whether samples or curvature are traced, or what is computed from them."""
    shim = backend_of(x)
    parameters = [v for v in manifold.learnable() if not isinstance(v, (int, float))]
    return any(shim.traced(shim.stop_gradient(a)) for a in (x, *parameters))


def _are_points(manifold: GyroSpace, x: Array, weights: Array | None) -> Array:
    """Return which samples are on the manifold, or weigh nothing."""
    xp, x = namespace_of(x), backend_of(x).stop_gradient(x)
    if is_half(x):
        good = manifold.violation(xp.astype(x, xp.float32)) <= float(xp.finfo(x.dtype).eps) ** 0.5
    else:
        good = manifold.contains(x)
    return good if weights is None else xp.logical_or(good, _per_point(weights, good) == 0)


def _per_point(weights: Array, good: Array) -> Array:
    """Return weights with as many axes as the samples have in front of a point."""
    return weights[(..., *(None,) * (good.ndim - weights.ndim))]


def _at_points(manifold: GyroSpace, mask: Array) -> Array:
    """Return a mask of samples with the axes of points."""
    return mask[(..., *(None,) * len(manifold.point_shape))]


def _check_points(settings: LayerSettings, manifold: GyroSpace, x: Array, first: Any = 0) -> None:
    """Refuse a batch with samples that are not on the manifold, if its values can be seen."""
    if x.shape[0:1] == (0,) or _hides_values(manifold, x):
        return
    xp, x = namespace_of(x), backend_of(x).stop_gradient(x)
    plain = manifold.with_learnable([float(value) for value in manifold.detached().learnable()])
    eps, sure = None, False
    if is_half(x):
        eps, x = float(xp.finfo(x.dtype).eps), xp.astype(x, xp.float32)
    else:
        sure = all_true(plain.contains(x))
    if not sure:
        on_manifold(
            plain,
            x,
            f"the input of {settings.name}",
            first=first,
            eps=eps,
            advice="give points, which manifold.from_normal makes of any numbers and "
            "manifold.project of numbers near by; check_input=False takes them as they are",
            advice_nan="check the layer before it, and its learning rate",
        )
    if not settings.seen:
        settings.seen.append(True)


# ---------------------------------------------------------------------- the statistics


def batch_stats(settings: LayerSettings, batch: Batch, group: Group | None = None) -> Stats:
    """Return the statistics of a batch."""
    axes = tuple(range(batch.axes))
    samples, w = arrange(batch.manifold, batch.x, batch.weights, axes, group)
    found = locate(batch.manifold, samples, w, group=group, **_search_options(settings))
    return Stats(found.mean, found.variance)


def _search_options(settings: LayerSettings) -> dict[str, Any]:
    """Return the options of :func:`gyrobn.statistics.frechet.locate`."""
    return {
        "steps": settings.steps,
        "tol": settings.tol,
        "max_iter": settings.max_iter,
        "mean_gradient": settings.mean_gradient,
        "warn": partial(_warn, settings),
    }


def _warn(settings: LayerSettings, *found: Any) -> None:
    """Warn about a mean; look for a second one in the first batch only."""
    asked = settings.asked
    unique = settings.check_input is not False and not asked
    warn_of(*found, unique=unique)
    if unique and not asked:
        asked.append(True)


def check_count(settings: LayerSettings, batch: Batch) -> None:
    """Refuse to learn statistics from a single sample, or from sets of a single point."""
    if math.prod(batch.x.shape[: batch.axes]) >= 2:
        return
    if isinstance(settings, Settings):
        raise ValueError(
            "GyroBN needs more than one sample per channel for statistics, got a batch of shape "
            f"{tuple(batch.x.shape)}: use a larger batch, or {settings.remedy}"
        )
    if batch.running is not None:
        shape = tuple(batch.checked.shape)
        raise ValueError(
            f"{settings.name} needs more than one point per set for running statistics, got "
            f"points in an array of shape {shape[: len(shape) - len(batch.manifold.point_shape)]}: "
            "give more positions, or track_running_stats=False"
        )


def check_variance(
    settings: LayerSettings,
    batch: Batch,
    stats: Stats,
    first: Any = 0,
    group: Group | None = None,
) -> None:
    """If a batch has no finite variance, name the sample, and the rank, that is the reason.

    ``first`` has the numbers of the samples, if they are part of a batch.
    """
    shim = backend_of(stats.var)
    if shim.traced(stats.var):
        return
    var = shim.stop_gradient(stats.var)
    total = var if math.prod(var.shape) == 1 else namespace_of(var).sum(var)
    if math.isfinite(float(total)):
        return
    try:
        _check_points(settings, batch.manifold, batch.checked, first)
    except ValueError as error:
        if group is not None:
            group.agree(error)
        raise
    if group is not None:
        group.agree(None)
    raise ValueError(
        f"{settings.name} on {settings.geometry!r} finds no variance of this batch: all samples "
        "are on the manifold, but too far out or too far apart; check the layer before it, and its "
        "learning rate"
    )


def update(
    settings: LayerSettings, manifold: GyroSpace, running: Stats, batch: Stats, rate: Any
) -> Stats:
    """Return the running statistics, moved towards a batch, without derivatives."""
    stop = backend_of(batch.var).stop_gradient
    constant = manifold.detached()
    old = settings.running(constant, Stats(stop(running.mean), stop(running.var)))
    return update_stats(constant, old, Stats(stop(batch.mean), stop(batch.var)), rate)


def _valid(settings: LayerSettings, batch: Batch, old: Stats, new: Stats) -> Stats:
    """Return new running statistics, or the old ones for channels without a good sample.

    Where values can be seen, such a batch is an error.
    """
    if batch.good is None:
        return new
    xp, k = namespace_of(new.var), len(settings.channels)
    numbers = [xp.reshape(a, (*a.shape[:k], -1)) for a in new]
    bad = xp.logical_not(xp.all(xp.isfinite(xp.concat(numbers, axis=-1)), axis=-1))
    if batch.empty is not None and isinstance(settings, Settings):
        bad = xp.logical_or(bad, batch.empty[(0,) * batch.axes])
    return _where(settings, bad, old, new)


def _where(settings: LayerSettings, channels: Array, first: Stats, second: Stats) -> Stats:
    """Return the first statistics for some channels, and the second for the others."""
    xp, k = namespace_of(channels), len(settings.channels)
    pairs = zip(first, second, strict=True)
    return Stats(*(xp.where(channels[(..., *(None,) * (a.ndim - k))], a, b) for a, b in pairs))


def _update_from_sets(
    settings: LayerSettings, batch: Batch, old: Stats, sets: Stats, rate: Any
) -> Stats:
    """Return running statistics, moved towards the average of sets ``(batch, *channels, ...)``.

    Sets without weight do not count. A channel without any other keeps its statistics.
    """
    xp, stop = namespace_of(sets.var), backend_of(sets.var).stop_gradient
    sets, weights, none = Stats(stop(sets.mean), stop(sets.var)), None, None
    if batch.empty is not None:
        empty = batch.empty[(0,) * batch.axes]
        none = xp.all(empty, axis=0)
        weights = xp.astype(xp.logical_or(none, xp.logical_not(empty)), sets.var.dtype)
    constant = batch.manifold.detached()
    average = average_stats(constant, sets, weights, **_search_options(settings))
    new = update(settings, batch.manifold, old, average, rate)
    return new if none is None else _where(settings, none, old, new)


# ---------------------------------------------------------------------- the output


def apply(settings: LayerSettings, batch: Batch, x: Array, stats: Stats) -> Array:
    """Normalize samples with given statistics, inside the manifold."""
    manifold, inside = batch.manifold, batch.manifold.inside
    stats, x = Stats(manifold.to_inside(stats.mean), stats.var), manifold.to_inside(x)
    output = _output_of(settings, batch)
    if settings.formula is normalize:  # without its warning, which would read values
        y = inside.standardize(x, *route(inside, x, stats, *output))
    else:
        y = settings.formula(inside, x, stats, *output)
    return manifold.from_inside(y)


def _output_of(settings: LayerSettings, batch: Batch) -> Output:
    """Return what a layer does with centred samples."""
    bias, scale, _ = batch.learnt
    target = None if bias is None else batch.manifold.inside.from_normal(bias)
    return Output(target, 1.0 if scale is None else scale, settings.eps, settings.clamp)
