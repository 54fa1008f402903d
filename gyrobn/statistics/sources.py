r"""Where the loop reads its samples: in memory, or in memory on each of several ranks.

Some samples answer with sums, and the sums of all parts are added:

.. math:: g = \sum_i w_i c_i, \qquad v^2 = \sum_i w_i \|c_i\|^2, \qquad H = \sum_i w_i H_i,
          \qquad c_i = \operatorname{Log}_e(\ominus\mu \oplus x_i) .

All that one evaluation needs is packed into one array: it takes one reduction over the ranks, or
one pass over chunks, and nothing is sent that grows with the number of samples. Everything else of
the loop is the same for every source.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple, Protocol

from gyrobn.backends import Array, Arrays, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import BLOCK, pieces, sum_samples, weighted_sum
from gyrobn.numerics.hessian import DENSE, Hessian, joined_hessian
from gyrobn.numerics.matrices import from_triangle, matmul, to_triangle


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
    """The packed sums over all ranks, if there are several."""


class Source(Protocol):
    """Samples whose mean is searched for."""

    space: GyroSpace

    @property
    def exact(self) -> bool:
        """Whether the first guess is the mean."""

    def start(self) -> Array:
        """Return a first guess of the mean."""

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean."""

    def view(self, mean: Array, saved: Arrays = ()) -> Centred:
        """Return a view from a mean, with the decompositions of an earlier one."""

    def arrays(self) -> tuple[Arrays, Callable[..., "Source"]]:
        """Return the arrays of the source, and a function that makes it of such arrays."""


class Memory:
    """Samples in memory: ``x`` of shape (N, *channels, *point_shape), ``w`` (N, *channels).

    The weights sum to one.
    """

    def __init__(self, space: GyroSpace, x: Array, w: Array) -> None:
        self.space, self.x, self.w = space, x, w

    def __repr__(self) -> str:
        return "memory"

    def arrays(self) -> tuple[Arrays, Callable[..., "Memory"]]:
        """Return samples, weights and the parameters of the geometry that are arrays."""
        learnt, remade = learnt_of(self.space)

        def made(x: Array, w: Array, *learnt: Array) -> Memory:
            other = copy(self)
            other.space, other.x, other.w = remade(learnt), x, w
            return other

        return (self.x, self.w, *learnt), made

    @property
    def exact(self) -> bool:
        """Whether the first guess is the mean, as on a flat space."""
        return self.space.flat

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
        """Return the samples here, seen from a mean."""
        return self.space.centred(mean, self.x, saved)

    def evaluate(self, mean: Array) -> Evaluation:
        """Return what is seen from a mean."""
        view, w = self.view(mean), self.w
        sums = view.gradient(w), view.variance(w), view.resolutions(w), farthest(view, w)
        return Evaluation(view, *sums, partial(view.hessian, w))


# ---------------------------------------------------------------------- several ranks


def _all_alike(error: Exception | None) -> None:
    """Do nothing: all devices of a traced program raise the same error."""


class Group(NamedTuple):
    """The ranks over which a batch is distributed."""

    ranks: Any
    """As the backend of the library knows them."""
    agree: Callable[[Exception | None], None] = _all_alike
    """Called on every rank with its error, if it has one: raises on all of them if any has."""


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
        own = sums_of(view, self.w)
        return self.evaluated(view, self.w, own._replace(added=self.total(own.added)))

    def evaluated(self, view: Centred, w: Array, sums: Arrays) -> Evaluation:
        """Return an evaluation from the samples here and the sums over all ranks."""
        own = view.hessian(w)
        blocks = diagonal(own, sums[0][..., : self.space.dim])
        apply = lambda k, v: self.total(if_weighted(w, blocks[k][0].apply(v)))  # noqa: E731
        return evaluation(view, own, Sums(*sums), apply)


