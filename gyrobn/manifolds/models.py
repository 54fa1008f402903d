"""The seven models of constant curvature: how each writes down a point of the quadric."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.constant_curvature import ConstantCurvature, Lifted
from gyrobn.manifolds.euclidean import Vectors
from gyrobn.manifolds.gyrospace import check_manifold
from gyrobn.numerics.arrays import all_true, dot, length, safe_sqrt, square, times, unit, zeros
from gyrobn.numerics.scalar import largest_angle


@dataclass(frozen=True)
class Ball(ConstantCurvature, Vectors):
    r"""Common part of the models on :math:`\{x \in \mathbb R^n : K\|x\|^2 > -1\}`, identity 0."""

    def project(self, x: Array) -> Array:
        r"""Pull points that are not inside back to :math:`\sqrt{-K}\|x\| = 1-\sqrt\epsilon`."""
        xp, K = self._given(x)
        large, u = unit(x)
        size = safe_sqrt(-K * dot(u, u))
        outside = xp.logical_not(large * size < 1.0)  # also NaN, of which the quotient is NaN
        room = 1.0 - float(xp.finfo(x.dtype).eps) ** 0.5
        inside = times(room / xp.where(outside, size, 1.0), u)
        return xp.where(outside[..., None], inside, x)

    def violation(self, x: Array) -> Array:
        r"""Return how far :math:`\sqrt{-K}\|x\|` exceeds 1: an ulp on the boundary, 0 inside."""
        xp, K = self._given(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        large, u = unit(xp.where(finite[..., None], x, 0.0))
        size = safe_sqrt(-K * dot(u, u)) * xp.clip(large, max=xp.finfo(x.dtype).max / 4)
        out = xp.where(size < 1.0, 0.0, size - 1.0 + float(xp.finfo(x.dtype).eps))
        return xp.where(finite, out, xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether each point is finite and strictly inside the boundary."""
        xp, K = self._given(x)
        with np.errstate(all="ignore"):  # overflowed values are checked again
            size = abs(K * square(x))
        inside = size < 1.0 - 16.0 * float(xp.finfo(x.dtype).eps)
        return inside if all_true(inside) else self.violation(x) == 0


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

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return instances on both sides of zero curvature, and at it."""
        return cls(2, -0.3), cls(3, -1.0), cls(3, 0.0), cls(3, 0.3)

    def _ball(self, K: Any, x: Array) -> tuple[Array, Array]:
        xp = namespace_of(x)
        if self.sign == 0:  # without a square, which could overflow
            return xp.full_like(x[..., 0], 2.0), x
        # on and beyond the boundary the model ends; there it continues as if a last digit inside
        half = xp.clip(0.5 + 0.5 * K * dot(x, x), min=0.5 * float(xp.finfo(x.dtype).eps))
        return half**-1, x

    def _lift(self, K: Any, x: Array) -> Lifted:
        scale, _ = self._ball(K, x)
        return scale - 2.0 if self.sign == 0 else -K * dot(x, x) * scale, scale, x

    def _reach(self, like: Array) -> float:
        r"""Return the angle at which a ball has :math:`1 + K\|x\|^2 = 16\epsilon`.

        If it were smaller, rounding a sum with such a point could lead out of the ball.
        """
        return -math.log(4.0 * float(namespace_of(like).finfo(like.dtype).eps))

    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        xp, eps = namespace_of(v), float(namespace_of(v).finfo(v.dtype).eps)
        if self.sign == 0:
            return times(0.5 * a, v)
        if self.sign == -1:  # clamped inside the ball where 1 + t would round to t
            return times(a / (m + xp.clip(8.0 * eps * m, min=2.0)), v)
        w = self._one_plus(m, K * a * a * dot(v, v))
        if self.sign is None:  # the boundary of a ball whose curvature is not known in advance
            w = w + xp.clip(8.0 * eps * m - 2.0, min=0.0)
        infinity = xp.logical_and(xp.isnan(w), xp.logical_not(xp.isnan(m)))
        p = times(a / xp.where(infinity, 1.0, w), v)
        return xp.where(infinity[..., None], xp.inf, p)

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`v = c/\lambda_x`, since the model is conformal."""
        _, K = self._given(x, c)  # coordinates have the shape of a point
        return c / self._ball(K, x)[0][..., None]

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`c = \lambda_x v`."""
        _, K = self._given(x, v)
        return times(self._ball(K, x)[0], v)


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
    >>> round(float(M.dist(np.zeros(2), np.asarray([1.0, 0.0]))), 12)  # a quarter of the circle
    1.570796326795
    """

    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane model of the sphere, and one of another curvature."""
        return cls(2), cls(3, 0.5)


@dataclass(frozen=True)
class Hyperbolic(ConstantCurvature):
    """The models whose curvature is negative."""

    required_sign: ClassVar[int | None] = -1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane, and a space of another curvature."""
        return cls(2), cls(3, -0.5)


