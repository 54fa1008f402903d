r"""Spaces of constant curvature: seven models, one set of formulas.

Every model is a way to write down a point :math:`(t, s)`, :math:`t \in \mathbb R`,
:math:`s \in \mathbb R^n`, of the quadric

.. math:: t^2 + K\|s\|^2 = 1,

the hyperboloid for :math:`K < 0`, the plane :math:`t = 1` for :math:`K = 0`, the sphere for
:math:`K > 0`. The identity is :math:`(1, 0)`. Left gyrotranslation by x is the boost or rotation
that maps the identity to x and is the identity off the plane of the two:

.. math:: t_{x \oplus y} = t_x t_y - K\langle s_x, s_y\rangle, \qquad
          s_{x \oplus y} = s_y + \frac{t_y + t_{x \oplus y}}{1 + t_x}\, s_x .

A model says how to *lift* a point to :math:`\lambda = 1 + t` and s, and how to *drop* it. Numbers
per sample stay apart from vectors: s is given as a number a and a vector v, s = a v.

These sums cancel far out where K < 0, and near the point opposite to e where K > 0. With the ball
coordinates :math:`p = s/\lambda` they do not:

.. math:: s_{\ominus x \oplus y} = \lambda_y(\delta - n\,p_x), \qquad
          \lambda_{\ominus x \oplus y} = 2 + \lambda_y n, \qquad
          \delta = p_y - p_x, \quad n = -\tfrac K2 \lambda_x \|\delta\|^2 .
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.euclidean import Vectors
from gyrobn.manifolds.fused import fits, standardized
from gyrobn.numerics.arrays import (
    all_true,
    check_coordinates,
    decided,
    dot,
    eps_of,
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
from gyrobn.numerics.scalar import arc, cosine, cotangent, largest_angle, sinc

Lifted = tuple[Array, Any, Array]
"""A point of the quadric: λ = 1 + t, and a number and a vector whose product is s."""


class CentredVectors(Centred):
    """Points as they are seen from the mean, in normal coordinates."""

    @cached_property
    def _centre(self) -> tuple[Any, Array, Array]:
        """The curvature, λ and the ball coordinates of the mean."""
        centre: tuple[Any, Array, Array] = self.space._ball(self.mean)
        return centre

    @cached_property
    def normal(self) -> Array:
        """The normal coordinates, shape (N, *channels, n)."""
        c: Array = self.space._normal(*self.space._relative(self._centre, self.x))
        return c

    def followed(self, step: Array) -> Arrays:
        r"""Return the normal coordinates if the mean moves by a step δ.

        A step changes them as the Hessian has it, and rotates them, since
        :math:`\ominus(\mu \oplus \varepsilon) \oplus x = \operatorname{gyr}[\mu,
        \varepsilon](\ominus\varepsilon \oplus (\ominus\mu \oplus x))`. With p the ball
        coordinates of the mean,

        .. math:: dc = -H_c\,\delta + K\bigl(\langle p, c\rangle\,\delta
                  - \langle\delta, c\rangle\,p\bigr) .
        """
        (K, _, p), c = self._centre, backend_of(step).stop_gradient(self.normal)
        h, per_square = self.space.detached()._curving(c)
        across, along = K * dot(c, p) - h, dot(step, c)
        change = times(across, step) - times(per_square * along, c) - times(K * along, p)
        return (self.normal + change,)

    def shift(self, step: Array) -> Array:
        """Return the mean after a step."""
        return self.space._exp_from(self._centre, 1.0, step)

    def standardize(self, factor: Array | float, bias: Array | None) -> Array:
        """Scale and bias."""
        target = None if bias is None else self.space._ball(bias)
        return self.space._exp_from(target, scalars_like(factor, self.x), self.normal)


@dataclass(frozen=True)
class ConstantCurvature(Vectors):
    """Base of the models of constant curvature; a model says how to lift a point and drop it."""

    curvature: Any = -1.0

    parameters: ClassVar[tuple[str, ...]] = ("curvature",)
    required_sign: ClassVar[int | None] = -1
    """The sign that the curvature must have, where the model has only one."""
    digits: ClassVar[float] = 0.5
    """The part of the digits to which arrays must be points."""
    _view: ClassVar[type[Centred]] = CentredVectors

    def __post_init__(self) -> None:
        super().__post_init__()
        K, sign = self.curvature, self.required_sign
        if sign and isinstance(K, float) and not K * sign > 0:
            raise ValueError(
                f"{type(self).__name__} needs a {'positive' if sign > 0 else 'negative'} "
                f"sectional curvature, got curvature={K!r}"
            )

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the plane, and a space of another curvature; of either sign if it may have any."""
        if cls.required_sign is None:
            return cls(2, -0.3), cls(3, -1.0), cls(3, 0.0), cls(3, 0.3)
        return cls(2), cls(3, 0.5 * cls.curvature)

    @cached_property
    def sign(self) -> int | None:
        """Sign of the curvature; ``None`` where it is a traced value that may have any."""
        K = self.curvature
        if self.required_sign or not isinstance(K, (int, float)):
            return self.required_sign
        return (K > 0) - (K < 0)

    @property
    def convexity_radius(self) -> float:  # type: ignore[override]
        r"""Radius :math:`\pi/(2\sqrt K)` of a hemisphere; else, or if K is traced, infinity."""
        K = self.detached().curvature
        if self.sign != 1 or not (isinstance(K, float) or all_true(K > 0)):
            return math.inf
        return float(0.5 * math.pi / float(K) ** 0.5)

    def cut_locus_angle(self, x: Array) -> Array:
        r""":math:`\pi - \sqrt K\,\|x\|` on a sphere, whose cut locus is the antipode."""
        K, nowhere = self._given(x), super().cut_locus_angle(x)
        if self.sign is not None and self.sign < 1:
            return nowhere
        angle = math.pi - abs(K) ** 0.5 * self.norm(x)
        return angle if self.sign == 1 else namespace_of(x).where(K > 0, angle, nowhere)

    # ------------------------------------------------------------------ what a model supplies

    @abstractmethod
    def _lift(self, K: Any, x: Array) -> Lifted:
        """Return λ, a and v of a point."""

    @abstractmethod
    def _drop(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        """Return the point with time λ - 1 and spatial part a v."""

    def _stretch(self, K: Any, x: Array) -> tuple[Any, Any, Any]:
        r"""Return α, β and :math:`\alpha + \beta\|x\|^2` of the transport from the identity to x.

        It is :math:`c \mapsto \alpha c + \beta\langle x, c\rangle x`; by default that of s.
        """
        above, _, _ = self._lift(K, x)
        return 1.0, -K / above, above - 1.0

    @abstractmethod
    def _off(self, K: Any, large: Any, u: Array) -> Array:
        """Return how far ``large`` times u is from being a point."""

    def _reach(self, like: Array) -> float:
        """Return the largest hyperbolic angle of a point that ``from_normal`` returns."""
        return largest_angle(like)

    # ------------------------------------------------------------------ steps of the formulas

    def _given(self, *points: Array) -> Any:
        """Return the curvature, after a check of the points."""
        self._namespace(*points)
        return self._parameter("curvature", points[0])

    def _square(self, K: Any, v: Array) -> Array:
        r"""Return :math:`K\|v\|^2`; where K = 0, without a square that could overflow."""
        return 0.0 * v[..., 0] if self.sign == 0 else K * dot(v, v)

    def _accurate(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        r"""Return λ; where t < 0, from :math:`K\|s\|^2 = \lambda(2 - \lambda)`.

        There, 1 + t may have no digits.
        """
        if self.sign == -1:
            return above
        xp, behind = namespace_of(v), above < 1.0
        exact = a * a * self._square(K, v) / xp.where(behind, 2.0 - above, 1.0)
        return xp.where(behind, exact, above)

    def _divisor(self, above: Array) -> Array:
        """Return λ; where it is 0, opposite to the identity, NaN."""
        xp = namespace_of(above)
        return above if self.sign == -1 else xp.where(above == 0, xp.nan, above)

    def _ball(self, x: Array) -> tuple[Any, Array, Array]:
        """Return the curvature, λ and the ball coordinates p = s/λ."""
        K = self._parameter("curvature", x)
        above, a, v = self._lift(K, x)
        return K, above, v if a is above else times(a / self._divisor(above), v)

    def _from(self, K: Any, above_x: Array, p: Array, above: Array, a: Any, v: Array) -> Any:
        r"""Return the curvature and, lifted, :math:`\ominus x \oplus y`.

        x is given by its ball coordinates, and y as it is lifted.
        """
        if self.sign == 1:  # y may be opposite to e, where it has no ball coordinates
            t, s = above - 1.0, times(a, v)
            inner = K * dot(s, p)
            s = s - times(above_x * (t + inner), p)
            new = 1.0 + (above_x - 1.0) * t + above_x * inner
            return K, self._accurate(K, new, 1.0, s), 1.0, s
        gap = (v if a is above else times(a / above, v)) - p
        n = -0.5 * above_x * self._square(K, gap)
        s = gap - times(n, p)
        return K, self._accurate(K, 2.0 + above * n, above, s), above, s

    def _relative(self, ball: tuple[Any, Array, Array], y: Array) -> Any:
        r"""Return the curvature and, lifted, :math:`\ominus x \oplus y`, given K, λ and p of x."""
        return self._from(*ball, *self._lift(ball[0], y))

    def _normal(self, K: Any, above: Array, a: Any, v: Array) -> Array:
        r"""Return the coordinates :math:`s\,\theta/\sin_K\theta`; NaN opposite to the identity.

        .. math:: \cos_K^2\tfrac\theta2 = \tfrac\lambda2, \qquad
                  \sin_K\theta = 2 \sin_K\tfrac\theta2 \cos_K\tfrac\theta2
        """
        half = 0.5 * self._divisor(above)
        cos = namespace_of(half).sqrt(half)
        return times(a / cos * arc(1.0 - half, cos, self.sign), v)

    def _exp_from(self, centre: Any, t: Any, c: Array) -> Array:
        r"""Return :math:`x \oplus \operatorname{Exp}_e(tc)`, given K, λ and p of x; None for e.

        .. math:: \lambda = 2\cos_K^2\tfrac\theta2, \qquad
                  s = 2 \sin_K\tfrac\theta2 \cos_K\tfrac\theta2\,\frac c{\|c\|},
                  \quad \theta = t\sqrt{|K|}\,\|c\|

        Hyperbolic angles stop at 43.9 in float32, at 351 in float64, where cosh² would overflow;
        those of a ball, where its points would round to the boundary.
        """
        K, half, most = self._parameter("curvature", c), 0.5 * t, 0.5 * self._reach(c)
        xp, u = namespace_of(c), self._square(K, c)
        sine = sinc(u, self.sign, half, most)
        square = 1.0 - u * sine * sine
        if self.sign == -1:
            cos = xp.sqrt(square)
        else:  # the difference cancels towards the point opposite to e
            cos = cosine(u, self.sign, half, most)
            square = xp.where(square < 0.5, cos * cos, square)
        z = 2.0 * square, 2.0 * sine * cos, c
        if centre is None:
            return self._drop(K, *z)
        _, above, p = centre
        return self._drop(*self._from(K, above, -p, *z))

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition: the boost (K < 0) or rotation (K > 0) that maps the identity to x."""
        return self._with_identity(x, y, self.relative(self.neg(x), y))

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`, accurate also where x and y are far out and close."""
        self._namespace(x, y)
        return self._drop(*self._relative(self._ball(x), y))

    def relative_normal(self, x: Array, y: Array) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`."""
        self._namespace(x, y)
        return self._normal(*self._relative(self._ball(x), y))

    def to_normal(self, x: Array) -> Array:
        r"""Coordinates :math:`c = s\,\theta/\sin_K\theta`; NaN opposite to the identity."""
        K = self._given(x)
        return self._normal(K, *self._lift(K, x))

    def from_normal(self, c: Array) -> Array:
        """Exponential map at the identity; hyperbolic distances end where coordinates do."""
        check_coordinates(self, c)
        return self._exp_from(None, *unit(c, least=1.0))

    def shift(self, x: Array, c: Array) -> Array:
        r"""Point :math:`x \oplus \operatorname{Exp}_e(c)`."""
        self._namespace(x)
        check_coordinates(self, c)
        return self._exp_from(self._ball(x), *unit(c, least=1.0))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        """Centre, scale and bias, in few passes where nothing is to be differentiated."""
        self._namespace(x, mean)
        t, centre = scalars_like(factor, x), self._ball(mean)
        target = None if bias is None else self._ball(bias)
        constant = not backend_of(x).differentiable(x, t, *centre, *(target or ()))
        points = (mean,) if bias is None else (mean, bias)
        if self.sign == -1 and constant and fits(x, t, *points):
            return standardized(self, x, centre, t, target)
        return self._exp_from(target, t, self._normal(*self._relative(centre, x)))

    def norm(self, x: Array) -> Array:
        r"""Distance from the identity."""
        return self.dist(self.origin(x), x)

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance, from the chord.

        .. math:: \sin_K\tfrac{d}2 = \tfrac12\,\text{chord}, \qquad
                  \text{chord} = \sqrt{\lambda_x \lambda_y}\,\|p_x - p_y\|

        The cosine is that of :math:`\ominus x \oplus y`. So neither close nor antipodal points lose
        digits.
        """
        self._namespace(x, y)
        (K, a, p), (_, b, q) = self._ball(x), self._ball(y)
        chord = a**0.5 * b**0.5 * length(q - p)
        u = 0.25 * K * chord * chord
        square = 1.0 - u if self.sign == -1 else 0.5 * self._from(K, a, p, b, b, q)[1]
        return chord * arc(u, safe_sqrt(square), self.sign)

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration: a rotation of the spatial part in the plane of x and y."""
        K = self._given(x, y, z)
        above, a, v = self._lift(K, z)
        return self._drop(K, above, a, self._gyrate_normal(x, y, v))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        r"""Return gyr[x, y] c: rotate c twice by the angle of :math:`(\alpha, \|B\|)`.

        .. math:: \alpha = 1 - K\langle p_x, p_y\rangle, \qquad B = -K\,p_x \wedge p_y, \qquad
                  c \mapsto c + \frac2D\,B(\alpha c + Bc), \quad D = \alpha^2 + \|B\|^2

        D is computed from what rotates c, so lengths do not change even where the angle has no
        digits.
        """
        xp, (K, above_x, p), (_, above_y, r) = namespace_of(c), self._ball(x), self._ball(y)
        alpha = 1.0 - K * dot(p, r)
        if self.sign is None or self.sign < 0:
            # x ∧ y = x ∧ (x + y), and the sum is small where y is close to ⊖x, far out or not; with
            # it, no number in α is negative
            total = p + r
            positive = 1.0 / above_x + 1.0 / above_y - 0.5 * K * dot(total, total)
            if self.sign is None:
                positive = xp.where(K < 0, positive, alpha)
                total = xp.where((K < 0)[..., None], total, r)
            alpha, r = positive, total
        # the part of y along x does not matter: antipodal points are parallel
        square = dot(p, p)
        r = r - times(dot(p, r) / xp.where(square > 0, square, 1.0), p)

        def B(c: Array) -> Array:
            return times(K * dot(p, c), r) - times(K * dot(r, c), p)

        D = alpha * alpha + K * K * (square * dot(r, r) - dot(p, r) ** 2)
        return c + times(2.0 / D, B(times(alpha, c) + B(c)))

    # ------------------------------------------------------------------ the mean

    def _curving(self, c: Array) -> Arrays:
        r"""Return h and :math:`(1-h)/\|c\|^2` for each sample, as constants."""
        xp, K = namespace_of(c), self._parameter("curvature", c)
        real = xp.finfo(c.dtype)
        square = xp.clip(dot(c, c), min=float(real.smallest_normal), max=float(real.max))
        h = cotangent(K * square, self.sign)
        if self.sign != -1:
            # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
            h = xp.clip(h, min=-1e3)
        return h, (1.0 - h) / square

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian, a multiple of the identity and a sum of rank one.

        .. math:: H = \sum_i w_i\bigl(h_i I + (1-h_i)\,c_i c_i^\top/\|c_i\|^2\bigr), \qquad
                  h = a\cot_K a, \quad a = \sqrt{|K|}\,\|c\|
        """
        (h, per_square), xp, rows = self._curving(c), namespace_of(c), c[..., None, :]
        mean = weighted_sum(weights, h)[..., None, None]
        heavy = (weights * per_square)[..., None, None] * rows

        def apply(v: Array) -> Array:
            return mean * v + sum_of_products(heavy, xp.matmul(rows, v))

        def matrix() -> Array:
            return mean * identity(c) + sum_of_products(heavy, rows)

        bound = None if self.sign == -1 else lambda: xp.clip(mean[..., 0, 0], max=1.0)
        return Hessian(apply, bound, matrix)

    def moments(self, x: Array) -> Array:
        """Return (t, s) of each sample: their mean in the ambient space leads to the centroid."""
        K = self._given(x)
        above, a, v = self._lift(K, x)
        return namespace_of(x).concat([above[..., None] - 1.0, times(a, v)], axis=-1)

    def start(self, moments: Array) -> Array:
        """Return the centroid in the ambient space, put back on the quadric."""
        xp, K = namespace_of(moments), self._parameter("curvature", moments)
        t, s = moments[..., 0], moments[..., 1:]
        square = t * t + self._square(K, s)
        good = square > 0  # not so if rounding hides it, far out, or if samples are not points
        size = xp.sqrt(xp.where(good, square, 1.0))
        above, a = xp.where(good, 1.0 + t / size, 2.0), xp.where(good, 1.0 / size, 0.0)
        if self.sign != -1:  # no translation leads to the point opposite to e: start beside it
            eps = eps_of(moments)
            s = s + xp.where(above < 4.0 * eps, size * (eps / self.n) ** 0.5, 0.0)[..., None]
        return self._drop(K, above, a, s)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x."""
        _, a, v = self._lift(self._given(x), x)
        return eps_of(x) * a * dot(v, v) ** 0.5

    # ------------------------------------------------------------------ tangent vectors, checks

    def push(self, x: Array, c: Array) -> Array:
        """Transport from the identity."""
        alpha, beta, _ = self._stretch(self._given(x, c), x)
        return times(alpha, c) + times(beta * dot(x, c), x)

    def pull(self, x: Array, v: Array) -> Array:
        """Transport to the identity."""
        alpha, beta, radial = self._stretch(self._given(x, v), x)
        return times(1.0 / alpha, v - times(beta / radial * dot(x, v), x))

    def violation(self, x: Array) -> Array:
        """Return how far each array is from being a point; infinity for NaN and infinity."""
        K, xp = self._given(x), namespace_of(x)
        finite = xp.all(xp.isfinite(x), axis=-1)
        with np.errstate(all="ignore"):
            off = self._off(K, *unit(xp.where(finite[..., None], x, 0.0)))
        return xp.where(finite, off, xp.inf)

    def contains(self, x: Array) -> Array:
        """Return whether each array is a point; one pass decides if all of them are."""
        most = eps_of(x) ** self.digits
        with np.errstate(all="ignore"):  # the exact test looks at what overflows
            near = self._off(self._given(x), 1.0, x) <= most
        return decided(near, lambda: self.violation(x) <= most)
