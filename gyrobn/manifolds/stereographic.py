r"""The stereographic model of every constant curvature: Poincaré ball, plane, projected sphere."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, dot
from gyrobn.manifolds.ball import Ball
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import Lifted

__all__ = ["PoincareBall", "ProjectedHypersphere", "Stereographic"]


@dataclass(frozen=True)
class Stereographic(Ball):
    r"""The K-stereographic model, for any real curvature K, smooth through K = 0.

    Points are vectors of :math:`\mathbb R^n` with :math:`K\|x\|^2 > -1`; the metric is
    :math:`\lambda_x^2` times the Euclidean one, :math:`\lambda_x = 2/(1 + K\|x\|^2)`. (At K = 0
    that is four times the Euclidean metric.) A point lifts to

    .. math:: t = \frac{1 - K\|x\|^2}{1 + K\|x\|^2}, \qquad s = \lambda_x x, \qquad
              q(x, y) = \lambda_x\lambda_y\|x - y\|^2 .

    For K > 0 the model is a sphere without one point: an operation that arrives there returns
    infinite coordinates. Where that can happen, :class:`~gyrobn.Sphere` is the better model.

    Parameters
    ----------
    n
        Dimension.
    curvature
        Sectional curvature K: a number, or an array if it is to be learnt.

    Examples
    --------
    >>> import numpy as np
    >>> M = Stereographic(2, curvature=-1.0)
    >>> M.add(np.asarray([0.5, 0.0]), np.asarray([0.5, 0.0]))
    array([0.8, 0. ])
    """

    n: int
    curvature: Any = -1.0

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return instances on both sides of zero curvature, and at it."""
        return cls(2, -0.3), cls(3, -1.0), cls(3, 0.0), cls(3, 0.3)

    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        if self.sign == 0:  # without a square, which could overflow
            t = xp.ones_like(x[..., 0])
            return t, 2.0 * t, x
        square = K * dot(x, x)
        # on and beyond the boundary the model ends; there it continues as if a last digit inside
        w = xp.clip(1.0 + square, min=xp.finfo(x.dtype).eps)
        return 2.0 / w - 1.0 if self.sign == -1 else (1.0 - square) / w, 2.0 / w, x

    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        eps = float(xp.finfo(t.dtype).eps)
        if self.sign == -1:
            # s/(1 + t), held inside the ball where 1 + t would round to t
            ratio = 1.0 / (t + xp.clip(8.0 * eps * t, min=1.0))
            return s.times(ratio).value()
        vector = s.value()
        if self.sign == 0:
            return 0.5 * vector
        w = self._one_plus(xp, K, t, 1.0, vector)
        if self.sign is None:  # the boundary of a ball whose curvature is not known in advance
            w = w + xp.clip(8.0 * eps * t - 1.0, min=0.0)
        infinity = xp.logical_and(xp.isnan(w), xp.logical_not(xp.isnan(t)))
        p = vector / xp.where(infinity, 1.0, w)[..., None]
        return xp.where(infinity[..., None], xp.inf, p)

    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Array, Any, Array]:
        gap = y[2] - x[2]
        return x[1] * y[1], y[1], gap

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`v = c/\lambda_x`, since the model is conformal."""
        xp = self._namespace(x, c)  # coordinates have the shape of a point
        _, factor, _ = self._lift(xp, self._parameter("curvature", x), x)
        return c / factor[..., None]

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`c = \lambda_x v`."""
        xp = self._namespace(x, v)
        _, factor, _ = self._lift(xp, self._parameter("curvature", x), x)
        return factor[..., None] * v


@dataclass(frozen=True)
class PoincareBall(Stereographic):
    r"""The Poincaré ball :math:`\{x : \|x\|^2 < -1/K\}`, K < 0, with Möbius addition.

    Parameters
    ----------
    n
        Dimension.
    curvature
        Sectional curvature K, negative.

    Examples
    --------
    >>> import numpy as np
    >>> M = PoincareBall(2)
    >>> round(float(M.dist(np.zeros(2), np.asarray([0.5, 0.0]))), 12)  # 2 artanh(0.5)
    1.098612288668
    """

    n: int
    curvature: Any = -1.0
    required_sign: ClassVar[int | None] = -1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the disc, and a ball of another curvature."""
        return cls(2), cls(3, -2.0)


@dataclass(frozen=True)
class ProjectedHypersphere(Stereographic):
    r"""The stereographic projection of a sphere, K > 0: :math:`\mathbb R^n` and infinity.

    Parameters
    ----------
    n
        Dimension.
    curvature
        Sectional curvature K, positive.

    Examples
    --------
    >>> import numpy as np
    >>> M = ProjectedHypersphere(2)
    >>> round(float(M.dist(np.zeros(2), np.asarray([1.0, 0.0]))), 12)  # a quarter turn
    1.570796326795
    """

    n: int
    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane model of the sphere, and one of another curvature."""
        return cls(2), cls(3, 0.5)
