r"""Samples and weights as the loop reads them, in memory or on each of several ranks.

Some samples answer with sums, and the sums of all parts are added:

.. math:: g = \sum_i w_i c_i, \qquad v^2 = \sum_i w_i \|c_i\|^2, \qquad H = \sum_i w_i H_i,
          \qquad c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i) .

All that one evaluation needs is packed into one array: it takes one reduction over the ranks, or
one pass over chunks, and nothing is sent that grows with the number of samples. Everything else of
the loop is the same for every source.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import BLOCK, pieces, real_dtype, scalars_like, sum_samples, weighted_sum
from gyrobn.numerics.checks import check_integers
from gyrobn.numerics.hessian import DENSE, Hessian, joined_hessian
from gyrobn.numerics.matrices import from_triangle, matmul, to_triangle


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
        return _nothing(manifold, x, weights, channels)
    count, samples = math.prod(reduced), x
    if axes != (0,):
        points = tuple(range(len(batch), x.ndim))
        shape = (count, *channels, *manifold.point_shape)
        samples = xp.reshape(xp.permute_dims(x, (*axes, *rest, *points)), shape)
    if weights is None:
        each = 1.0 if group is not None else 1.0 / count
        return samples, xp.full((count, *channels), each, dtype=real_dtype(x), device=device_of(x))
    weights = scalars_like(weights, x)
    shape = tuple(getattr(weights, "shape", ()))  # a scalar has no axis of samples
    if shape == reduced:
        w = xp.reshape(weights, (count, *(1 for _ in channels)))
        w = xp.broadcast_to(w, (count, *channels))
    elif shape == batch:
        w = xp.reshape(xp.permute_dims(weights, (*axes, *rest)), (count, *channels))
    else:
        raise ValueError(
            f"weights must have the shape of the reduced axes, {reduced}, or of the whole batch, "
            f"{batch}; got {shape}"
        )
    total = sum_samples(w)
    try:
        check_weights(w, total if group is None else total + 1.0)
    except ValueError as error:
        if group is not None:
            withdraw(manifold, channels, x, group, error)
        raise
    samples = set_aside(manifold, samples, w)[0]
    return samples, w if group is not None else w / total


def _nothing(
    manifold: GyroSpace, x: Array, weights: Array | None, channels: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return the identity, without weight, for a rank that has no samples.

    Its sums are zero, and part of the graph, as on other ranks.
    """
    xp = namespace_of(x)
    e = xp.broadcast_to(manifold.origin(x), (1, *channels, *manifold.point_shape))
    none = xp.zeros((1, *channels), dtype=real_dtype(x), device=device_of(x))
    return e + xp.sum(x), none if weights is None else none + xp.sum(weights)


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
    entries = tuple(range(-points, 0))
    finite = xp.all(xp.isfinite(x), axis=entries, keepdims=True)  # infinity − infinity would warn
    sane = xp.where(finite, backend.stop_gradient(x), manifold.origin(x))
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


# ---------------------------------------------------------------------- in memory


class Evaluation(NamedTuple):
    """What the loop needs to know about a mean."""

    view: Centred
    """The samples seen from it; if they are not in memory, the mean alone."""
    g: Array
    """The mean of the normal coordinates: minus the gradient."""
    variance: Array
    """One per block."""
    resolution: Array
    """How far rounding moves the mean; one per block, or one."""
    far: Array
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique, if values can be read; else of shape (*channels, 0)."""
    hessian: Callable[[], Hessian]
    """Return the mean Hessian."""
    sums: Arrays = ()
    """The :class:`Sums` over all ranks, if there are several."""


class Memory:
    """Samples in memory: ``x`` of shape (N, *channels, *point_shape), ``w`` (N, *channels).

    The weights sum to one.
    """

    def __init__(self, space: GyroSpace, x: Array, w: Array) -> None:
        self.space, self.x, self.w = space, x, w

    def __repr__(self) -> str:
        return "memory"

    @property
    def exact(self) -> bool:
        """Whether the first guess is the mean, as on a flat space."""
        return self.space.flat

    def arrays(self) -> Arrays:
        """Return samples, weights and the parameters of the geometry that are arrays."""
        return self.x, self.w, *parameters_of(self.space)

    def with_arrays(self, x: Array, w: Array, *parameters: Array) -> Self:
        """Return the same source with such :meth:`arrays`."""
        other = copy(self)
        other.space, other.x, other.w = with_parameters(self.space, parameters), x, w
        return other

    def start(self) -> Array:
        """Return a first guess of the mean.

        On a flat space, that of many samples is corrected by the mean of what is left.
        """
        moments = self.space.moments(self.x)
        means = weighted_sum(self.w, moments)
        if self.exact and self.x.shape[0] > BLOCK:
            means = means + weighted_sum(self.w, moments - means)
        return self.space.start(means)

    def view(self, mean: Array, saved: Arrays = ()) -> Centred:
        """Return the samples here, seen from a mean, with the decompositions of an equal view."""
        return self.space.centred(mean, self.x, saved)

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean."""
        view, w = self.view(mean), self.w
        sums = view.gradient(w), view.variance(w), view.resolutions(w), farthest(view, w)
        return Evaluation(view, *sums, partial(view.hessian, w))


