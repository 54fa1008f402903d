"""Euclidean space, where GyroBN is ordinary batch normalization; geometries of vectors."""

from dataclasses import dataclass
from typing import ClassVar, Self

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import zeros
from gyrobn.numerics.hessian import Hessian, flat_hessian


@dataclass(frozen=True)
class Vectors(GyroSpace):
    """Vectors of n numbers with identity 0 and inverse -x; every vector is a point by default."""

    n: int
    drifts: ClassVar[bool] = False

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n,)``."""
        return (self.n,)

    @property
    def dim(self) -> int:
        """Dimension n."""
        return self.n

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space whose points have the length of the last axis of ``shape``."""
        return cls(shape[-1])

    def origin(self, like: Array) -> Array:
        """Return the zero vector."""
        return zeros(self.n, like)

    def neg(self, x: Array) -> Array:
        """Negative -x."""
        self._namespace(x)
        return -x

    def project(self, x: Array) -> Array:
        """Return x itself: every vector is a point."""
        self._namespace(x)
        return x

    def violation(self, x: Array) -> Array:
        """Return 0 for every finite vector and infinity for the others."""
        xp = self._namespace(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        return xp.where(finite, xp.zeros_like(x[..., 0]), xp.inf)


@dataclass(frozen=True)
class Euclidean(Vectors):
    r"""The vector space :math:`\mathbb R^n`, with :math:`x \oplus y = x + y`.

    Normalization uses one variance for the whole vector, :math:`v^2 = \frac1N\sum\|x_i-\mu\|^2`.
    For one variance per coordinate, as in ordinary batch normalization, make the coordinates
    channels of ``Euclidean(1)``.

    Parameters
    ----------
    n
        Number of coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> Euclidean(2).add(np.asarray([1.0, 2.0]), np.asarray([0.5, 0.5]))
    array([1.5, 2.5])
    """

    flat: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane and space."""
        return cls(2), cls(3)

    def add(self, x: Array, y: Array) -> Array:
        """Sum x + y."""
        self._namespace(x, y)
        return x + y

    def to_normal(self, x: Array) -> Array:
        """Return x itself."""
        self._namespace(x)
        return x

    def from_normal(self, c: Array) -> Array:
        """Return c itself."""
        self._namespace(c)
        return c

    def push(self, x: Array, c: Array) -> Array:
        """Return c itself: all tangent spaces are the same."""
        self._namespace(x, c)
        return c + 0.0 * x

    def pull(self, x: Array, v: Array) -> Array:
        """Return v itself."""
        self._namespace(x, v)
        return v + 0.0 * x

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return c

    def hessian(self, c: Array, weights: Array) -> Hessian:
        """Return the identity."""
        return flat_hessian()
