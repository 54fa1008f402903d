r"""Functions of angles, for :func:`matrix_function`, and orthonormal columns.

Angles θ appear as their cosines, the eigenvalues of the symmetric part of a rotation, or as their
squares, the eigenvalues of :math:`X^\top X` for a skew matrix X.
"""

import math

import numpy as np

from gyrobn.core.backends import Array, namespace_of
from gyrobn.core.numerics.matrices import adjoint, matmul
from gyrobn.core.numerics.matrix_functions import Spectral

# ---------------------------------------------------------------------- of cos θ

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(14)
_RULE = [(float(0.5 + 0.5 * t), float(w)) for t, w in zip(_NODES, _WEIGHTS, strict=True)]
"""Nodes t in [0, 1] and twice their weights, for angles up to π/2: 15 digits."""


def _angle(x: Array) -> Array:
    xp = namespace_of(x)
    sine = xp.sqrt(xp.clip((1.0 - x) * (1.0 + x), min=_tiny(x)))
    return xp.atan2(sine, x) / sine


def _angle_difference(*x: Array) -> Array:
    total = 0.0
    for t, w in _RULE:
        term = w * (-2.0 * t) ** (len(x) - 1)
        for one in x:
            term = term / ((1.0 + t * t) + (2.0 * t) * one)
        total = total + term
    return total


class _Angle(Spectral):
    r"""The function :math:`\cos\theta \mapsto \theta/\sin\theta = 2\int_0^1 dt/(1 + 2t\cos\theta + t^2)`.

    So a divided difference is the integral of a product of such quotients, which has one sign.
    """

    def difference(self, x: Array, y: Array) -> Array:
        return _angle_difference(x, y)

    def second_difference(self, x: Array, y: Array, z: Array) -> Array:
        return _angle_difference(x, y, z)


ANGLE = _Angle(
    _angle, lambda x: _angle_difference(x, x), lambda x: 2.0 * _angle_difference(x, x, x)
)

# ---------------------------------------------------------------------- of θ²

_TERMS = 11
_SERIES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(_TERMS + 2)]
"""The power series of sin θ/θ in θ²."""


def _theta(x: Array) -> Array:
    """Return θ, or a tiny number in place of 0; rounding may make a square negative."""
    xp = namespace_of(x)
    return xp.sqrt(xp.clip(x, min=_tiny(x)))


def _tiny(x: Array) -> float:
    """Return a number whose square and root can be divided by: XLA has no subnormal numbers."""
    return float(namespace_of(x).finfo(x.dtype).smallest_normal) ** 0.5


def _cosine(x: Array) -> Array:
    return namespace_of(x).cos(_theta(x))


def _sinc(x: Array) -> Array:
    theta = _theta(x)
    return namespace_of(x).sin(theta) / theta


def _sinc_derivative(x: Array, order: int) -> Array:
    r"""Return a derivative of :math:`f(x) = \sin\sqrt x/\sqrt x`, of the first or second order.

    By its power series below 1, and else by :math:`2xf' = \cos\sqrt x - f` and
    :math:`2xf'' = -\tfrac12 f - 3f'`.
    """
    xp = namespace_of(x)
    near = x < 1.0
    small, large = xp.where(near, x, 0.0), xp.where(near, 1.0, x)
    series = xp.zeros_like(x)
    for k in reversed(range(order, _TERMS + order)):
        series = series * small + _SERIES[k] * math.perm(k, order)
    f = _sinc(large)
    away = (_cosine(large) - f) / (2.0 * large)
    if order == 2:
        away = -(0.5 * f + 3.0 * away) / (2.0 * large)
    return xp.where(near, series, away)


class _OfRoot(Spectral):
    """A function of θ², whose divided difference has a closed form in two angles.

    With the mean m and half the difference h of two angles a and b, a² − b² = 4mh,
    cos a − cos b = −2 sin m sin h, and sin a − sin b = 2 cos m sin h.
    """


class _Cosine(_OfRoot):
    def difference(self, x: Array, y: Array) -> Array:
        a, b = _theta(x), _theta(y)
        return -0.5 * _sinc((0.5 * (a + b)) ** 2) * _sinc((0.5 * (a - b)) ** 2)


class _Sinc(_OfRoot):
    def difference(self, x: Array, y: Array) -> Array:
        """Return the closed form, or below 1, where it cancels, that of the power series."""
        xp = namespace_of(x)
        near = xp.maximum(x, y) < 1.0
        first, last = xp.where(near, x, 0.0), xp.where(near, y, 0.0)
        value, series = xp.zeros_like(first), xp.zeros_like(first)
        for c in reversed(_SERIES[:_TERMS]):  # Horner's scheme, of the function and its difference
            value, series = value * first + c, series * last + value
        a, b = _theta(x), _theta(y)
        m = xp.where(near, 1.0, 0.5 * (a + b))
        mixed = xp.cos(m) * _sinc((0.5 * (a - b)) ** 2)
        away = (mixed - 0.5 * (_sinc(x) + _sinc(y))) / (2.0 * m * m)
        return xp.where(near, series, away)


COSINE_OF_ROOT = _Cosine(
    _cosine, lambda x: -0.5 * _sinc(x), lambda x: -0.5 * _sinc_derivative(x, 1), relative=False
)
"""The function that maps θ² to cos θ."""

SINC_OF_ROOT = _Sinc(
    _sinc, lambda x: _sinc_derivative(x, 1), lambda x: _sinc_derivative(x, 2), relative=False
)
"""The function that maps θ² to sin θ/θ."""


# ---------------------------------------------------------------------- orthonormal columns


def orthonormalized(U: Array) -> Array:
    r"""Return nearly orthonormal columns after a step of third order to the polar factor.

    .. math:: U\,(15 I - 10 G + 3 G^2)/8, \qquad G = U^\top U
    """
    G = matmul(adjoint(U), U)
    UG = matmul(U, G)
    return 1.875 * U - 1.25 * UG + 0.375 * matmul(UG, G)
