"""What the geometries whose points are vectors share, whatever their metric is."""

from dataclasses import dataclass
from typing import ClassVar, Self

from gyrobn.backends import Array
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import zeros

__all__ = ["Vectors"]


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
