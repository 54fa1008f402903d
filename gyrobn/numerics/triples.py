r"""Second divided differences, which the second derivative of a matrix function needs.

.. math:: f[x, y, z] = \frac{f[x, y] - f[y, z]}{x - z}, \qquad
          f[x, x, x] = \tfrac12 f''(x)

without the cancellation that the quotient suffers where x, y and z are close. There a Taylor series
at their mean m takes its place:

.. math:: f[x, y, z] = \sum_{k \ge 0} \frac{f^{(k+2)}(m)}{(k+2)!}\, h_k(x - m, y - m, z - m)

with the complete homogeneous polynomials :math:`h_k`, the sums of all products of k factors.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.spectra import Pairs, Values

__all__ = ["Triples"]

Quotient = Callable[[Pairs, Any], Array]
"""A first divided difference, as a function of pairs and of t."""

NEAR = 0.1
"""Eigenvalues are close if they differ by less than this part of their mean."""
NEAR_ANGLES = math.pi**2
"""Below, the squares of angles need no Taylor series but the power series."""
TERMS = 16


class Triples:
    """Three arrays of eigenvalues that broadcast against each other."""

    def __init__(self, x: Array, y: Array, z: Array) -> None:
        xp = self._xp = namespace_of(x)
        self.all = x, y, z
        small, large = xp.minimum(x, y), xp.maximum(x, y)
        self.high, self.low = xp.maximum(large, z), xp.minimum(small, z)
        self.middle = xp.maximum(small, xp.minimum(large, z))
        self.mean = (x + y + z) / 3.0

    def joined(
        self,
        quotient: Quotient,
        taylor: Callable[[Array], tuple[Array, Sequence[Any]]],
        t: Any = None,
        width: float = NEAR,
        relative: bool = True,
    ) -> Array:
        r"""Return the quotient of first differences, or where the three are close the series.

        ``taylor(m)`` returns a factor and what multiplies it and :math:`h_k(\delta)`, where δ are
        the differences from m, divided by m if ``relative``; then the factor has its square.
        """
        xp, scale = self._xp, self.mean if relative else 1.0
        gap = self.high - self.low
        near = gap < width * scale
        high, middle, low = (Values(a) for a in (self.high, self.middle, self.low))
        away = quotient(Pairs(high, middle), t) - quotient(Pairs(middle, low), t)
        offsets = (xp.where(near, (a - self.mean) / scale, 0.0) for a in self.all)
        factor, coefficients = taylor(self.mean)
        series = factor * _homogeneous(coefficients, *offsets)
        return xp.where(near, series, away / xp.where(near, 1.0, gap))

    def log(self, quotient: Quotient) -> Array:
        """Return the difference of the logarithm."""
        powers = [-((-1.0) ** k) / k for k in range(2, TERMS + 2)]
        return self.joined(quotient, lambda m: (1.0 / (m * m), powers))

    def exp(self, quotient: Quotient) -> Array:
        """Return that of the exponential."""
        powers = [1.0 / math.factorial(k) for k in range(2, TERMS + 2)]
        taylor = lambda m: (self._xp.exp(m), powers)  # noqa: E731
        return self.joined(quotient, taylor, width=5.0 * NEAR, relative=False)

    def power(self, quotient: Quotient, t: Any) -> Array:
        """Return that of the t-th power, t a number or an array."""
        binomials, last = [], 0.5 * t * (t - 1.0)
        for k in range(2, TERMS + 2):
            binomials.append(last)
            last = last * (t - k) / (k + 1.0)
        xp = self._xp
        return self.joined(quotient, lambda m: (xp.exp((t - 2.0) * xp.log(m)), binomials), t)

    def root(self) -> Array:
        """Return that of the square root: −1/((a + b)(b + c)(a + c)), of the three roots."""
        a, b, c = (Values(x).root for x in self.all)
        return -1.0 / ((a + b) * (b + c) * (a + c))

    def inverse_root(self) -> Array:
        """Return that of one over the root."""
        a, b, c = (Values(x).root for x in self.all)
        return -(a + b + c) / (a * b * c) * self.root()

    def inverse(self) -> Array:
        """Return that of 1/x."""
        x, y, z = (1.0 / a for a in self.all)
        return x * y * z

    def angle(self) -> Array:
        r"""Return that of θ/sin θ as a function of cos θ, for angles up to π/2.

        It is :math:`\sum_k \frac{k!}{(2k+1)!!}(1 - \cos\theta)^k`, without a negative term.
        """
        coefficients, last = [], 1.0
        for k in range(1, 70):
            last *= k / (2.0 * k + 1.0)
            coefficients.append(last)
        return _homogeneous(coefficients[1:], *(1.0 - a for a in self.all))

    def of_root(self, sinc: bool) -> Array:
        r"""Return that of cos √x or sinc √x, for angles √x of any size.

        With :math:`g = \cos\sqrt x`, the Taylor series follows from :math:`4xg'' + 2g' + g = 0`,
        and :math:`\operatorname{sinc}\sqrt x = -2g'`.
        """
        xp, more = self._xp, int(sinc)
        powers = [(-1.0) ** k / math.factorial(2 * k + more) for k in range(2, TERMS + 4)]
        small = self.high < NEAR_ANGLES
        series = _homogeneous(
            powers, *(xp.where(small, xp.clip(a, min=0.0), 0.0) for a in self.all)
        )

        def taylor(m: Array) -> tuple[Array, Sequence[Array]]:
            theta = xp.sqrt(m)
            scaled = [xp.cos(theta), -0.5 * theta * xp.sin(theta)]  # times mᵏ
            for k in range(TERMS + 2):
                rest = (4.0 * k + 2.0) * (k + 1.0) * scaled[-1] + m * scaled[-2]
                scaled.append(rest / (-4.0 * (k + 2.0) * (k + 1.0)))
            if sinc:  # one order more, and m in the denominator
                scaled = [-2.0 * (k + 1.0) * c / m for k, c in enumerate(scaled[1:])]
            return 1.0 / (m * m), scaled[2 : TERMS + 2]

        large = Triples(*(xp.where(small, NEAR_ANGLES, a) for a in self.all))
        away = large.joined(lambda p, t: p.quotients_of_root[more], taylor)
        return xp.where(small, series, away)


def _homogeneous(coefficients: Sequence[Any], x: Array, y: Array, z: Array) -> Array:
    r"""Return :math:`\sum_k c_k h_k(x, y, z)`.

    By the elementary polynomials e it is :math:`h_k = e_1 h_{k-1} - e_2 h_{k-2} + e_3 h_{k-3}`.
    """
    one, two, three = x + y + z, x * y + (x + y) * z, x * y * z
    total: Any = 0.0
    before, last, this = 0.0, 0.0, 1.0 + 0.0 * one
    for c in coefficients:
        total = total + c * this
        before, last, this = last, this, one * this - two * last + three * before
    return total