# ---------------------------------------------------------------------- several ranks


class Ranks(Memory):
    """Samples in memory on each of several ranks; the weights of all of them sum to one."""

    exact = False

    def __init__(self, space: GyroSpace, x: Array, w: Array, group: Group) -> None:
        super().__init__(space, x, w)
        self.group = group

    def __repr__(self) -> str:
        return f"ranks {self.group.ranks!r}"

    def total(self, sums: Array) -> Array:
        """Return the sums over all ranks, from those of the samples here."""
        return backend_of(sums).all_sum(sums, self.group.ranks)

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean, in one reduction."""
        view = self.view(mean)
        here = sums_of(view, self.w)
        return self.evaluation(view, self.w, here._replace(added=self.total(here.added)))

    def evaluation(self, view: Centred, w: Array, sums: "Sums") -> Evaluation:
        """Return an evaluation from the samples here and the sums over all ranks."""
        here = view.hessian(w)

        def apply(k: int, v: Array) -> Array:
            block, _ = diagonal(here, sums.added[..., : self.space.dim])[k]
            return self.total(if_weighted(w, block.apply(v)))

        return evaluation_of(view, here, sums, apply)


def over_ranks(space: GyroSpace, x: Array, w: Array, group: Group) -> tuple[Array, Array]:
    """Return a first guess of the mean, and the weights divided by their sum over all ranks.

    One reduction. A rank with an error takes part in it with weights that are NaN.
    """
    sums = backend_of(w).all_sum(first_sums(space, x, w), group.ranks)
    total = sums[..., :1]
    if not backend_of(w).traced(total) and not bool(namespace_of(w).all(total > 0)):
        group.agree(None)  # one of the ranks may have withdrawn
        raise ValueError(
            "the batch is empty on every rank, or its weights have no positive sum: give at least "
            "one sample on one of the ranks"
        )
    return space.start(sums[..., 1:] / total), w / total[..., 0]


def first_sums(space: GyroSpace, x: Array, w: Array) -> Array:
    """Return the sums of the weights and of the moments, shape (*channels, 1 + k)."""
    moments = weighted_sum(w, space.moments(x))
    return namespace_of(x).concat([sum_samples(w)[..., None], moments], axis=-1)


def withdraw(
    manifold: GyroSpace, channels: tuple[int, ...], like: Array, group: Group, error: Exception
) -> None:
    """Take part in the first reduction of the others with NaN, and agree on the error with them."""
    if group.agree is _all_alike:
        return
    space, xp = manifold.inside, namespace_of(like)
    e = xp.broadcast_to(space.origin(like), (1, *channels, *space.point_shape))
    w = xp.full((1, *channels), xp.nan, dtype=real_dtype(like), device=device_of(like))
    over_ranks(space, e, w, group._replace(agree=lambda _: group.agree(error)))


# ---------------------------------------------------------------------- sums of a part


class Sums(NamedTuple):
    """What some samples add to an evaluation."""

    added: Array
    """Numbers to add, shape (*channels, k)."""
    most: Array
    """Numbers of which the largest counts: ``far`` of an evaluation."""


def sums_of(view: Centred, w: Array) -> Sums:
    """Return the sums over some samples.

    The Hessian is among them, as matrices up to ``DENSE`` dimensions.
    """
    xp, space = namespace_of(w), view.space
    g, variance = view.gradient(w), view.variance(w)
    rounding = view.resolutions(w) - space.resolutions(view.mean)
    parts = [g, variance, xp.broadcast_to(rounding * rounding, variance.shape)]
    for h, like in diagonal(view.hessian(w), g):
        if h.lowest is not None:
            parts.append(h.lowest())
        if not h.identity and like.shape[-1] <= DENSE:
            parts.append(to_triangle(h.as_matrix(like), diagonal=True))
    flat = [xp.reshape(part, (*g.shape[:-1], -1)) for part in parts]
    return Sums(if_weighted(w, xp.concat(flat, axis=-1)), farthest(view, w))


def applied(k: int, view: Centred, w: Array, v: Array) -> Sums:
    """Return the sums over some samples of the k-th diagonal block of the Hessian times v."""
    h, _ = diagonal(view.hessian(w), view.normal[0, ...])[k]
    return Sums(if_weighted(w, h.apply(v)), v[..., :0, 0])


def if_weighted(w: Array, sums: Array) -> Array:
    """Return sums of samples, zero in place of NaN if none has a weight: opposite to the mean.

    A sum that is finite stays, since it has a derivative by the weights.
    """
    xp, share = namespace_of(sums), sum_samples(w)
    share = share[(..., *(None,) * (sums.ndim - share.ndim))]
    return xp.where(xp.logical_or(share > 0, xp.isfinite(sums)), sums, 0.0)


def farthest(view: Centred, w: Array) -> Array:
    """Return the squared distance of the farthest sample, one per block, if it is needed."""
    xp = namespace_of(w)
    if view.space.convexity_radius == float("inf") or backend_of(w).traced(w):
        return xp.zeros((*w.shape[1:], 0), dtype=w.dtype, device=device_of(w))
    return xp.max(xp.where(w[..., None] > 0, view.squares, 0.0), axis=0)


def diagonal(h: Hessian, g: Array) -> list[tuple[Hessian, Array]]:
    """Return the diagonal blocks of a Hessian, each with its part of a vector."""
    if not h.parts:
        return [(h, g)]
    parts = zip(h.parts, h.split(g), strict=True)
    return [block for part in parts for block in diagonal(*part)]


def evaluation_of(
    view: Centred, h: Hessian, sums: Sums, apply: Callable[[int, Array], Array]
) -> Evaluation:
    """Return an evaluation from the sums of all samples.

    ``h`` is the Hessian of any of them, and ``apply`` multiplies a diagonal block of the Hessian of
    all of them that is too large to be formed.
    """
    space, blocks = view.space, len(view.space.blocks)
    sizes = [space.dim, blocks, blocks]
    for part, like in diagonal(h, sums.added[..., : space.dim]):
        *batch, n = like.shape[sums.added.ndim - 1 :]
        formed = 0 if part.identity or n > DENSE else n * (n + 1) // 2
        count = math.prod(batch)
        sizes += [0 if part.lowest is None else count, count * formed]
    g, variance, rounding, *rest = pieces(sums.added, sizes)
    hessian = _summed(h, g, iter(enumerate(zip(rest[::2], rest[1::2], strict=True))), apply)
    resolution = space.resolutions(view.mean) + namespace_of(g).sqrt(rounding)
    return Evaluation(view, g, variance, resolution, sums.most, lambda: hessian, sums)


def _summed(
    h: Hessian,
    like: Array,
    sums: Iterator[tuple[int, tuple[Array, Array]]],
    apply: Callable[[int, Array], Array],
) -> Hessian:
    """Return a Hessian like h, from the bound and the matrix of each diagonal block in turn."""
    if h.parts:
        parts = zip(h.parts, h.split(like), strict=True)
        return joined_hessian([_summed(*part, sums, apply) for part in parts], h.split, h.join)
    (k, (bound, triangle)), (*batch, n) = next(sums), like.shape
    xp = namespace_of(like)
    lowest = None if h.lowest is None else lambda: xp.reshape(bound, tuple(batch))
    if h.identity:
        return h
    if n > DENSE:
        return Hessian(partial(apply, k), lowest)
    triangle = xp.reshape(triangle, (*batch, n * (n + 1) // 2))
    A = from_triangle(triangle, n, diagonal=True, mirror=1.0)
    return Hessian(partial(matmul, A), lowest, lambda: A)


# ---------------------------------------------------------------------- parameters


def parameters_of(space: GyroSpace) -> Arrays:
    """Return the parameters of a geometry that are arrays."""
    return tuple(v for v in space.learnable() if not isinstance(v, (int, float)))


def with_parameters(space: GyroSpace, arrays: Iterable[Array]) -> GyroSpace:
    """Return the geometry with other arrays as such parameters."""
    new = iter(arrays)
    values = [v if isinstance(v, (int, float)) else next(new) for v in space.learnable()]
    return space.with_learnable(values)
