"""The seven models of constant curvature: how each writes down a point of the quadric."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.constant_curvature import ConstantCurvature, Lifted
from gyrobn.manifolds.gyrospace import check_manifold
from gyrobn.numerics.arrays import dot, eps_of, length, safe_sqrt, square, times, unit, zeros
from gyrobn.numerics.scalar import largest_angle


@dataclass(frozen=True)
class Ball(ConstantCurvature):
    r"""Common part of the models on :math:`\{x \in \mathbb R^n : K\|x\|^2 > -1\}`, identity 0."""

    digits: ClassVar[float] = math.inf

    def project(self, x: Array) -> Array:
        r"""Pull points that are not inside back to :math:`\sqrt{-K}\|x\| = 1-\sqrt\epsilon`."""
        K, xp = self._given(x), namespace_of(x)
        large, u = unit(x)
        size = safe_sqrt(-K * dot(u, u))
        outside = xp.logical_not(large * size < 1.0)  # also NaN, of which the quotient is NaN
        inside = times((1.0 - eps_of(x) ** 0.5) / xp.where(outside, size, 1.0), u)
        return xp.where(outside[..., None], inside, x)

    def _off(self, K: Any, large: Any, u: Array) -> Array:
        # how far √-K‖x‖ exceeds 1: an ulp on the boundary, 0 inside
        long = square(u)
        size = large * safe_sqrt(-K * long)
        return namespace_of(u).where(size < 1.0, 0.0 * long, size - 1.0 + eps_of(u))


@dataclass(frozen=True)
class Stereographic(Ball):
    r"""The K-stereographic model, for any real curvature K, smooth through K = 0.

    Points are vectors of :math:`\mathbb R^n` with :math:`K\|x\|^2 > -1`; the metric is
    :math:`\lambda_x^2` times the Euclidean one, :math:`\lambda_x = 2/(1 + K\|x\|^2)`. (At K = 0
    that is four times the Euclidean metric.) A point lifts to

    .. math:: t = \lambda_x - 1 = \frac{1 - K\|x\|^2}{1 + K\|x\|^2}, \qquad s = \lambda_x x .

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

    required_sign: ClassVar[int | None] = None

    def _lift(self, K: Any, x: Array) -> Lifted:
        # on and beyond the boundary the model ends; there it continues as if a last digit inside
        half = 0.5 + 0.5 * self._square(K, x)
        above = namespace_of(x).clip(half, min=0.5 * eps_of(x)) ** -1
        return above, above, x

    def _reach(self, like: Array) -> float:
        r"""Return the angle at which a ball has :math:`1 + K\|x\|^2 = 16\epsilon`.

        If it were smaller, rounding a sum with such a point could lead out of the ball.
        """
        return -math.log(4.0 * eps_of(like))

    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        # clamped inside the ball where 1 + t would round to t
        xp = namespace_of(v)
        more = xp.clip(8.0 * eps_of(v) * above - 2.0, min=0.0)
        if self.sign == -1:
            return times(a / (above + more), v)
        infinity = above == 0
        p = times(a / xp.where(infinity, 1.0, above + more), v)
        return xp.where(infinity[..., None], xp.inf, p)

    def _stretch(self, K: Any, x: Array) -> tuple[Any, Any, Any]:
        return 1.0 / self._lift(K, x)[0], 0.0, 1.0  # the model is conformal


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
    >>> round(float(M.dist(np.zeros(2), np.asarray([1.0, 0.0]))), 12)  # a quarter of the circle
    1.570796326795
    """

    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1


@dataclass(frozen=True)
class Klein(Ball):
    r"""The Beltrami–Klein ball :math:`\{x : \|x\|^2 < -1/K\}`, K < 0, with Einstein addition.

    The metric is :math:`\frac{\langle v, w\rangle}{1 + K\|x\|^2}
    - \frac{K\langle x, v\rangle\langle x, w\rangle}{(1 + K\|x\|^2)^2}`. A point lifts to

    .. math:: t = \gamma_x = \frac1{\sqrt{1 + K\|x\|^2}}, \qquad s = \gamma_x x .

    Rounding of a coordinate limits the distance from the identity to 18 in float64, half of that
    in the Poincaré ball.

    Parameters
    ----------
    n
        Dimension of the ball.
    curvature
        Sectional curvature K < 0; the radius of the ball is :math:`1/\sqrt{-K}`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([0.5, 0.0])
    >>> Klein(2).add(x, x)  # velocities add as in relativity
    array([0.8, 0. ])
    """

    def _lift(self, K: Any, x: Array) -> Lifted:
        t = namespace_of(x).clip(1.0 + K * dot(x, x), min=eps_of(x)) ** -0.5
        return 1.0 + t, t, x

    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        # s/t, from s alone: at distance R a last digit of t would cost e^{2R} digits of s/t.
        # Points whose length would round to the radius are clamped inside the ball
        xp, s = namespace_of(v), times(a, v)
        u = -K * dot(s, s)
        return s / xp.sqrt(u + xp.clip(16.0 * eps_of(s) * u, min=1.0))[..., None]

    def _reach(self, like: Array) -> float:
        """Return an angle at which the sum with any point of the ball still has a square."""
        return largest_angle(like) + 0.5 * math.log(eps_of(like))

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x, in the radial direction."""
        _, t, _ = self._lift(self._given(x), x)
        return super().resolution(x) * t

    def _stretch(self, K: Any, x: Array) -> tuple[Any, Any, Any]:
        above, t, _ = self._lift(K, x)
        return 1.0 / t, K / above, 1.0 / (t * t)


