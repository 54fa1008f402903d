r"""The polar decomposition, functions of angles, and orthonormal columns.

Angles θ appear as their cosines, the eigenvalues of the symmetric part of a rotation, or as their
squares, the eigenvalues of :math:`X^\top X` for a skew matrix X.
"""

import math
from typing import Any

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.numerics.matrices import adjoint, diagonal_matrix, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import (
    Spectral,
    change,
    inner_function,
    svd,
)

# ---------------------------------------------------------------------- polar decomposition


def polar(A: Array, f: Spectral | None = None, singular: Arrays | None = None) -> Array:
    r"""Return the factor W of square matrices A = C W, C symmetric and semidefinite; or f(C) W.

    With :math:`A = P c\,T^\top`, :math:`E = P^\top dA\,T` and W = P exp(Ω) Tᵀ, the symmetry of C
    gives, order by order,

    .. math:: (c_i + c_j)\,\Omega_{ij} = (N - N^\top)_{ij}, \qquad
              N = E - E\Omega + \tfrac12 c\,\Omega^2 .

    ``singular`` is the decomposition of A, if it is known. A matrix whose rank is below n − 1 has
    several polar factors, and no derivative: a finite number takes its place.
    """
    least = float(namespace_of(A).finfo(A.dtype).eps)

    def function(order: int, singular: Arrays, A: Array) -> Arrays:
        P, c, Th = singular
        if order == 0:
            return (matmul(P if f is None else P * f.value(c)[..., None, :], Th),)
        E = matmul(adjoint(P), change(A), adjoint(Th))
        sums = namespace_of(c).clip(c[..., :, None] + c[..., None, :], min=least)
        Omega = (E - adjoint(E)) / sums
        W = identity(c) + Omega
        if order > 1:
            square = matmul(Omega, Omega)
            N = 0.5 * c[..., :, None] * square - matmul(E, Omega)
            W = W + (N - adjoint(N)) / sums + 0.5 * square
        if f is not None:
            constant = diagonal_matrix(c)
            dC = symmetric(matmul(constant + E, adjoint(W))) - constant
            W = matmul(inner_function(f, c, dC, order), W)
        return (matmul(P, W, Th),)

    singular = svd(A) if singular is None else singular
    return backend_of(A).differentiate(function, singular, A)[0]


# ---------------------------------------------------------------------- functions of cos θ


def _angle(x: Array) -> Array:
    xp = namespace_of(x)
    sine = xp.sqrt(xp.clip((1.0 - x) * (1.0 + x), min=_tiny(x)))
    return xp.atan2(sine, x) / sine


NODES, WEIGHTS = (a.tolist() for a in np.polynomial.legendre.leggauss(14))
"""Gauss's rule on [−1, 1], with which the next integral has 15 digits for angles up to π/2."""


def _angle_difference(*points: Array) -> Array:
    r"""Return a divided difference of :math:`f(x) = 2\int_0^1 dt/(1 + 2tx + t^2)`.

    It is the integral of a product, which has one sign: nothing cancels.
    """
    like = points[0]
    t, w = (backend_of(like).cached(make, like) for make in (_nodes, _weights))
    term = w * (-2.0 * t) ** (len(points) - 1)
    for x in points:
        term = term / ((1.0 + t * t) + (2.0 * t) * x[..., None])
    return namespace_of(like).sum(term, axis=-1)


def _nodes() -> "np.ndarray[Any, Any]":
    return 0.5 + 0.5 * np.asarray(NODES)


def _weights() -> "np.ndarray[Any, Any]":
    return np.asarray(WEIGHTS)


class _Angle(Spectral):
    def difference(self, *points: Array) -> Array:
        return _angle_difference(*points)


ANGLE = _Angle(
    (_angle, lambda x: _angle_difference(x, x), lambda x: 2.0 * _angle_difference(x, x, x))
)
"""The function that maps cos θ to θ/sin θ."""


# ---------------------------------------------------------------------- functions of θ²

