r"""Samples as the search of the mean reads them, and the sums over them.

A user's samples and weights are checked here, once, and arranged. Some samples then answer with
sums, and the sums of all parts are added:

.. math:: g = \sum_i w_i c_i, \qquad v^2 = \sum_i w_i \|c_i\|^2, \qquad H = \sum_i w_i H_i,
          \qquad c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i) .

All that one evaluation needs is packed into one array: it takes one reduction over the ranks, or
one pass over chunks, and nothing is sent that grows with the number of samples. Everything else of
the loop is the same for every source.
"""

import math
from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace, check_manifold
from gyrobn.numerics.arrays import BLOCK, real_dtype, scalars_like, sum_samples, weighted_sum
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
        return samples, xp.full((count, *channels), each, dtype=real_dtype(x), device=device_of(x))
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
    return e, xp.zeros((1, *channels), dtype=real_dtype(like), device=device_of(like))


def _axes(x: Array, batch: tuple[int, ...], axis: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the batch axes to average over, none of them negative."""
    points = tuple(x.shape[len(batch) :])
    if not batch:
        raise ValueError(
            f"expected a batch of points, shape (N, ..., {points}), "
            f"got one point of shape {tuple(x.shape)}: add a batch axis, x[None]"
        )
    count, axes = len(batch), check_integers("axis", axis)
    found = tuple(a % count for a in axes if -count <= a < count)
    if not found or not len(axes) == len(found) == len(set(found)):
        raise ValueError(
            f"axis must name distinct ones of the {count} batch axes of an array of shape "
            f"{tuple(x.shape)} with points of shape {points}, got {axis}"
        )
    return found


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


# ---------------------------------------------------------------------- sums


class Sums(NamedTuple):
    """What some samples add to an evaluation."""

    added: Array
    """Numbers to add, shape (*channels, k); the first of them are g."""
    most: Array
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique, if values can be read; else of shape (*channels, 0)."""

    def plus(self, other: "Sums") -> "Sums":
        """Return the sums over the samples of both."""
        most = namespace_of(self.most).maximum(self.most, other.most)
        return Sums(self.added + other.added, most)


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
    hessian: Callable[[], Hessian]
    """Return the mean Hessian."""
    sums: Sums


# ---------------------------------------------------------------------- sums of a part


def sums_of(view: Centred, w: Array) -> Sums:
    """Return the sums over some samples; the Hessian as matrices up to ``DENSE`` dimensions."""
    xp, space, g, variance = namespace_of(w), view.space, view.gradient(w), view.variance(w)
    rounding = view.resolutions(w) - space.resolutions(view.mean)
    parts = [g, variance, xp.broadcast_to(rounding * rounding, variance.shape)]
    for h, like in diagonal(view.hessian(w), g):
        if h.lowest is not None:
            parts.append(h.lowest())
        if not h.identity and like.shape[-1] <= DENSE:
            parts.append(to_triangle(h.as_matrix(like), diagonal=True))
    flat = [xp.reshape(part, (*g.shape[:-1], -1)) for part in parts]
    return Sums(if_weighted(w, xp.concat(flat, axis=-1)), farthest(view, w))


def applied(view: Centred, w: Array, v: Array, k: int) -> Sums:
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
    if view.space.convexity_radius == math.inf or backend_of(w).traced(w):
        return xp.zeros((*w.shape[1:], 0), dtype=w.dtype, device=device_of(w))
    return xp.max(xp.where(w[..., None] > 0, view.squares, 0.0), axis=0)


def diagonal(h: Hessian, g: Array) -> list[tuple[Hessian, Array]]:
    """Return the diagonal blocks of a Hessian, each with its part of a vector."""
    if not h.parts:
        return [(h, g)]
    parts = zip(h.parts, h.split(g), strict=True)
    return [block for part in parts for block in diagonal(*part)]


# ---------------------------------------------------------------------- sources


class Source:
    """Samples that answer with sums; how the sums of their parts are reduced, a subclass says."""

    space: GyroSpace
    exact = False
    """Whether the first guess is the mean, as on a flat space."""

    def start(self) -> Array:
        """Return a first guess of the mean."""
        raise NotImplementedError

    def total(self, function: Callable[..., Sums], view: Centred, *arrays: Array) -> Sums:
        """Return the sum over all parts of ``function(part seen from the mean, w, *arrays)``."""
        raise NotImplementedError

    def arrays(self) -> Arrays:
        """Return the arrays that may be traced: none."""
        return ()

    def with_arrays(self) -> Self:
        """Return the same source with such :meth:`arrays`."""
        return self

    def view(self, mean: Array, saved: Arrays = ()) -> Centred:
        """Return the view of the mean from itself."""
        return self.space.centred(mean, mean[None, ...], saved)

    def product(self, view: Centred, k: int) -> Callable[[Array], Array]:
        """Return the k-th diagonal block of the Hessian, applied in one reduction."""
        return lambda v: self.total(partial(applied, k=k), view, v).added

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean, in one reduction."""
        view = self.view(mean)
        return self.evaluation(view, self.total(sums_of, view))

    def evaluation(self, view: Centred, sums: Sums) -> Evaluation:
        """Return an evaluation from the sums of all samples.

        A Hessian beyond ``DENSE`` dimensions is not summed: each product with it is one more
        reduction.
        """
        xp, space, at = namespace_of(view.mean), view.space, 0
        lead, numbers = sums.added.shape[:-1], count()

        def read(*shape: int) -> Array:
            nonlocal at
            first, at = at, at + math.prod(shape)
            return xp.reshape(sums.added[..., first:at], (*lead, *shape))

        def summed(h: Hessian, like: Array) -> Hessian:
            """Return a Hessian like h, from the bound and the matrix of each diagonal block."""
            if h.parts:
                each = [summed(*part) for part in zip(h.parts, h.split(like), strict=True)]
                return joined_hessian(each, h.split, h.join)
            k, (*batch, n) = next(numbers), like.shape[len(lead) :]
            bound = None if h.lowest is None else read(*batch)
            lowest = None if bound is None else lambda: bound
            if h.identity:
                return h
            if n > DENSE:
                return Hessian(self.product(view, k), lowest)
            A = from_triangle(read(*batch, n * (n + 1) // 2), n, diagonal=True, mirror=1.0)
            return Hessian(partial(matmul, A), lowest, lambda: A)

        blocks = len(space.blocks)
        g, variance, rounding = read(space.dim), read(blocks), read(blocks)
        hessian = summed(
            space.hessian(xp.zeros_like(g)[None, ...], xp.ones_like(g[None, ..., 0])), g
        )
        resolution = space.resolutions(view.mean) + xp.sqrt(rounding)
        return Evaluation(view, g, variance, resolution, lambda: hessian, sums)


class Memory(Source):
    """Samples in memory: ``x`` of shape (N, *channels, *point_shape), ``w`` (N, *channels).

    The weights sum to one.
    """

    def __init__(self, space: GyroSpace, x: Array, w: Array) -> None:
        self.space, self.x, self.w = space, x, w
        self.exact = space.flat

    def __repr__(self) -> str:
        return "memory"

    def start(self) -> Array:
        """Return a first guess of the mean.

        On a flat space, that of many samples is corrected by the mean of what is left.
        """
        moments = self.space.moments(self.x)
        means = weighted_sum(self.w, moments)
        if self.exact and self.x.shape[0] > BLOCK:
            means = means + weighted_sum(self.w, moments - means)
        return self.space.start(means)

    def arrays(self) -> Arrays:
        """Return samples, weights and the parameters of the geometry that are arrays."""
        return self.x, self.w, *parameters_of(self.space)

    def with_arrays(self, x: Array, w: Array, *parameters: Array) -> Self:  # type: ignore[override]
        """Return the same source with such :meth:`arrays`."""
        other, new = copy(self), iter(parameters)
        old = self.space.learnable()
        values = [v if isinstance(v, (int, float)) else next(new) for v in old]
        other.space, other.x, other.w = self.space.with_learnable(values), x, w
        return other

    def view(self, mean: Array, saved: Arrays = ()) -> Centred:
        """Return the samples here, seen from a mean, with the decompositions of an equal view."""
        return self.space.centred(mean, self.x, saved)

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean; the Hessian is formed when it is needed."""
        view, w = self.view(mean), self.w
        g, variance, resolution = view.gradient(w), view.variance(w), view.resolutions(w)
        sums = Sums(g, farthest(view, w))
        return Evaluation(view, g, variance, resolution, partial(view.hessian, w), sums)

    def hessian(self, view: Centred, sums: Sums) -> Hessian:
        """Return the mean Hessian, for a view and the sums of an equal one."""
        return view.hessian(self.w)

    def reduced(self, sums: Array) -> Array:
        """Return the sums over all samples from those of the samples here."""
        return sums


def parameters_of(space: GyroSpace) -> Arrays:
    """Return the parameters of a geometry that are arrays."""
    return tuple(v for v in space.learnable() if not isinstance(v, (int, float)))


class Ranks(Memory):
    """Samples in memory on each of several ranks; the weights of all of them sum to one."""

    def __init__(self, space: GyroSpace, x: Array, w: Array, ranks: Any) -> None:
        super().__init__(space, x, w)
        self.ranks, self.exact = ranks, False

    def __repr__(self) -> str:
        return f"ranks {self.ranks!r}"

    evaluate = Source.evaluate

    def hessian(self, view: Centred, sums: Sums) -> Hessian:
        """Return the mean Hessian, for a view and the sums of an equal one."""
        return self.evaluation(view, sums).hessian()

    def total(self, function: Callable[..., Sums], view: Centred, *arrays: Array) -> Sums:
        """Return the sums over all ranks; the farthest sample is that of those here."""
        here = function(view, self.w, *arrays)
        return here._replace(added=backend_of(self.w).all_sum(here.added, self.ranks))

    def product(self, view: Centred, k: int) -> Callable[[Array], Array]:
        """Return the same; the Hessian of the samples here is made once."""
        block, _ = diagonal(view.hessian(self.w), view.normal[0, ...])[k]
        return lambda v: self.reduced(block.apply(v))

    def reduced(self, sums: Array) -> Array:
        """Return the sums over all ranks from those of the samples here."""
        return backend_of(sums).all_sum(if_weighted(self.w, sums), self.ranks)
