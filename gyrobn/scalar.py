r"""Curvature-aware scalar functions, smooth through curvature zero.

Each takes the signed square :math:`u = K r^2` instead of a sign and a length: as functions of
:math:`u` they are analytic, trigonometric for :math:`u > 0`, hyperbolic for :math:`u < 0`, and a
power series joins the two where the quotients would be 0/0. Values and derivatives are finite and
right everywhere, for gradients with respect to the point and to the curvature alike.

``sign`` is what is known of the sign of :math:`u` in advance (-1, 0, 1, or ``None`` when the
curvature is a traced value): a branch that cannot happen is not computed.
"""

from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of

__all__ = ["SINC", "arc", "cosine", "cotangent", "safe_sqrt", "sinc"]

# Taylor coefficients in u, and the |u| below which eight of them are exact to float64.
SINC = tuple((-1.0) ** n / f for n, f in enumerate((1, 6, 120, 5040, 362880, 39916800, 6227020800)))
_ARC = (1.0, 1 / 6, 3 / 40, 5 / 112, 35 / 1152, 63 / 2816, 231 / 13312, 143 / 10240)
_COTANGENT = (1.0, -1 / 3, -1 / 45, -2 / 945, -1 / 4725, -2 / 93555, -1382 / 638512875)


def safe_sqrt(x: Array) -> Array:
    r"""Return :math:`\sqrt{\max(x, 0)}`, with derivative zero where x is not positive; NaN for NaN.

    >>> import numpy as np
    >>> safe_sqrt(np.asarray([-1.0, 0.0, 4.0]))
    array([0., 0., 2.])
    """
    xp = namespace_of(x)
    positive = x > 0
    root = xp.where(positive, xp.sqrt(xp.where(positive, x, 1.0)), 0.0)
    return xp.where(xp.isnan(x), xp.nan, root)


def cosine(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\cos_K`: :math:`\cos\sqrt{u}`, or :math:`\cosh\sqrt{-u}` for negative u."""
    xp = namespace_of(u)
    series = (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600)
    return _analytic(u, sign, series, 0.1, xp.cos, xp.cosh)


def sinc(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\sin_K(a)/a`: :math:`\sin\sqrt{u}/\sqrt{u}`, or sinh for negative u."""
    xp = namespace_of(u)
    return _analytic(u, sign, SINC, 0.1, lambda a: xp.sin(a) / a, lambda a: xp.sinh(a) / a)


def arc(u: Array, t: Array, sign: int | None) -> Array:
    r"""Return :math:`a/\sin_K(a)` from :math:`u = \pm\sin_K^2(a)` and :math:`t = \cos_K(a)`.

    The angle is :math:`\operatorname{atan2}(\sqrt u, t)` on spheres, where the cosine tells the
    far hemisphere from the near one, and :math:`\operatorname{asinh}\sqrt{-u}` on hyperbolic
    spaces: both keep every digit at small and at large angles, as the inverse cosine does not.
    At :math:`t = -1`, opposite to the origin, the quotient is infinite.
    """
    xp = namespace_of(u, t)
    if sign == -1 and not backend_of(u).differentiable(u, t):
        a = _root(u)
        square = a * a  # asinh a, in a third of the time that libraries take for it
        return xp.log1p(a + square / (1.0 + xp.sqrt(1.0 + square))) / a
    far = t < 0
    near = xp.logical_and(xp.abs(u) < 0.01, xp.logical_not(far))
    out = _polynomial(_ARC, _near_or_nan(xp, near, u))
    if sign is None or sign > 0:
        use = xp.logical_and(xp.logical_not(near), u > 0)
        a = xp.sqrt(xp.where(use, u, 1.0))
        out = xp.where(use, xp.atan2(a, xp.where(use, t, 1.0)) / a, out)
        out = xp.where(xp.logical_and(far, u <= 0), xp.inf, out)
    if sign is None or sign < 0:
        use = xp.logical_and(xp.logical_not(near), u < 0)
        a = xp.sqrt(xp.where(use, -u, 1.0))
        out = xp.where(use, xp.asinh(a) / a, out)
    return out


def cotangent(u: Array, sign: int | None) -> Array:
    r"""Return :math:`a \cot_K a`: :math:`a\cot a`, or :math:`a\coth a` for negative u."""
    xp = namespace_of(u)
    return _analytic(u, sign, _COTANGENT, 0.02, lambda a: a / xp.tan(a), lambda a: a / xp.tanh(a))


def _analytic(
    u: Array,
    sign: int | None,
    series: tuple[float, ...],
    radius: float,
    positive: Callable[[Array], Array],
    negative: Callable[[Array], Array],
) -> Array:
    """Choose between a series near zero and a function of sqrt(u) or sqrt(-u) away from it.

    The arguments of the branch not taken are moved to 1 before the function sees them: a value
    that is thrown away may not be infinite, or its derivative would be NaN.
    """
    xp = namespace_of(u)
    if sign == -1 and not backend_of(u).differentiable(u):
        return negative(_root(u))
    near = xp.abs(u) < radius
    out = _polynomial(series, _near_or_nan(xp, near, u))
    for side, f in ((1, positive), (-1, negative)):
        if sign is None or sign == side:
            use = xp.logical_and(xp.logical_not(near), u * side > 0)
            out = xp.where(use, f(xp.sqrt(xp.where(use, u * side, 1.0))), out)
    return out


def _root(u: Array) -> Array:
    """Return the root of |u|, next to nothing in place of 0: f(a) then is the limit at 0.

    The quotients have their digits there; it is their derivatives that have not. (Only for u that
    is never positive: an angle's square may be negative by rounding, and the series goes on there.)
    """
    xp = namespace_of(u)
    return xp.sqrt(xp.abs(u) + float(xp.finfo(u.dtype).smallest_normal))


def _near_or_nan(xp: Any, near: Array, u: Array) -> Array:
    """Return u where the series is used, and where it is NaN, which no branch may hide."""
    return xp.where(xp.logical_or(near, xp.isnan(u)), u, 0.0)


def _polynomial(coefficients: tuple[float, ...], u: Array) -> Any:
    value = coefficients[-1] + 0.0 * u
    for c in reversed(coefficients[:-1]):
        value = value * u + c
    return value
