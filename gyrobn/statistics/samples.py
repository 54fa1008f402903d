"""A user's samples and weights: checked once, and arranged as the search of the mean reads them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import scalars_like, sum_samples, weighted_sum
from gyrobn.numerics.checks import check_integers


def _all_alike(error: Exception | None) -> None:
    """Do nothing: all devices of a traced program raise the same error."""


class Group(NamedTuple):
    """The ranks over which a batch is distributed."""

    ranks: Any
    """As the backend of the library knows them."""
    agree: Callable[[Exception | None], None] = _all_alike
    """Called on every rank with its error, if it has one: raises on all of them if any has."""


def arrange(
    manifold: GyroSpace,
    x: Array,
    weights: Array | None,
    axis: int | tuple[int, ...],
    group: Group | None = None,
) -> tuple[Array, Array]:
    """Return samples (N, *channels, *point_shape) and weights (N, *channels) that sum to one.

    Samples without weight are made safe: see :func:`set_aside`. Of a batch on several ranks they
    are the samples here, and the weights as they come, which :func:`locate` divides by their sum.
    """
    xp = check_manifold(manifold)._namespace(x)
    batch = tuple(x.shape[: x.ndim - len(manifold.point_shape)])
    axes = _axes(x, batch, axis)
    rest = tuple(a for a in range(len(batch)) if a not in axes)
    reduced, channels = (tuple(batch[a] for a in some) for some in (axes, rest))
    if 0 in batch:
        if group is None:
            raise ValueError(f"an empty batch has no mean: x has shape {tuple(x.shape)}")
        e, none = _placeholder(manifold, channels, x)
        # part of the graph, as on other ranks
        return e + xp.sum(x), none if weights is None else none + xp.sum(weights)
    count = math.prod(reduced)

    def arranged(a: Array) -> Array:
        if axes == (0,):
            return a
        order = *axes, *rest, *range(len(batch), a.ndim)
        return xp.reshape(xp.permute_dims(a, order), (count, *channels, *a.shape[len(batch) :]))

    samples = arranged(x)
    if weights is None:
        each = 1.0 if group is not None else 1.0 / count
        return samples, xp.full((count, *channels), each, dtype=x.dtype, device=device_of(x))
    weights = scalars_like(weights, x)
    shape = tuple(getattr(weights, "shape", ()))  # a scalar has no axis of samples
    if shape == reduced:
        w = xp.reshape(weights, (count, *(1 for _ in channels)))
        w = xp.broadcast_to(w, (count, *channels))
    elif shape == batch:
        w = arranged(weights)
    else:
        raise shape_error(shape, reduced, batch)
    total = sum_samples(w)
    try:
        check_weights(w, total if group is None else total + 1.0)
    except ValueError as error:
        if group is not None:
            withdraw(manifold, channels, x, group, error)
        raise
    samples = set_aside(manifold, samples, w)[0]
    return samples, w if group is not None else w / total


def _placeholder(
    manifold: GyroSpace, channels: tuple[int, ...], like: Array
) -> tuple[Array, Array]:
    """Return the identity, without weight, for a rank that has no samples."""
    xp = namespace_of(like)
    e = xp.broadcast_to(manifold.origin(like), (1, *channels, *manifold.point_shape))
    return e, xp.zeros((1, *channels), dtype=like.dtype, device=device_of(like))


def _axes(x: Array, batch: tuple[int, ...], axis: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch axes to average over, none of them negative."""
    points = tuple(x.shape[len(batch) :])
    if not batch:
        raise ValueError(
            f"expected a batch of points, shape (N, ..., {points}), "
            f"got one point of shape {tuple(x.shape)}: add a batch axis, x[None]"
        )
    axes = check_integers("axis", axis)
    for a in axes:
        if not -len(batch) <= a < len(batch):
            raise ValueError(
                f"axis {a} is not one of the {len(batch)} batch axes of an array of shape "
                f"{tuple(x.shape)} with points of shape {points}"
            )
    axes = tuple(a % len(batch) for a in axes)
    if len(set(axes)) != len(axes) or not axes:
        raise ValueError(f"axis must name distinct batch axes, got {axis}")
    return axes


