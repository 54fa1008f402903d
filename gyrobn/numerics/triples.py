r"""Second divided differences, which the second derivative of a matrix function needs.

.. math:: f[x, y, z] = \frac{f[x, y] - f[y, z]}{x - z}, \qquad
          f[x, x, x] = \tfrac12 f''(x)

without the cancellation that the quotient suffers where x, y and z are close. There a Taylor series
at their mean m takes its place:

.. math:: f[x, y, z] = \sum_{k \ge 0} \frac{f^{(k+2)}(m)}{(k+2)!}\, h_k(x - m, y - m, z - m)

with the complete homogeneous polynomials :math:`h_k`, the sums of all products of k factors.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.spectra import Pairs, Values

NEAR = 0.1
"""Eigenvalues are close if they differ by less than this part of their mean."""
TERMS = 16
"""Number of terms of a Taylor series."""


class Triples:
    """Three arrays of eigenvalues that broadcast against each other."""

    def __init__(self, x: Array, y: Array, z: Array) -> None:
        xp = namespace_of(x)
        self.all = x, y, z
        small, large = xp.minimum(x, y), xp.maximum(x, y)
        self.high, self.low = xp.maximum(large, z), xp.minimum(small, z)
        self.middle = xp.maximum(small, xp.minimum(large, z))
        self.mean = (x + y + z) / 3.0

    def joined(
        self,
        quotient: Callable[[Pairs, Any], Array],
        taylor: Callable[[Array], tuple[Array, Sequence[Any]]],
        t: Any = None,
        width: float = NEAR,
        relative: bool = True,
    ) -> Array:
        r"""Return the quotient of first differences, or where the three are close the series.

        ``taylor(m)`` returns a factor and what multiplies it and :math:`h_k(\delta)`, where δ are
        the differences from m, divided by m if ``relative``; then the factor has its square.
        """
        xp, scale = namespace_of(self.mean), self.mean if relative else 1.0
        gap = self.high - self.low
        near = gap < width * scale
        high, middle, low = (Values(a) for a in (self.high, self.middle, self.low))
        away = quotient(Pairs(high, middle), t) - quotient(Pairs(middle, low), t)
        offsets = (xp.where(near, (a - self.mean) / scale, 0.0) for a in self.all)
        factor, coefficients = taylor(self.mean)
        series = factor * homogeneous(coefficients, *offsets)
        return xp.where(near, series, away / xp.where(near, 1.0, gap))


def homogeneous(coefficients: Sequence[Any], x: Array, y: Array, z: Array) -> Array:
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
