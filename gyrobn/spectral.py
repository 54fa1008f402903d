r"""Functions of an eigenvalue, with the quotients that the derivative of a matrix function needs.

.. math:: \frac{f(x) - f(y)}{x - y}, \qquad f'(x) \text{ for } x = y

without the cancellation that the quotient itself suffers where x and y are close.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, namespace_of
from gyrobn.scalar import arc, cosine, sinc, sinc_slope

__all__ = [
    "ANGLE",
    "COSINE",
    "COSINE_OF_ROOT",
    "EXP",
    "INVERSE",
    "INVERSE_ROOT",
    "LOG",
    "POWER",
    "ROOT",
    "SINC_OF_ROOT",
    "SINE_RATIO",
    "Spectral",
    "power",
    "reciprocal_above",
]


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with what its derivative needs."""

    value: Callable[[Array, Any], Array]
    quotient: Callable[[Array, Array, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative where x = y."""
    slope: Callable[[Array, Any], Array] | None = None
    """The derivative by t, where the function depends on it."""


def _log_quotient(x: Array, y: Array) -> Array:
    """Return (log x − log y)/(x − y) for positive x and y of any size."""
    xp = namespace_of(x)
    root_x, root_y = xp.sqrt(x), xp.sqrt(y)
    sinh = 0.5 * (root_x / root_y - root_y / root_x)  # of half the difference of the logarithms
    return arc(-sinh * sinh, 1.0 + sinh * sinh, -1) / (root_x * root_y)


def _exp_quotient(x: Array, y: Array, t: Any) -> Array:
    """Return (exp(tx) − exp(ty))/(x − y)."""
    xp = namespace_of(x)
    half = 0.5 * t * (x - y)
    return t * xp.exp(0.5 * t * (x + y)) * sinc(-half * half, -1)


def _power_quotient(x: Array, y: Array, t: Any) -> Array:
    xp = namespace_of(x)
    return _exp_quotient(xp.log(x), xp.log(y), t) * _log_quotient(x, y)


def _raise_to(x: Array, t: Any) -> Array:
    return namespace_of(x).exp(t * namespace_of(x).log(x))


EXP = Spectral(
    lambda x, t: namespace_of(x).exp(x),
    lambda x, y, t: _exp_quotient(x, y, 1.0),
)
LOG = Spectral(
    lambda x, t: namespace_of(x).log(x),
    lambda x, y, t: _log_quotient(x, y),
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


def reciprocal_above(one: float) -> Spectral:
    """Return the function x ↦ 1/(one + x)."""
    return Spectral(
        lambda x, t: 1.0 / (one + x),
        lambda x, y, t: -1.0 / ((one + x) * (one + y)),
    )


def _analytic(
    value: Callable[[Array, Any], Array],
    derivative: Callable[[Array, Any], Array],
    slope: Callable[[Array, Any], Array] | None = None,
) -> Spectral:
    """Return the function, with quotients by Gauss quadrature of the derivative where x ≈ y.

    Between points closer than a tenth of the scale on which the function changes, five nodes are
    exact to float64; between others the quotient itself loses one digit.
    """

    def quotient(x: Array, y: Array, t: Any) -> Array:
        xp = namespace_of(x)
        gap = x - y
        close = xp.abs(gap) < 0.1 / (1.0 if t is None else 1.0 + t * t)
        nodes, weights = np.polynomial.legendre.leggauss(5)
        middle, half = 0.5 * (x + y), 0.5 * xp.where(close, gap, 0.0)
        inner = 0.0
        for node, weight in zip(nodes, weights, strict=True):
            inner = inner + 0.5 * float(weight) * derivative(middle + float(node) * half, t)
        direct = (value(x, t) - value(y, t)) / xp.where(close, 1.0, gap)
        return xp.where(close, inner, direct)

    return Spectral(value, quotient, slope)


def _square_angle(c: Array) -> tuple[Array, Array]:
    """Return θ² and θ/sin θ from the cosine c; analytic at c = 1, and beyond it by rounding."""
    u = (1.0 - c) * (1.0 + c)
    ratio = arc(u, c, 1)
    return ratio * ratio * u, ratio


def _sine_ratio(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return t * sinc(t * t * z, 1) * ratio


def _sine_ratio_derivative(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    below = sinc(z, 1)
    above = t * t * sinc_slope(t * t * z, 1) * below - sinc(t * t * z, 1) * sinc_slope(z, 1)
    return -2.0 * ratio * t * above / (below * below)


def _sine_ratio_slope(c: Array, t: Any) -> Array:
    z, ratio = _square_angle(c)
    return cosine(t * t * z, 1) * ratio


def _cosine_slope(c: Array, t: Any) -> Array:
    z, _ = _square_angle(c)
    return -t * z * sinc(t * t * z, 1)


ANGLE = _analytic(
    lambda c, t: _square_angle(c)[1],
    lambda c, t: 2.0 * _square_angle(c)[1] ** 3 * sinc_slope(_square_angle(c)[0], 1),
)
"""c = cos θ to θ/sin θ."""
COSINE = _analytic(
    lambda c, t: cosine(t * t * _square_angle(c)[0], 1),
    lambda c, t: t * _sine_ratio(c, t),
    _cosine_slope,
)
"""c = cos θ to cos tθ."""
SINE_RATIO = _analytic(_sine_ratio, _sine_ratio_derivative, _sine_ratio_slope)
"""c = cos θ to sin tθ / sin θ."""
COSINE_OF_ROOT = _analytic(lambda u, t: cosine(u, 1), lambda u, t: -0.5 * sinc(u, 1))
"""u = θ² to cos θ."""
SINC_OF_ROOT = _analytic(lambda u, t: sinc(u, 1), lambda u, t: sinc_slope(u, 1))
"""u = θ² to sin θ / θ."""
