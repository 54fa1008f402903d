r"""A batch that lies on several ranks: processes, or devices.

Each rank looks at its own samples, and the sums are reduced:

.. math:: g = \sum_r q_r\,g_r, \qquad v^2 = \sum_r q_r\,v_r^2, \qquad H = \sum_r q_r H_r,

with :math:`q_r` the share of rank r in the sum of all weights. All that an evaluation needs is
packed into one reduction, so nothing is sent that grows with the number of samples. Every rank gets
the same sums, decides the same, and holds the same mean.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import pieces
from gyrobn.numerics.hessian import DENSE, Hessian, matrix_hessian
from gyrobn.numerics.matrices import from_triangle, to_triangle
from gyrobn.numerics.solvers import inverse, newton_step
from gyrobn.statistics.held import Held, Look, choose_all
from gyrobn.statistics.samples import arrange, shares

LARGEST = DENSE
"""Up to this dimension the Hessian is sent along as a matrix. Beyond, it is applied to vectors, and
each application is a reduction: to form it would take longer (docs/many_machines.md)."""


def _nobody(error: Exception | None) -> None:
    """Do nothing: all devices of a traced program raise the same error."""


class Group(NamedTuple):
    """The ranks over which a batch is spread."""

    ranks: Any
    """As the shim of the library knows them."""
    agree: Callable[[Exception | None], None] = _nobody
    """Called on every rank with its error, if it has one: raises on all of them if any has."""


class Spread(NamedTuple):
    """What a rank knows of a batch besides its own samples."""

    group: Group
    weight: Array
    """The sum of the weights of the samples here, shape (*channels,); zero without samples."""
    each: Array | None = None
    """The weights of the samples here, shape (N, *channels); None if they are equal."""


def arrange_spread(
    manifold: GyroSpace, x: Array, weights: Array | None, axis: tuple[int, ...], group: Group | None
) -> tuple[Array, Array, Spread | None]:
    """Arrange samples as :func:`~gyrobn.statistics.samples.arrange` does; of a group, those here.

    A rank of a group may have none. The weights sum to one on each rank.
    """
    if group is None:
        samples, w = arrange(manifold, x, weights, axis)
        return samples, w, None
    xp = namespace_of(x)
    batch = x.shape[: x.ndim - len(manifold.point_shape)]
    channels = tuple(n for a, n in enumerate(batch) if a not in axis)
    if 0 in batch:
        ones = xp.ones((1, *channels), dtype=x.dtype, device=device_of(x))
        e = xp.broadcast_to(manifold.origin(x), (1, *channels, *manifold.point_shape))
        # the sums of nothing are zero, and part of the graph, as on other ranks
        weight = 0.0 * ones[0, ...] + (0.0 if weights is None else xp.sum(weights))
        return e + xp.sum(x), ones, Spread(group, weight)
    if weights is None:
        samples, w = arrange(manifold, x, None, axis)
        count = float(math.prod(batch[a] for a in axis))
        return samples, w, Spread(group, xp.full_like(w[0, ...], count))
    samples, w, total = arrange(manifold, x, weights, axis, partial=True)
    return samples, shares(w, total), Spread(group, total, w)


class Seen(NamedTuple):
    """What a look keeps."""

    view: Any
    """The samples here, as :class:`~gyrobn.statistics.held.Held` keeps them."""
    g: Array | None
    """The mean of the normal coordinates of all samples; None if they are all here."""
    matrix: Array | None
    """The Hessian of all samples, where it is small."""
    bounds: Array | None
    """A lower bound of its eigenvalues; if it is large, the lower and the upper bound, on a last
    axis. None, as the matrix, if it is the identity."""

    @property
    def sums(self) -> tuple[Any, ...]:
        """The sums over all ranks that a derivative needs."""
        return tuple(a for a in self[1:] if a is not None)


class Shared:
    """Samples that are distributed over ranks."""

    def __init__(self, held: Held, spread: Spread, slopes: bool = False) -> None:
        """Find the share of this rank and a common start, in one reduction.

        The start is that of the whole batch: a geometry computes it from sums over the samples. The
        share has its derivative by the weights. The samples are constants, unless the start shall
        have its ``slopes``.
        """
        xp, shim = namespace_of(held.x), backend_of(held.x)
        total = partial(shim.all_sum, group=spread.group.ranks)
        weight, sum_of_all = spread.weight[..., None], []
        stop: Callable[[Array], Array] = (lambda a: a) if slopes else shim.stop_gradient

        def totals(*own: Array) -> tuple[Array, ...]:
            heavy = stop(weight)
            parts = [xp.reshape(part, (*weight.shape[:-1], -1)) for part in own]
            each = xp.concat(parts, axis=-1)
            each = xp.where(xp.logical_and(heavy > 0, xp.isfinite(each)), heavy * each, 0.0)
            sums = total(xp.concat([weight, each], axis=-1))
            whole = sums[..., :1]
            if not shim.hides_values(whole) and not bool(xp.all(whole > 0)):
                spread.group.agree(None)  # one of the ranks may have withdrawn
                raise ValueError(
                    "the batch is empty on every rank, or its weights have no positive sum: give "
                    "at least one sample on one of the ranks"
                )
            sum_of_all.append(whole[..., 0])
            found = pieces(stop(sums[..., 1:] / whole), _sizes(parts))
            return tuple(xp.reshape(a, b.shape) for a, b in zip(found, own, strict=True))

        self.manifold, self.held, self.total = held.manifold, held, total
        self._start = held.manifold.start(held.x, held.w, totals)
        self.exact = spread.weight / sum_of_all[0]
        self.share = shim.stop_gradient(self.exact)
        self._each = None if spread.each is None else spread.each / sum_of_all[0]

    def start(self) -> Array:
        """Return a first guess of the mean, the same on every rank."""
        return self._start

    def look(self, mean: Array) -> Look:
        """Return the sums over all ranks, seen from a mean."""
        own, dim = self.held.look(mean), self.manifold.dim
        parts = [own.g, own.variance, own.resolution]
        hessian = self.held.view(own).hessian(self.held.w)
        matrix = bounds = None
        if hessian.identity:
            g, variance, resolution = self.sums(parts)
        elif dim <= LARGEST:
            g, variance, resolution, *packed = self.sums([*parts, *_packed(hessian, own.g)])
            matrix, bounds = _unpacked(packed, dim)
        else:
            both = namespace_of(mean).stack([hessian.lowest(), hessian.top], axis=-1)
            g, variance, resolution, bounds = self.sums([*parts, both])
        return Look(Seen(own.view, g, matrix, bounds), mean, g, variance, own.far, resolution)

    def step(self, now: Look, accuracy: float) -> Array:
        """Return nearly H⁻¹g."""
        own = self._view(now).hessian(self.held.w)
        if own.quick is not None and self.manifold.dim > LARGEST:
            return own.quick(now.g, namespace_of(now.g).sum(now.variance, axis=-1))
        return newton_step(self.whole(own, now.view.matrix, now.view.bounds), now.g, accuracy)

    def shift(self, now: Look, step: Array) -> Array:
        """Return the mean after a step."""
        return self._view(now).shift(step)

    def _view(self, now: Look) -> Centred:
        """Return the samples here, seen from the mean."""
        return self.held.view(now._replace(view=now.view.view))

    def merged(self, take: Array, new: Look, old: Look) -> Look:
        """Return the new look for channels to take, else the old."""
        own = (look._replace(view=look.view.view) for look in (new, old))
        look = self.held.merged(take, *own)
        return look._replace(view=Seen(look.view, *choose_all(take, new.view[1:], old.view[1:])))

    def weights(self, w: Array) -> Array:
        """Return the weights of the samples here as shares in all samples, with their derivatives.

        ``w`` sums to one. Its product with the share of this rank would have another derivative
        if all weights here are zero.
        """
        return w * self.exact if self._each is None else self._each

    # ------------------------------------------------------------------ sums over the ranks

    def weighed(self, part: Array, whole: bool = False) -> Array:
        """Return a part (*channels, ...) times the share of this rank, unless it is weighed.

        A rank without samples may see NaN from a mean opposite to its placeholder.
        """
        share = self.share[(..., *(None,) * (part.ndim - self.share.ndim))]
        return namespace_of(part).where(share > 0, part if whole else share * part, 0.0)

    def sums(self, parts: Sequence[Array], whole: bool = False) -> list[Array]:
        """Return the sums of parts (*channels, k), each times the share of its rank, in one go."""
        packed = namespace_of(parts[0]).concat(list(parts), axis=-1)
        return pieces(self.total(self.weighed(packed, whole)), _sizes(parts))

    def whole(
        self, own: Hessian, matrix: Array | None, bounds: Any, weighed: bool = False
    ) -> Hessian:
        """Return the Hessian of all samples, from that of the samples here and a :class:`Seen`.

        If it is large, it is an operator, and each application is a reduction. The weights of
        ``own`` are ``weighed`` if they sum to the share of this rank, and not to one.
        """
        if own.identity:
            return own
        if matrix is not None:
            return matrix_hessian(matrix, bounds, own.at_least_one)

        def apply(function: Callable[[Array], Array], v: Array) -> Array:
            return self.total(self.weighed(function(v), weighed))

        return Hessian(
            partial(apply, own.apply),
            lambda: bounds[..., 0],
            lambda: bounds[..., 1],
            rough=None if own.rough is None else partial(apply, own.rough),
            dense=LARGEST,
            at_least_one=own.at_least_one,
            differentiable=own.differentiable,
        )

    def matrix(self, own: Hessian, like: Array) -> tuple[Array, ...]:
        """Return the Hessian of all samples as a matrix, and the bound, with their derivatives."""
        return _unpacked(self.sums(_packed(own, like), whole=True), like.shape[-1])

    def inverse(
        self,
        own: Hessian,
        known: tuple[Array, ...],
        v: Array,
        also: Array | None,
        rise: Callable[[Array], Array] | None,
        tol: float,
    ) -> tuple[Array, Array | None]:
        """Return H⁻¹ of the sum of v over the ranks, and the sum of ``also``, in one reduction.

        ``own`` is the part of H of the samples here, whose weights sum to the share of this rank,
        and ``known`` what :class:`Seen` knows of H. Where slopes are pulled back, ``rise`` returns
        what the sum of ``also`` adds to that of v.
        """
        parts = [v] if also is None else [v, also]
        found = pieces(self.total(namespace_of(v).concat(parts, axis=-1)), _sizes(parts))
        matrix, bounds = (None, None, *known)[-2:]
        whole = self.whole(own, matrix, bounds, weighed=True)
        if also is None:
            return inverse(whole, found[0], tol), None
        v = found[0] if rise is None else found[0] + rise(found[1])
        return inverse(whole, v, tol), found[1]


class Traced(Shared):
    """Samples that are traced, so that a compiler may find them on several devices.

    All sums of an evaluation, those of the Hessian too, depend on the mean alone and not on each
    other. So the compiler can pack them into one reduction.
    """

    def __init__(self, held: Held) -> None:
        self.manifold, self.held = held.manifold, held

    def start(self) -> Array:
        """Return a first guess of the mean."""
        return self.held.start()

    def look(self, mean: Array) -> Look:
        """Return what is seen from a mean, with the Hessian there."""
        own = self.held.look(mean)
        hessian = self.held.view(own).hessian(self.held.w)
        lowest = None if hessian.at_least_one else hessian.lowest()
        return own._replace(view=Seen(own.view, None, hessian.as_matrix(own.g), lowest))


def withdraw(
    manifold: GyroSpace, channels: tuple[int, ...], like: Array, group: Group, error: Exception
) -> None:
    """Take part in the first reduction of the others with NaN, and agree on the error with them."""
    if group.agree is _nobody:
        return
    space, xp = manifold.inside.parts()[0][0], namespace_of(like)
    e = xp.broadcast_to(space.origin(like), (1, *channels, *space.point_shape))
    ones = xp.ones((1, *channels), dtype=like.dtype, device=device_of(like))
    own = group._replace(agree=lambda _: group.agree(error))
    Shared(Held(space, e, ones), Spread(own, xp.nan * ones[0, ...]))


def _packed(hessian: Hessian, like: Array) -> list[Array]:
    """Return one triangle of the matrix and the bound, each of shape (*channels, k)."""
    return [to_triangle(hessian.as_matrix(like), diagonal=True), hessian.lowest()[..., None]]


def _unpacked(parts: Sequence[Array], n: int) -> tuple[Array, Array]:
    """Return what :func:`_packed` has packed."""
    triangle, lowest = parts
    return from_triangle(triangle, n, diagonal=True, mirror=1.0), lowest[..., 0]


def _sizes(parts: Sequence[Array]) -> list[int]:
    return [part.shape[-1] for part in parts]