def over_ranks(space: GyroSpace, x: Array, w: Array, group: Group) -> tuple[Array, Array]:
    """Return a first guess of the mean, and the weights divided by their sum over all ranks.

    One reduction. A rank with an error takes part in it with weights that are NaN.
    """
    sums = backend_of(w).all_sum(first_sums(space, x, w), group.ranks)
    whole = sums[..., :1]
    if not backend_of(w).traced(whole) and not bool(namespace_of(w).all(whole > 0)):
        group.agree(None)  # one of the ranks may have withdrawn
        raise ValueError(
            "the batch is empty on every rank, or its weights have no positive sum: give at least "
            "one sample on one of the ranks"
        )
    return space.start(sums[..., 1:] / whole), w / whole[..., 0]


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
    w = xp.full((1, *channels), xp.nan, dtype=like.dtype, device=device_of(like))
    over_ranks(space, e, w, group._replace(agree=lambda _: group.agree(error)))


# ---------------------------------------------------------------------- sums of parts


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
    xp, space, share = namespace_of(w), view.space, sum_samples(w)[..., None]
    channels = share.shape[:-1]
    fine, coarse = (
        xp.broadcast_to(r, (*channels, len(space.blocks)))
        for r in (space.resolutions(view.mean), view.resolutions(w))
    )
    g = view.gradient(w)
    parts = [g, view.variance(w), share * fine, (coarse - fine) ** 2]
    for h, like in diagonal(view.hessian(w), g):
        if h.lowest is not None:
            parts.append(h.lowest())
        if not h.identity and like.shape[-1] <= DENSE:
            parts.append(to_triangle(h.as_matrix(like), diagonal=True))
    flat = [xp.reshape(part, (*channels, -1)) for part in parts]
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
        return w[0, ..., None][..., :0]
    return xp.max(xp.where(w[..., None] > 0, view.squares, 0.0), axis=0)


def evaluation(
    view: Centred, h: Hessian, sums: Sums, apply: Callable[[int, Array], Array]
) -> Evaluation:
    """Return an evaluation from the sums of all samples.

    ``h`` is the Hessian of any of them, and ``apply`` multiplies a diagonal block of the Hessian of
    all of them that is too large to be formed.
    """
    xp, space, blocks = namespace_of(sums.added), view.space, len(view.space.blocks)
    sizes = [space.dim, blocks, blocks, blocks, sums.added.shape[-1]]
    g, variance, fine, rounding, rest = pieces(sums.added, sizes)
    number = itertools.count()

    def taken(*shape: int) -> Array:
        nonlocal rest
        size = math.prod(shape[g.ndim - 1 :])
        own, rest = rest[..., :size], rest[..., size:]
        return xp.reshape(own, shape)

    def whole(h: Hessian, like: Array) -> Hessian:
        if h.parts:
            parts = zip(h.parts, h.split(like), strict=True)
            return joined_hessian([whole(*part) for part in parts], h.split, h.join)
        *batch, n = like.shape
        k, bound = next(number), None if h.lowest is None else taken(*batch)
        lowest = None if bound is None else lambda: bound
        if h.identity:
            return h
        if n > DENSE:
            return Hessian(partial(apply, k), lowest)
        A = from_triangle(taken(*batch, n * (n + 1) // 2), n, diagonal=True, mirror=1.0)
        return Hessian(partial(matmul, A), lowest, lambda: A)

    hessian, resolution = whole(h, g), fine + xp.sqrt(rounding)
    return Evaluation(view, g, variance, resolution, sums.most, lambda: hessian, sums)


def diagonal(h: Hessian, g: Array) -> list[tuple[Hessian, Array]]:
    """Return the diagonal blocks of a Hessian, each with its part of a vector."""
    if not h.parts:
        return [(h, g)]
    parts = zip(h.parts, h.split(g), strict=True)
    return [block for part in parts for block in diagonal(*part)]


def learnt_of(space: GyroSpace) -> tuple[list[Array], Callable[[Sequence[Array]], GyroSpace]]:
    """Return the parameters of a geometry that are arrays, and how to make it with others."""
    values = space.learnable()
    places = [k for k, v in enumerate(values) if not isinstance(v, (int, float))]

    def remade(arrays: Sequence[Array]) -> GyroSpace:
        new = list(values)
        for k, value in zip(places, arrays, strict=True):
            new[k] = value
        return space.with_learnable(new)

    return [values[k] for k in places], remade
