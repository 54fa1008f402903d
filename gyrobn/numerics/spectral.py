r"""Functions of an eigenvalue, with the divided differences that matrix derivatives need.

The derivative of a matrix function is made of the quotients

.. math:: \frac{f(x) - f(y)}{x - y}, \qquad f'(x) \text{ for } x = y,

of all pairs of eigenvalues. The forms here do not cancel where x and y are close. Terms that
several functions share are in :mod:`gyrobn.numerics.spectra`. The second derivative takes the
quotients of these quotients: see :mod:`gyrobn.numerics.triples`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.spectra import Pairs, Spectrum, Values, negative_gap
from gyrobn.numerics.triples import NEAR, TERMS, Triples, homogeneous


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with the terms of its derivative."""

    value: Callable[[Spectrum, Any], Array]
    quotient: Callable[[Pairs, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative if x = y."""
    second: Callable[[Triples, Any], Array] | None = None
    """The quotient of the quotients; without it there is no second derivative."""
    slope: Callable[[Spectrum, Any], Array] | None = None
    """The derivative by t, if the function depends on t."""


def _exp_quotient(p: Pairs, t: Any) -> Array:
    """Return (exp x − exp y)/(x − y) = exp(x) (1 − exp(−d))/d, for x = y + d."""
    x, y = p.of("x")
    xp = namespace_of(x)
    drop = negative_gap(x, y)
    return xp.maximum(*p.of("exp")) * (xp.expm1(drop) / drop)


def _exp_second(p: Triples, t: Any) -> Array:
    xp, powers = namespace_of(p.mean), [1.0 / math.factorial(k) for k in range(2, TERMS + 2)]
    taylor = lambda m: (xp.exp(m), powers)  # noqa: E731
    return p.joined(_exp_quotient, taylor, width=5.0 * NEAR, relative=False)


def _log_quotient(p: Pairs, t: Any) -> Array:
    return p.ratio / p.largest


def _log_second(p: Triples, t: Any) -> Array:
    powers = [-((-1.0) ** k) / k for k in range(2, TERMS + 2)]
    return p.joined(_log_quotient, lambda m: (1.0 / (m * m), powers))


def _raise_to(s: Spectrum, t: Any) -> Array:
    return namespace_of(s.x).exp(t * s.log)


def _power_quotient(p: Pairs, t: Any) -> Array:
    """Return (xᵗ − yᵗ)/(x − y) = xᵗ/x (1 − exp(−td))/(1 − exp(−d)), for x = y exp(d), t > 0.

    For an array t it has a form that is smooth in t: √(xy)ᵗ 2 sinh(td/2)/|x − y|.
    """
    a, b = p.of("log")
    xp = namespace_of(a)
    if not isinstance(t, (int, float)):
        return 2.0 * xp.exp((0.5 * t) * (a + b)) * p.even_power(t)
    large = xp.maximum(xp.exp(t * a), xp.exp(t * b)) / p.largest
    found = large * (xp.expm1(abs(t) * p.drop) / p.loss)
    return found if t > 0 else -found


def _power_second(p: Triples, t: Any) -> Array:
    binomials, last = [], 0.5 * t * (t - 1.0)
    for k in range(2, TERMS + 2):
        binomials.append(last)
        last = last * (t - k) / (k + 1.0)
    xp = namespace_of(p.mean)
    return p.joined(_power_quotient, lambda m: (xp.exp((t - 2.0) * xp.log(m)), binomials), t)


EXP = Spectral(lambda s, t: s.exp, _exp_quotient, _exp_second)
LOG = Spectral(lambda s, t: s.log, _log_quotient, _log_second)
POWER = Spectral(
    _raise_to, _power_quotient, _power_second, slope=lambda s, t: _raise_to(s, t) * s.log
)


def power(exponent: float) -> Spectral:
    """Return the function x ↦ x^exponent for a constant exponent."""
    return Spectral(
        lambda s, t: _raise_to(s, exponent),
        lambda p, t: _power_quotient(p, exponent),
        lambda p, t: _power_second(p, exponent),
    )


# These avoid the logarithm, which would lose digits of very small and very large matrices.


def _root_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of √x: 1/(√x + √y)."""
    x, y = p.of("root")
    return 1.0 / (x + y)


def _root_second(p: Triples, t: Any) -> Array:
    """Return −1/((a + b)(b + c)(a + c)), of the three roots."""
    a, b, c = (Values(x).root for x in p.all)
    return -1.0 / ((a + b) * (b + c) * (a + c))


def _inverse_root_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of 1/√x: −1/(√x √y (√x + √y))."""
    x, y = p.of("inverse_root")
    return -(_root_quotient(p, t) * x) * y


def _inverse_root_second(p: Triples, t: Any) -> Array:
    a, b, c = (Values(x).root for x in p.all)
    return -(a + b + c) / (a * b * c) * _root_second(p, t)


def _inverse_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of 1/x: −1/(xy)."""
    x, y = p.of("x")
    return (-1.0 / x) * (1.0 / y)


def _inverse_second(p: Triples, t: Any) -> Array:
    x, y, z = (1.0 / a for a in p.all)
    return x * y * z


ROOT = Spectral(lambda s, t: s.root, _root_quotient, _root_second)
INVERSE_ROOT = Spectral(lambda s, t: s.inverse_root, _inverse_root_quotient, _inverse_root_second)
INVERSE = Spectral(lambda s, t: 1.0 / s.x, _inverse_quotient, _inverse_second)


def _angle_second(p: Triples, t: Any) -> Array:
    r"""Return that of θ/sin θ as a function of cos θ, for angles up to π/2.

    The function is :math:`\sum_k \frac{k!}{(2k+1)!!}(1 - \cos\theta)^k`, without a negative term.
    """
    coefficients, last = [], 1.0
    for k in range(1, 70):
        last *= k / (2.0 * k + 1.0)
        coefficients.append(last)
    return homogeneous(coefficients[1:], *(1.0 - a for a in p.all))


NEAR_ANGLES = math.pi**2
"""Below, the squares of angles need no Taylor series but the power series."""


def _root_angle_second(p: Triples, sinc: bool) -> Array:
    r"""Return that of cos √x or sinc √x, for angles √x of any size.

    With :math:`g = \cos\sqrt x`, the Taylor series follows from :math:`4xg'' + 2g' + g = 0`,
    and :math:`\operatorname{sinc}\sqrt x = -2g'`.
    """
    xp, more = namespace_of(p.mean), int(sinc)
    powers = [(-1.0) ** k / math.factorial(2 * k + more) for k in range(2, TERMS + 4)]
    small = p.high < NEAR_ANGLES
    series = homogeneous(powers, *(xp.where(small, xp.clip(a, min=0.0), 0.0) for a in p.all))

    def taylor(m: Array) -> tuple[Array, Sequence[Array]]:
        theta = xp.sqrt(m)
        scaled = [xp.cos(theta), -0.5 * theta * xp.sin(theta)]  # times mᵏ
        for k in range(TERMS + 2):
            rest = (4.0 * k + 2.0) * (k + 1.0) * scaled[-1] + m * scaled[-2]
            scaled.append(rest / (-4.0 * (k + 2.0) * (k + 1.0)))
        if sinc:  # one order more, and m in the denominator
            scaled = [-2.0 * (k + 1.0) * c / m for k, c in enumerate(scaled[1:])]
        return 1.0 / (m * m), scaled[2 : TERMS + 2]

    large = Triples(*(xp.where(small, NEAR_ANGLES, a) for a in p.all))
    away = large.joined(lambda pairs, t: pairs.quotients_of_root[more], taylor)
    return xp.where(small, series, away)


ANGLE = Spectral(lambda s, t: s.stretch, lambda p, t: p.angle, _angle_second)
"""The function that maps cos θ to θ/sin θ."""
COSINE_OF_ROOT = Spectral(
    lambda s, t: s.cosine_of_root,
    lambda p, t: p.quotients_of_root[0],
    lambda p, t: _root_angle_second(p, sinc=False),
)
"""The function that maps θ² to cos θ."""
SINC_OF_ROOT = Spectral(
    lambda s, t: s.sinc_of_root,
    lambda p, t: p.quotients_of_root[1],
    lambda p, t: _root_angle_second(p, sinc=True),
)
"""The function that maps θ² to sin θ/θ."""
