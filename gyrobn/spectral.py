r"""Functions of an eigenvalue, with the quotients that the derivative of a matrix function needs.

.. math:: \frac{f(x) - f(y)}{x - y}, \qquad f'(x) \text{ for } x = y

without the cancellation that the quotient itself suffers where x and y are close. What several
functions of the same eigenvalues share is computed once: see :class:`Spectrum` and :class:`Pairs`.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from gyrobn.backends import Array, namespace_of
from gyrobn.scalar import SINC

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
    "Pairs",
    "Spectral",
    "Spectrum",
    "mean_curvature",
    "power",
]


class Values:
    """Eigenvalues x, and what functions of them share. Each is computed once, when asked for."""

    def __init__(self, x: Array) -> None:
        self.x = x
        self._xp = namespace_of(x)

    @cached_property
    def log(self) -> Array:
        """Their logarithms."""
        return self._xp.log(self.x)

    @cached_property
    def exp(self) -> Array:
        """Their exponentials."""
        return self._xp.exp(self.x)

    @cached_property
    def root(self) -> Array:
        """Their square roots."""
        return self._xp.sqrt(self.x)

    @cached_property
    def inverse_root(self) -> Array:
        """One over their square roots."""
        return 1.0 / self.root

    @cached_property
    def angle_of_square(self) -> Array:
        """The θ of x = θ², next to nothing in place of 0; a square may be negative by rounding."""
        return self._xp.sqrt(self._xp.clip(self.x, min=_tiny(self.x)))

    @cached_property
    def sine(self) -> Array:
        """The sin θ of x = cos θ, next to nothing in place of 0; x may exceed 1 by rounding."""
        return self._xp.sqrt(self._xp.clip((1.0 - self.x) * (1.0 + self.x), min=_tiny(self.x)))

    @cached_property
    def angle(self) -> Array:
        """The θ of x = cos θ, with every digit at small angles; never 0, as ``sine``."""
        return self._xp.atan2(self.sine, self.x)


class Spectrum:
    """Eigenvalues with what :class:`Values` has of them, and their pairs.

    Pairs refer to the values and not to this, so that nothing refers to itself: the tables go when
    the last one who asked for them does.
    """

    def __init__(self, x: Array) -> None:
        self._values = Values(x)

    def __getattr__(self, name: str) -> Array:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._values, name)

    @cached_property
    def pairs(self) -> "Pairs":
        """All pairs of eigenvalues of one matrix: tables (..., n, n)."""
        values = self._values
        return Pairs(values, values, lambda a: a[..., :, None], lambda a: a[..., None, :])


def _tiny(x: Array) -> float:
    """Return a square next to nothing; XLA multiplies angles, and no product may vanish."""
    return float(namespace_of(x).finfo(x.dtype).smallest_normal) ** 0.5  # type: ignore[no-any-return]


def _same(a: Array) -> Array:
    return a


class Pairs:
    """Pairs of eigenvalues x and y, and the tables that quotients share.

    ``rows`` and ``columns`` make what a spectrum has broadcast against that of the other.
    """

    def __init__(
        self,
        x: Values | Spectrum,
        y: Values | Spectrum,
        rows: Callable[[Array], Array] = _same,
        columns: Callable[[Array], Array] = _same,
    ) -> None:
        self._x, self._y, self._rows, self._columns = x, y, rows, columns

    def of(self, name: str) -> tuple[Array, Array]:
        """Return what both spectra have under a name."""
        return self._rows(getattr(self._x, name)), self._columns(getattr(self._y, name))

    @cached_property
    def largest(self) -> Array:
        """The larger of x and y."""
        x, y = self.of("x")
        return namespace_of(x).maximum(x, y)

    # With d = |log x − log y|, made next to nothing where it is zero, d/(1 − exp(−d)) has no
    # cancellation; that d itself has, where it is small, does not matter.

    @cached_property
    def drop(self) -> Array:
        """Minus the difference of the logarithms: −d."""
        return negative_gap(*self.of("log"))

    @cached_property
    def loss(self) -> Array:
        """The smaller over the larger, minus 1: exp(−d) − 1."""
        return namespace_of(self.drop).expm1(self.drop)

    @cached_property
    def ratio(self) -> Array:
        """The quotient d/(1 − exp(−d))."""
        return self.drop / self.loss

    @cached_property
    def curvature(self) -> Array:
        """The quotient a coth a, a = d/2."""
        return self.ratio + 0.5 * self.drop

    @cached_property
    def cosine_quotient(self) -> Array:
        """(cos a − cos b)/(a² − b²) for the angles a and b of the cosines x and y."""
        return _cosine_quotient(*self.of("angle"))

    @cached_property
    def sinc_quotient(self) -> Array:
        """(sinc a − sinc b)/(a² − b²)."""
        return _sinc_quotient(*self.of("angle"))


def negative_gap(a: Array, b: Array) -> Array:
    """Return −|a − b|, next to nothing in place of 0."""
    xp = namespace_of(a)
    return -1e8 * float(xp.finfo(a.dtype).smallest_normal) - xp.abs(a - b)


def mean_curvature(logs: Array) -> Array:
    """Return a coth a for all pairs of logarithms of eigenvalues, a half their difference."""
    drop = negative_gap(logs[..., :, None], logs[..., None, :])
    return drop / namespace_of(logs).expm1(drop) + 0.5 * drop


class Spectral(NamedTuple):
    """A function f(x, t) of an eigenvalue, with what its derivative needs."""

    value: Callable[[Spectrum, Any], Array]
    quotient: Callable[[Pairs, Any], Array]
    """(f(x, t) − f(y, t))/(x − y), and the derivative where x = y."""
    slope: Callable[[Spectrum, Any], Array] | None = None
    """The derivative by t, where the function depends on it."""


def _exp_quotient(p: Pairs, t: Any) -> Array:
    """Return (exp x − exp y)/(x − y) = exp(x) (1 − exp(−d))/d, for x = y + d."""
    x, y = p.of("x")
    xp = namespace_of(x)
    drop = negative_gap(x, y)
    return xp.maximum(*p.of("exp")) * (xp.expm1(drop) / drop)


def _power_quotient(p: Pairs, t: Any) -> Array:
    """Return (xᵗ − yᵗ)/(x − y) = xᵗ/x (1 − exp(−td))/(1 − exp(−d)), for x = y exp(d), t > 0."""
    a, b = p.of("log")
    xp = namespace_of(a)
    large = xp.maximum(xp.exp(t * a), xp.exp(t * b)) / p.largest
    found = large * (xp.expm1(abs(t) * p.drop) / p.loss)
    if isinstance(t, (int, float)):
        return found if t > 0 else -found
    return xp.where(t < 0, -1.0 + 0.0 * t, 1.0) * found


def _raise_to(s: Spectrum, t: Any) -> Array:
    return namespace_of(s.x).exp(t * s.log)


EXP = Spectral(
    lambda s, t: s.exp,
    _exp_quotient,
)
LOG = Spectral(
    lambda s, t: s.log,
    lambda p, t: p.ratio / p.largest,
)
POWER = Spectral(
    _raise_to,
    _power_quotient,
    lambda s, t: _raise_to(s, t) * s.log,
)


def power(exponent: float) -> Spectral:
    """Return the function x ↦ x^exponent, for a number that does not change."""
    return Spectral(
        lambda s, t: _raise_to(s, exponent),
        lambda p, t: _power_quotient(p, exponent),
    )


# without the logarithm, which would lose digits of very small and very large matrices


def _root_quotient(p: Pairs, t: Any) -> Array:
    """Return that of √x: 1/(√x + √y)."""
    x, y = p.of("root")
    return 1.0 / (x + y)


def _inverse_root_quotient(p: Pairs, t: Any) -> Array:
    """Return that of 1/√x: −1/(√x √y (√x + √y))."""
    x, y = p.of("inverse_root")
    return -(_root_quotient(p, t) * x) * y


def _inverse_quotient(p: Pairs, t: Any) -> Array:
    """Return that of 1/x: −1/(xy)."""
    x, y = p.of("x")
    return (-1.0 / x) * (1.0 / y)


ROOT = Spectral(lambda s, t: s.root, _root_quotient)
INVERSE_ROOT = Spectral(lambda s, t: s.inverse_root, _inverse_root_quotient)
INVERSE = Spectral(lambda s, t: 1.0 / s.x, _inverse_quotient)


def _reciprocal_quotient(p: Pairs, t: Any) -> Array:
    x, y = p.of("x")
    return (-1.0 / (1.0 + x)) * (1.0 / (1.0 + y))


RECIPROCAL_ABOVE = Spectral(lambda s, t: 1.0 / (1.0 + s.x), _reciprocal_quotient)
"""x to 1/(1 + x)."""


# ---------------------------------------------------------------------- functions of an angle

# A function of c = cos θ is one of θ², and there cos θ and sinc θ = sin θ/θ are entire. With the
# mean m and half the difference h of two angles, a² − b² = 4mh, and
#
#     cos a − cos b = −2 sin m sin h,    sin a − sin b = 2 cos m sin h
#
# give the quotients by θ² without a difference of close numbers; those by c are ratios of them.
# The functions themselves need no series: sin θ/θ has all its digits at any θ > 0, and 0 does not
# occur. It is their derivatives that would cancel, and these are the quotients.


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


def _angle_quotient(p: Pairs, t: Any) -> Array:
    """Return that of θ/sin θ = 1/sinc θ."""
    a, b = p.of("angle")
    return -p.sinc_quotient / (_sinc(a) * _sinc(b) * p.cosine_quotient)


def _multiple_quotient(p: Pairs, t: Any) -> Array:
    """Return that of cos tθ."""
    a, b = p.of("angle")
    return t * t * _cosine_quotient(t * a, t * b) / p.cosine_quotient


def _sine_ratio_quotient(p: Pairs, t: Any) -> Array:
    """Return that of q = sin tθ/sin θ, from the product q · sinc θ = t sinc tθ."""
    a, b = p.of("angle")
    c, d = _sinc(a), _sinc(b)
    mean = 0.5 * t * (_sinc(t * a) / c) + 0.5 * t * (_sinc(t * b) / d)
    change = t**3 * _sinc_quotient(t * a, t * b) - mean * p.sinc_quotient
    return change / ((0.5 * c + 0.5 * d) * p.cosine_quotient)


def _cosine_slope(s: Spectrum, t: Any) -> Array:
    return -s.angle * namespace_of(s.x).sin(t * s.angle)


ANGLE = Spectral(lambda s, t: s.angle / s.sine, _angle_quotient)
"""c = cos θ to θ/sin θ."""
COSINE = Spectral(
    lambda s, t: namespace_of(s.x).cos(t * s.angle), _multiple_quotient, _cosine_slope
)
"""c = cos θ to cos tθ."""
SINE_RATIO = Spectral(
    lambda s, t: namespace_of(s.x).sin(t * s.angle) / s.sine,
    _sine_ratio_quotient,
    lambda s, t: namespace_of(s.x).cos(t * s.angle) * (s.angle / s.sine),
)
"""c = cos θ to sin tθ / sin θ."""
COSINE_OF_ROOT = Spectral(
    lambda s, t: namespace_of(s.x).cos(s.angle_of_square),
    lambda p, t: _cosine_quotient(*p.of("angle_of_square")),
)
"""u = θ² to cos θ."""
SINC_OF_ROOT = Spectral(
    lambda s, t: namespace_of(s.x).sin(s.angle_of_square) / s.angle_of_square,
    lambda p, t: _sinc_quotient(*p.of("angle_of_square")),
)
"""u = θ² to sin θ / θ."""
