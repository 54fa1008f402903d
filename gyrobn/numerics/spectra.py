"""Eigenvalues, alone and in pairs, with the terms that their functions share.

Each term is computed when it is first needed, and once: several functions of the same matrix, and
their derivatives, ask for the same logarithms and differences.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from gyrobn.backends import Array, namespace_of
from gyrobn.numerics.arrays import constant


class Values:
    """Eigenvalues x, and terms that their functions share, each computed when first needed."""

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

    # of x = θ²

    @cached_property
    def angle_of_square(self) -> Array:
        """The θ of x = θ², but a tiny number instead of 0; rounding may make a square negative."""
        return self._xp.sqrt(self._xp.clip(self.x, min=_tiny(self.x)))

    @cached_property
    def half_angle_of_square(self) -> Array:
        """Half of that θ."""
        return 0.5 * self.angle_of_square

    @cached_property
    def cosine_of_root(self) -> Array:
        """The cosine of that θ."""
        return self._xp.cos(self.angle_of_square)

    @cached_property
    def sinc_of_root(self) -> Array:
        """The sine of that θ, divided by θ."""
        return self._xp.sin(self.angle_of_square) / self.angle_of_square

    @cached_property
    def powers_of_square(self) -> Array:
        """The powers of x, or of 0 if x exceeds π²: see :func:`_quotients`."""
        small = self._xp.clip(self.x, min=0.0)
        return _powers(self._xp.where(small < math.pi**2, small, 0.0))

    # of x = cos θ

    @cached_property
    def sine(self) -> Array:
        """The sin θ of x = cos θ, but a tiny number instead of 0; rounding may make x exceed 1."""
        return self._xp.sqrt(self._xp.clip((1.0 - self.x) * (1.0 + self.x), min=_tiny(self.x)))

    @cached_property
    def angle(self) -> Array:
        """The θ of x = cos θ, accurate at small angles too, and like ``sine`` never 0."""
        return self._xp.atan2(self.sine, self.x)

    @cached_property
    def stretch(self) -> Array:
        """The θ/sin θ of x = cos θ."""
        return self.angle / self.sine

    @cached_property
    def powers(self) -> Array:
        """The powers of θ²: see :func:`_quotients`."""
        return _powers(self.angle * self.angle)


class Spectrum:
    """Eigenvalues with the terms of :class:`Values`, and their pairs.

    The pairs refer to the values and not to this object, so there is no reference cycle: the
    tables are freed as soon as nobody uses them.
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
        xp = namespace_of(values.x)
        return Pairs(
            values,
            values,
            lambda a: a[..., :, None],
            lambda a: a[..., None, :],
            lambda a, b: xp.matmul(a, xp.matrix_transpose(b)),
        )


def _tiny(x: Array) -> float:
    """Return a tiny square; XLA multiplies angles, and the product must not underflow."""
    return float(namespace_of(x).finfo(x.dtype).smallest_normal) ** 0.5  # type: ignore[no-any-return]


def _same(a: Array) -> Array:
    return a


def _dots(a: Array, b: Array) -> Array:
    return namespace_of(a).sum(a * b, axis=-1)