def time_on_sheet(K: Any, s: Array) -> Array:
    """Return t = sqrt(1 - K‖s‖²)."""
    xp = namespace_of(s)
    large, u = unit(s, least=1.0)
    return large * xp.sqrt((1.0 / large) ** 2 - K * dot(u, u))


@dataclass(frozen=True)
class ProperVelocity(ConstantCurvature):
    r"""Hyperbolic space as the spatial parts of the hyperboloid, K < 0.

    A point lifts to :math:`s = x`, :math:`t = \sqrt{1 - K\|x\|^2}`. Every vector is a point, so no
    result can leave the model, and coordinates keep all their digits at any distance.

    Parameters
    ----------
    n
        Dimension, the number of coordinates.
    curvature
        Sectional curvature K < 0, that of the hyperboloid.

    Examples
    --------
    >>> import numpy as np
    >>> ProperVelocity(2).from_normal(np.asarray([1.0, 0.0])).round(4)  # sinh(1)
    array([1.1752, 0.    ])
    """

    def _lift(self, K: Any, x: Array) -> Lifted:
        return 1.0 + time_on_sheet(K, x), 1.0, x

    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        return times(a, v)

    def _off(self, K: Any, large: Any, u: Array) -> Array:
        return 0.0 * namespace_of(u).max(abs(u), axis=-1)  # every vector is a point


