r"""Logarithm and exponential at the identity of a space of constant curvature: along the radius.

A point of the quadric :math:`t^2 + K\|s\|^2 = 1` at the angle :math:`\theta = \sqrt{|K|}\,r` has
:math:`\|s\| = \sin_K(\theta)/\sqrt{|K|}`; its normal coordinates point along s and have length r.
Here s is given as a scalar a and a vector v, s = av, and the time by a *level*: t itself, or, where
K < 0, (t - 1)/a, which loses no digit, or None to take it from s.

**Derivatives.** Where nothing is differentiated, an angle comes from the length of the vector; else
from its square, in which everything is analytic (:mod:`gyrobn.numerics.scalar`), to any order. For
the first derivative alone there is a shortcut: a map along the radius, :math:`v \mapsto v f(r)/r`,
has

.. math:: dv \mapsto \frac{f}{r}\,dv + \Bigl(f' - \frac fr\Bigr)\frac{\langle v, dv\rangle}{r^2}\,v,

where the difference may cancel at small r, for what it meets is of size r. Functions that are not
yet multiplied by v have a series there (:func:`~gyrobn.numerics.scalar.slope_of_stretch`).
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, State, backend_of, dot, namespace_of
from gyrobn.backends.contract import Rule
from gyrobn.manifolds.combination import Combination
from gyrobn.numerics.arrays import broadcast_shapes
from gyrobn.numerics.scalar import arc, asinh, largest_angle, slope_of_stretch, times
from gyrobn.numerics.scalar import turn as turn_of_square

Kept = tuple[State, State]
"""Outputs, and what their derivative needs. (Dynamo cannot read the type in an inner function.)"""
Slopes = tuple[Callable[[], Array | None], ...]
"""What returns the slope by each input, if that is wanted."""


def root(xp: Any, K: Any) -> Any:
    """Return the square root of |K|, for a curvature known not to be zero."""
    return abs(K) ** 0.5 if isinstance(K, float) else xp.sqrt(xp.abs(K))


def square_of(sign: int | None, K: Any, v: Array, a: Any = 1.0) -> Array:
    """Return K‖av‖²: for K = 0 without the square, which may overflow."""
    if sign == 0:
        return namespace_of(v).zeros_like(v[..., 0])
    return times(K, a, a, dot(v, v))


def size_of(K: Any, v: Array) -> Array:
    """Return sqrt(|K|)‖v‖, next to nothing in place of 0: quotients then are their limit."""
    xp = namespace_of(v)
    return times(root(xp, K), backend_of(v).norm(v)) + _tiny(xp, v)


def is_constant(sign: int | None, *values: Any) -> bool:
    """Return whether the sign is known and no value has a slope; the last is an array."""
    return bool(sign) and not backend_of(values[-1]).differentiable(*values)


def to_normal(
    sign: int | None, K: Any, level: Any, a: Any, v: Array, temporary: bool = False
) -> Array:
    """Return the normal coordinates of the point (level, a, v); v may be ``temporary``."""
    if is_constant(sign, K, level, a, v):
        angle, size = _angle(sign, K, level, a, v)
        return Combination(angle / size, v, temporary).value()
    if not sign:
        return _exact_normal(sign, K, level, a, v)
    batch = tuple(v.shape[:-1])

    def exact(v: Array, level: Any, a: Any, K: Any) -> State:
        return (_exact_normal(sign, K, level, a, v),)

    def primal(v: Array, level: Any, a: Any, K: Any) -> Kept:
        angle, size = _angle(sign, K, level, a, v)
        stretch = angle / size
        return (stretch[..., None] * v,), (stretch, size)

    def cotangent(inputs: Any, kept: State, slope: Array) -> Slopes:
        (v, level, a, K), (stretch, size) = inputs, kept
        xp, along = namespace_of(v), dot(slope, v)
        if sign == 1:
            rate = level  # of the angle by the sine, the time held
        elif level is None:
            rate = 1.0 / xp.hypot(times(a, size), xp.ones_like(size))
        else:
            rate = 1.0 / (1.0 + times(a, level))
        more = (times(a, rate) - stretch) * along
        return (
            lambda: (
                Combination(stretch, slope).plus(times(abs(K), more) / (size * size), v).value()
            ),
            lambda: times(-1.0, a, along) if sign == 1 else None,  # else s alone decides
            lambda: rate * along,
            lambda: more / (2.0 * K),
        )

    given = v, spread(level, batch), spread(a, batch), spread(K, batch)
    (c,) = backend_of(v).shortcut(exact, primal, cotangent, *given)
    return c


def turn(sign: int | None, K: Any, factor: Any, c: Array) -> State:
    """Return the time of the point with normal coordinates ``factor`` times c, and s per c.

    On the sphere an angle of π is the point opposite to the identity; hyperbolic angles stop where
    the square of cosh would overflow.
    """
    if not sign:
        return turn_of_square(factor, square_of(sign, K, c), sign)

    def exact(c: Array, factor: Any, K: Any) -> State:
        return turn_of_square(factor, square_of(sign, K, c), sign)

    def primal(factor: Any, size: Array) -> State:
        return _turned(sign, times(factor, size), size)

    def rates(t: Array, stretch: Array, square: Array, factor: Any) -> State:
        rate, bend = t, times(-float(sign), square, stretch)
        if sign == 1:
            return rate, bend
        xp = namespace_of(t)  # an angle that is held does not change any more
        top = largest_angle(t)
        inside = xp.astype(factor * factor * square < top * top, t.dtype)
        return inside * rate, inside * bend

    return _along_radius(exact, primal, rates, sign, False, c, factor, K)


def half_turn(K: Any, factor: Any, c: Array) -> State:
    r"""Return :math:`\cosh^{-2}` and :math:`\tanh/r` of ``factor`` times the angle of c, K < 0.

    The second, times c, is a point of the Poincaré ball at twice the angle, held inside of it.
    """
    eps = float(namespace_of(c).finfo(c.dtype).eps)
    most = 1.0 - 8.0 * eps

    def exact(c: Array, factor: Any, K: Any) -> State:
        xp = namespace_of(c)
        t, stretch = turn_of_square(factor, square_of(-1, K, c), -1)
        square = t * t
        return 1.0 / square, stretch * (t / (square + xp.clip(8.0 * eps * square - 0.5, min=0.0)))

    def primal(factor: Any, size: Array) -> State:
        xp, angle = namespace_of(size), held(factor * size, 2.0)
        # the square of cosh may overflow: then w is 0
        stretch = xp.clip(xp.tanh(angle), min=-most, max=most) / size
        return xp.cosh(angle) ** -2.0, stretch

    def rates(w: Array, stretch: Array, square: Array, factor: Any) -> State:
        return w, -2.0 * square * stretch * w

    return _along_radius(exact, primal, rates, -1, True, c, factor, K)


def _along_radius(
    exact: Rule, primal: Rule, rates: Rule, sign: int, tangent: bool, c: Array, factor: Any, K: Any
) -> State:
    """Return two functions of ``factor`` times the angle of c, the second one over that of c.

    ``rates`` returns their derivatives by the factor, the second's first. The second function is a
    ``tangent``, or a sine. Its slope need not be of size r: it is not in a second derivative.
    """
    if is_constant(sign, K, factor, c):
        return primal(factor, size_of(K, c))
    batch = tuple(c.shape[:-1])
    if not isinstance(factor, float):
        batch = broadcast_shapes(batch, factor.shape)

    def with_kept(c: Array, factor: Any, K: Any) -> Kept:
        size = size_of(K, c)
        outputs = primal(factor, size)
        return outputs, (*outputs, size)

    def cotangent(inputs: Any, kept: State, by_first: Array, by_stretch: Array) -> Slopes:
        (c, factor, K), (first, stretch, size) = inputs, kept
        square = size * size
        rate, bend = rates(first, stretch, square, factor)
        slope = slope_of_stretch(tangent, float(sign) * square, factor, stretch, rate)
        by_square = 2.0 * float(sign) * slope * by_stretch + factor * bend / square * by_first
        return (
            lambda: times(abs(K), by_square)[..., None] * c,
            lambda: rate * by_stretch + bend * by_first,
            lambda: by_square * square / (2.0 * K),
        )

    given = c, spread(factor, batch), spread(K, batch)
    first, stretch = backend_of(c).shortcut(exact, with_kept, cotangent, *given)
    return first, stretch


def multiple(sign: int | None, K: Any, factor: Any, level: Any, a: Any, v: Array) -> State:
    """Return the time of a multiple of the point (level, a, v), and the factor of v in it."""
    if is_constant(sign, K, factor, level, a, v):
        angle, size = _angle(sign, K, level, a, v)
        return _turned(sign, factor * angle, size)
    u = square_of(sign, K, v, a)
    per_sine = _angle_per_sine(sign, u, level)
    t, stretch = turn_of_square(factor, per_sine * per_sine * u, sign)
    return t, times(a, stretch * per_sine)


# ---------------------------------------------------------------------- constants


def _angle(sign: int | None, K: Any, level: Any, a: Any, v: Array) -> State:
    """Return the angle of the point (level, a, v), and sqrt(|K|)‖v‖."""
    xp, size = namespace_of(v), size_of(K, v)
    if sign == 1:
        known = xp.maximum(size - _tiny(xp, v), level) > 0  # opposite to e is no direction
        return xp.atan2(times(a, size), xp.where(known, level, xp.nan)), size
    if level is None:
        return asinh(times(a, size)), size
    return xp.log1p(times(a, size + level)), size  # e^angle = t + sinh


def _turned(sign: int | None, angle: Array, size: Array) -> State:
    """Return cos_K of an angle, and sin_K over ``size``."""
    xp = namespace_of(angle)
    if sign == 1:
        return xp.cos(angle), xp.sin(angle) / size
    angle = held(angle)
    return xp.cosh(angle), xp.sinh(angle) / size


def held(angle: Array, reach: float = 1.0) -> Array:
    """Return hyperbolic angles, held where the square of cosh would overflow, or beyond."""
    top = reach * largest_angle(angle)
    return namespace_of(angle).clip(angle, min=-top, max=top)


# ---------------------------------------------------------------------- to any order


def _exact_normal(sign: int | None, K: Any, level: Any, a: Any, v: Array) -> Array:
    stretch = times(a, _angle_per_sine(sign, square_of(sign, K, v, a), level))
    return Combination(stretch, v).value()


def _angle_per_sine(sign: int | None, u: Array, t: Any) -> Array:
    """Return angle/sine; NaN opposite to the identity, where there is no direction."""
    if sign == -1:
        return arc(u, u, -1)
    xp = namespace_of(u)
    if sign == 0:
        return xp.ones_like(u)
    ratio = arc(u, t, sign)
    return xp.where(xp.isfinite(ratio), ratio, xp.nan)


def spread(value: Any, batch: tuple[int, ...]) -> Any:
    """Return an array of one number per vector in the shape of the batch; others as they are."""
    if value is None or isinstance(value, float):
        return value
    return namespace_of(value).broadcast_to(value, batch)


def _tiny(xp: Any, like: Array) -> float:
    """Return a length whose square is next to nothing."""
    return math.sqrt(float(xp.finfo(like.dtype).smallest_normal))
