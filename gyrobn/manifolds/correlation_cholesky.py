r"""Metrics of correlation matrices by their Cholesky factor.

With :math:`C = LL^\top`, the matrix :math:`\Theta = \operatorname{diag}(L)^{-1}L` is lower
triangular with ones on the diagonal. Its entries below the diagonal are free, and the rows of Θ,
divided by their lengths, are those of L.
"""

import math
from abc import abstractmethod

from gyrobn.backends import Array, dot, namespace_of
from gyrobn.manifolds.correlation_matrices import CorrelationMatrices
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.poly_hyperboloid import PolyHyperboloid
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.decompositions import cholesky
from gyrobn.numerics.matrices import (
    eye,
    from_triangle,
    kept_eye,
    matmul,
    symmetric,
    to_triangle,
    transpose,
    with_diagonal,
)


class CholeskyMatrices(CorrelationMatrices):
    r"""A metric that is simple in Θ; a subclass writes the map from Θ to the space inside."""

    @abstractmethod
    def _from_theta(self, theta: Array) -> Array:
        """Carry Θ inside."""

    @abstractmethod
    def _to_theta(self, y: Array) -> Array:
        """Return the Θ of points inside."""

    def _change_from_theta(self, theta: Array, change: Array) -> Array:
        """Carry a change of Θ inside; this is for a linear map."""
        return self._from_theta(change)

    def _change_to_theta(self, theta: Array, dy: Array) -> Array:
        """Return the change of Θ, zero on the diagonal; this is for a linear map."""
        return from_triangle(dy, self.n, diagonal=False)

    def to_inside(self, x: Array) -> Array:
        """Carry C by way of Θ."""
        return self._from_theta(_theta(x))

    def from_inside(self, x: Array) -> Array:
        r"""Return :math:`C = LL^\top`; the rows of L are those of Θ divided by their lengths."""
        theta = self._to_theta(x)
        L = theta / namespace_of(x).linalg.vector_norm(theta, axis=-1, keepdims=True)
        return with_diagonal(matmul(L, transpose(L)), 1.0)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Carry dC by way of dΘ.

        .. math:: d\Theta = \Theta\Omega - \operatorname{diag}(\Omega)\Theta, \qquad
                  \Omega = \operatorname{low}(L^{-1}\,dC\,L^{-\top}),

        where *low* is the lower triangle with half the diagonal.
        """
        xp = namespace_of(x)
        theta = _theta(x)
        lengths = xp.sqrt(dot(theta, theta))[..., None]  # 1/L_ii
        half = xp.linalg.solve(theta, lengths * symmetric(v) * transpose(lengths))
        inner = xp.linalg.solve(theta, transpose(half))
        omega = xp.tril(inner) - 0.5 * inner * eye(inner)
        turned = matmul(theta, omega) - xp.linalg.diagonal(omega)[..., None] * theta
        return self._change_from_theta(theta, xp.tril(turned, k=-1))

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        r"""Carry dΘ to :math:`dC = dL\,L^\top + L\,dL^\top`."""
        theta = _theta(x)
        change = self._change_to_theta(theta, v)
        lengths = namespace_of(x).sqrt(dot(theta, theta))[..., None]
        L, dL = theta / lengths, change / lengths
        dL = dL - dot(dL, L)[..., None] * L
        return with_diagonal(2.0 * symmetric(matmul(dL, transpose(L))), 0.0)


class PolyHyperbolicCholesky(CholeskyMatrices):
    r"""Row i of the strict lower part of Θ is the spatial part of a point of :math:`\mathbb H^i`.

    Its time is :math:`\sqrt{1 + \|\Theta_i\|^2} = 1/L_{ii}`. In the Poincaré ball it is the
    :math:`L_i/(1 + L_{ii})` of the paper.
    """

    @property
    def inside(self) -> GyroSpace:
        """The product of hyperboloids."""
        return space_of(PolyHyperboloid, self.n - 1)

    def _from_theta(self, theta: Array) -> Array:
        """Cut the rows out of Θ and put their time in front."""
        xp = namespace_of(theta)
        time = xp.linalg.vector_norm(theta[..., 1:, :], axis=-1, keepdims=True)
        return xp.concat([time, xp.tril(theta[..., 1:, :-1])], axis=-1)

    def _to_theta(self, y: Array) -> Array:
        """Put the rows below the diagonal of ones."""
        return _below(y[..., 1:]) + kept_eye(y, self.n)

    def _change_from_theta(self, theta: Array, change: Array) -> Array:
        """Add the change of the time, which follows from that of the spatial part."""
        xp = namespace_of(theta)
        rows, space = self._from_theta(theta), xp.tril(change[..., 1:, :-1])
        rate = dot(rows[..., 1:], space) / rows[..., 0]
        return xp.concat([rate[..., None], space], axis=-1)

    def _change_to_theta(self, theta: Array, dy: Array) -> Array:
        """Drop the change of the time."""
        return _below(dy[..., 1:])


class EuclideanCholesky(CholeskyMatrices):
    """The strict lower part of Θ."""

    def _from_theta(self, theta: Array) -> Array:
        return to_triangle(theta, diagonal=False)

    def _to_theta(self, y: Array) -> Array:
        return from_triangle(y, self.n, diagonal=False) + kept_eye(y, self.n)


class LogEuclideanCholesky(CholeskyMatrices):
    """The logarithm of Θ, which is strictly lower triangular."""

    def _from_theta(self, theta: Array) -> Array:
        return to_triangle(_log_unit_lower(theta), diagonal=False)

    def _to_theta(self, y: Array) -> Array:
        return _exp_strict_lower(from_triangle(y, self.n, diagonal=False))

    def _change_from_theta(self, theta: Array, change: Array) -> Array:
        r"""Return the lower left block of the logarithm of a matrix of twice the size.

        .. math:: \log\begin{pmatrix}\Theta & 0\\ d\Theta & \Theta\end{pmatrix} =
                  \begin{pmatrix}\log\Theta & 0\\ d\log\Theta & \log\Theta\end{pmatrix}
        """
        size = _size(change)
        both = _log_unit_lower(_blocks(theta, change / size))
        return to_triangle(both[..., self.n :, : self.n] * size, diagonal=False)

    def _change_to_theta(self, theta: Array, dy: Array) -> Array:
        """Return the lower left block of the exponential of such a matrix."""
        change = from_triangle(dy, self.n, diagonal=False)
        size = _size(change)
        both = _exp_strict_lower(_blocks(_log_unit_lower(theta), change / size))
        return both[..., self.n :, : self.n] * size


def _theta(C: Array) -> Array:
    """Return Θ, the Cholesky factor with each row divided by its diagonal entry."""
    L = cholesky(C)
    return L / namespace_of(C).linalg.diagonal(L)[..., None]


def _below(rows: Array) -> Array:
    """Return n × n matrices with ``rows``, the lower triangle of an (n−1) × (n−1) matrix, in the
    lower left corner.
    """
    return from_triangle(to_triangle(rows, diagonal=True), rows.shape[-1] + 1, diagonal=False)


def _blocks(A: Array, E: Array) -> Array:
    """Return the matrices with A on the block diagonal and E below."""
    xp = namespace_of(A, E)
    A, E = xp.broadcast_arrays(A, E)
    top = xp.concat([A, xp.zeros_like(A)], axis=-1)
    return xp.concat([top, xp.concat([E, A], axis=-1)], axis=-2)


def _size(A: Array) -> Array:
    """Return the largest absolute entry, or 1 for the zero matrix."""
    xp = namespace_of(A)
    size = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
    return xp.where(size > 0, size, 1.0)


_ROOTS = 2
"""Square roots before the series of the logarithm; else it loses digits on smooth covariances."""


def _log_unit_lower(theta: Array) -> Array:
    r"""Return log Θ by a series in the nilpotent matrix Z, which ends.

    .. math:: \log\Theta = 2\operatorname{artanh} Z = 2\sum_k \frac{Z^{2k+1}}{2k+1}, \qquad
              Z = (\Theta - I)(\Theta + I)^{-1}

    The plain series in :math:`\Theta - I` alternates, and has no digit left at n = 28.
    """
    xp = namespace_of(theta)
    n, one = theta.shape[-1], eye(theta)
    M = xp.tril(theta, k=-1)
    for _ in range(_ROOTS):
        M = _root_above_one(M)
    Z = xp.tril(xp.linalg.solve(2.0 * one + M, M), k=-1)
    square, last = matmul(Z, Z), (n - 1) // 2
    total = one / (2.0 * last + 1.0)
    for k in range(last - 1, -1, -1):
        total = matmul(square, total) + one / (2.0 * k + 1.0)
    return 2.0 ** (_ROOTS + 1) * matmul(Z, total)


def _root_above_one(M: Array) -> Array:
    """Return (I + M)^½ − I by Newton steps, each of which doubles the number of correct powers."""
    xp = namespace_of(M)
    Y = 0.5 * M
    for _ in range(math.ceil(math.log2(M.shape[-1])) - 1):
        rest = M - 2.0 * Y - matmul(Y, Y)
        Y = Y + 0.5 * xp.tril(xp.linalg.solve(eye(M) + Y, rest), k=-1)
    return Y


def _exp_strict_lower(X: Array) -> Array:
    """Return exp X from the series of exp(X/4) − I, which ends, by squaring without the ones."""
    M, one = X / 2.0**_ROOTS, eye(X)
    total = one + 0.0 * M
    for k in range(X.shape[-1] - 1, 1, -1):
        total = one + matmul(M, total) / k
    M = matmul(M, total)
    for _ in range(_ROOTS):
        M = 2.0 * M + matmul(M, M)
    return one + M
