r"""Curvature-aware scalar functions, smooth through curvature zero.

Each takes the signed square :math:`u = K r^2` instead of a sign and a length: as functions of
:math:`u` they are analytic, trigonometric for :math:`u > 0`, hyperbolic for :math:`u < 0`. Values
and derivatives are finite and right everywhere, for gradients with respect to the point and to the
curvature alike.

**Values** come from the direct formula at :math:`\sqrt{|u| + \text{tiny}}`: quotients such as
sin a / a have all their digits at any a > 0, only their derivatives have not. **Derivatives** are
rules: each function states its own, as the differential equation has it, :math:`\sin_K'(u) =
(\cos_K - \sin_K)/2u` and so on, with a power series near zero, where that would cancel. A rule is
made of operations that can be differentiated again.

``sign`` is what is known of the sign of :math:`u` in advance (-1, 0, 1, or ``None`` when the
curvature is a traced value): a branch that cannot happen is not computed.
"""

import math
from collections.abc import Callable
from typing import Any

from gyrobn.backends import Array, backend_of, namespace_of

# Taylor coefficients in u
_ORDER = 14
_SINC = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(_ORDER)]
_ARC = [math.comb(2 * n, n) / (4.0**n * (2 * n + 1)) for n in range(_ORDER)]
_TIME = [-math.comb(2 * n, n) / (4.0**n * (2 * n - 1)) for n in range(_ORDER)]  # of sqrt(1 - u)
_COTANGENT = [1.0]  # by its differential equation, 2u h' = h - h² - u
for _n in range(1, _ORDER):
    _products = sum(_COTANGENT[i] * _COTANGENT[_n - i] for i in range(1, _n))
    _COTANGENT.append(-(_products + (_n == 1)) / (2 * _n + 1))


_TANGENT = [1.0]  # of tan(a)/a, one over a cot(a)
for _n in range(1, _ORDER):
    _TANGENT.append(-sum(_COTANGENT[i] * _TANGENT[_n - i] for i in range(1, _n + 1)))


def _slope(series: list[float]) -> list[float]:
    return [n * c for n, c in enumerate(series)][1:]


_SINC_SLOPE, _ARC_SLOPE, _COTANGENT_SLOPE = map(_slope, (_SINC, _ARC, _COTANGENT))
_TANGENT_SLOPE = _slope(_TANGENT)
_ROUND_ARC_SLOPE = [0.5 * (t - a) for t, a in zip(_TIME[1:], _ARC[1:], strict=True)]


def safe_sqrt(x: Array) -> Array:
    r"""Return :math:`\sqrt{\max(x, 0)}`, with derivative zero where x is not positive; NaN for NaN.

    >>> import numpy as np
    >>> safe_sqrt(np.asarray([-1.0, 0.0, 4.0]))
    array([0., 0., 2.])
    """
    xp = namespace_of(x)
    (root,) = backend_of(x).smooth(
        lambda x: (xp.sqrt(xp.clip(x, min=0.0)),),
        lambda _, out: [[lambda: 0.5 * _inverse(out[0])]],
        x,
    )
    return root


def _inverse(r: Array) -> Array:
    """Return 1/r, and 0 where r is 0."""
    xp = namespace_of(r)
    (inverse,) = backend_of(r).smooth(
        lambda r: (xp.where(r == 0, r, 1.0 / r),),
        lambda _, out: [[lambda: -out[0] * out[0]]],
        r,
    )
    return inverse


