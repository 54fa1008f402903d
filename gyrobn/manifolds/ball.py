r"""Models whose points are vectors: inside a ball where K < 0, all of them where K >= 0."""

from dataclasses import dataclass

import numpy as np

from gyrobn.backends import Array, backend_of, dot
from gyrobn.manifolds.constant_curvature import ConstantCurvature
from gyrobn.manifolds.euclidean import Vectors
from gyrobn.manifolds.radial import is_constant, size_of
from gyrobn.numerics.arrays import check_coordinates, surely, unit
from gyrobn.numerics.scalar import safe_sqrt, times


@dataclass(frozen=True)
class Ball(ConstantCurvature, Vectors):
    r"""Common part of the models on :math:`\{x \in \mathbb R^n : K\|x\|^2 > -1\}`, identity 0."""

    def from_normal(self, c: Array) -> Array:
        """Exponential map at the identity; where K < 0, points are held inside the boundary."""
        xp = check_coordinates(self, c)
        K = self._parameter("curvature", c)
        if self.sign != -1 or not is_constant(self.sign, K, c):
            return super().from_normal(c)
        large, part = unit(c, least=1.0)
        size = size_of(K, part)
        most = 1.0 - 8.0 * float(xp.finfo(c.dtype).eps)
        ratio = xp.clip(xp.tanh(times(self._share, large) * size), max=most) / size
        return ratio[..., None] * part

    def project(self, x: Array) -> Array:
        r"""Pull points that are not inside back to :math:`\sqrt{-K}\|x\| = 1-\sqrt\epsilon`."""
        xp = self._namespace(x)
        large, u = unit(x)
        size = safe_sqrt(times(-self._parameter("curvature", x), dot(u, u)))
        outside = xp.logical_not(large * size < 1.0)  # also NaN, of which the quotient is NaN
        room = 1.0 - float(xp.finfo(x.dtype).eps) ** 0.5
        inside = u * (room / xp.where(outside, size, 1.0))[..., None]
        return xp.where(outside[..., None], inside, x)

    def violation(self, x: Array) -> Array:
        r"""Return how far :math:`\sqrt{-K}\|x\|` exceeds 1: an ulp on the boundary, 0 inside."""
        xp = self._namespace(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        large, u = unit(xp.where(finite[..., None], x, 0.0))
        size = safe_sqrt(-self._parameter("curvature", x) * dot(u, u))
        size = size * xp.clip(large, max=xp.finfo(x.dtype).max / 4)
        eps = float(xp.finfo(x.dtype).eps)
        out = xp.where(size < 1.0, xp.zeros_like(size), size - 1.0 + eps)
        return xp.where(finite, out, xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether each point is finite and strictly inside the boundary."""
        xp, K = self._given(x)
        with np.errstate(all="ignore"):  # overflowed values are checked again
            square = xp.abs(K * dot(x, x))
        if self.sign == -1 and backend_of(x).hides_values(square):
            return square < 1.0  # to rounding, without another pass over x
        inside = square < 1.0 - 16.0 * float(xp.finfo(x.dtype).eps)
        return inside if surely(inside) else self.violation(x) == 0