@dataclass(frozen=True)
class Radius(ConstantCurvature):
    r"""Common part of :class:`Hyperboloid` and :class:`Sphere`: :math:`x = (x_t, x_s)`.

    With :math:`k = \sqrt{|K|}`, a point lifts to :math:`t = k x_t`, :math:`s = x_s`.
    """

    drifts: ClassVar[bool] = True

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n + 1,)``."""
        return (self.n + 1,)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the model whose points are the last axis of ``shape``."""
        return cls(shape[-1] - 1)

    def origin(self, like: Array) -> Array:
        r"""Return :math:`(1/\sqrt{|K|}, 0, \dots, 0)`."""
        K = self._parameter("curvature", like)
        e = zeros(self.n, like)
        return self._with_time(1.0 + e[0], e, K)

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the spatial part changes its sign."""
        xp = self._namespace(x)
        return xp.concat([x[..., :1], -x[..., 1:]], axis=-1)

    def _lift(self, K: Any, x: Array) -> Lifted:
        s = x[..., 1:]
        return self._accurate(K, 1.0 + abs(K) ** 0.5 * x[..., 0], 1.0, s), 1.0, s

    def _with_time(self, t: Array, s: Array, K: Any) -> Array:
        xp = namespace_of(s)
        time = xp.broadcast_to(t / abs(K) ** 0.5, s.shape[:-1])
        return xp.concat([time[..., None], s], axis=-1)

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: the paper's :math:`PT_{e \to x}`.

        .. math:: \dot t = -K\langle s, c\rangle, \qquad \dot s = c + \frac{\dot t}{1+t}\,s
        """
        self._namespace(x)
        K, above, p = self._ball(x)
        rate = -K * above * dot(p, c)
        return self._with_time(rate, c + times(rate, p), K)

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`c = \dot s - \frac{\dot t}{1+t}\,s`."""
        self._namespace(x, v)
        K, _, p = self._ball(x)
        return v[..., 1:] - times(abs(K) ** 0.5 * v[..., 0], p)


@dataclass(frozen=True)
class Hyperboloid(Radius):
    r"""The upper sheet :math:`\|x_s\|^2 - x_t^2 = 1/K`, :math:`x_t > 0`, K < 0 (Lorentz model).

    Parameters
    ----------
    n
        Dimension; points have n + 1 coordinates, time first.
    curvature
        Sectional curvature K, negative.

    Examples
    --------
    >>> import numpy as np
    >>> Hyperboloid(2).from_normal(np.asarray([1.0, 0.0])).round(4)  # cosh(1), sinh(1)
    array([1.5431, 1.1752, 0.    ])
    """

    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        # the time from s: far out, rounding would leave the surface otherwise
        p = times(a / above, v)
        t = above * namespace_of(v).sqrt(above**-2 - K * dot(p, p))
        return self._with_time(t, times(a, v), K)

    def project(self, x: Array) -> Array:
        """Recompute the time from the spatial part."""
        K, s = self._given(x), x[..., 1:]
        return self._with_time(time_on_sheet(K, s), s, K)

    def _off(self, K: Any, large: Any, u: Array) -> Array:
        # |x_t - √(‖x_s‖² - 1/K)|, relative to that root
        right = (large**-2 - K * square(u[..., 1:])) ** 0.5
        return abs(abs(K) ** 0.5 * u[..., 0] / right - 1.0)


@dataclass(frozen=True)
class Sphere(Radius):
    r"""The sphere :math:`\|x\|^2 = 1/K`, K > 0, with identity :math:`e = (1/\sqrt K, 0, \dots)`.

    Only :math:`-e` is singular: it has no direction from e (``to_normal`` is NaN), and no
    translation carries e to it (``add`` with x = -e is NaN). Sums and multiples that *arrive* at
    -e are correct; in the projected hypersphere they are infinite.

    Parameters
    ----------
    n
        Dimension; points have n + 1 coordinates, time first.
    curvature
        Sectional curvature K, positive.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([0.0, 1.0, 0.0])
    >>> Sphere(2).scale(2.0, x).round(12) + 0.0  # twice a right angle: opposite to the identity
    array([-1.,  0.,  0.])
    """

    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1

    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        return self._with_time(above - 1.0, times(a, v), K)

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance :math:`\tfrac2{\sqrt K} \arctan(\|x - y\|/\|x + y\|)`."""
        K, xp = self._given(x, y), namespace_of(x)
        return 2.0 / K**0.5 * xp.atan2(length(x - y), length(x + y))

    def project(self, x: Array) -> Array:
        """Divide by the length; the zero vector goes to e."""
        K, xp = self._given(x), namespace_of(x)
        _, u = unit(x)
        size = safe_sqrt(dot(u, u))
        some = size != 0
        size = K**0.5 * xp.where(some, size, 1.0)
        return xp.where(some[..., None], u / size[..., None], self.origin(x))

    def _off(self, K: Any, large: Any, u: Array) -> Array:
        return abs(large * (K * square(u)) ** 0.5 - 1.0)


def convert(
    source: ConstantCurvature, target: ConstantCurvature, x: Array, *tangents: Array
) -> Any:
    r"""Carry points, and tangent vectors, from one model to another of the same curvature.

    The map φ is the isometry of the paper (stereographic to radius and back, Klein to ball and
    back, and their compositions). It preserves :math:`\oplus` and :math:`\odot`. Its differential
    is ``target.push(φ(x), source.pull(x, v))``.

    Parameters
    ----------
    source, target
        The two models, of equal dimension and curvature.
    x
        Points of ``source``.
    *tangents
        Tangent vectors at x, if any.

    Returns
    -------
    The points in ``target``; with tangent vectors, a tuple of points and vectors.

    Examples
    --------
    >>> import numpy as np
    >>> convert(PoincareBall(2), Klein(2), np.asarray([0.5, 0.0]))
    array([0.8, 0. ])
    """
    for space in (source, target):
        if not isinstance(check_manifold(space), ConstantCurvature):
            raise TypeError(f"convert takes models of constant curvature, got {space!r}")
    K, other = source.curvature, target.curvature
    if source.n != target.n or not (K is other or bool(other == K)):
        raise ValueError(
            f"{source!r} and {target!r} differ in dimension or curvature, so no isometry joins them"
        )
    K = source._given(x)
    y = target._drop(K, *source._lift(K, x))
    return (y, *(target.push(y, source.pull(x, u)) for u in tangents)) if tangents else y
