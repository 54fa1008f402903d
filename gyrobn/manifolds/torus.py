"""Angles: directions, phases, times of the day, torsions of molecules."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.euclidean import Vectors
from gyrobn.manifolds.group import Group
from gyrobn.numerics.arrays import check_coordinates, pieces
from gyrobn.numerics.hessian import Hessian, flat_hessian


@dataclass(frozen=True)
class Torus(Vectors, Group):
    r"""The flat torus of n angles, in radians: :math:`x \oplus y = x + y` modulo 2π.

    Results lie in [-π, π]. The distance from the identity is the length of the angles, each of them
    at most π.

    Parameters
    ----------
    n
        Number of angles.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Torus, frechet_mean
    >>> M = Torus(1)
    >>> float(M.dist(np.asarray([3.0]), np.asarray([-3.0])).round(6))
    0.283185
    >>> abs(frechet_mean(M, np.asarray([[3.0], [-3.0]]))).round(6)
    array([3.141593])
    """

    convexity_radius: ClassVar[float] = math.pi / 2

    @property
    def gyrocommutative(self) -> bool:
        """True."""
        return True

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the circle, and two angles."""
        return cls(1), cls(2)

    def add(self, x: Array, y: Array) -> Array:
        """Sum of the angles."""
        self._namespace(x, y)
        return _wrapped(x + y)

    def to_normal(self, x: Array) -> Array:
        """The angles, between -π and π."""
        self._namespace(x)
        return _wrapped(x)

    def from_normal(self, c: Array) -> Array:
        """The angles, between -π and π."""
        check_coordinates(self, c)
        return _wrapped(c)

    def push(self, x: Array, c: Array) -> Array:
        """Return c itself: all tangent spaces are the same."""
        self._namespace(x)
        return c + 0.0 * x

    def pull(self, x: Array, v: Array) -> Array:
        """Return v itself."""
        return self.push(x, v)

    def adjoint_action(self, x: Array, c: Array) -> Array:
        """Return c itself: sums commute."""
        self._namespace(x)
        return c + 0.0 * x

    def cut_locus_angle(self, x: Array) -> Array:
        """π less the largest angle."""
        return math.pi - namespace_of(x).max(abs(self.to_normal(x)), axis=-1)

    def moments(self, x: Array) -> Array:
        """Cosines and sines."""
        xp = self._namespace(x)
        return xp.concat([xp.cos(x), xp.sin(x)], axis=-1)

    def start(self, moments: Array) -> Array:
        """First guess of the mean: the direction of the mean of the directions."""
        xp = namespace_of(moments)
        cosines, sines = pieces(moments, (self.n, self.n))
        return xp.atan2(sines, cosines)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the identity."""
        return flat_hessian()


def _wrapped(x: Array) -> Array:
    """Return angles modulo 2π, between -π and π."""
    turns = namespace_of(x).round(backend_of(x).stop_gradient(x) / (2.0 * math.pi))
    return x - 2.0 * math.pi * turns
