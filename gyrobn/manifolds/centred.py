"""Samples as they are seen from a mean: what statistics and normalization have in common."""

from functools import cached_property
from typing import Any, Self

from gyrobn.backends import Array, Arrays, backend_of
from gyrobn.numerics.arrays import scalars_like, weighted_sum
from gyrobn.numerics.hessian import Hessian


class Centred:
    r"""The samples :math:`\ominus\mu \oplus x_i`, shape (N, *channels, *point_shape).

    Each thing is computed when it is first needed, once. A geometry that decomposes matrices has a
    subclass: one decomposition serves all of them. Decompositions are constants, and serve any
    samples and mean of the same values: ``saved`` holds them, and a view with other derivatives is
    made with them.
    """

    saves: int = 0
    """Number of arrays in ``saved``."""
    images: int = 1
    """Number of arrays in ``image``."""

    def __init__(self, space: Any, mean: Array, x: Array, saved: Arrays = ()) -> None:
        self.space, self.mean, self.x = space, mean, x
        if saved:
            self.saved = saved

    @cached_property
    def saved(self) -> Arrays:
        """The decompositions."""
        return ()

    @property
    def image(self) -> Arrays:
        """The arrays, with their derivatives, from which everything else follows."""
        return (self.normal,)

    def showing(self, *image: Array) -> Self:
        """Take such arrays as the image, and return the view."""
        (self.normal,) = image
        return self

    def followed(self, step: Array) -> Arrays | None:
        """Return the image, to first order, if the mean moves by a step whose value is zero.

        None if the geometry has no formula for it: then a view from the moved mean is made.
        """
        return None

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, dim)."""
        return self.space.relative_normal(self.mean, self.x)

    def gradient(self, weights: Array) -> Array:
        """Return the mean of the normal coordinates: minus the gradient at the mean."""
        return weighted_sum(weights, self.normal)

    @cached_property
    def squares(self) -> Array:
        """The squares of the distances, one per block, shape (N, *channels, blocks)."""
        return self.space.by_block(self.normal * self.normal)

    def variance(self, weights: Array) -> Array:
        """Return the mean square of the distances, one per block."""
        return weighted_sum(weights, self.squares)

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian of half the squared distances, a constant to differentiation."""
        stop = backend_of(self.x).stop_gradient
        hessian: Hessian = self.space.detached().hessian(stop(self.normal), stop(weights))
        return hessian

    def shift(self, step: Array) -> Array:
        r"""Return :math:`\mu \oplus \operatorname{Exp}_e(c)` for a step c from the mean."""
        return self.space.shift(self.mean, step)

    def push(self, step: Array) -> Array:
        """Return a small step c from the mean as a tangent vector there."""
        return self.space.push(self.mean, step)

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean: to its neighbours, or more; one per block."""
        return self.space.resolutions(self.mean)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        r"""Return :math:`\beta \oplus (t \odot (\ominus\mu \oplus x_i))`."""
        t = self.space.by_coordinate(scalars_like(factor, self.x))
        z: Array = self.space.from_normal(t * self.normal)
        return z if bias is None else self.space.add(bias, z)
