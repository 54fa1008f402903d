r"""The polar decomposition, functions of angles, and orthonormal columns.

Angles θ appear as their cosines, the eigenvalues of the symmetric part of a rotation, or as their
squares, the eigenvalues of :math:`X^\top X` for a skew matrix X.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.numerics.arrays import sum_of_products, weighted_sum
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, eye, identity, matmul
from gyrobn.numerics.matrix_functions import (
    Spectral,
    change,
    eigh,
    svd,
)

# ---------------------------------------------------------------------- polar decomposition


def polar(A: Array, singular: Arrays | None = None) -> Array:
    r"""Return the factor W of square matrices A = C W, C symmetric and semidefinite.

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
            return (matmul(P, Th),)
        E = matmul(adjoint(P), change(A), adjoint(Th))
        sums = namespace_of(c).clip(c[..., :, None] + c[..., None, :], min=least)
        Omega = (E - adjoint(E)) / sums
        W = identity(c) + Omega
        if order > 1:
            square = matmul(Omega, Omega)
            N = 0.5 * c[..., :, None] * square - matmul(E, Omega)
            W = W + (N - adjoint(N)) / sums + 0.5 * square
        return (matmul(P, W, Th),)

    singular = svd(A) if singular is None else singular
    return backend_of(A).differentiate(function, singular, A)[0]


# ---------------------------------------------------------------------- functions of cos θ


class _Angle(Spectral):
    def difference(self, *points: Array) -> Array:
        return _angle_difference(*points)


def _angle_difference(*points: Array) -> Array:
    r"""Return f, or a divided difference of it, of :math:`f(x) = 2\int_0^1 dt/(1 + 2tx + t^2)`.

    It is the integral of a product, which has one sign: nothing cancels.
    """
    rule = backend_of(points[0]).cached(_gauss, points[0])
    t, weights = rule[0, ...], rule[1, ...]
    term = 2.0 * weights * (-2.0 * t) ** (len(points) - 1)
    for x in points:
        term = term / ((1.0 + t * t) + (2.0 * t) * x[..., None])
    return namespace_of(term).sum(term, axis=-1)


def _gauss() -> "np.ndarray[Any, Any]":
    """Return nodes and weights of Gauss's rule on [0, 1]: 15 digits for angles up to π/2."""
    nodes, weights = np.polynomial.legendre.leggauss(14)
    return 0.5 * np.stack([1.0 + nodes, weights])


ANGLE = _Angle((_angle_difference,))
"""The function that maps cos θ to θ/sin θ."""

# ---------------------------------------------------------------------- functions of θ²

SERIES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in reversed(range(12))]
"""The power series of sin θ/θ in θ², highest power first."""


def _tiny(x: Array) -> float:
    """Return a number whose square and root can be divided by: XLA has no subnormal numbers."""
    tiny: float = float(namespace_of(x).finfo(x.dtype).smallest_normal) ** 0.5
    return tiny


def _theta(x: Array) -> Array:
    """Return θ, or a tiny number in place of 0; rounding may make a square negative."""
    xp = namespace_of(x)
    return xp.sqrt(xp.clip(x, min=_tiny(x)))


def _sine_ratio(a: Array) -> Array:
    return namespace_of(a).sin(a) / a


