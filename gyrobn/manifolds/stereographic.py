r"""The stereographic model of every constant curvature: Poincaré ball, plane, projected sphere."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, State, backend_of, dot
from gyrobn.manifolds.ball import Ball
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.centred_vectors import CentredVectors
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import Lifted
from gyrobn.manifolds.moebius import (
    CentredInBall,
    carried,
    exponential,
    held_width,
    standardized,
)
from gyrobn.manifolds.radial import half_turn, is_constant
from gyrobn.numerics.arrays import check_coordinates, scalars_like
from gyrobn.numerics.scalar import times


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

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return instances on both sides of zero curvature, and at it."""
        return cls(2, -0.3), cls(3, -1.0), cls(3, 0.0), cls(3, 0.3)

    @property
    def _share(self) -> float:
        return 0.5 if self.sign == -1 else 1.0

    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        if self.sign == 0:  # without a square, which could overflow
            t = xp.ones_like(x[..., 0])
            return t, 2.0 * t, x
        if self.sign == -1:
            (a,) = self._known(xp, K, x)
            return a - 1.0, a, x
        square = K * dot(x, x)
        w = xp.clip(1.0 + square, min=float(xp.finfo(x.dtype).eps))
        return (1.0 - square) / w, 2.0 / w, x

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

    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Any, Array]:
        return x[1] * y[1], y[2] - x[2]

    def _ball_point(self, xp: Any, K: Any, x: Array) -> Array:
        return x

    def _known(self, xp: Any, K: Any, y: Array) -> State:
        # on and beyond the boundary the model ends; there it continues as if a last digit inside
        half = xp.clip(0.5 * K * dot(y, y) + 0.5, min=0.5 * float(xp.finfo(y.dtype).eps))
        return (xp.reciprocal(half),)

    def _seen(self, xp: Any, K: Any, x: Array, y: Array, known: State) -> Lifted:
        r"""With :math:`\delta = y - x`: :math:`s = \lambda_y(\delta - n x)`, :math:`n =
        -\tfrac K2\lambda_x\|\delta\|^2`, and :math:`t - 1 = \lambda_y n`.
        """
        gap = y - x
        n = dot(gap, gap) / self._room(xp, K, x)
        return n, known[0], Combination(1.0, gap, temporary=True).plus(-n, x).value()

    def _room(self, xp: Any, K: Any, x: Array) -> Array:
        r"""Return :math:`-1/K - \|x\|^2 = -2/(K\lambda_x)`, a last digit above 0 at least."""
        square = -1.0 / K
        return xp.clip(square - dot(x, x), min=square * float(xp.finfo(x.dtype).eps))

    def _sum(self, x: Array, y: Array) -> Array:
        r"""Möbius addition.

        With :math:`\delta = x + y`, without cancellation where K < 0:

        .. math:: x \oplus y = \frac{\delta + n x}{1 + K\|y\|^2 + n}, \qquad
                  n = -\tfrac K2 \lambda_x \|\delta\|^2 .
        """
        xp, K = self._given(x, y)
        if self.sign != -1:
            return super()._sum(x, y)
        w = xp.clip(times(K, dot(y, y)) + 1.0, min=float(xp.finfo(x.dtype).eps))
        return self._moved(xp, K, x, Combination(1.0, y), w)

    def from_normal(self, c: Array) -> Array:
        """Exponential map at the identity; where K < 0, points are held inside the boundary."""
        check_coordinates(self, c)
        K = self._parameter("curvature", c)
        if self.sign != -1 or is_constant(self.sign, K, c):
            return super().from_normal(c)
        return exponential(K, c)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`, accurate also where x and y are far out and close."""
        return self._sum(-x, y) if self.sign == -1 else super().relative(x, y)

    def _moved(self, xp: Any, K: Any, x: Array, y: Combination, w: Array) -> Array:
        """Return x ⊕ y from w = 1 + K‖y‖², held inside the ball."""
        return self._moved_with(xp, K, x, y, w)[0]

    def _moved_with(
        self, xp: Any, K: Any, x: Array, y: Combination, w: Array
    ) -> tuple[Array, State]:
        """Return x ⊕ y and what its derivative needs: the room of x, n, and w as it is held."""
        gap, room = y.onto(x).value(), self._room(xp, K, x)
        n = dot(gap, gap) / room
        least = xp.maximum(w, 8.0 * float(xp.finfo(x.dtype).eps) * n)
        kept, w = (room, n, least), n + least
        shim = backend_of(gap)
        if shim.differentiable(K, gap, n):
            return Combination(1.0, gap).plus(n, x).value() / w[..., None], kept
        if shim.hides_values(gap):
            # to read the terms again costs a compiled program less than to write their sum
            return y.plus(1.0 + n, x).over(w).value(), kept
        total = Combination(1.0, gap, temporary=True).plus(n, x).value()
        total *= xp.reciprocal(w)[..., None]
        return total, kept

    def _biased(self, xp: Any, K: Any, t: Array, s: Combination, bias: Array | None) -> Array:
        """Return a point, of which time and spatial part are those at half its angle."""
        if self.sign != -1:
            return super()._biased(xp, K, t, s, bias)
        eps = float(xp.finfo(t.dtype).eps)
        square = t * t
        s = s.times(t / (square + xp.clip(8.0 * eps * square - 0.5, min=0.0)))  # held inside
        if bias is None:
            return s.value()
        return self._moved(xp, K, bias, s, xp.clip(1.0 / square, min=held_width(t)))

    @property
    def _view(self) -> type[Centred]:  # type: ignore[override]
        return CentredInBall if self.sign == -1 else CentredVectors

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias; of constants, with one pass over the samples less."""
        self._namespace(x, mean, *(() if bias is None else (bias,)))
        K, t = self._parameter("curvature", x), scalars_like(factor, x)
        if self.sign != -1 or bias is None or not is_constant(-1, K, t, x, mean, bias):
            return super().standardize(x, mean, factor, bias)
        return standardized(K, x, mean, t, bias)

    def _carried(self, c: Array, factor: Any, bias: Array | None) -> Array:
        if self.sign != -1:
            return super()._carried(c, factor, bias)
        K = self._parameter("curvature", c)
        if bias is not None:
            return carried(self, K, factor, c, bias)
        _, stretch = half_turn(K, times(0.5, factor), c)
        return Combination(stretch, c).value()

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`v = c/\lambda_x`, since the model is conformal."""
        _, factor, _ = self._lift(*self._given(x, c), x)  # coordinates have the shape of a point
        return c / factor[..., None]

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`c = \lambda_x v`."""
        _, factor, _ = self._lift(*self._given(x, v), x)
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

    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane model of the sphere, and one of another curvature."""
        return cls(2), cls(3, 0.5)
