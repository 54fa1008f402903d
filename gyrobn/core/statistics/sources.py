"""Where the loop reads its samples: in memory, or in memory on each of several ranks.

A part of the samples answers with sums, and sums of parts are added. Everything else of the loop is
the same for every source.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gyrobn.core.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.core.manifolds.centred import Centred
from gyrobn.core.manifolds.gyrospace import GyroSpace
from gyrobn.core.numerics.arrays import BLOCK, pieces, sum_samples, weighted_sum
from gyrobn.core.numerics.hessian import DENSE, Hessian
from gyrobn.core.numerics.matrices import from_triangle, to_triangle


class Look(NamedTuple):
    """What the loop needs to know about the samples, seen from a mean."""

    view: Centred | None
    """The samples, if they are in memory."""
    g: Array
    """The mean of the normal coordinates: minus the gradient."""
    variance: Array
    """One per block."""
    resolution: Array
    """How far rounding moves the mean; one per block, or one."""
    far: tuple[Array, ...]
    """Squared distance of the farthest sample, one per block, on spaces where a mean need not be
    unique, if values can be read; else empty."""
    hessian: Hessian


class Source(Protocol):
    """Samples whose mean is searched for."""

    space: GyroSpace

    def arrays(self) -> tuple[Arrays, Callable[..., "Source"]]:
        """Return the arrays of the source, and a function that makes it of such arrays."""

    def start(self) -> Array:
        """Return a first guess of the mean."""

    def look(self, mean: Array) -> Look:
        """Return what is seen from a mean."""

    def shift(self, view: Centred | None, mean: Array, step: Array) -> Array:
        """Return the mean after a step; ``view`` is that from the mean, if it is known."""


class Memory:
    """Samples in memory: ``x`` of shape (N, *channels, *point_shape), ``w`` (N, *channels).

    The weights sum to one, over all ranks of a group.
    """

    def __init__(self, space: GyroSpace, x: Array, w: Array, group: Any = None) -> None:
        self.space, self.x, self.w, self.group = space, x, w, group

    def __repr__(self) -> str:
        return "memory" if self.group is None else "ranks"

    def arrays(self) -> tuple[Arrays, Callable[..., "Memory"]]:
        """Return samples, weights and the parameters of the geometry that are arrays."""
        learnt, remade = learnt_of(self.space)
        made = lambda x, w, *learnt: Memory(remade(learnt), x, w, self.group)  # noqa: E731
        return (self.x, self.w, *learnt), made

    def total(self, x: Array) -> Array:
        """Return the sum over all ranks."""
        return x if self.group is None else backend_of(x).all_sum(x, self.group)

    def start(self) -> Array:
        """Return a first guess of the mean, from the means of the moments.

        Those of many samples are corrected by the mean of what is left: rounding errors add up.
        """
        moments = self.space.moments(self.x)
        means = self.total(weighted_sum(self.w, moments))
        if self.x.shape[0] > BLOCK:
            means = means + self.total(weighted_sum(self.w, moments - means))
        return self.space.start(means)

    def look(self, mean: Array) -> Look:
        """Return what is seen from a mean."""
        space, w = self.space, self.w
        view = space.centred(mean, self.x)
        g, variance, resolution = view.gradient(w), view.variance(w), view.resolutions(w)
        far: tuple[Array, ...] = ()
        if space.convexity_radius < float("inf") and not backend_of(mean).traced(mean):
            xp = namespace_of(mean)
            far = (xp.max(xp.where(w[..., None] > 0, view.squares, 0.0), axis=0),)
        hessian = view.hessian(w)
        if self.group is None:
            return Look(view, g, variance, resolution, far, hessian)
        share = sum_samples(w)[..., None]
        parts = [g, variance, share * resolution]
        g, variance, resolution = self._sums(parts)
        return Look(view, g, variance, resolution, far, self.whole(hessian, view, w))

    def _sums(self, parts: list[Array]) -> list[Array]:
        """Return the sums of parts (*channels, k) over all ranks, in one reduction."""
        packed = namespace_of(parts[0]).concat(parts, axis=-1)
        return pieces(self.total(packed), [part.shape[-1] for part in parts])

    def whole(self, hessian: Hessian, view: Centred, w: Array) -> Hessian:
        """Return the Hessian of all ranks, from that of the samples here."""
        if self.group is None or hessian.identity:
            return hessian
        like = view.gradient(w)
        n = like.shape[-1]
        if n > DENSE:
            return Hessian(lambda v: self.total(hessian.apply(v)), hessian.lowest)
        triangle = self.total(to_triangle(hessian.as_matrix(like), diagonal=True))
        matrix = from_triangle(triangle, n, diagonal=True, mirror=1.0)
        xp = namespace_of(like)
        return Hessian(lambda v: xp.matmul(matrix, v), hessian.lowest, lambda: matrix)

    def shift(self, view: Centred | None, mean: Array, step: Array) -> Array:
        """Return the mean after a step."""
        if view is None or view.mean is not mean:
            view = self.space.centred(mean, self.x)
        return view.shift(step)


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
