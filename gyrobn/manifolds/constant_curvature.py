r"""What the models of constant curvature share: one isometry, written in unit-time coordinates.

Every model here is a way to write down a point :math:`(t, s)`, :math:`t \in \mathbb R`,
:math:`s \in \mathbb R^n`, of the quadric

.. math:: t^2 + K\|s\|^2 = 1,

the hyperboloid for :math:`K < 0`, the plane :math:`t = 1` for :math:`K = 0`, the sphere for
:math:`K > 0`. The identity is :math:`(1, 0)`. Left gyrotranslation by x is the boost or rotation
that carries the identity to x and is the identity off the plane of the two:

.. math:: t_{x \oplus y} = t_x t_y - K\langle s_x, s_y\rangle, \qquad
          s_{x \oplus y} = s_y + \frac{t_y + t_{x \oplus y}}{1 + t_x}\, s_x .

So a sum, and a whole normalization, is a linear combination of the input arrays with a few scalars
per sample.

Only :math:`t_{x\oplus y}` can cancel. From the squared chord, :math:`t = 1 - Kq/2`, it does not: in
ball coordinates :math:`p = s/(1+t)` the chord is :math:`q = (1+t_x)(1+t_y)\|p_x - p_y\|^2`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from gyrobn.backends import Array, State, dot, namespace_of
from gyrobn.manifolds import radial
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.centred_vectors import CentredVectors, centroid, curving, mean_hessian
from gyrobn.manifolds.combination import Combination
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import Totals, check_coordinates, length, scalars_like, together, unit
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.scalar import arc, safe_sqrt, times

Lifted = tuple[Array, Any, Array]
"""A point of the quadric: its time t, and a scalar a and a vector v with s = a v."""


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
        r"""Radius :math:`\pi/(2\sqrt K)` of a hemisphere, where the curvature is positive."""
        if self.sign == 1:
            return float(1.5707963267948966 / float(self.detached().curvature) ** 0.5)
        return float("inf")

    @property
    def dim(self) -> int:
        """Dimension n."""
        return self.n

    # ------------------------------------------------------------------ what a model supplies

    @abstractmethod
    def _lift(self, xp: Any, K: Any, x: Array) -> Lifted:
        """Return (t, a, v): the time, and a scalar and a vector whose product is s."""

    @abstractmethod
    def _drop(self, xp: Any, K: Any, t: Array, s: Combination) -> Array:
        """Return the point with time t and spatial part s."""

    @abstractmethod
    def _chord(self, K: Any, x: Lifted, y: Lifted) -> tuple[Any, Array]:
        """Return (f, gap): the squared chord between two points, f‖gap‖², without cancellation."""

    def _given(self, *points: Array) -> tuple[Any, Any]:
        """Return the namespace of ``points``, which are checked, and the curvature."""
        return self._namespace(*points), self._parameter("curvature", points[0])

    # ------------------------------------------------------------------ gyro operations

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition: the boost (K < 0) or rotation (K > 0) that carries the identity to x.

        .. math:: t = 1 - \tfrac K2 q(\ominus x, y), \qquad
                  s = s_y + \frac{t_y + t}{1 + t_x} s_x
        """
        return self._with_identity(x, y, self._sum(x, y))

    def _sum(self, x: Array, y: Array) -> Array:
        """Return x ⊕ y, also with its rounding error if one of them is e."""
        return self.relative(self.neg(x), y)

    def relative(self, x: Array, y: Array) -> Array:
        r"""Return :math:`\ominus x \oplus y`, accurate also where x and y are far out and close."""
        xp, K = self._given(x, y)
        level, a, v = self._relative(xp, K, x, y)
        t = 1.0 + times(a, level) if self.sign == -1 else level
        return self._drop(xp, K, t, Combination(a, v, temporary=True))

    def known(self, x: Array) -> State:
        """Return what :meth:`centred` needs of the samples alone."""
        xp, K = self._given(x)
        return self._known(xp, K, x) if self.sign == -1 else ()

    def _relative(self, xp: Any, K: Any, x: Array, y: Array, known: State = ()) -> Lifted:
        """Return (level, a, v): the point y seen from x has the spatial part a v, v a new array.

        The level is its time; for K < 0, (t - 1)/a, which loses no digit.
        """
        if self.sign == -1:
            return self._seen(xp, K, x, y, known or self._known(xp, K, y))
        t_x, a_x, v_x = lifted_x = self._lift(xp, K, x)
        t_y, a_y, v_y = lifted_y = self._lift(xp, K, y)
        if self.sign == 0:
            return t_x * t_y, 1.0, Combination(a_y, v_y).plus(-a_x, v_x).value()
        inner = times(K, a_x, a_y, dot(v_y, v_x))
        if self.sign == 1:
            t = t_x * t_y + inner
        else:
            f, gap = self._chord(K, lifted_x, lifted_y)
            t = 1.0 - 0.5 * K * f * dot(gap, gap)
        # (t_y + t)/(1 + t_x), right near -e too
        move = times(-1.0, a_x, t_y + inner / self._one_plus(xp, K, t_x, a_x, v_x))
        return t, 1.0, Combination(a_y, v_y).plus(move, v_x).value()

    def _known(self, xp: Any, K: Any, y: Array) -> State:
        """Return what :meth:`_seen` needs of y alone."""
        raise NotImplementedError

    def _seen(self, xp: Any, K: Any, x: Array, y: Array, known: State) -> Lifted:
        r"""Return (level, a, v) of :meth:`_relative` on a model with K < 0.

        With :math:`p = s/(1+t)`, :math:`\delta = p_y - p_x` and :math:`q` the squared chord,

        .. math:: s = (1 + t_y)\,\delta + \frac{K q}{2}\,\frac{s_x}{1 + t_x}, \qquad
                  t - 1 = -\tfrac K2 q, \qquad q = (1 + t_x)(1 + t_y)\|\delta\|^2 .
        """
        raise NotImplementedError

    def _one_plus(self, xp: Any, K: Any, t: Array, a: Any, v: Array) -> Array:
        """Return 1 + t, from s alone where t < 0: a rounding error of t would be all of it near -e.

        NaN takes the place of 0.
        """
        if self.sign is not None and self.sign < 1:
            return 1.0 + t
        behind, square = t < 0, times(K, a, a, dot(v, v))
        above = xp.where(behind, square / (1.0 - xp.where(behind, t, 0.0)), 1.0 + t)
        return xp.where(above == 0, xp.nan, above)

    def to_normal(self, x: Array) -> Array:
        r"""Coordinates :math:`c = s\,\theta/\sin_K\theta`; NaN opposite to the identity."""
        xp, K = self._given(x)
        t, a, v = self._lift(xp, K, x)
        return radial.to_normal(self.sign, K, None if self.sign == -1 else t, a, v)

    def relative_normal(self, x: Array, y: Array, known: State = ()) -> Array:
        r"""Normal coordinates of :math:`\ominus x \oplus y`; ``known`` is :meth:`known` of y."""
        xp, K = self._given(x, y)
        level, a, v = self._relative(xp, K, x, y, known)
        return radial.to_normal(self.sign, K, level, a, v, temporary=True)

    def from_normal(self, c: Array) -> Array:
        r"""Point :math:`(\cos_K\theta,\; c \sin_K\theta/\theta)`, :math:`\theta = \sqrt{|K|}\|c\|`.

        Hyperbolic angles stop at 43.9 in float32, at 351 in float64: cosh² would overflow.
        """
        xp = check_coordinates(self, c)
        K = self._parameter("curvature", c)
        large, part = (1.0, c) if self.sign == 1 else unit(c, least=1.0)
        t, stretch = radial.turn(self.sign, K, large, part)
        return self._drop(xp, K, t, Combination(stretch, part))

    def scale(self, t: Array | float, x: Array) -> Array:
        r"""Gyromultiplication, the angle times t: :math:`s \mapsto s\sin_K(t\theta)/\sin_K\theta`.

        On the sphere, :math:`t\theta = \pi` gives the point opposite to the identity.
        """
        xp, K = self._given(x)
        time, a, v = self._lift(xp, K, x)
        level = None if self.sign == -1 else time
        time, stretch = radial.multiple(self.sign, K, scalars_like(t, x), level, a, v)
        return self._drop(xp, K, time, Combination(stretch, v))

    def standardize(
        self, x: Array, mean: Array, factor: Array | float, bias: Array | None = None
    ) -> Array:
        r"""Centre, scale and bias, in one combination :math:`a_i x_i + b_i \mu + c_i \beta`."""
        xp, K = self._given(x, mean, *(() if bias is None else (bias,)))
        level, a, v = self._relative(xp, K, mean, x)
        t = times(self._share, scalars_like(factor, x))
        t, stretch = radial.multiple(self.sign, K, t, level, a, v)
        return self._biased(xp, K, t, Combination(stretch, v, temporary=True), bias)

    def geodesic(self, x: Array, y: Array, t: Array | float) -> Array:
        r"""Point :math:`x \oplus (t \odot (\ominus x \oplus y))`: x at t = 0, y at t = 1."""
        if self.sign != 1:
            x, y, t = self._from_nearer_end(x, y, t)
        return self.standardize(y, x, t, x)

    def _carried(self, c: Array, factor: Any, bias: Array | None) -> Array:
        r"""Return :math:`\beta \oplus \operatorname{Exp}_e(t c)` in one combination of c and β."""
        xp = namespace_of(c)
        K = self._parameter("curvature", c)
        t, stretch = radial.turn(self.sign, K, times(self._share, factor), c)
        return self._biased(xp, K, t, Combination(stretch, c), bias)

    @property
    def _share(self) -> float:
        """The part of its angle at which a point is given to :meth:`_biased`: all of it, mostly."""
        return 1.0

    def _biased(self, xp: Any, K: Any, t: Array, s: Combination, bias: Array | None) -> Array:
        r"""Return the point with time t and spatial part s, carried to the bias β.

        Where K < 0 nothing cancels, also if the result is closer to e than β is. There

        .. math:: s_{\beta \oplus x} = \delta + m s_\beta, \qquad
                  t_{\beta \oplus x} = 1 + m(1 + t_\beta), \qquad
                  \delta = s + \frac{1+t}{1+t_\beta}\,s_\beta, \qquad
                  m = -\frac K2\,\frac{\|\delta\|^2}{1+t} .
        """
        if bias is None:
            return self._drop(xp, K, t, s)
        t_b, a_b, v_b = self._lift(xp, K, bias)
        below = self._one_plus(xp, K, t_b, a_b, v_b)
        if self.sign != -1:
            inner = times(-K, a_b, s.dot(v_b))
            move, time = t + inner / below, t_b * t + inner
            if self.sign is not None:
                return self._drop(xp, K, time, s.plus(times(a_b, move), v_b))
            negative = K < 0
            above = xp.where(negative, 1.0 + t, 1.0)  # no 0, which a derivative would meet
            first = xp.where(negative, above / below, 0.0)
        else:
            above = 1.0 + t
            first = above / below
        gap = s.plus(times(a_b, first), v_b).value()
        m = -0.5 * K * dot(gap, gap) / above
        new = 1.0 + m * below
        if self.sign is None:
            m, new = xp.where(negative, m, move), xp.where(negative, new, time)
        moved = Combination(1.0, gap, temporary=True).plus(times(a_b, m), v_b)
        return self._drop(xp, K, new, moved)

    def norm(self, x: Array) -> Array:
        r"""Distance from the identity."""
        xp, K = self._given(x)
        t, a, v = self._lift(xp, K, x)
        size = a * length(v)
        if self.sign == 0:
            return size
        if self.sign is None:
            return size * arc(K * size * size, t, None)
        k = radial.root(xp, K)  # atan2 is also right at the point opposite to the identity
        return (xp.asinh(k * size) if self.sign == -1 else xp.atan2(k * size, t)) / k

    def dist(self, x: Array, y: Array) -> Array:
        r"""Distance from the chord: :math:`\sin_K^2(\sqrt{|K|}\,d/2) = |K| q/4`.

        On the sphere the complementary chord :math:`\bar q = 4/K - q` is measured too,
        :math:`\tan(\sqrt K d/2) = \sqrt{q/\bar q}`, so that antipodal points lose no digits.
        """
        xp, K = self._given(x, y)
        t_x, a_x, v_x = lifted_x = self._lift(xp, K, x)
        t_y, a_y, v_y = lifted_y = self._lift(xp, K, y)
        f, gap = self._chord(K, lifted_x, lifted_y)
        chord = f**0.5 * length(gap)
        if self.sign == 0:
            return chord
        if self.sign is None:
            u = 0.25 * K * f * dot(gap, gap)
            return chord * arc(u, safe_sqrt(1.0 - u), None)
        k = radial.root(xp, K)
        if self.sign == -1:
            return 2.0 * xp.asinh(0.5 * k * chord) / k
        s = Combination(a_x, v_x).plus(a_y, v_y).value()
        opposite = K * dot(s, s) + (t_x + t_y) ** 2
        return 2.0 * xp.atan2(k * chord, safe_sqrt(opposite)) / k

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration: a rotation of the spatial part in the plane of x and y.

        With :math:`p = s/(1+t)`, the ball coordinates of x and y,

        .. math:: \operatorname{gyr}[x, y] s = s + 2\,\frac{A p_x + B p_y}{D}, \quad
            \begin{aligned}
            A &= -K^2\langle p_x, s\rangle\|p_y\|^2 - K\langle p_y, s\rangle
                 + 2K^2\langle p_x, p_y\rangle\langle p_y, s\rangle,\\
            B &= -K^2\langle p_y, s\rangle\|p_x\|^2 + K\langle p_x, s\rangle,\\
            D &= 1 - 2K\langle p_x, p_y\rangle + K^2\|p_x\|^2\|p_y\|^2 .
            \end{aligned}
        """
        xp, K = self._given(x, y, z)
        t, a, v = self._lift(xp, K, z)
        turned = self._rotate(xp, K, x, y, Combination(a, v).value())
        return self._drop(xp, K, t, Combination(1.0, turned))

    def _rotate(self, xp: Any, K: Any, x: Array, y: Array, s: Array) -> Array:
        r"""Return gyr[x, y] s: turn s twice by the angle of :math:`(\alpha, \beta)`.

        .. math:: \alpha = 1 - K\langle p_x, p_y\rangle, \qquad
                  \beta = -K\,p_x \wedge p_y, \qquad D = \alpha^2 + |\beta|^2

        D is computed from what turns s, so lengths are kept even where the angle has no digits.
        """
        (p, w_x), (r, w_y) = (self._ball(xp, K, z) for z in (x, y))
        if self.sign is None or self.sign < 0:
            # x ∧ y = x ∧ (x + y), and the sum is small where y is close to ⊖x, far out or not
            total = p + r
            r = total if self.sign == -1 else xp.where((K < 0)[..., None], total, r)
        pp, pr, rr, ps, rs = dot(p, p), dot(p, r), dot(r, r), dot(p, s), dot(r, s)
        alpha = 1.0 - K * pr
        if self.sign is None or self.sign < 0:
            # with the sum for y: no number here is negative, and the first is the larger one
            positive = xp.maximum(0.5 * (w_x + w_y - K * rr), xp.abs(K * pr))
            alpha = positive if self.sign == -1 else xp.where(K < 0, positive, alpha)
        if self.sign != -1:  # nor does its part along x matter: antipodal points are parallel here
            r = r - (pr / xp.where(pp > 0, pp, 1.0))[..., None] * p
            pr, rr, rs = dot(p, r), dot(r, r), dot(r, s)
        D = alpha * alpha + K * K * (pp * rr - pr * pr)
        A = K * (K * (pr * rs - rr * ps) - alpha * rs)
        B = K * (K * (pr * ps - pp * rs) + alpha * ps)
        return Combination(2.0 * A / D, p).plus(2.0 * B / D, r).plus(1.0, s).value()

    def _ball(self, xp: Any, K: Any, x: Array) -> tuple[Array, Array]:
        """Return ball coordinates p = s/(1+t) and 1 + K‖p‖² = 2/(1+t)."""
        t, a, v = self._lift(xp, K, x)
        inverse = 1.0 / self._one_plus(xp, K, t, a, v)
        return Combination(a * inverse, v).value(), 2.0 * inverse

    def _ball_point(self, xp: Any, K: Any, x: Array) -> Array:
        """Return the ball coordinates alone."""
        return self._ball(xp, K, x)[0]

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return self._rotate(*self._given(x, y), x, y, c)

    # ------------------------------------------------------------------ the mean

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian, a multiple of the identity and a sum of rank one.

        .. math:: H = \sum_i w_i\bigl(h_i I + (1-h_i)\,c_i c_i^\top/\|c_i\|^2\bigr), \qquad
                  h = a\cot_K a, \quad a = \sqrt{|K|}\,\|c\|
        """
        return mean_hessian(self, c, weights, *curving(self, c))

    def start(self, x: Array, weights: Array, total: Totals = together) -> Array:
        """First guess of the mean: the centroid in the ambient space, put back on the quadric."""
        return centroid(self, x, weights, total)

    def resolution(self, x: Array) -> Array:
        """Distance between neighbouring floating-point numbers at x."""
        xp, K = self._given(x)
        _, a, v = self._lift(xp, K, x)
        return xp.finfo(x.dtype).eps * a * xp.sqrt(dot(v, v))

    # ------------------------------------------------------------------ tangent vectors

    def _push_lifted(self, xp: Any, K: Any, x: Array, c: Array) -> tuple[Array, Array]:
        r"""Return the vector c at the identity, transported to x, as :math:`(\dot t, \dot s)`.

        .. math:: \dot t = -K\langle s, c\rangle, \qquad \dot s = c + \frac{\dot t}{1+t}\,s
        """
        t, a, v = self._lift(xp, K, x)
        rate = -K * a * dot(v, c)
        turn = rate / self._one_plus(xp, K, t, a, v)
        return rate, Combination(1.0, c).plus(turn * a, v).value()

    def _pull_lifted(self, xp: Any, K: Any, x: Array, rate: Array, s: Array) -> Array:
        r"""Undo :meth:`_push_lifted`: :math:`c = \dot s - \frac{\dot t}{1+t}\,s`."""
        t, a, v = self._lift(xp, K, x)
        turn = rate / self._one_plus(xp, K, t, a, v)
        return Combination(1.0, s).plus(-turn * a, v).value()
