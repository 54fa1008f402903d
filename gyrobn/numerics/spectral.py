r"""Functions of an eigenvalue, with the divided differences that matrix derivatives need.

The derivative of a matrix function is made of the quotients

.. math:: \frac{f(x) - f(y)}{x - y}, \qquad f'(x) \text{ for } x = y,

of all pairs of eigenvalues. The forms here do not cancel where x and y are close. Terms that
several functions share are in :mod:`gyrobn.numerics.spectra`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.spectra import Pairs, Spectrum, negative_gap

if TYPE_CHECKING:
    from gyrobn.numerics.triples import Triples

__all__ = [
    "ANGLE",
    "COSINE_OF_ROOT",
    "EXP",
    "INVERSE",
    "INVERSE_ROOT",
    "LOG",
    "POWER",
    "ROOT",
    "SINC_OF_ROOT",
    "Spectral",
    "power",
]


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with the terms of its derivative."""

    value: Callable[[Spectrum, Any], Array]
    quotient: Callable[[Pairs, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative if x = y."""
    slope: Callable[[Spectrum, Any], Array] | None = None
    """The derivative by t, if the function depends on t."""
    second: Callable[["Triples", Any], Array] | None = None
    """The quotient of the quotients, for second derivatives: see ``numerics/triples.py``."""


def _exp_quotient(p: Pairs, t: Any) -> Array:
    """Return (exp x − exp y)/(x − y) = exp(x) (1 − exp(−d))/d, for x = y + d."""
    x, y = p.of("x")
    xp = namespace_of(x)
    drop = negative_gap(x, y)
    return xp.maximum(*p.of("exp")) * (xp.expm1(drop) / drop)


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


def _raise_to(s: Spectrum, t: Any) -> Array:
    return namespace_of(s.x).exp(t * s.log)


def _log_quotient(p: Pairs, t: Any) -> Array:
    return p.ratio / p.largest


EXP = Spectral(lambda s, t: s.exp, _exp_quotient, second=lambda p, t: p.exp(_exp_quotient))
LOG = Spectral(lambda s, t: s.log, _log_quotient, second=lambda p, t: p.log(_log_quotient))
POWER = Spectral(
    _raise_to,
    _power_quotient,
    lambda s, t: _raise_to(s, t) * s.log,
    lambda p, t: p.power(_power_quotient, t),
)


def power(exponent: float) -> Spectral:
    """Return the function x ↦ x^exponent for a constant exponent."""
    return Spectral(
        lambda s, t: _raise_to(s, exponent),
        lambda p, t: _power_quotient(p, exponent),
        second=lambda p, t: p.power(_power_quotient, exponent),
    )


# These avoid the logarithm, which would lose digits of very small and very large matrices.


def _root_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of √x: 1/(√x + √y)."""
    x, y = p.of("root")
    return 1.0 / (x + y)


def _inverse_root_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of 1/√x: −1/(√x √y (√x + √y))."""
    x, y = p.of("inverse_root")
    return -(_root_quotient(p, t) * x) * y


def _inverse_quotient(p: Pairs, t: Any) -> Array:
    """Return the divided difference of 1/x: −1/(xy)."""
    x, y = p.of("x")
    return (-1.0 / x) * (1.0 / y)


ROOT = Spectral(lambda s, t: s.root, _root_quotient, second=lambda p, t: p.root())
INVERSE_ROOT = Spectral(
    lambda s, t: s.inverse_root, _inverse_root_quotient, second=lambda p, t: p.inverse_root()
)
INVERSE = Spectral(lambda s, t: 1.0 / s.x, _inverse_quotient, second=lambda p, t: p.inverse())


ANGLE = Spectral(lambda s, t: s.stretch, lambda p, t: p.angle, second=lambda p, t: p.angle())
"""The function that maps cos θ to θ/sin θ."""
COSINE_OF_ROOT = Spectral(
    lambda s, t: s.cosine_of_root,
    lambda p, t: p.quotients_of_root[0],
    second=lambda p, t: p.of_root(False),
)
"""The function that maps θ² to cos θ."""
SINC_OF_ROOT = Spectral(
    lambda s, t: s.sinc_of_root,
    lambda p, t: p.quotients_of_root[1],
    second=lambda p, t: p.of_root(True),
)
"""The function that maps θ² to sin θ/θ."""
