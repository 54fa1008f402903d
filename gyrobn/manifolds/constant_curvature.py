r"""Spaces of constant curvature: seven models, one set of formulas.

Every model is a way to write down a point :math:`(t, s)`, :math:`t \in \mathbb R`,
:math:`s \in \mathbb R^n`, of the quadric

.. math:: t^2 + K\|s\|^2 = 1,

the hyperboloid for :math:`K < 0`, the plane :math:`t = 1` for :math:`K = 0`, the sphere for
:math:`K > 0`. The identity is :math:`(1, 0)`. Left gyrotranslation by x is the boost or rotation
that carries the identity to x and is the identity off the plane of the two:

.. math:: t_{x \oplus y} = t_x t_y - K\langle s_x, s_y\rangle, \qquad
          s_{x \oplus y} = s_y + \frac{t_y + t_{x \oplus y}}{1 + t_x}\, s_x .

A model says how to *lift* a point to (t, s) and how to *drop* it, and how tangent vectors go along.
Numbers per sample stay apart from vectors: s is given as a number a and a vector v, s = a v, and
the time as :math:`m = t - 1`.

Where K < 0, these sums cancel far out. With the ball coordinates :math:`p = s/(1+t)` and
:math:`\lambda = 1 + t` they do not:

.. math:: s_{\ominus x \oplus y} = \lambda_y(\delta - n\,p_x), \qquad
          t_{\ominus x \oplus y} = 1 + \lambda_y n, \qquad
          \delta = p_y - p_x, \quad n = -\tfrac K2 \lambda_x \|\delta\|^2 .
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.fused import fits, standardized
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import (
    all_true,
    check_coordinates,
    dot,
    length,
    safe_sqrt,
    scalars_like,
    sum_of_products,
    times,
    unit,
    weighted_sum,
)
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import identity
from gyrobn.numerics.scalar import arc, arctan, asinh, cosine, cotangent, largest_angle, sinc

Lifted = tuple[Array, Any, Array]
"""A point of the quadric: m = t − 1, and a number and a vector whose product is s."""


class CentredVectors(Centred):
    """Points as they are seen from the mean, in normal coordinates."""

    def followed(self, step: Array) -> Arrays:
        r"""Return the normal coordinates if the mean moves by a step δ.

        A step changes them as the Hessian has it, and rotates them, since
        :math:`\ominus(\mu \oplus \varepsilon) \oplus x = \operatorname{gyr}[\mu,
        \varepsilon](\ominus\varepsilon \oplus (\ominus\mu \oplus x))`. With p the ball
        coordinates of the mean,

        .. math:: dc = -H_c\,\delta + K\bigl(\langle p, c\rangle\,\delta
                  - \langle\delta, c\rangle\,p\bigr) .
        """
        space, c = self.space.detached(), self._constant
        K, (h, per_square) = space._parameter("curvature", c), self._curving
        _, p = space._ball(K, backend_of(c).stop_gradient(self.mean))
        across, along = K * dot(c, p) - h, dot(step, c)
        change = times(across, step) - times(per_square * along, c) - times(K * along, p)
        return (self.normal + change,)

    @cached_property
    def _constant(self) -> Array:
        return backend_of(self.x).stop_gradient(self.normal)

    @cached_property
    def _curving(self) -> tuple[Array, Array]:
        curving: tuple[Array, Array] = self.space.detached()._curving(self._constant)
        return curving

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, n)."""
        K = self.space._parameter("curvature", self.x)
        c: Array = self.space._normal(K, *self.space._from(K, self.mean, self.x))
        return c

    def hessian(self, weights: Array) -> Hessian:
        """Return the mean Hessian, a constant to differentiation."""
        weights = backend_of(weights).stop_gradient(weights)
        hessian: Hessian = self.space._mean_hessian(self._constant, weights, *self._curving)
        return hessian

    def shift(self, step: Array) -> Array:
        """Return the mean after a step."""
        return self.space._exp_from(self.mean, 1.0, step)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Scale and bias."""
        return self.space._exp_from(bias, scalars_like(factor, self.x), self.normal)


@dataclass(frozen=True)
class ConstantCurvature(GyroSpace):
    """Base of the models of constant curvature; a model says how to lift a point and drop it."""

    n: int
    curvature: Any = -1.0

    parameters: ClassVar[tuple[str, ...]] = ("curvature",)
    required_sign: ClassVar[int | None] = None
    """The sign that the curvature must have, where the model has only one."""
    _view: ClassVar[type[Centred]] = CentredVectors

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.required_sign is None or not isinstance(self.curvature, float):
            return
        if not self.curvature * self.required_sign > 0:
            wanted = {-1: "negative", 1: "positive"}[self.required_sign]
            raise ValueError(
                f"{type(self).__name__} needs a {wanted} sectional curvature, "
                f"got curvature={self.curvature!r}"
            )

    @property
    def sign(self) -> int | None:
        """Sign of the curvature; ``None`` where it is a traced value that may have any."""
        if self.required_sign is not None:
            return self.required_sign
        if isinstance(self.curvature, (int, float)):
            return (self.curvature > 0) - (self.curvature < 0)
        return None

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        r"""Radius :math:`\pi/(2\sqrt K)` of a hemisphere; else, or if K is traced, infinity."""
        K = self.curvature
        if self.sign != 1 or not (isinstance(K, float) or all_true(K > 0)):
            return float("inf")
        return float(1.5707963267948966 / float(self.detached().curvature) ** 0.5)

    @property
    def dim(self) -> int:
        """Dimension n."""
        return self.n

    # ------------------------------------------------------------------ what a model supplies

    @abstractmethod
    def _lift(self, K: Any, x: Array) -> Lifted:
        """Return (m, a, v): the time m + 1, and a number and a vector whose product is s."""

    @abstractmethod
    def _drop(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        """Return the point with time 1 + m and spatial part a v."""

    def _ball(self, K: Any, x: Array) -> tuple[Array, Array]:
        """Return λ = 1 + t and the ball coordinates p = s/(1 + t)."""
        m, a, v = self._lift(K, x)
        above = self._one_plus(m, K * a * a * dot(v, v)) if self.sign == 1 else 2.0 + m
        return above, times(a / above, v)

    def _reach(self, like: Array) -> float:
        """Return the largest hyperbolic angle of a point that ``from_normal`` returns."""
        return largest_angle(like)

    # ------------------------------------------------------------------ steps of the formulas

    def _given(self, *points: Array) -> tuple[Any, Any]:
        """Return the namespace of ``points``, which are checked, and the curvature."""
        return self._namespace(*points), self._parameter("curvature", points[0])

    def _one_plus(self, m: Array, square: Array) -> Array:
        r"""Return 1 + t; where t < 0, from :math:`K\|s\|^2`, since t may have no digits of it.

        NaN takes the place of 0.
        """
        xp, behind = namespace_of(m), m < -1.0
        above = xp.where(behind, square / xp.where(behind, -m, 1.0), 2.0 + m)
        return xp.where(above == 0, xp.nan, above)

    def _root(self, K: Any) -> Any:
        """Return the square root of |K|."""
        return abs(K) ** 0.5 if isinstance(K, float) else namespace_of(K).sqrt(abs(K))

    def _from(self, K: Any, x: Array, y: Array) -> Lifted:
        r"""Return :math:`\ominus x \oplus y`."""
        if self.sign == 1:
            return self._rotated(K, x, *self._lift(K, y))
        return self._boosted(K, x, *self._ball(K, y))

    def _rotated(self, K: Any, x: Array, m: Array, a: Any, v: Array) -> Lifted:
        r"""Return :math:`\ominus x \oplus y`, right near the point opposite to e, too."""
        m_x, a_x, v_x = self._lift(K, x)
        inner = K * a * a_x * dot(v, v_x)
        # (t_y + t)/(1 + t_x)
        move = 1.0 + m + inner / self._one_plus(m_x, K * a_x * a_x * dot(v_x, v_x))
        return m_x + m + m_x * m + inner, 1.0, times(a, v) - times(move * a_x, v_x)

    def _boosted(self, K: Any, x: Array, above: Array, q: Array) -> Lifted:
        r"""Return :math:`\ominus x \oplus y` from the ball coordinates (λ, q) of y."""
        above_x, p = self._ball(K, x)
        gap = q - p
        n = (-0.5 * K * above_x) * dot(gap, gap) if self.sign != 0 else 0.0 * above_x
        return above * n, above, gap - times(n, p)

    def _normal(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        r"""Return the coordinates :math:`s\,\theta/\sin_K\theta`; NaN opposite to the identity.

        Where K > 0, :math:`\theta = 2 \arctan \sqrt K \|p\|`.
        """
        if self.sign == -1:
            return times(a * arc(m), v)
        if self.sign == 0:
            return times(a, v)
        xp, square = namespace_of(v), K * a * a * dot(v, v)
        above = self._one_plus(m, square)
        u = square / (above * above)
        if self.sign == 1:
            return times(2.0 * a / above * arctan(u), v)
        ratio = 2.0 / above * arctan(xp.where(K < 0, 0.0, u))
        return times(a * xp.where(K < 0, arc(xp.where(K < 0, m, 0.0)), ratio), v)

    def _exponential(self, K: Any, t: Any, c: Array) -> tuple[Array, Array, Array]:
        r"""Return m of Exp_e(tc), sin_K(θ/2) per length of c, and cos_K(θ/2).

        .. math:: m = \cos_K\theta - 1 = -2\sin_K^2\tfrac\theta2, \qquad
                  s = 2 \sin_K\tfrac\theta2 \cos_K\tfrac\theta2\,\frac c{\|c\|},
                  \quad \theta = t\sqrt{|K|}\,\|c\|

        Hyperbolic angles stop at 43.9 in float32, at 351 in float64, where cosh² would overflow;
        those of a ball, where its points would round to the boundary.
        """
        xp, half = namespace_of(c), 0.5 * t
        if self.sign == 0:
            m = 0.0 * c[..., 0]
            return m, half + m, 1.0 + m
        u = K * dot(c, c)
        sine = sinc(u, self.sign, half, 0.5 * self._reach(c))
        m = -2.0 * u * sine * sine
        if self.sign == -1:  # the cosine follows without cancellation
            return m, sine, xp.sqrt(1.0 + 0.5 * m)
        w = half * half * u
        if self.sign == 1:
            return m, sine, cosine(w, 1)
        cosh = xp.sqrt(1.0 + 0.5 * xp.where(K < 0, m, 0.0))
        return m, sine, xp.where(K < 0, cosh, cosine(xp.where(K < 0, 0.0, w), 1))

    def _exp_from(self, x: Array | None, t: Any, c: Array) -> Array:
        r"""Return :math:`x \oplus \operatorname{Exp}_e(tc)`, from the identity if x is None."""
        K = self._parameter("curvature", c)
        m, sine, cos = self._exponential(K, t, c)
        if x is None:
            return self._drop(K, m, 2.0 * sine * cos, c)
        if self.sign == 1:
            return self._drop(K, *self._rotated(K, self.neg(x), m, 2.0 * sine * cos, c))
        return self._drop(K, *self._boosted(K, self.neg(x), 2.0 + m, times(sine / cos, c)))

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition: the boost (K < 0) or rotation (K > 0) that carries the identity to x."""
        return self._with_identity(x, y, self.relative(self.neg(x), y))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`, accurate also where x and y are far out and close."""
        _, K = self._given(x, y)
        return self._drop(K, *self._from(K, x, y))

    def to_normal(self, x: Array) -> Array:
        r"""Coordinates :math:`c = s\,\theta/\sin_K\theta`; NaN opposite to the identity."""
        _, K = self._given(x)
        return self._normal(K, *self._lift(K, x))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        _, K = self._given(x, y)
        return self._normal(K, *self._from(K, x, y))

    def from_normal(self, c: Array) -> Array:
        """Exponential map at the identity; hyperbolic distances end where coordinates do."""
        check_coordinates(self, c)
        return self._exp_from(None, *unit(c, least=1.0))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`."""
        self._namespace(x)
        check_coordinates(self, c)
        return self._exp_from(x, *unit(c, least=1.0))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication, the angle times t."""
        return self._exp_from(None, scalars_like(t, x), self.to_normal(x))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias."""
        points, t = (mean,) if bias is None else (mean, bias), scalars_like(factor, x)
        _, K = self._given(x, *points)
        constant = not backend_of(x).differentiable(K, x, t, *points)
        if self.sign == -1 and constant and fits(x, t, *points):
            return standardized(self, K, x, mean, t, bias)
        return self._exp_from(bias, t, self.relative_normal(mean, x))

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`: x at t = 0, y at t = 1."""
        x, y, t = self._from_nearer_end(x, y, t)
        return self._exp_from(x, t, self.relative_normal(x, y))

    def _size(self, K: Any, m: Array, a: Any, v: Array) -> Array:
        """Return the distance of (m, a v) from the identity."""
        if self.sign is None:
            return length(self._normal(K, m, a, v))
        xp, size = namespace_of(v), a * length(v)
        if self.sign == 0:
            return size
        k = self._root(K)  # atan2 is also right at the point opposite to the identity
        return (asinh(k * size) if self.sign == -1 else xp.atan2(k * size, 1.0 + m)) / k

    def norm(self, x: Array) -> Array:
        r"""Distance from the identity."""
        _, K = self._given(x)
        return self._size(K, *self._lift(K, x))

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance, from the chord, the same from either end.

        .. math:: \sinh\tfrac{\sqrt{-K} d}2 = \tfrac12\sqrt{-K}\,\text{chord}, \qquad
                  \tan\tfrac{\sqrt K d}2 = \|x - y\|/\|x + y\|

        On spheres the chord of the opposite point is measured, too. So neither close nor antipodal
        points lose digits.
        """
        xp, K = self._given(x, y)
        if self.sign is None or self.sign == 0:
            return self._size(K, *self._from(K, x, y))
        k, chord = self._root(K), self._chord(K, x, y)
        if self.sign == -1:
            return 2.0 * asinh(0.5 * k * chord) / k
        (m_x, a_x, v_x), (m_y, a_y, v_y) = self._lift(K, x), self._lift(K, y)
        s = times(a_x, v_x) + times(a_y, v_y)
        other = safe_sqrt(K * dot(s, s) + (2.0 + m_x + m_y) ** 2)
        return 2.0 * xp.atan2(k * chord, other) / k

    def _chord(self, K: Any, x: Array, y: Array) -> Array:
        r"""Return the length of the chord, :math:`\sqrt{\lambda_x \lambda_y}\|p_x - p_y\|`."""
        (a, p), (b, q) = self._ball(K, x), self._ball(K, y)
        return a**0.5 * b**0.5 * length(q - p)

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration: a rotation of the spatial part in the plane of x and y."""
        _, K = self._given(x, y, z)
        m, a, v = self._lift(K, z)
        return self._drop(K, m, a, self._gyrate(K, x, y, v))

    def _gyrate(self, K: Any, x: Array, y: Array, s: Array) -> Array:
        r"""Return gyr[x, y] s: rotate s twice by the angle of :math:`(\alpha, \beta)`.

        .. math:: \alpha = 1 - K\langle p_x, p_y\rangle, \qquad
                  \beta = -K\,p_x \wedge p_y, \qquad D = \alpha^2 + |\beta|^2

        D is computed from what rotates s, so lengths are kept even where the angle has no digits.
        """
        xp = namespace_of(s)
        (above_x, p), (above_y, r) = self._ball(K, x), self._ball(K, y)
        below_zero = self.sign is None or self.sign < 0
        if below_zero:
            # x ∧ y = x ∧ (x + y), and the sum is small where y is close to ⊖x, far out or not
            total = p + r
            r = total if self.sign == -1 else xp.where((K < 0)[..., None], total, r)
        pp, pr, rr, ps, rs = dot(p, p), dot(p, r), dot(r, r), dot(p, s), dot(r, s)
        alpha = 1.0 - K * pr
        if below_zero:
            # with the sum for y: no number here is negative, and the first is the larger one
            positive = xp.maximum(1.0 / above_x + 1.0 / above_y - 0.5 * K * rr, abs(K * pr))
            alpha = positive if self.sign == -1 else xp.where(K < 0, positive, alpha)
        if self.sign != -1:  # nor does its part along x matter: antipodal points are parallel here
            r = r - times(pr / xp.where(pp > 0, pp, 1.0), p)
            pr, rr, rs = dot(p, r), dot(r, r), dot(r, s)
        D = alpha * alpha + K * K * (pp * rr - pr * pr)
        A = K * (K * (pr * rs - rr * ps) - alpha * rs)
        B = K * (K * (pr * ps - pp * rs) + alpha * ps)
        return s + times(2.0 * A / D, p) + times(2.0 * B / D, r)

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        _, K = self._given(x, y)
        return self._gyrate(K, x, y, c)

    # ------------------------------------------------------------------ the mean

    def _curving(self, c: Array) -> tuple[Array, Array]:
        r"""Return h and :math:`(1-h)/\|c\|^2` for each sample, as constants."""
        xp, K, square = namespace_of(c), self._parameter("curvature", c), dot(c, c)
        if self.sign == 0:
            return 1.0 + 0.0 * square, 0.0 * square
        h = cotangent(K * square, self.sign)
        if self.sign != -1:
            # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
            h = xp.clip(h, min=-1e3)
        return h, (1.0 - h) / xp.clip(square, min=float(xp.finfo(c.dtype).smallest_normal))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian, a multiple of the identity and a sum of rank one.

        .. math:: H = \sum_i w_i\bigl(h_i I + (1-h_i)\,c_i c_i^\top/\|c_i\|^2\bigr), \qquad
                  h = a\cot_K a, \quad a = \sqrt{|K|}\,\|c\|
        """
        return self._mean_hessian(c, weights, *self._curving(c))

    def _mean_hessian(self, c: Array, weights: Array, h: Array, per_square: Array) -> Hessian:
        xp, mean, heavy = namespace_of(c), weighted_sum(weights, h), weights * per_square
        rows = c[..., None, :]

        def apply(v: Array) -> Array:
            return mean[..., None, None] * v + sum_of_products(
                times(heavy, c)[..., None, :], xp.matmul(rows, v)
            )

        def matrix() -> Array:
            outer = sum_of_products(heavy[..., None, None] * rows, rows)
            return mean[..., None, None] * identity(c) + outer

        lowest = None if self.sign == -1 else lambda: xp.clip(mean, max=1.0)
        return Hessian(apply, lowest, matrix)

    def moments(self, x: Array) -> Array:
        """Return (t, s) of each sample: their mean in the ambient space leads to the centroid."""
        xp, K = self._given(x)
        m, a, v = self._lift(K, x)
        return xp.concat([1.0 + m[..., None], times(a, v)], axis=-1)

    def start(self, moments: Array) -> Array:
        """Return the centroid in the ambient space, put back on the quadric."""
        xp, K = namespace_of(moments), self._parameter("curvature", moments)
        t, s = moments[..., 0], moments[..., 1:]
        square = t * t + K * dot(s, s)
        good = square > 0  # not so if rounding hides it, far out, or if samples are not points
        size = xp.sqrt(xp.where(good, square, 1.0))
        m = xp.where(good, t / size - 1.0, 0.0)
        s = xp.where(good[..., None], s / size[..., None], 0.0)
        if self.sign != -1:  # no translation leads to the point opposite to e: start beside it
            eps = float(xp.finfo(moments.dtype).eps)
            nudge = (eps / self.n) ** 0.5 * xp.astype(2.0 + m < 4.0 * eps, moments.dtype)
            s = s + nudge[..., None]
        return self._drop(K, m, 1.0, s)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x."""
        xp, K = self._given(x)
        above, p = self._ball(K, x)
        return float(xp.finfo(x.dtype).eps) * above * xp.sqrt(dot(p, p))

    # ------------------------------------------------------------------ tangent vectors

    def _push_lifted(self, K: Any, x: Array, c: Array) -> tuple[Array, Array]:
        r"""Return the vector c at the identity, transported to x, as :math:`(\dot t, \dot s)`.

        .. math:: \dot t = -K\langle s, c\rangle, \qquad \dot s = c + \frac{\dot t}{1+t}\,s
        """
        above, p = self._ball(K, x)
        rate = -K * dot(p, c)
        return rate * above, c + times(rate * above, p)

    def _pull_lifted(self, K: Any, x: Array, rate: Array, v: Array) -> Array:
        r"""Undo :meth:`_push_lifted`: :math:`c = \dot s - \frac{\dot t}{1+t}\,s`."""
        return v - times(rate, self._ball(K, x)[1])