TERMS = 11
SERIES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(TERMS + 2)]
"""The power series of sin θ/θ in θ²."""


def _tiny(x: Array) -> float:
    """Return a number whose square and root can be divided by: XLA has no subnormal numbers."""
    tiny: float = float(namespace_of(x).finfo(x.dtype).smallest_normal) ** 0.5
    return tiny


def _theta(x: Array) -> Array:
    """Return θ, or a tiny number in place of 0; rounding may make a square negative."""
    xp = namespace_of(x)
    return xp.sqrt(xp.clip(x, min=_tiny(x)))


def _cosine(x: Array) -> Array:
    return namespace_of(x).cos(_theta(x))


def _sinc(x: Array) -> Array:
    return _sine_ratio(_theta(x))


def _sine_ratio(a: Array) -> Array:
    return namespace_of(a).sin(a) / a


def _sinc_derivative(x: Array, order: int) -> Array:
    r"""Return a derivative of :math:`f(x) = \sin\sqrt x/\sqrt x`, of the first or second order.

    By its power series below 1, and else by :math:`2xf' = \cos\sqrt x - f` and
    :math:`2xf'' = -\tfrac12 f - 3f'`.
    """
    xp = namespace_of(x)
    near = x < 1.0
    small, large = xp.where(near, x, 0.0), xp.where(near, 1.0, x)
    series = xp.zeros_like(x)
    for k in reversed(range(order, TERMS + order)):
        series = series * small + SERIES[k] * math.perm(k, order)
    f = _sinc(large)
    away = (_cosine(large) - f) / (2.0 * large)
    if order == 2:
        away = -(0.5 * f + 3.0 * away) / (2.0 * large)
    return xp.where(near, series, away)


# With the mean m and half the difference h of two angles a and b, a² − b² = 4mh,
# cos a − cos b = −2 sin m sin h, and sin a − sin b = 2 cos m sin h.


def _mean_and_half(x: Array, y: Array) -> tuple[Array, Array]:
    a, b = 0.5 * _theta(x), 0.5 * _theta(y)
    return a + b, abs(a - b) + _tiny(x)


def _cosine_difference(x: Array, y: Array) -> Array:
    m, h = _mean_and_half(x, y)
    return -0.5 * _sine_ratio(m) * _sine_ratio(h)


def _sinc_difference(x: Array, y: Array) -> Array:
    """Return the closed form, or below 1, where it cancels, that of the power series."""
    xp = namespace_of(x)
    near = xp.maximum(x, y) < 1.0
    first, last = xp.where(near, x, 0.0), xp.where(near, y, 0.0)
    value, series = 0.0 * first, 0.0 * first
    for c in reversed(SERIES[:TERMS]):  # Horner's scheme, of the function and of its difference
        value, series = value * first + c, series * last + value
    m, h = _mean_and_half(x, y)
    mixed = xp.cos(m) * _sine_ratio(h)
    away = (mixed - 0.5 * (_sinc(x) + _sinc(y))) / xp.where(near, 1.0, 2.0 * m * m)
    return xp.where(near, series, away)


COSINE_OF_ROOT = Spectral(
    (_cosine, lambda x: -0.5 * _sinc(x), lambda x: -0.5 * _sinc_derivative(x, 1)),
    relative=False,
    closed=(_cosine_difference, lambda x, y: -0.5 * _sinc_difference(x, y)),
)
"""The function that maps θ² to cos θ."""

SINC_OF_ROOT = Spectral(
    (_sinc, lambda x: _sinc_derivative(x, 1), lambda x: _sinc_derivative(x, 2)),
    relative=False,
    closed=(_sinc_difference,),
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


def off_orthonormal(U: Array) -> Array:
    r"""Return the largest entry of :math:`|U^\top U - I|`; infinity if it is not finite."""
    xp, gram = namespace_of(U), matmul(adjoint(U), U)
    off = xp.max(xp.abs(gram - identity(gram)), axis=(-2, -1))
    return xp.where(xp.isfinite(off), off, xp.inf)
