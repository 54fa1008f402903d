"""Samples and weights as the mean wants them: samples along the first axis, weights of sum one."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import scalars_like, sum_samples
from gyrobn.numerics.checks import check_integers


def arrange(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None,
    axis: int | tuple[int, ...],
    partial: bool = False,
) -> Any:
    """Return samples (N, *channels, *point_shape) and weights (N, *channels) that sum to one.

    Samples without weight are made safe: see :func:`set_aside`. If the samples are ``partial``,
    some of a batch, a channel of them may weigh nothing. Then the weights are returned as they are,
    and their sums too.
    """
    xp = check_manifold(manifold)._namespace(x)
    axes = _axes(manifold, x, axis)
    batch = x.shape[: x.ndim - len(manifold.point_shape)]
    reduced = tuple(batch[a] for a in axes)
    kept = tuple(a for a in range(len(batch)) if a not in axes)
    order = (*axes, *kept)
    channels = tuple(batch[a] for a in kept)
    count = math.prod(reduced)
    samples = x
    if axes != (0,):
        points = tuple(range(len(batch), x.ndim))
        shape = (count, *channels, *manifold.point_shape)
        samples = xp.reshape(xp.permute_dims(x, (*order, *points)), shape)
    if weights is None:
        w = xp.full((count, *channels), 1.0 / count, dtype=x.dtype, device=device_of(x))
        return samples, w
    weights = scalars_like(weights, x)
    shape = tuple(getattr(weights, "shape", ()))  # a scalar has no axis of samples
    if shape == reduced:
        w = xp.reshape(weights, (count, *(1 for _ in channels)))
        w = xp.broadcast_to(w, (count, *channels))
    elif shape == tuple(batch):
        w = xp.reshape(xp.permute_dims(weights, order), (count, *channels))
    else:
        raise ValueError(
            f"weights must have the shape of the reduced axes, {reduced}, or of the whole batch, "
            f"{tuple(batch)}; got {shape}"
        )
    total = sum_samples(w)
    check_weights(w, total + 1.0 if partial else total)
    samples = set_aside(manifold, samples, w)[0]
    return (samples, w, total) if partial else (samples, w / total)


def shares(w: Array, total: Array) -> Array:
    """Return weights divided by their sum; where that is 0, one is as good as another."""
    xp, some = namespace_of(w), total > 0
    return xp.where(some, w / xp.where(some, total, 1.0), 1.0 / w.shape[0])


def _axes(manifold: GyroSpace, x: Array, axis: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch axes to average over, none of them negative."""
    batch = x.shape[: x.ndim - len(manifold.point_shape)]
    if not batch:
        raise ValueError(
            f"expected a batch of points, shape (N, ..., {manifold.point_shape}), "
            f"got one point of shape {tuple(x.shape)}: add a batch axis, x[None]"
        )
    axes = check_integers("axis", axis)
    for a in axes:
        if not -len(batch) <= a < len(batch):
            raise ValueError(
                f"axis {a} is not one of the {len(batch)} batch axes of an array of shape "
                f"{tuple(x.shape)} with points of shape {manifold.point_shape}"
            )
    axes = tuple(a % len(batch) for a in axes)
    if len(set(axes)) != len(axes) or not axes:
        raise ValueError(f"axis must name distinct batch axes, got {axis}")
    if 0 in batch:
        raise ValueError(f"an empty batch has no mean: x has shape {tuple(x.shape)}")
    return axes


def set_aside(
    manifold: GyroSpace, x: Array, weights: Array | None
) -> tuple[Array, Callable[[Array], Array]]:
    """Put the identity in place of samples that weigh nothing and are no points: padding, NaN.

    Weighted by zero, a NaN would be NaN still, in the value or in the derivative. The leading axes
    of ``weights`` are those of x. Also return a function that puts these samples, as they came,
    into an array of the shape of x.
    """
    if weights is None:
        return x, lambda y: y
    xp, shim = namespace_of(x), backend_of(x)
    points = len(manifold.point_shape)
    out = _weightless(x, weights, points)
    if not shim.hides_values(out) and not bool(xp.any(out)):
        return x, lambda y: y
    entries = tuple(range(-points, 0))
    finite = xp.all(xp.isfinite(x), axis=entries, keepdims=True)  # infinity − infinity would warn
    sane = xp.where(finite, shim.stop_gradient(x), manifold.origin(x))
    point = xp.logical_and(xp.squeeze(finite, axis=entries), manifold.contains(sane))
    out = xp.logical_and(out, xp.logical_not(point))[(..., *(None,) * points)]
    return xp.where(out, manifold.origin(x), x), lambda y: xp.where(out, x, y)


def only_weighted(manifold: GyroSpace, x: Array, weights: Array | None) -> Array:
    """Put the identity in place of every sample of weight zero."""
    if weights is None:
        return x
    points = len(manifold.point_shape)
    out = _weightless(x, weights, points)[(..., *(None,) * points)]
    return namespace_of(x).where(out, manifold.origin(x), x)


def _weightless(x: Array, weights: Array, points: int) -> Array:
    """Return a mask of the samples of weight zero; it broadcasts against the batch of x."""
    namespace_of(x, weights)  # of one library
    batch, given = tuple(x.shape[: x.ndim - points]), tuple(weights.shape)
    if given != batch[: len(given)]:
        raise ValueError(
            f"weights must have the shape of the whole batch, {batch}, or of its reduced axes; got "
            f"{given}"
        )
    out = weights == 0
    return out[(..., *(None,) * (x.ndim - points - out.ndim))]


def check_weights(weights: Array, total: Array, first: int = 0) -> None:
    """Refuse weights that are negative or not finite, and a sum that is not positive.

    ``first`` is the number of the first sample, if they are part of a batch.
    """
    xp = namespace_of(weights)
    if backend_of(weights).hides_values(weights):
        return
    good = xp.logical_and(total > 0, xp.isfinite(total))
    if bool(xp.logical_and(xp.all(weights >= 0), xp.all(good))):
        return
    each = backend_of(weights).to_numpy(weights)
    bad = np.argwhere(~((each >= 0) & np.isfinite(each)))
    if len(bad):
        i, *channel = bad[0].tolist()
        what = f"{each[i, *channel]} at index {first + i}"
    else:
        channel = np.argwhere(~backend_of(good).to_numpy(good))[0].tolist()
        what = f"a sum of {float(total[(*channel, ...)])} in {weights.dtype}"
    of = f" of channel {channel[0] if len(channel) == 1 else tuple(channel)}" if channel else ""
    raise ValueError(
        "weights must be finite and non-negative, with a positive sum for every channel; got "
        f"{what}{of}"
    )