def _mean_and_half(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the mean m of two angles and half their difference h.

    The difference of the squares is 4mh, that of the cosines −2 sin m sin h, and that of the sines
    2 cos m sin h.
    """
    a, b = 0.5 * _theta(x), 0.5 * _theta(y)
    return a + b, abs(a - b) + _tiny(x)


def _cosine_difference(x: Array, y: Array) -> Array:
    m, h = _mean_and_half(x, y)
    return -0.5 * _sine_ratio(m) * _sine_ratio(h)


def _sinc(x: Array) -> Array:
    return _sine_ratio(_theta(x))


def _sinc_difference(*points: Array) -> Array:
    r"""Return a divided difference of :math:`f(x) = \sin\sqrt x/\sqrt x` of two or three points.

    Three points must be equal. By the power series below 1, and else in closed form, for three by
    :math:`2xf'' = -\tfrac12 f - 3f'`.
    """
    xp, x, y = namespace_of(points[0]), points[0], points[-1]
    near = xp.maximum(x, y) < 1.0
    small, row = [xp.where(near, p, 0.0) for p in points], [0.0 * x for _ in points]
    for c in SERIES:  # Horner's scheme, of the function and of its differences
        row = [p * b + a for p, a, b in zip(small, [c, *row], row, strict=False)]
    m, h = _mean_and_half(x, y)
    far = xp.cos(m) * _sine_ratio(h) - 0.5 * (_sinc(x) + _sinc(y))
    far = far / xp.where(near, 1.0, 2.0 * m * m)
    if len(points) == 3:
        far = -(0.25 * _sinc(x) + 1.5 * far) / xp.where(near, 1.0, 2.0 * x)
    return xp.where(near, row[-1], far)


COSINE_OF_ROOT = Spectral(
    (
        lambda x: namespace_of(x).cos(_theta(x)),
        lambda x: -0.5 * _sinc(x),
        lambda x: -0.5 * _sinc_difference(x, x),
    ),
    relative=False,
    closed=(_cosine_difference, lambda x, y: -0.5 * _sinc_difference(x, y)),
)
"""The function that maps θ² to cos θ."""

SINC_OF_ROOT = Spectral(
    (
        _sinc,
        lambda x: _sinc_difference(x, x),
        lambda x: 2.0 * _sinc_difference(x, x, x),
    ),
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


# ---------------------------------------------------------------------- the Hessian


def hessian_in_frames(
    c: Array,
    weights: Array,
    P: Array | None,
    block: Callable[[Array], Array],
    flat: Callable[[Array], Array],
    hyperbolic: bool = False,
) -> Hessian:
    r"""Return the mean Hessian of half the squared distances to samples with coordinates c.

    ``block`` maps coordinates to matrices, and ``flat`` back. With the singular value decomposition
    :math:`B = Q \theta P^\top` of a sample's matrix, angles ascending, the eigenvalues of its
    Hessian are :math:`a \cot a`. On the entries (i, j) and (j, i) of :math:`W = Q^\top V P`,
    :math:`a = \theta_i - \theta_j` for their symmetric and :math:`\theta_i + \theta_j` for their
    antisymmetric combination; off the span of Q, :math:`a = \theta_j` on the column j. Pass P if it
    is known. On a ``hyperbolic`` space, whose matrices hold lengths instead of angles, cot is coth.
    """
    B = block(c[..., None, :])  # beside columns of vectors, to which the Hessian is applied
    P = eigh(matmul(adjoint(B), B)).vectors if P is None else P[..., None, :, :]
    xp, (m, p), T = namespace_of(B), B.shape[-2:], matmul(B, P)
    most, dense = 0.5 * math.pi * (1.0 - float(xp.finfo(B.dtype).eps)), m * p == c.shape[-1]
    # the lengths of the columns are the angles with all their digits; cosines lack those
    columns = xp.sqrt(xp.sum(T * T, axis=-2, keepdims=True))
    columns = xp.clip(columns, min=_tiny(B), max=None if hyperbolic else most)
    rows, Q = adjoint(columns), T / columns
    apart, both = xp.abs(rows - columns) + _tiny(B), rows + columns
    # a·cot a falls to −∞ towards π; a floor keeps one far sample from deciding the sum
    tan = xp.tanh if hyperbolic else xp.tan
    alike, other = apart / tan(apart), xp.clip(both / tan(both), min=-1e3)
    alone = columns / tan(columns)
    # the factors of W and of its transpose, beside those off the span
    straight, crossed = 0.5 * (alike + other) - alone, 0.5 * (alike - other)

    def apply(v: Array) -> Array:
        VP = matmul(block(adjoint(v)), P)
        W = matmul(adjoint(Q), VP)
        W = matmul(Q, straight * W + crossed * adjoint(W))
        each = matmul(W + VP * alone, adjoint(P))
        return adjoint(weighted_sum(weights, flat(each)))

    def lowest() -> Array:
        """Return a lower bound; the angles of a skew matrix come in pairs, one pair per plane."""
        most = alone[..., 0, 0, -1] if p == 1 else other[..., 0, -1, -2 if dense else -3]
        return weighted_sum(weights, most)

    def matrix() -> Array:
        """Return H from the products of entries, W_ij = Q_ai P_bj V_ab."""
        shape, w, right = (*weights.shape, p * p, m * p), weights[..., None, None], adjoint(P)
        T = adjoint(Q)[..., :, None, :, None] * right[..., None, :, None, :]
        left = straight[..., None, None] * T + crossed[..., None, None] * xp.moveaxis(T, -3, -4)
        inside = sum_of_products(w * xp.reshape(left, shape), xp.reshape(T, shape))
        right = right[..., 0, :, :]
        off = sum_of_products(w * adjoint(alone)[..., 0, :, :] * right, right)
        off = eye(off, m)[:, None, :, None] * off[..., None, :, None, :]
        return inside + xp.reshape(off, inside.shape)

    return Hessian(apply, None if hyperbolic else lowest, matrix if dense else None)
