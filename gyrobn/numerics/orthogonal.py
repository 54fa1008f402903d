r"""The polar decomposition, functions of angles, and orthonormal columns.

Angles θ appear as their cosines, the eigenvalues of the symmetric part of a rotation, or as their
squares, the eigenvalues of :math:`X^\top X` for a skew matrix X.
"""

import math
from collections.abc import Callable

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.numerics.arrays import eps_of, sum_of_products, tiny_of, weighted_sum
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, eye, identity, matmul
from gyrobn.numerics.matrix_functions import Spectral, change, eigh, gauss, svd

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

    def function(order: int, singular: Arrays, A: Array) -> Arrays:
        P, c, Th = singular
        if order == 0:
            return (matmul(P, Th),)
        E = matmul(adjoint(P), change(A), adjoint(Th))
        sums = namespace_of(c).clip(c[..., :, None] + c[..., None, :], min=eps_of(A))
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
    t, weights = gauss(points[0], 14)
    term = 2.0 * weights * (-2.0 * t) ** (len(points) - 1)
    for x in points:
        term = term / ((1.0 + t * t) + (2.0 * t) * x[..., None])
    return namespace_of(term).sum(term, axis=-1)


ANGLE = _Angle((_angle_difference,))
"""The function that maps cos θ to θ/sin θ."""

# ---------------------------------------------------------------------- functions of θ²


def _bessel(k: int, x: Array) -> Array:
    r"""Return :math:`S_k = j_k(\theta)/\theta^k` at x = θ², where j are spherical Bessel functions.

    :math:`S_{-1} = \cos\theta`, :math:`S_0 = \sin\theta/\theta`, :math:`S_k' = -\tfrac12 S_{k+1}`.
    By the power series below 1, else by :math:`x S_{k+1} = (2k + 1) S_k - S_{k-1}`. Rounding may
    make a square negative.
    """
    xp = namespace_of(x)
    theta = xp.sqrt(xp.clip(x, min=tiny_of(x) ** 0.5))
    if k < 1:
        return xp.sin(theta) / theta if k == 0 else xp.cos(theta)
    near = x < 1.0
    small, series = xp.where(near, x, 0.0), 0.0
    for j in reversed(range(1, 11)):
        series = (1.0 + series) * small * (-0.5 / (j * (2 * j + 2 * k + 1)))
    far = ((2 * k - 1) * _bessel(k - 1, x) - _bessel(k - 2, x)) / xp.where(near, 1.0, x)
    return xp.where(near, (1.0 + series) / math.prod(range(1, 2 * k + 2, 2)), far)


def _of_square(k: int) -> Spectral:
    """Return S_k with its derivatives."""
    found = [lambda x, i=i: (-0.5) ** i * _bessel(k + i, x) for i in range(3)]
    return Spectral(tuple(found), relative=False)


COSINE_OF_ROOT = _of_square(-1)
"""The function that maps θ² to cos θ."""

SINC_OF_ROOT = _of_square(0)
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
    most, dense = 0.5 * math.pi * (1.0 - eps_of(B)), m * p == c.shape[-1]
    tiny = tiny_of(B) ** 0.5  # its square is not 0 either
    # the lengths of the columns are the angles with all their digits; cosines lack those
    columns = xp.sqrt(xp.sum(T * T, axis=-2, keepdims=True))
    columns = xp.clip(columns, min=tiny, max=None if hyperbolic else most)
    rows, Q = adjoint(columns), T / columns
    apart, both = xp.abs(rows - columns) + tiny, rows + columns
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
        swapped = adjoint(Q)[..., None, :, :, None] * right[..., :, None, None, :]
        left = straight[..., None, None] * T + crossed[..., None, None] * swapped
        inside = sum_of_products(w * xp.reshape(left, shape), xp.reshape(T, shape))
        right = right[..., 0, :, :]
        off = sum_of_products(w * adjoint(alone)[..., 0, :, :] * right, right)
        off = eye(off, m)[:, None, :, None] * off[..., None, :, None, :]
        return inside + xp.reshape(off, inside.shape)

    return Hessian(apply, None if hyperbolic else lowest, matrix if dense else None)