def set_aside(
    manifold: GyroSpace, x: Array, weights: Array | None
) -> tuple[Array, Callable[[Array], Array]]:
    """Put the identity in place of samples that weigh nothing and are not points: padding, NaN.

    Weighted by zero, a NaN would be NaN still, in the value or in the derivative. The leading axes
    of ``weights`` are those of x. Also return a function that puts these samples, as they came,
    into an array of the shape of x.
    """
    if weights is None:
        return x, lambda y: y
    xp, backend = namespace_of(x), backend_of(x)
    points = len(manifold.point_shape)
    out = _weightless(x, weights, points)
    if not backend.traced(out) and not bool(xp.any(out)):
        return x, lambda y: y
    with np.errstate(all="ignore"):  # what overflows is no point
        point = manifold.contains(backend.stop_gradient(x))
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
        raise shape_error(given, batch[: len(given)], batch)
    return (weights == 0)[(..., *(None,) * (len(batch) - len(given)))]


def shape_error(
    given: tuple[Any, ...], reduced: tuple[Any, ...], batch: tuple[Any, ...]
) -> ValueError:
    """Return the error for weights of another shape than that of the samples."""
    return ValueError(
        f"weights must have the shape of the reduced axes, {reduced}, or of the whole batch, "
        f"{batch}; got {given}"
    )


def check_weights(weights: Array, total: Array, first: int = 0) -> None:
    """Refuse weights that are negative or not finite, and a sum that is not positive.

    ``first`` is the number of the first sample, if they are part of a batch.
    """
    xp, backend = namespace_of(weights), backend_of(weights)
    if backend.traced(weights):
        return
    good = xp.logical_and(total > 0, xp.isfinite(total))
    if bool(xp.logical_and(xp.all(weights >= 0), xp.all(good))):
        return
    each = backend.to_numpy(weights)
    bad = np.argwhere(~((each >= 0) & np.isfinite(each)))
    if len(bad):
        i, *channel = bad[0].tolist()
        what = f"{each[i, *channel]} at index {first + i}"
    else:
        channel = np.argwhere(~backend.to_numpy(good))[0].tolist()
        what = f"a sum of {float(total[(*channel, ...)])} in {weights.dtype}"
    raise ValueError(
        "weights must be finite and non-negative, with a positive sum for every channel; got "
        f"{what}{of_channel(channel)}"
    )


def of_channel(channel: list[Any]) -> str:
    """Say which channel, if there are several."""
    if not channel:
        return ""
    return f" of channel {channel[0] if len(channel) == 1 else tuple(channel)}"


# ---------------------------------------------------------------------- several ranks


def over_ranks(
    space: GyroSpace, x: Array, w: Array, group: Group, error: Exception | None = None
) -> tuple[Array, Array]:
    """Return a first guess of the mean, and the weights divided by their sum over all ranks.

    One reduction. A rank with an error takes part in it with weights that are NaN.
    """
    xp, moments = namespace_of(w), weighted_sum(w, space.moments(x))
    here = xp.concat([sum_samples(w)[..., None], moments], axis=-1)
    sums = backend_of(w).all_sum(here, group.ranks)
    total = sums[..., :1]
    if not backend_of(w).traced(total) and not bool(xp.all(total > 0)):
        group.agree(error)  # one of the ranks may have withdrawn
        raise ValueError(
            "the batch is empty on every rank, or its weights have no positive sum: give at least "
            "one sample on one of the ranks"
        )
    return space.start(sums[..., 1:] / total), w / total[..., 0]


def withdraw(
    manifold: GyroSpace, channels: tuple[int, ...], like: Array, group: Group, error: Exception
) -> None:
    """Take part in the first reduction of the others with NaN, and agree on the error with them."""
    if group.agree is not _all_alike:
        e, none = _placeholder(manifold.inside, channels, like)
        over_ranks(manifold.inside, e, none + namespace_of(like).nan, group, error)