def cosine(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\cos_K`: :math:`\cos\sqrt{u}`, or :math:`\cosh\sqrt{-u}` for negative u."""
    xp = namespace_of(u)
    (value,) = backend_of(u).smooth(
        lambda u: (_choose(u, sign, xp.cos, xp.cosh, _root(u, sign)),),
        lambda given, _: [[lambda: -0.5 * sinc(given[0], sign)]],
        u,
    )
    return value


def sinc(u: Array, sign: int | None) -> Array:
    r"""Return :math:`\sin_K(a)/a`: :math:`\sin\sqrt{u}/\sqrt{u}`, or sinh for negative u."""
    xp = namespace_of(u)

    def value(u: Array) -> tuple[Array, ...]:
        a = _root(u, sign)
        return (_choose(u, sign, xp.sin, xp.sinh, a) / a,)

    def partials(given: Any, out: Any) -> Any:
        (u,), (s,) = given, out
        return [[lambda: _joined(u, _SINC_SLOPE, 0.1, lambda u: (cosine(u, sign) - s) / (2.0 * u))]]

    (ratio,) = backend_of(u).smooth(value, partials, u)
    return ratio


def turn(factor: Any, u: Array, sign: int | None) -> tuple[Array, Array]:
    r"""Return :math:`\cos_K(fa)` and :math:`\sin_K(fa)/a`, where u is the signed square of a.

    ``factor`` is a float, or an array that broadcasts against u. Hyperbolic angles fa stop at
    :func:`largest_angle`.
    """
    xp = namespace_of(u)
    if sign == 0:
        one = xp.ones_like(u)
        return one, times(factor, one)
    top = largest_angle(u)
    if not isinstance(factor, float):
        shape = xp.broadcast_arrays(factor, u)[0].shape
        factor, u = xp.broadcast_to(factor, shape), xp.broadcast_to(u, shape)

    def value(u: Array, f: Any = factor) -> tuple[Array, ...]:
        a = _root(u, sign)
        b = f * a
        held = b if sign == 1 else xp.clip(b, min=-top, max=top)
        c = _pick(u, sign, lambda: xp.cos(b), lambda: xp.cosh(held))
        s = _pick(u, sign, lambda: xp.sin(b), lambda: xp.sinh(held))
        return c, s / a

    def partials(given: Any, out: Any) -> Any:
        u, f = given if len(given) == 2 else (given[0], factor)
        c, s = out
        inside = 1.0
        if sign != 1:  # an angle that is held does not change any more
            square = backend_of(u).stop_gradient(f * f * u)
            inside = xp.astype(square > -top * top, u.dtype)

        def by_u() -> Array:
            far = lambda u: (times(inside, f, c) - s) / (2.0 * u)  # noqa: E731
            return _joined(u, _SINC_SLOPE, 0.1, far, f)

        return [
            [lambda: times(-0.5, inside, f, s), lambda: times(-1.0, inside, u, s)][: len(given)],
            [by_u, lambda: times(inside, c)][: len(given)],
        ]

    inputs = (u,) if isinstance(factor, float) else (u, factor)
    c, s = backend_of(u).smooth(value, partials, *inputs)
    return c, s


def largest_angle(like: Array) -> float:
    """Return the largest angle whose cosh has a square in the dtype of ``like``."""
    return 0.495 * math.log(float(namespace_of(like).finfo(like.dtype).max))


def arc(u: Array, t: Array, sign: int | None) -> Array:
    r"""Return :math:`a/\sin_K(a)` from :math:`u = \pm\sin_K^2(a)` and :math:`t = \cos_K(a)`.

    The angle is :math:`\operatorname{atan2}(\sqrt u, t)` on spheres, where the cosine tells the
    far hemisphere from the near one, and :math:`\operatorname{asinh}\sqrt{-u}` on hyperbolic
    spaces: both keep every digit at small and at large angles, as the inverse cosine does not.
    At :math:`t = -1`, opposite to the origin, the quotient is infinite.
    """
    xp = namespace_of(u, t)

    def value(u: Array, *t: Array) -> tuple[Array, ...]:
        a = _root(u, sign)
        ratio = _pick(u, sign, lambda: xp.atan2(a, t[0]), lambda: asinh(a)) / a
        if sign == -1:
            return (ratio,)
        return (xp.where(xp.logical_and(t[0] < 0, u <= 0), xp.inf, ratio),)

    def partials(given: Any, out: Any) -> Any:
        u, (ratio,) = given[0], out

        def hyperbolic(u: Array) -> Array:
            far = lambda u: (1.0 / xp.sqrt(1.0 - u) - ratio) / (2.0 * u)  # noqa: E731
            return _joined(u, _ARC_SLOPE, 0.03, far)

        if sign == -1:
            return [[lambda: hyperbolic(u)]]
        t = given[1]

        def round_(u: Array) -> Array:
            far = lambda u: (t - ratio) / (2.0 * u)  # noqa: E731
            return _joined(u, _ROUND_ARC_SLOPE, 0.03, far, beyond=t < 0)

        if sign == 1:
            return [[lambda: round_(u), lambda: -xp.ones_like(t)]]
        up = u > 0
        return [
            [
                lambda: xp.where(
                    up, round_(xp.where(up, u, 0.0)), hyperbolic(xp.where(up, 0.0, u))
                ),
                lambda: -xp.astype(up, t.dtype),
            ]
        ]

    inputs = (u,) if sign == -1 else xp.broadcast_arrays(u, t)
    (ratio,) = backend_of(u).smooth(value, partials, *inputs)
    return ratio


def asinh(a: Array) -> Array:
    """Return asinh a for a >= 0, in a quarter of the time that torch's own takes."""
    xp = namespace_of(a)
    square = a * a
    return xp.log1p(a + square / (1.0 + xp.sqrt(1.0 + square)))


def cotangent(u: Array, sign: int | None) -> Array:
    r"""Return :math:`a \cot_K a`: :math:`a\cot a`, or :math:`a\coth a` for negative u."""
    xp = namespace_of(u)

    def value(u: Array) -> tuple[Array, ...]:
        a = _root(u, sign)
        return (a / _choose(u, sign, xp.tan, xp.tanh, a),)

    def partials(given: Any, out: Any) -> Any:
        (u,), (h,) = given, out
        far = lambda u: (h - h * h - u) / (2.0 * u)  # noqa: E731
        return [[lambda: _joined(u, _COTANGENT_SLOPE, 0.1, far)]]

    (h,) = backend_of(u).smooth(value, partials, u)
    return h


def bend(u: Array, h: Array) -> Array:
    r"""Return :math:`(1 - h)/u` from :math:`h = a \cot_K a`, with its limit 1/3 at 0.

    Near zero it is a power series in u: the quotient has no digits there, nor has its derivative.
    """
    xp = namespace_of(u)
    far = lambda u: (1.0 - h) / xp.where(u == 0, 1.0, u)  # noqa: E731
    return _joined(u, [-c for c in _COTANGENT[1:]], 0.1, far)


def slope_of_stretch(tangent: bool, u: Array, factor: Any, ratio: Array, rate: Array) -> Array:
    r"""Return the derivative by u of :math:`\sin_K(fa)/a`, or of :math:`\tan_K(fa)/a`.

    ``ratio`` is the function, ``rate`` its derivative by the factor f. Near zero their difference
    has no digits. The series there is short: farther out an error of ε to the power ¾ is left.
    """
    radius = float(namespace_of(u).finfo(u.dtype).eps) ** 0.25
    far = lambda u: (factor * rate - ratio) / (2.0 * u)  # noqa: E731
    return _joined(u, _TANGENT_SLOPE if tangent else _SINC_SLOPE, radius, far, factor)


def times(*factors: Any) -> Any:
    """Return a product: numbers first, and without a multiplication by one.

    >>> import numpy as np
    >>> x = np.ones(3)
    >>> times(2.0, x, 0.5) is x
    True
    """
    number, arrays = 1.0, []
    for f in factors:  # a plain loop, which torch.compile can follow
        if isinstance(f, float):
            number = number * f
        else:
            arrays.append(f)
    if not arrays:
        return number
    first, *rest = arrays
    product = first if number == 1.0 else number * first
    for factor in rest:
        product = product * factor
    return product


# ---------------------------------------------------------------------- how they are made


def _root(u: Array, sign: int | None) -> Array:
    """Return the root of |u|, a tiny number in place of 0, so that quotients take their limit."""
    xp = namespace_of(u)
    tiny = float(xp.finfo(u.dtype).smallest_normal)
    return xp.sqrt(tiny - u if sign == -1 else xp.abs(u) + tiny)


def _pick(
    u: Array, sign: int | None, positive: Callable[[], Array], negative: Callable[[], Array]
) -> Array:
    """Return the value for positive u, for negative u, or the one or other by u."""
    if sign:
        return positive() if sign == 1 else negative()
    return namespace_of(u).where(u > 0, positive(), negative())


def _choose(u: Array, sign: int | None, positive: Any, negative: Any, a: Array) -> Array:
    return _pick(u, sign, lambda: positive(a), lambda: negative(a))


def _joined(
    u: Array,
    series: list[float],
    radius: float,
    far: Callable[[Array], Array],
    factor: Any = None,
    beyond: Array | None = None,
) -> Array:
    r"""Return a power series near zero, ``far(u)`` away from it and where ``beyond``.

    With a factor f it is :math:`f^3\sum_n c_n (f^2 u)^n`. If this is to be differentiated again,
    each branch sees only arguments that it is for: one that is thrown away may not be infinite, or
    its derivative would be NaN.
    """
    xp, shim = namespace_of(u), backend_of(u)
    w = u if factor is None else factor * factor * u
    near = xp.abs(w) < radius
    if beyond is not None:
        near = xp.logical_and(near, xp.logical_not(beyond))
    again = shim.differentiable(u, factor)
    if again:
        w, u = xp.where(near, w, 0.0), xp.where(near, 1.0, u)
    terms = _needed(series, radius, float(xp.finfo(u.dtype).eps))
    value = terms[-1]
    for c in reversed(terms[:-1]):
        value = value * w + c
    if factor is not None:
        value = factor * factor * factor * value
    return xp.where(near, value, far(u))


def _needed(series: list[float], radius: float, eps: float) -> list[float]:
    """Return the terms that count, also in the derivatives, at this precision."""
    for n, c in enumerate(series):
        if n > 1 and abs(c) * n * n * radius ** (n - 1) < eps * abs(series[0]):
            return series[:n]
    return series
