r"""The radius model: the hyperboloid and the sphere, in :math:`\mathbb R^{n+1}` with time first."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import array_api_extra as xpx
import numpy as np

from gyrobn.backends import Array, dot, namespace_of
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.constant_curvature import ConstantCurvature, Lifted
from gyrobn.manifolds.hyperbolic import Sheet, size_or_one, time_on_sheet
from gyrobn.manifolds.radial import root
from gyrobn.numerics.arrays import surely, unit, zeros
from gyrobn.numerics.scalar import safe_sqrt, times


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
        xp = namespace_of(like)
        time = xp.ones_like(zeros(1, like)) / root(xp, self._parameter("curvature", like))
        return xp.concat([time, zeros(self.n, like)])

    def neg(self, x: Array) -> Array:
        """Gyroinverse: the spatial part changes its sign."""
        xp = self._namespace(x)
        return xp.concat([x[..., :1], -x[..., 1:]], axis=-1)

    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        return times(root(xp, K), x[..., 0]), 1.0, x[..., 1:]

    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        return self._stack(xp, K, t, s.value())

    def _stack(self, xp: Any, K: Any, t: Array, s: Array) -> Array:
        """Return the vector with the time part t/k in front of the spatial part s."""
        time = xp.broadcast_to(times(1.0 / root(xp, K), t), s.shape[:-1])
        return xp.concat([time[..., None], s], axis=-1)

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport from the identity: the paper's :math:`PT_{e \to x}`."""
        xp, K = self._given(x)
        rate, s = self._push_lifted(xp, K, x, c)
        return self._stack(xp, K, rate, s)

    def pull(self, x: Array, v: Array) -> Array:
        r"""Transport to the identity: the inverse of :meth:`push`."""
        xp, K = self._given(x, v)
        return self._pull_lifted(xp, K, x, root(xp, K) * v[..., 0], v[..., 1:])


@dataclass(frozen=True)
class Hyperboloid(Radius, Sheet):
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

    def _sum(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition, without cancellation also if a sum of far points is close to e.

        .. math:: (x \oplus y)_s = \delta + m x_s, \qquad
                  \delta = y_s + \frac{1 + k y_t}{1 + k x_t}\,x_s, \qquad
                  m = -\frac K2\,\frac{\|\delta\|^2}{1 + k y_t}
        """
        xp, K = self._given(x, y)
        k = root(xp, K)
        above, below = 1.0 + k * y[..., 0], 1.0 + k * x[..., 0]
        # combining whole arrays, with their times, saves copies; then the time is replaced
        gap = Combination(1.0, y).plus(above / below, x).value()
        m = -0.5 * K * dot(gap[..., 1:], gap[..., 1:]) / above
        total = Combination(1.0, gap, temporary=True).plus(m, x).value()
        time = self._time(xp, K, 1.0 + m * below, total[..., 1:])
        return xpx.at(total)[..., 0].set(times(1.0 / k, time))

    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        vector = s.value()
        return self._stack(xp, K, self._time(xp, K, t, vector), vector)

    def _time(self, xp: Any, K: Any, t: Array, s: Array) -> Array:
        """Return the time from s alone: far out, one with its own rounding error is off the sheet.

        That one, t, tells the size of s, whose square may overflow.
        """
        large = size_or_one(t)
        part = s / large[..., None]
        return large * xp.sqrt((1.0 / large) ** 2 - K * dot(part, part))

    def project(self, x: Array) -> Array:
        """Recompute the time from the spatial part."""
        xp, K = self._given(x)
        s = x[..., 1:]
        return self._stack(xp, K, time_on_sheet(xp, K, s), s)

    def violation(self, x: Array) -> Array:
        r"""Return :math:`|x_t - \sqrt{\|x_s\|^2 - 1/K}|`, relative to that root."""
        xp, K = self._given(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        x = xp.where(finite[..., None], x, 0.0)
        right = time_on_sheet(xp, K, x[..., 1:])
        return xp.where(finite, xp.abs(root(xp, K) * x[..., 0] / right - 1.0), xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether points are on the upper sheet; squares decide if no point is far out."""
        xp = self._namespace(x)
        K, t = self._parameter("curvature", x), x[..., 0]
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            square = t * t
            off = -K * square / (1.0 - K * (dot(x, x) - square)) - 1.0
        near = xp.logical_and(xp.abs(off) <= float(xp.finfo(x.dtype).eps) ** 0.5, t > 0)
        return near if surely(near) else super().contains(x)


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
    >>> Sphere(2).scale(2.0, x).round(12) + 0.0  # twice a quarter turn: opposite to the identity
    array([-1.,  0.,  0.])
    """

    curvature: Any = 1.0
    required_sign: ClassVar[int | None] = 1

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the surface, and a sphere of another curvature."""
        return cls(2), cls(3, 0.5)

    def _sum(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition: one inner product and one combination.

        .. math:: (x \oplus y)_t = k x_t y_t - \tfrac{K}{k} \langle x_s, y_s\rangle, \qquad
                  (x \oplus y)_s = y_s + \frac{k y_t + k (x \oplus y)_t}{1 + k x_t}\, x_s

        At :math:`x = -e` on the sphere this divides by zero, and the result is NaN; at an angle
        :math:`\vartheta` from there the error is :math:`\epsilon/\vartheta^2`. (:meth:`relative`
        takes one more inner product, and its error is :math:`\epsilon`.)
        """
        xp, K = self._given(x, y)
        k, x_t, y_t = root(xp, K), x[..., 0], y[..., 0]
        product = dot(x, y)  # of the whole vectors, with their times
        time = k * (2.0 * x_t * y_t - product)
        move = (y_t + time) / (x_t + 1.0 / k)
        # combining whole arrays, with their times, saves a copy; then the time is replaced
        return xpx.at(Combination(1.0, y).plus(move, x).value())[..., 0].set(time)

    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Any, Array]:
        (t_x, _, s_x), (t_y, _, s_y) = x, y
        gap = s_y - s_x
        return 1.0, self._stack(namespace_of(gap), K, t_y - t_x, gap)

    def project(self, x: Array) -> Array:
        """Divide by the length; the zero vector goes to e."""
        xp = self._namespace(x)
        _, u = unit(x)
        size = safe_sqrt(dot(u, u))
        some = size != 0
        size = root(xp, self._parameter("curvature", x)) * xp.where(some, size, 1.0)
        return xp.where(some[..., None], u / size[..., None], self.origin(x))

    def violation(self, x: Array) -> Array:
        r"""Return :math:`|\sqrt K\|x\| - 1|`."""
        xp = self._namespace(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        large, u = unit(xp.where(finite[..., None], x, 0.0))
        k = root(xp, self._parameter("curvature", x))
        size = xp.clip(large, max=xp.finfo(x.dtype).max / 4) * k * safe_sqrt(dot(u, u))
        return xp.where(finite, xp.abs(size - 1.0), xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether each point is on the sphere; the squares decide if all are."""
        xp = self._namespace(x)
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            off = self._parameter("curvature", x) * dot(x, x) - 1.0
        near = xp.abs(off) <= float(xp.finfo(x.dtype).eps) ** 0.5
        return near if surely(near) else super().contains(x)
