"""Layer, instance, group and root mean square normalization: the core of GyroBN on other axes.

A set is some of the points of one sample: all of them (layer), those of one channel (instance), or
those of a group of channels (group). Each set has its own mean and variance, in training and in
evaluation alike, so there are no running statistics, and no set depends on the rest of the batch.
Bias and scale are one per channel or group, and the same for all points of a set: only then is the
mean of the set the bias, and its variance the square of the scale.
"""

from collections.abc import Callable

from gyrobn.backends import Array, namespace_of
from gyrobn.normalization.layers import (
    Learnt,
    affine_of,
    arranged,
    check_variance,
    search_options,
)
from gyrobn.normalization.normalize import normalize_to, rescale_to
from gyrobn.normalization.settings import SetSettings

__all__ = ["forward_sets"]


def forward_sets(
    settings: SetSettings, learnt: Learnt, x: Array, weights: Array | None = None
) -> Array:
    """Normalize every set of points within each sample.

    The computation is in the widest dtype of all arrays, and in float32 at least. The output has
    that dtype, or half precision if the input has.

    Parameters
    ----------
    settings, learnt
        The options and the parameters of the layer.
    x
        Points, shape ``(batch, *channels, *positions, *point_shape)``.
    weights
        Weights of the points, an array of as many axes as x has in front of a point, of the same
        lengths or of length one. A set that weighs nothing is returned as it came.
    """
    batch_shape, lead, axes = _layout(settings, tuple(x.shape))
    in_order, undo = _sets_first(batch_shape, lead, axes)
    w = None if weights is None else in_order(_full_weights(settings, weights, x, batch_shape))
    batch = arranged(settings, learnt, None, x, in_order(x), w, undo)
    manifold, learnt, _, points, w, checked, finish = batch
    xp, empty = namespace_of(x), None
    if w is not None:
        # Without weights there is no mean. Any weights give numbers, which are not used.
        empty = xp.all(w == 0, axis=tuple(range(len(axes))), keepdims=True)
        w = xp.where(empty, xp.ones_like(w), w)
    target, scale = affine_of(manifold.inside, learnt)
    given = points, w, target, scale, settings.eps, settings.clamp, len(axes)
    if settings.centre:
        y, stats = normalize_to(manifold, *given, **search_options(settings))
    else:
        y, stats = rescale_to(manifold, *given)
    check_variance(settings, manifold, checked, stats)
    if empty is not None:
        y = xp.where(empty[(..., *(None,) * len(manifold.point_shape))], points, y)
    return finish(y)


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
    """Return one weight per point, in the dtype of the input."""
    xp, shape = namespace_of(x, weights), tuple(weights.shape)
    if len(shape) != len(batch) or any(n not in (1, m) for n, m in zip(shape, batch, strict=True)):
        raise ValueError(
            f"{settings.name} expects weights of the shape of its points, {batch}, or with axes of "
            f"length one, got {shape}"
        )
    return xp.broadcast_to(xp.astype(weights, x.dtype, copy=False), batch)
