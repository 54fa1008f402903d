"""Samples as they are seen from a mean: what statistics and normalization have in common."""

from functools import cached_property
from typing import Any, Self

from gyrobn.backends import Array, State, backend_of
from gyrobn.numerics.arrays import scalars_like, weighted_sum
from gyrobn.numerics.hessian import Hessian


class Centred:
    r"""The samples :math:`\ominus\mu \oplus x_i`, shape (N, *channels, *point_shape).

    Each thing is computed when it is first asked for, once. A geometry that decomposes matrices has
    a subclass, in which one decomposition serves all of them.
    """

    def __init__(
        self, space: Any, mean: Array, x: Array, seen: State = (), known: State = ()
    ) -> None:
        self.space, self.mean, self.x, self.known = space, mean, x, known
        if seen:
            self._recall(*seen)

    def _recall(self, normal: Array) -> None:
        self.normal = normal

    @property
    def seen(self) -> State:
        """The arrays from which the rest follows, for a loop to carry."""
        return (self.normal,)

    @property
    def decompositions(self) -> State:
        """Arrays, as constants, that serve any samples and mean of the same values."""
        return ()

    def _know(self, *arrays: Array) -> None:
        """Take decompositions that are known."""

    def _share(self, other: Self) -> None:
        """Take the decompositions of another view, with what was computed of them."""

    @property
    def image(self) -> State:
        """The arrays, with their derivatives, from which all else of the samples follows."""
        return (self.normal,)

    def showing(self, normal: Array) -> Self:
        """Take such arrays as the image, and return the view."""
        self.normal = normal
        return self

    slope_by_step: Any = None
    """A method, if there is one, that takes slopes of the image back to a step of the mean."""
    slope_by_samples: Any = None
    """A method, if there is one, that takes them back to the samples, the mean held."""

    def moved(self, space: Any, mean: Array, x: Array, decompositions: State | None = None) -> Self:
        """Return samples of the same values, seen from a mean of the same value.

        Only their derivatives may be others, so that the decompositions serve again. They are given
        where a transformation may have changed what they stand for.
        """
        moved = type(self)(space, mean, x)
        if decompositions is None or backend_of(mean).plain(mean):
            moved._share(self)
        else:
            moved._know(*decompositions)
        return moved

    def shift(self, step: Array) -> Array:
        r"""Return :math:`\mu \oplus \operatorname{Exp}_e(c)` for a step c from the mean."""
        return self.space.shift(self.mean, step)

    def retract(self, step: Array) -> Array:
        """Return the point after a small step, on the manifold: the mean itself for no step."""
        return self.shift(step)

    def push(self, step: Array) -> Array:
        """Return a small step c from the mean as a tangent vector there."""
        return self.space.push(self.mean, step)

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean: to its neighbours, or more; one per block."""
        return self.space.resolutions(self.mean)

    @cached_property
    def normal(self) -> Array:
        """Their normal coordinates, shape (N, *channels, dim)."""
        return self.space.relative_normal(self.mean, self.x)

    def gradient(self, weights: Array) -> Array:
        """Return the mean of the normal coordinates: minus the gradient at the mean."""
        return weighted_sum(weights, self.normal)

    @cached_property
    def squares(self) -> Array:
        """The squares of their distances, one per block, shape (N, *channels, blocks)."""
        return self.space.by_block(self.normal * self.normal)

    def variance(self, weights: Array) -> Array:
        """Return the mean square of the distances, one per block."""
        return weighted_sum(weights, self.squares)

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian of half the squared distances, a constant unless it says not."""
        hessian: Hessian = self.space.hessian(self.normal, weights)
        if hessian.differentiable:
            return hessian
        stop = backend_of(weights).stop_gradient
        constant: Hessian = self.space.detached().hessian(stop(self.normal), stop(weights))
        return constant

    def standardize(self, factor: Array, bias: Array | None) -> Array:
        r"""Return :math:`\beta \oplus (t \odot (\ominus\mu \oplus x_i))`."""
        t = self.space.by_coordinate(scalars_like(factor, self.x))
        z: Array = self.space.from_normal(t * self.normal)
        return z if bias is None else self.space.add(bias, z)


class Decomposed(Centred):
    """Samples that are matrices, decomposed once, and their mean: a subclass says how."""

    _known: Any
    _known_mean: Any

    @property
    def decompositions(self) -> State:
        """The decompositions of the samples and of the mean."""
        return (*self._known, *self._known_mean)

    def _share(self, other: Self) -> None:
        self._known, self._known_mean = other._known, other._known_mean
