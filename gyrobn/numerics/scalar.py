r"""Curvature-aware scalar functions, smooth through curvature zero.

Each takes the signed square :math:`u = K r^2` instead of a sign and a length: as functions of
:math:`u` they are analytic, trigonometric for :math:`u > 0`, hyperbolic for :math:`u < 0`. The
direct formulas, quotients such as sin a / a at :math:`a = \sqrt{|u|}`, have all their digits at any
a > 0, but their derivatives cancel near zero. So a power series takes their place there if anything
is differentiated.

``sign`` is what is known of the sign of :math:`u` in advance (-1, 0, 1, or ``None`` when the
curvature is a traced value): a branch that cannot happen is not computed.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of

# Taylor coefficients in u
_ORDER = 5
_COSINE = [(-1.0) ** n / math.factorial(2 * n) for n in range(_ORDER)]
_SINC = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(_ORDER)]
_ARC = [math.comb(2 * n, n) / (4.0**n * (2 * n + 1)) for n in range(_ORDER)]
# of √(1 − u) more: the arc by u and t is this minus t
_ROUND_ARC = [a - math.comb(2 * n, n) / (4.0**n * (2 * n - 1)) for n, a in enumerate(_ARC)]
_COTANGENT = [1.0]  # by its differential equation, 2u h' = h - h² - u
for _n in range(1, _ORDER + 1):
    _products = sum(_COTANGENT[i] * _COTANGENT[_n - i] for i in range(1, _n))
    _COTANGENT.append(-(_products + (_n == 1)) / (2 * _n + 1))


def cosine(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\cos_K`: :math:`\cos\sqrt{u}`, or :math:`\cosh\sqrt{-u}` for negative u."""
    xp = namespace_of(u)
    return _joined(u, sign, _COSINE, lambda a: _by_sign(u, sign, xp.cos, xp.cosh, a))


def sinc(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\sin_K(a)/a`: :math:`\sin\sqrt{u}/\sqrt{u}`, or sinh for negative u."""
    xp = namespace_of(u)
    return _joined(u, sign, _SINC, lambda a: _by_sign(u, sign, xp.sin, xp.sinh, a) / a)


def cotangent(u: Array, sign: int | None) -> Array:
    r"""Return :math:`a \cot_K a`: :math:`a\cot a`, or :math:`a\coth a` for negative u."""
    xp = namespace_of(u)
    return _joined(u, sign, _COTANGENT[:-1], lambda a: a / _by_sign(u, sign, xp.tan, xp.tanh, a))


def bend(u: Array, h: Array) -> Array:
    r"""Return :math:`(1 - h)/u` from :math:`h = a \cot_K a`, with its limit 1/3 at 0."""
    xp = namespace_of(u)
    near = xp.abs(u) < RADIUS
    series = _horner([-c for c in _COTANGENT[1:]], xp.where(near, u, 0.0))
    return xp.where(near, series, (1.0 - h) / xp.where(near, 1.0, u))


def arc(u: Array, t: Any, sign: int | None) -> Array:
    r"""Return :math:`a/\sin_K(a)` from :math:`u = \pm\sin_K^2(a)` and :math:`t = \cos_K(a)`.

    The angle is :math:`\operatorname{atan2}(\sqrt u, t)` on spheres, where the cosine tells the
    far hemisphere from the near one, and :math:`\operatorname{asinh}\sqrt{-u}` on hyperbolic
    spaces: both keep every digit at small and at large angles, as the inverse cosine does not.
    At :math:`t = -1`, opposite to the origin, the quotient is infinite.
    """
    xp = namespace_of(u)
    if sign == -1:
        return _joined(u, sign, _ARC, lambda a: asinh(a) / a)
    behind = t < 0

    def direct(a: Array) -> Array:
        angle = xp.atan2(a, t)
        return (angle if sign == 1 else xp.where(u > 0, angle, asinh(a))) / a

    ratio = _joined(u, sign, _ARC, direct, (_ROUND_ARC, t, xp.logical_not(behind)))
    return xp.where(xp.logical_and(behind, u <= 0), xp.inf, ratio)


def hyperbolic_arc(m: Array) -> Array:
    r"""Return :math:`\theta/\sinh\theta` from :math:`m = \cosh\theta - 1`."""
    xp = namespace_of(m)
    square = m * (m + 2.0)

    def direct(a: Array) -> Array:
        return xp.log1p(m + a) / a

    return _joined(-square, -1, _ARC, direct)


def asinh(a: Array) -> Array:
    """Return asinh a for a >= 0, in a quarter of the time that torch's own takes."""
    xp = namespace_of(a)
    square = a * a
    return xp.log1p(a + square / (1.0 + xp.sqrt(1.0 + square)))


def largest_angle(like: Array) -> float:
    """Return the largest angle whose cosh has a square in the dtype of ``like``."""
    return 0.495 * math.log(float(namespace_of(like).finfo(like.dtype).max))


# ---------------------------------------------------------------------- how they are made

RADIUS = 1e-3
"""Below, power series take the place of quotients: five terms then have 16 digits, and so has what
the second derivatives of quotients at larger angles add to that of a point."""


def _joined(
    u: Array,
    sign: int | None,
    series: list[float],
    direct: Callable[[Array], Array],
    positive: tuple[list[float], Array, Array] | None = None,
) -> Array:
    r"""Return ``direct`` of :math:`\sqrt{|u|}`; if it is differentiated, the series near zero.

    Each branch sees only arguments that it is for: one that is thrown away may not be infinite, or
    its derivative would be NaN. For positive u the series may be another one, minus t, and hold
    in some places only.
    """
    xp = namespace_of(u)
    if not backend_of(u).differentiable(u):
        tiny = float(xp.finfo(u.dtype).smallest_normal)
        return direct(xp.sqrt(tiny - u if sign == -1 else xp.abs(u) + tiny))
    near = xp.abs(u) < RADIUS
    if positive is not None:
        near = xp.logical_and(near, positive[2])
    far = direct(xp.sqrt(xp.where(near, 1.0, -u if sign == -1 else xp.abs(u))))
    small = xp.where(near, u, 0.0)
    if positive is None:
        return xp.where(near, _horner(series, small), far)
    close = _horner(positive[0], small) - positive[1]
    if sign is None:
        close = xp.where(u > 0, close, _horner(series, small))
    return xp.where(near, close, far)


def _horner(series: list[float], u: Array) -> Array:
    value = series[-1] * u + series[-2]
    for c in reversed(series[:-2]):
        value = value * u + c
    return value


def _by_sign(u: Array, sign: int | None, positive: Any, negative: Any, a: Array) -> Array:
    """Return the function for positive u, for negative u, or the one or other by u."""
    if sign:
        return positive(a) if sign == 1 else negative(a)
    return namespace_of(u).where(u > 0, positive(a), negative(a))