@dataclass(frozen=True)
class Klein(Hyperbolic, Ball):
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
        xp = namespace_of(x)
        u = K * dot(x, x)
        t = xp.clip(1.0 + u, min=xp.finfo(x.dtype).eps) ** -0.5
        return -u * t * t / (1.0 + t), t, x

    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        # s/t, from s alone: at distance R a last digit of t would cost e^{2R} digits of s/t.
        # Points whose length would round to the radius are clamped inside the ball
        xp, s = namespace_of(v), times(a, v)
        u = -K * dot(s, s)
        least = 16.0 * float(xp.finfo(s.dtype).eps)
        return s / xp.sqrt(u + xp.clip(least * u, min=1.0))[..., None]

    def _reach(self, like: Array) -> float:
        """Return an angle at which the sum with any point of the ball still has a square."""
        return largest_angle(like) + 0.5 * math.log(float(namespace_of(like).finfo(like.dtype).eps))

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x, in the radial direction."""
        xp, K = self._given(x)
        t = 1.0 + self._lift(K, x)[0]
        return xp.finfo(x.dtype).eps * t * t * xp.sqrt(dot(x, x))

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`c/t`, along x once more divided by t.

        .. math:: v = \frac1t\Bigl(c + \frac{Kt}{1+t}\langle x, c\rangle\,x\Bigr)
        """
        _, K = self._given(x, c)
        t = 1.0 + self._lift(K, x)[0]
        return times(1.0 / t, c) + times(K / (1.0 + t) * dot(x, c), x)

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: :math:`tv`, along x once more times t.

        .. math:: c = t\Bigl(v - \frac{Kt^2}{1+t}\langle x, v\rangle\,x\Bigr)
        """
        _, K = self._given(x, v)
        t = 1.0 + self._lift(K, x)[0]
        return times(t, v) - times(K * t**3 / (1.0 + t) * dot(x, v), x)


def time_on_sheet(K: Any, s: Array) -> Array:
    """Return t = sqrt(1 - K‖s‖²)."""
    xp = namespace_of(s)
    large, u = unit(s, least=1.0)
    return large * xp.sqrt((1.0 / large) ** 2 - K * dot(u, u))


@dataclass(frozen=True)
class ProperVelocity(Hyperbolic, Vectors):
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
        t = time_on_sheet(K, x)
        near = namespace_of(x).where(t[..., None] > 2.0, 0.0, x)  # no square that overflows
        return namespace_of(x).where(t > 2.0, t - 1.0, -K * dot(near, near) / (1.0 + t)), 1.0, x

    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        return times(a, v)

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: :math:`c - \frac{K\langle x, c\rangle}{1+t}\,x`."""
        _, K = self._given(x, c)
        return self._push_lifted(K, x, c)[1]

    def pull(self, x: Array, v: Array) -> Array:
        r"""Inverse of :meth:`push`, from :math:`\dot t = -K\langle x, v\rangle/t`."""
        _, K = self._given(x, v)
        return self._pull_lifted(K, x, -K * dot(x, v) / time_on_sheet(K, x), v)