class Pairs:
    """Pairs of eigenvalues x and y, and the tables that divided differences share.

    ``rows`` and ``columns`` reshape the terms of x and of y so that they broadcast against each
    other. ``products`` returns the inner products of vectors, one vector per eigenvalue.
    """

    def __init__(
        self,
        x: Values | Spectrum,
        y: Values | Spectrum,
        rows: Callable[[Array], Array] = _same,
        columns: Callable[[Array], Array] = _same,
        products: Callable[[Array, Array], Array] = _dots,
    ) -> None:
        self._x, self._y, self._rows, self._columns = x, y, rows, columns
        self._products = products

    def of(self, name: str) -> tuple[Array, Array]:
        """Return the term of this name for x and for y, ready to broadcast."""
        return self._rows(getattr(self._x, name)), self._columns(getattr(self._y, name))

    @cached_property
    def largest(self) -> Array:
        """The larger of x and y."""
        x, y = self.of("x")
        return namespace_of(x).maximum(x, y)

    # With d = |log x − log y|, or a tiny number if that is zero, d/(1 − exp(−d)) does not cancel.
    # A small d has few digits, but the quotient hardly depends on it.

    @cached_property
    def drop(self) -> Array:
        """Minus the difference of the logarithms: −d."""
        return negative_gap(*self.of("log"))

    @cached_property
    def loss(self) -> Array:
        """The smaller divided by the larger, minus 1: exp(−d) − 1."""
        return namespace_of(self.drop).expm1(self.drop)

    @cached_property
    def ratio(self) -> Array:
        """The quotient d/(1 − exp(−d))."""
        return self.drop / self.loss

    @cached_property
    def curvature(self) -> Array:
        """The quotient a coth a, a = d/2."""
        found = 0.5 * self.drop
        found += self.ratio
        return found

    def even_power(self, t: Any) -> Array:
        """Return half the divided difference of the power t, over √(xy)ᵗ: sinh(td/2)/|x − y|."""
        found = namespace_of(self.drop).sinh((0.5 * t) * self.drop)
        found /= self.loss  # in place: fresh memory costs more than the division
        found /= self.largest
        return found

    # With the mean m and half the difference h of two angles, a² − b² = 4mh, and
    #
    #     cos a − cos b = −2 sin m sin h,    sin a − sin b = 2 cos m sin h
    #
    # give the divided differences of cos θ and sinc θ by θ² without cancellation. At small angles
    # that of sinc comes from a series instead.

    @cached_property
    def angle(self) -> Array:
        """The divided difference of θ/sin θ = 1/sinc θ by x = cos θ."""
        x, y = self.of("stretch")
        cosine, sinc = (self._series("powers", of) for of in ("cosine", "sinc"))
        return sinc / cosine * (x * y)

    @cached_property
    def logarithm(self) -> tuple[Array, Array]:
        """The factors α and L − α of :func:`gyrobn.manifolds.principal.logarithm`."""
        x, y = self.of("x")
        _, stretch = self.of("stretch")
        xp = namespace_of(x)
        direct = (self.angle * y - stretch) / xp.clip(x + y, min=float(xp.finfo(x.dtype).eps))
        return direct, self.angle - direct

    @cached_property
    def quotients_of_root(self) -> tuple[Array, Array]:
        """The divided differences of cos √x and sinc √x by x, for angles √x of any size."""
        a, b = self.of("half_angle_of_square")
        c, d = self.of("sinc_of_root")
        xp = namespace_of(a)
        m, h = a + b, abs(a - b) + _tiny(a)
        close = xp.sin(h) / h
        near = m < 0.5 * math.pi
        away = (xp.cos(m) * close - 0.5 * (c + d)) / xp.where(near, 1.0, 2.0 * m * m)
        sinc = xp.where(near, -self._series("powers_of_square", "sinc"), away)
        return -0.5 * (xp.sin(m) / m) * close, sinc

    def _series(self, name: str, of: str) -> Array:
        x, y = getattr(self._x, name), getattr(self._y, name)
        return self._products(namespace_of(x).matmul(x, constant(_quotients, x, of)), y)


_TERMS = 16
"""Number of powers of θ² that the series of cosine and sinc need for angles up to π."""


def _powers(u: Array) -> Array:
    """Return 1, u, u², ... along a new last axis."""
    return u[..., None] ** constant(np.arange, u, float(_TERMS))


def _quotients(of: str) -> "np.ndarray[Any, Any]":
    """Return the matrix Q for which vᵀQw is the divided difference of cos, or of −sinc.

    v and w hold the powers of two squared angles. The divided difference of uᵏ is the sum of all
    products of two powers whose exponents sum to k − 1.
    """
    sign, more = (1.0, 0) if of == "cosine" else (-1.0, 1)
    powers = [sign * (-1.0) ** k / math.factorial(2 * k + more) for k in range(1, 2 * _TERMS)]
    i, j = np.indices((_TERMS, _TERMS))
    return np.where(i + j < _TERMS, np.asarray(powers)[i + j], 0.0)


def negative_gap(a: Array, b: Array) -> Array:
    """Return −|a − b|, but a tiny negative number instead of 0."""
    xp = namespace_of(a)
    gap = xp.abs(a - b)
    gap += 1e8 * float(xp.finfo(a.dtype).smallest_normal)  # in place, as above
    gap *= -1.0
    return gap


def mean_curvature(logs: Array) -> Array:
    """Return a coth a for all pairs of logarithms of eigenvalues, where 2a is their difference."""
    drop = negative_gap(logs[..., :, None], logs[..., None, :])
    return drop / namespace_of(logs).expm1(drop) + 0.5 * drop
