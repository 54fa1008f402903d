"""Layer, instance, group and root mean square normalization: the core of GyroBN on other axes.

A set is some of the points of one sample: all of them (layer), those of one channel (instance), or
those of a group of channels (group). Each set has its own mean and variance, and no set depends on
the rest of the batch. Bias and scale are one per channel or group, and the same for all points of a
set: only then is the mean of the set the bias, and its variance the square of the scale.

Training and evaluation are the same, unless an instance normalization keeps running statistics:
those of the average set of a channel, with which it normalizes in evaluation.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import average_stats
from gyrobn.normalization.layers import (
    Batch,
    Learnt,
    apply,
    arranged,
    cast_stats,
    check_variance,
    output_of,
    search_options,
    update,
)
from gyrobn.normalization.normalize import Stats, normalize_to, rescale_to
from gyrobn.normalization.settings import SetSettings

__all__ = ["forward_sets"]


def forward_sets(
    settings: SetSettings,
    learnt: Learnt,
    running: Stats | None,
    x: Array,
    weights: Array | None,
    rate: Any = 0.0,
    training: bool = True,
) -> tuple[Array, Stats | None]:
    """Normalize every set of points within each sample.

    The computation is in the widest dtype of all arrays, and in float32 at least. The output has
    that dtype, or half precision if the input has.

    Parameters
    ----------
    settings, learnt
        The options and the parameters of the layer.
    running
        The running statistics of each channel. With None, the layer keeps none.
    x
        Points, shape ``(batch, *channels, *positions, *point_shape)``.
    weights
        Weights of the points, an array of as many axes as x has in front of a point, of the same
        lengths or of length one. A set that weighs nothing is returned as it came.
    rate
        Fraction of the batch in the new running statistics.
    training
        Whether a layer with running statistics uses those of each set, and learns from them.

    Returns
    -------
    y, running
        The normalized batch, and the running statistics after it.
    """
    batch_shape, lead, axes = _layout(settings, tuple(x.shape))
    in_order, undo = _sets_first(batch_shape, lead, axes)
    w = None if weights is None else in_order(_full_weights(settings, weights, x, batch_shape))
    batch = arranged(settings, learnt, running, x, in_order(x), w, undo)
    manifold, points, w, old = batch.manifold, batch.x, batch.weights, batch.running
    xp, empty = namespace_of(x), None
    if w is not None:
        # Without weights there is no mean. Any weights give numbers, which are not used.
        empty = xp.all(w == 0, axis=tuple(range(len(axes))), keepdims=True)
        w = xp.where(empty, xp.ones_like(w), w)
    if old is not None and not training:
        y = apply(settings, batch, points, settings.running(manifold, old))
    else:
        if old is not None:
            _check_points_per_set(settings, lead, axes)
        y, stats = _each_by_itself(settings, batch, w, len(axes))
        if old is not None and running is not None:
            skipped = None if empty is None else empty[(0,) * len(axes)]
            running = cast_stats(_learn(settings, manifold, old, stats, skipped, rate), running)
    if empty is not None:
        y = xp.where(empty[(..., *(None,) * len(manifold.point_shape))], points, y)
    return batch.finish(y), running


def _each_by_itself(
    settings: SetSettings, batch: Batch, w: Array | None, axes: int
) -> tuple[Array, Stats]:
    """Normalize each set with its own statistics."""
    manifold = batch.manifold
    given = batch.x, w, output_of(settings, batch), axes
    if settings.centre:
        y, stats = normalize_to(manifold, *given, **search_options(settings))
    else:
        y, stats = rescale_to(manifold, *given)
    check_variance(settings, manifold, batch.checked, stats)
    return y, stats


def _learn(
    settings: SetSettings,
    manifold: GyroSpace,
    old: Stats,
    sets: Stats,
    skipped: Array | None,
    rate: Any,
) -> Stats:
    """Move running statistics towards the average of the sets ``(batch, *channels, ...)``.

    Sets that are ``skipped`` do not count. A channel without any other keeps its statistics.
    """
    xp, stop = namespace_of(sets.var), backend_of(sets.var).stop_gradient
    sets, weights, none = Stats(stop(sets.mean), stop(sets.var)), None, None
    if skipped is not None:
        none = xp.all(skipped, axis=0)
        count = xp.logical_or(none, xp.logical_not(skipped))
        weights = xp.astype(count, sets.var.dtype)
    average = average_stats(manifold.detached(), sets, weights, **search_options(settings))
    new = update(settings, manifold, old, average, rate)
    if none is None:
        return new
    k = len(settings.channels)
    mean, var = (
        xp.where(none[(..., *(None,) * (a.ndim - k))], a, b) for a, b in zip(old, new, strict=True)
    )
    return Stats(mean, var)


def _check_points_per_set(
    settings: SetSettings, lead: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    if math.prod(lead[a] for a in axes) < 2:
        raise ValueError(
            f"{settings.name} needs more than one point per set for running statistics, got "
            f"points in an array of shape {lead}: give more positions, or "
            "track_running_stats=False"
        )


def _layout(
    settings: SetSettings, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the leading axes of the input, the same with groups split, and which are a set's.

    If each point is a set, an axis of length one is added.
    """
    points, channels = settings.geometry.point_shape, settings.channels
    k = len(shape) - len(points)
    batch = shape[: max(k, 0)]
    inner = batch[1 : 1 + len(channels)]
    wanted = channels if settings.group is None else (channels[0] * settings.group,)
    if k < 1 or inner != wanted or shape[k:] != points:
        text = ", ".join(["batch", *map(str, wanted), "...", *map(str, points)])
        raise ValueError(
            f"{settings.name} on {settings.geometry!r} expects input of shape ({text}), got {shape}"
        )
    lead = batch if settings.group is None else (batch[0], *channels, settings.group, *batch[2:])
    if settings.axis is None:
        axes = tuple(range(1 + len(channels), len(lead)))
    else:
        axes = tuple(sorted({a % k for a in settings.axis if -k <= a < k}))
        if len(axes) < len(settings.axis):
            raise ValueError(
                f"axis of {settings.name} must name different axes among the {k} in front of a "
                f"point in input of shape {shape}, got {settings.axis}"
            )
    if axes:
        return batch, lead, axes
    if settings.centre:
        raise ValueError(
            f"in input of shape {shape} every set of {settings.name} is a single point, which "
            "centring moves to the bias: give it more axes, name those of a set with axis, or use "
            "GyroRMSNorm, which does not centre"
        )
    return batch, (1, *lead), (0,)


def _sets_first(
    batch: tuple[int, ...], lead: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return a function that brings the axes of a set to the front, and one that undoes it."""
    front = tuple(range(len(axes)))

    def in_order(a: Array) -> Array:
        xp = namespace_of(a)
        whole = a if lead == batch else xp.reshape(a, (*lead, *a.shape[len(batch) :]))
        return whole if axes == front else xp.moveaxis(whole, axes, front)

    def undo(a: Array) -> Array:
        xp = namespace_of(a)
        whole = a if axes == front else xp.moveaxis(a, front, axes)
        return whole if lead == batch else xp.reshape(whole, (*batch, *a.shape[len(lead) :]))

    return in_order, undo


def _full_weights(settings: SetSettings, weights: Array, x: Array, batch: tuple[int, ...]) -> Array:
    """Return one weight per point, in the dtype they came in: half precision would round them."""
    xp, shape = namespace_of(x, weights), tuple(weights.shape)
    if len(shape) != len(batch) or any(n not in (1, m) for n, m in zip(shape, batch, strict=True)):
        raise ValueError(
            f"{settings.name} expects weights of the shape of its points, {batch}, or with axes of "
            f"length one, got {shape}"
        )
    return xp.broadcast_to(weights, batch)
