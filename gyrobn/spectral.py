r"""Functions of an eigenvalue, with the quotients that the derivative of a matrix function needs.

.. math:: \frac{f(x) - f(y)}{x - y}, \qquad f'(x) \text{ for } x = y

without the cancellation that the quotient itself suffers where x and y are close.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gyrobn.backends import Array, namespace_of
from gyrobn.scalar import SINC, arc, cosine, safe_sqrt, sinc

__all__ = [
    "ANGLE",
    "COSINE",
    "COSINE_OF_ROOT",
    "EXP",
    "INVERSE",
    "INVERSE_ROOT",
    "LOG",
    "POWER",
    "RECIPROCAL_ABOVE",
    "ROOT",
    "SINC_OF_ROOT",
    "SINE_RATIO",
    "Spectral",
    "power",
]


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with what its derivative needs."""

    value: Callable[[Array, Any], Array]
    quotient: Callable[[Array, Array, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative where x = y."""
    slope: Callable[[Array, Any], Array] | None = None
    """The derivative by t, where the function depends on it."""


# With d = |a − b|, made next to nothing where it is zero, (1 − exp(−d))/d has no cancellation; that
# d itself has, where it is small, does not matter.


def _gap(a: Array, b: Array) -> Array:
    xp = namespace_of(a)
    return xp.abs(a - b) + 1e8 * float(xp.finfo(a.dtype).smallest_normal)


def _log_quotient(x: Array, y: Array, t: Any) -> Array:
    """Return (log x − log y)/(x − y) = d/(1 − exp(−d))/x, for x = y exp(d)."""
    xp = namespace_of(x)
    d = _gap(xp.log(x), xp.log(y))
    return -(d / xp.expm1(-d)) / xp.maximum(x, y)


def _exp_quotient(x: Array, y: Array, t: Any) -> Array:
    """Return (exp x − exp y)/(x − y) = exp(x) (1 − exp(−d))/d, for x = y + d."""
    xp = namespace_of(x)
    d = _gap(x, y)
    return -xp.maximum(xp.exp(x), xp.exp(y)) * (xp.expm1(-d) / d)


def _power_quotient(x: Array, y: Array, t: Any) -> Array:
    """Return (xᵗ − yᵗ)/(x − y) = xᵗ/x (1 − exp(−td))/(1 − exp(−d)), for x = y exp(d), t > 0."""
    xp = namespace_of(x)
    a, b = xp.log(x), xp.log(y)
    d = _gap(a, b)
    large = xp.maximum(xp.exp(t * a), xp.exp(t * b)) / xp.maximum(x, y)
    if isinstance(t, (int, float)):
        sign = math.copysign(1.0, t)
    else:
        sign = xp.where(t < 0, -1.0 + 0.0 * t, 1.0)
    return sign * large * (xp.expm1(-sign * t * d) / xp.expm1(-d))


def _raise_to(x: Array, t: Any) -> Array:
    return namespace_of(x).exp(t * namespace_of(x).log(x))


EXP = Spectral(
    lambda x, t: namespace_of(x).exp(x),
    _exp_quotient,
)
LOG = Spectral(
    lambda x, t: namespace_of(x).log(x),
    _log_quotient,
)
POWER = Spectral(
    _raise_to,
    _power_quotient,
    lambda x, t: _raise_to(x, t) * namespace_of(x).log(x),
)


def power(exponent: float) -> Spectral:
    """Return the function x ↦ x^exponent, for a number that does not change."""
    return Spectral(
        lambda x, t: _raise_to(x, exponent),
        lambda x, y, t: _power_quotient(x, y, exponent),
    )


# without the logarithm, which would lose digits of very small and very large matrices
ROOT = power(0.5)._replace(value=lambda x, t: namespace_of(x).sqrt(x))
INVERSE_ROOT = power(-0.5)._replace(value=lambda x, t: 1.0 / namespace_of(x).sqrt(x))
INVERSE = power(-1.0)._replace(value=lambda x, t: 1.0 / x)


RECIPROCAL_ABOVE = Spectral(
    lambda x, t: 1.0 / (1.0 + x),
    lambda x, y, t: -1.0 / ((1.0 + x) * (1.0 + y)),
)
"""x to 1/(1 + x)."""


# ---------------------------------------------------------------------- functions of an angle

# A function of c = cos θ is one of θ², and there cos θ and sinc θ = sin θ/θ are entire. With the
# mean m and half the difference h of two angles, a² − b² = 4mh, and
#
#     cos a − cos b = −2 sin m sin h,    sin a − sin b = 2 cos m sin h
#
# give the quotients by θ² without a difference of close numbers; those by c are ratios of them.


def _angle(c: Array) -> Array:
    """Return θ from its cosine, with every digit at small angles; 0 for c > 1, by rounding."""
    xp = namespace_of(c)
    return xp.atan2(xp.sqrt(xp.clip((1.0 - c) * (1.0 + c), min=0.0)), c)


def _sinc(a: Array) -> Array:
    xp = namespace_of(a)
    nothing = xp.astype(a == 0, a.dtype)
    return (xp.sin(a) + nothing) / (a + nothing)


def _cosine_quotient(a: Array, b: Array) -> Array:
    """Return (cos a − cos b)/(a² − b²)."""
    return -0.5 * _sinc(0.5 * (a + b)) * _sinc(0.5 * (a - b))


def _sinc_quotient(a: Array, b: Array) -> Array:
    """Return (sinc a − sinc b)/(a² − b²), by the series where both angles are small."""
    xp = namespace_of(a)
    m = 0.5 * (a + b)
    near = m * m < 0.09
    mean = 0.5 * _sinc(a) + 0.5 * _sinc(b)
    away = (xp.cos(m) * _sinc(0.5 * (a - b)) - mean) / (2.0 * xp.where(near, 1.0, m * m))
    x, y = (xp.where(square < 0.36, square, 0.0) for square in (a * a, b * b))
    value, series = SINC[-1] + 0.0 * x, 0.0
    for c in reversed(SINC[:-1]):  # the polynomial at x by Horner's rule, and its quotient
        series = series * y + value
        value = value * x + c
    return xp.where(near, series, away)


def _angle_quotient(c: Array, d: Array, t: Any) -> Array:
    """Return that of θ/sin θ = 1/sinc θ."""
    a, b = _angle(c), _angle(d)
    return -_sinc_quotient(a, b) / (_sinc(a) * _sinc(b) * _cosine_quotient(a, b))


def _multiple_quotient(c: Array, d: Array, t: Any) -> Array:
    """Return that of cos tθ."""
    a, b = _angle(c), _angle(d)
    return t * t * _cosine_quotient(t * a, t * b) / _cosine_quotient(a, b)


def _sine_ratio_quotient(c: Array, d: Array, t: Any) -> Array:
    """Return that of q = sin tθ/sin θ, from the product q · sinc θ = t sinc tθ."""
    a, b = _angle(c), _angle(d)
    p, q = _sinc(a), _sinc(b)
    mean = 0.5 * t * (_sinc(t * a) / p) + 0.5 * t * (_sinc(t * b) / q)
    change = t**3 * _sinc_quotient(t * a, t * b) - mean * _sinc_quotient(a, b)
    return change / ((0.5 * p + 0.5 * q) * _cosine_quotient(a, b))


def _square_angle(c: Array) -> tuple[Array, Array]:
    """Return θ² and θ/sin θ from the cosine c; analytic at c = 1, and beyond it by rounding."""
    u = (1.0 - c) * (1.0 + c)
    ratio = arc(u, c, 1)
    return ratio * ratio * u, ratio


def _sine_ratio(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return t * sinc(t * t * z, 1) * ratio


def _sine_ratio_slope(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return cosine(t * t * z, 1) * ratio


def _cosine_slope(c: Array, t: Any) -> Array:
    z, _ = _square_angle(c)
    return -t * z * sinc(t * t * z, 1)


ANGLE = Spectral(lambda c, t: _square_angle(c)[1], _angle_quotient)
"""c = cos θ to θ/sin θ."""
COSINE = Spectral(
    lambda c, t: cosine(t * t * _square_angle(c)[0], 1), _multiple_quotient, _cosine_slope
)
"""c = cos θ to cos tθ."""
SINE_RATIO = Spectral(_sine_ratio, _sine_ratio_quotient, _sine_ratio_slope)
"""c = cos θ to sin tθ / sin θ."""
COSINE_OF_ROOT = Spectral(
    lambda u, t: cosine(u, 1), lambda u, v, t: _cosine_quotient(safe_sqrt(u), safe_sqrt(v))
)
"""u = θ² to cos θ."""
SINC_OF_ROOT = Spectral(
    lambda u, t: sinc(u, 1), lambda u, v, t: _sinc_quotient(safe_sqrt(u), safe_sqrt(v))
)
"""u = θ² to sin θ / θ."""