@dataclass(frozen=True)
class Radius(ConstantCurvature):
    r"""Common part of :class:`Hyperboloid` and :class:`Sphere`: :math:`x = (x_t, x_s)`.

    With :math:`k = \sqrt{|K|}`, a point lifts to :math:`t = k x_t`, :math:`s = x_s`.
    """

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
        return self._with_time(1.0 + zeros(1, like)[0], zeros(self.n, like), K)

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the spatial part changes its sign."""
        xp = self._namespace(x)
        return xp.concat([x[..., :1], -x[..., 1:]], axis=-1)

    def _lift(self, K: Any, x: Array) -> Lifted:
        return self._root(K) * x[..., 0] - 1.0, 1.0, x[..., 1:]

    def _with_time(self, t: Array, s: Array, K: Any) -> Array:
        xp = namespace_of(s)
        time = xp.broadcast_to(t / self._root(K), s.shape[:-1])
        return xp.concat([time[..., None], s], axis=-1)

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: the paper's :math:`PT_{e \to x}`."""
        _, K = self._given(x)
        return self._with_time(*self._push_lifted(K, x, c), K)

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: the inverse of :meth:`push`."""
        _, K = self._given(x, v)
        return self._pull_lifted(K, x, self._root(K) * v[..., 0], v[..., 1:])


@dataclass(frozen=True)
class Hyperboloid(Radius, Hyperbolic):
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

    def _lift(self, K: Any, x: Array) -> Lifted:
        s = x[..., 1:]
        return -K * dot(s, s) / (1.0 + self._root(K) * x[..., 0]), 1.0, s

    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        # the time from s: far out, rounding would leave the surface otherwise. The one that is
        # known tells where a square would overflow
        xp, s, t = namespace_of(v), times(a, v), backend_of(m).stop_gradient(1.0 + m)
        large = xp.where(t > float(xp.finfo(v.dtype).max) ** 0.25, t, 1.0)
        part = s / large[..., None]
        return self._with_time(large * xp.sqrt((1.0 / large) ** 2 - K * dot(part, part)), s, K)

    def _chord(self, K: Any, x: Array, y: Array) -> Array:
        # 1 + t from the time that is given: one from s has more rounding errors
        a, b = (1.0 + self._root(K) * z[..., 0] for z in (x, y))
        return a**0.5 * b**0.5 * length(y[..., 1:] / b[..., None] - x[..., 1:] / a[..., None])

    def project(self, x: Array) -> Array:
        """Recompute the time from the spatial part."""
        _, K = self._given(x)
        s = x[..., 1:]
        return self._with_time(time_on_sheet(K, s), s, K)

    def violation(self, x: Array) -> Array:
        r"""Return :math:`|x_t - \sqrt{\|x_s\|^2 - 1/K}|`, relative to that root."""
        xp, K = self._given(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        x = xp.where(finite[..., None], x, 0.0)
        right = time_on_sheet(K, x[..., 1:])
        return xp.where(finite, xp.abs(self._root(K) * x[..., 0] / right - 1.0), xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether points are on the upper sheet; squares decide if no point is far out."""
        xp, K = self._given(x)
        t, s = x[..., 0], x[..., 1:]
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            off = -K * t * t / (1.0 - K * square(s)) - 1.0
        near = xp.logical_and(xp.abs(off) <= float(xp.finfo(x.dtype).eps) ** 0.5, t > 0)
        return near if all_true(near) else super().contains(x)


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

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the surface, and a sphere of another curvature."""
        return cls(2), cls(3, 0.5)

    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        return self._with_time(1.0 + m, times(a, v), K)

    def _chord(self, K: Any, x: Array, y: Array) -> Array:
        return length(y - x)

    def project(self, x: Array) -> Array:
        """Divide by the length; the zero vector goes to e."""
        xp, K = self._given(x)
        _, u = unit(x)
        size = safe_sqrt(dot(u, u))
        some = size != 0
        size = self._root(K) * xp.where(some, size, 1.0)
        return xp.where(some[..., None], u / size[..., None], self.origin(x))

    def violation(self, x: Array) -> Array:
        r"""Return :math:`|\sqrt K\|x\| - 1|`."""
        xp, K = self._given(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        large, u = unit(xp.where(finite[..., None], x, 0.0))
        size = xp.clip(large, max=xp.finfo(x.dtype).max / 4) * self._root(K) * safe_sqrt(dot(u, u))
        return xp.where(finite, xp.abs(size - 1.0), xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether each point is on the sphere; the squares decide if all are."""
        xp, K = self._given(x)
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            off = K * square(x) - 1.0
        near = xp.abs(off) <= float(xp.finfo(x.dtype).eps) ** 0.5
        return near if all_true(near) else super().contains(x)


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
    same = source.n == target.n and (
        source.curvature is target.curvature or bool(source.curvature == target.curvature)
    )
    if not same:
        raise ValueError(
            f"{source!r} and {target!r} differ in dimension or curvature, so no isometry joins them"
        )
    _, K = source._given(x)
    y = target._drop(K, *source._lift(K, x))
    if not tangents:
        return y
    return y, *(target.push(y, source.pull(x, u)) for u in tangents)
