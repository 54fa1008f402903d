r"""Curvature-aware scalar functions, smooth through curvature zero.

They take the signed square :math:`u = K r^2` instead of a sign and a length: as functions of
:math:`u` they are analytic, trigonometric for :math:`u > 0`, hyperbolic for :math:`u < 0`, and 1 at
0. The direct formulas, quotients such as sin a / a at :math:`a = \sqrt{|u|}`, have all their digits
at any a > 0, but their second derivatives cancel near zero. (In a first derivative, what cancels is
multiplied by numbers of size a².) So a power series takes their place there if anything may be
differentiated twice.

``sign`` is what is known of the sign of :math:`u` in advance (-1, 0, 1, or ``None`` when the
curvature is a traced value): a branch that cannot happen is not computed.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.numerics.arrays import tiny_of

RADIUS = 3e-4
"""Below, five terms of a power series take the place of a quotient."""
_COSINE = 1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320
_SINC = 1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880
_ARC = 1.0, 1 / 6, 3 / 40, 5 / 112, 35 / 1152


def cosine(u: Array, sign: int | None, t: Any = 1.0, most: float = math.inf) -> Array:
    r"""Return :math:`\cos_K(ta)`: :math:`\cos(t\sqrt u)`, or cosh for negative u.

    A hyperbolic angle :math:`ta` is clamped at ``most``. Its square may overflow.
    """
    xp = namespace_of(u)
    cosh = lambda b: xp.cosh(xp.clip(b, min=-most, max=most))  # noqa: E731
    return _joined(u, sign, _COSINE, lambda a: _by_sign(u, sign, xp.cos, cosh, t * a), t)


def sinc(u: Array, sign: int | None, t: Any = 1.0, most: float = math.inf) -> Array:
    r"""Return :math:`\sin_K(ta)/a`: :math:`\sin(t\sqrt u)/\sqrt u`, or sinh; see :func:`cosine`."""
    xp = namespace_of(u)
    sinh = lambda b: xp.sinh(xp.clip(b, min=-most, max=most))  # noqa: E731
    return _joined(u, sign, _SINC, lambda a: _by_sign(u, sign, xp.sin, sinh, t * a) / a, t, t)


def arc(u: Array, cosine: Array, sign: int | None) -> Array:
    r"""Return :math:`\theta/\sin_K\theta` from :math:`u = \sin_K^2\theta`, and the cosine, >= 0.

    The asinh is written out: it takes a quarter of the time of torch's own.
    """
    xp = namespace_of(u)
    asinh = lambda a: xp.log1p(a + a * a / (1.0 + cosine))  # noqa: E731
    atan = lambda a: xp.atan2(a, cosine)  # noqa: E731
    return _joined(u, sign, _ARC, lambda a: _by_sign(u, sign, atan, asinh, a) / a)


def cotangent(u: Array, sign: int | None) -> Array:
    r"""Return :math:`a \cot_K a`: :math:`a\cot a`, or :math:`a\coth a` for negative u.

    It is not to be differentiated.
    """
    xp = namespace_of(u)
    a = xp.sqrt(xp.abs(u) + tiny_of(u))
    return a / _by_sign(u, sign, xp.tan, xp.tanh, a)


def largest_angle(like: Array) -> float:
    """Return the largest angle whose cosh has a square in the dtype of ``like``."""
    return 0.495 * math.log(float(namespace_of(like).finfo(like.dtype).max))


def _joined(
    u: Array,
    sign: int | None,
    series: tuple[float, ...],
    direct: Callable[[Array], Array],
    t: Any = 1.0,
    factor: Any = 1.0,
) -> Array:
    r"""Return ``direct`` of :math:`\sqrt{|u|}`; near zero the series, if it may be differentiated.

    The series is that of :math:`t^2 u`, times the factor. Each branch gets only arguments that it
    is for: one that is thrown away may not be infinite, or its derivative would be NaN.
    """
    xp = namespace_of(u)
    if sign == 0:
        return factor + u
    if not backend_of(u).differentiable(u, t):
        return direct(xp.sqrt(xp.abs(u) + tiny_of(u)))
    most = 1.0 / tiny_of(u)  # no infinity, which a derivative would meet
    w = (min(t * t, most) if isinstance(t, float) else xp.clip(t * t, max=most)) * u
    near = xp.abs(w) < RADIUS
    far = direct(xp.sqrt(xp.where(near, 1.0, xp.abs(u))))
    w, value = xp.where(near, w, 0.0), series[-1]
    for c in reversed(series[:-1]):
        value = value * w + c
    return xp.where(near, factor * value, far)


def _by_sign(u: Array, sign: int | None, positive: Any, negative: Any, a: Array) -> Array:
    """Return the function for positive u, for negative u, or the one or other by u."""
    if sign:
        return positive(a) if sign == 1 else negative(a)
    return namespace_of(u).where(u > 0, positive(a), negative(a))
