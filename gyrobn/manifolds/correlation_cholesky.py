r"""Maps of correlation matrices to simpler spaces, by their Cholesky factor.

With :math:`C = LL^\top`,
:math:`\Theta = \operatorname{diag}(L)^{-1}L` is lower triangular with ones on the diagonal.
Below it, the rows have no constraint, and C comes back by giving the rows of Θ the length one.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from gyrobn.backends import Array, backend_of, dot, namespace_of
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace, space_of
from gyrobn.manifolds.poly_hyperboloid import PolyHyperboloid
from gyrobn.numerics.arrays import constant
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

__all__ = [
    "Chart",
    "EuclideanCholesky",
    "LogEuclideanCholesky",
    "PolyHyperbolicCholesky",
]


class Chart(ABC):
    """A map of the correlation matrices onto a space, its inverse, and their differentials."""

    def space(self, n: int) -> GyroSpace:
        """Return where it leads: a vector space, where the metric is flat."""
        return Euclidean(n * (n - 1) // 2)

    @abstractmethod
    def to(self, C: Array) -> Array:
        """Carry correlation matrices to the space."""

    @abstractmethod
    def back(self, y: Array, n: int) -> Array:
        """Carry points of the space to n × n correlation matrices."""

    @abstractmethod
    def to_tangent(self, C: Array, dC: Array) -> Array:
        """Carry tangent vectors at C by the differential of :meth:`to`."""

    @abstractmethod
    def back_tangent(self, C: Array, dy: Array) -> Array:
        """Carry tangent vectors at ``to(C)`` by the differential of :meth:`back`."""


class CholeskyChart(Chart):
    r"""A map by way of Θ; a subclass maps Θ."""

    @abstractmethod
    def leave(self, theta: Array) -> Array:
        """Carry Θ to the space."""

    @abstractmethod
    def enter(self, y: Array, n: int) -> Array:
        """Return the Θ of points of the space."""

    def leave_tangent(self, theta: Array, change: Array) -> Array:
        """Carry a change of Θ to the space; the same as :meth:`leave` where that is linear."""
        return self.leave(change)

    def enter_tangent(self, theta: Array, dy: Array) -> Array:
        """Return the change of Θ, zero on the diagonal."""
        return from_triangle(dy, theta.shape[-1], diagonal=False)

    def to(self, C: Array) -> Array:
        """Carry C by way of Θ."""
        return self.leave(_theta(C))

    def back(self, y: Array, n: int) -> Array:
        r"""Return :math:`C = LL^\top`, the rows of L those of Θ divided by their length."""
        xp = namespace_of(y)
        theta = self.enter(y, n)
        L = theta / xp.linalg.vector_norm(theta, axis=-1, keepdims=True)
        return with_diagonal(matmul(L, transpose(L)), 1.0)

    def to_tangent(self, C: Array, dC: Array) -> Array:
        r"""Carry dC by way of dΘ.

        .. math:: d\Theta = \Theta\Omega - \operatorname{diag}(\Omega)\Theta, \qquad
                  \Omega = \operatorname{low}(L^{-1}\,dC\,L^{-\top}),

        with *low* the lower triangle, half the diagonal.
        """
        xp = namespace_of(C)
        theta = _theta(C)
        lengths = xp.sqrt(dot(theta, theta))[..., None]  # 1/L_ii
        half = xp.linalg.solve(theta, lengths * symmetric(dC) * transpose(lengths))
        inner = xp.linalg.solve(theta, transpose(half))
        omega = xp.tril(inner) - 0.5 * inner * eye(inner)
        turned = matmul(theta, omega) - xp.linalg.diagonal(omega)[..., None] * theta
        return self.leave_tangent(theta, xp.tril(turned, k=-1))

    def back_tangent(self, C: Array, dy: Array) -> Array:
        r"""Carry dΘ to :math:`dC = dL\,L^\top + L\,dL^\top`, L the unit rows of Θ."""
        xp = namespace_of(C)
        theta = _theta(C)
        change = self.enter_tangent(theta, dy)
        lengths = xp.sqrt(dot(theta, theta))[..., None]
        L, dL = theta / lengths, change / lengths
        dL = dL - dot(dL, L)[..., None] * L
        return with_diagonal(2.0 * symmetric(matmul(dL, transpose(L))), 0.0)


class PolyHyperbolicCholesky(CholeskyChart):
    r"""Row i of the strict lower part of Θ is the spatial part of a point of :math:`\mathbb H^i`.

    Its time is :math:`\sqrt{1 + \|\Theta_i\|^2} = 1/L_{ii}`. In the Poincaré ball it is the
    :math:`L_i/(1 + L_{ii})` of the paper.
    """

    def space(self, n: int) -> GyroSpace:
        """Return the product of hyperboloids."""
        return space_of(PolyHyperboloid, n - 1)

    def leave(self, theta: Array) -> Array:
        """Cut the rows out of Θ and put their time in front."""
        xp = namespace_of(theta)
        time = xp.linalg.vector_norm(theta[..., 1:, :], axis=-1, keepdims=True)
        return xp.concat([time, xp.tril(theta[..., 1:, :-1])], axis=-1)

    def enter(self, y: Array, n: int) -> Array:
        """Put the rows below the diagonal of ones."""
        return _below(y[..., 1:]) + kept_eye(y, n)

    def leave_tangent(self, theta: Array, change: Array) -> Array:
        """Add the change of the time, which follows from that of the spatial part."""
        xp = namespace_of(theta)
        rows, space = self.leave(theta), xp.tril(change[..., 1:, :-1])
        rate = dot(rows[..., 1:], space) / rows[..., 0]
        return xp.concat([rate[..., None], space], axis=-1)

    def enter_tangent(self, theta: Array, dy: Array) -> Array:
        """Drop the change of the time."""
        return _below(dy[..., 1:])


class EuclideanCholesky(CholeskyChart):
    """The strict lower part of Θ."""

    def leave(self, theta: Array) -> Array:
        """Return the entries below the diagonal."""
        return to_triangle(theta, diagonal=False)

    def enter(self, y: Array, n: int) -> Array:
        """Put the entries below the diagonal of ones."""
        return from_triangle(y, n, diagonal=False) + kept_eye(y, n)


class LogEuclideanCholesky(CholeskyChart):
    """The logarithm of Θ, which is strictly lower triangular."""

    def leave(self, theta: Array) -> Array:
        """Return the entries of log Θ."""
        return to_triangle(_log_unit_lower(theta), diagonal=False)

    def enter(self, y: Array, n: int) -> Array:
        """Return the exponential."""
        return _exp_strict_lower(from_triangle(y, n, diagonal=False))

    def leave_tangent(self, theta: Array, change: Array) -> Array:
        r"""Return the lower left block of the logarithm of a matrix of twice the size.

        .. math:: \log\begin{pmatrix}\Theta & 0\\ d\Theta & \Theta\end{pmatrix} =
                  \begin{pmatrix}\log\Theta & 0\\ d\log\Theta & \log\Theta\end{pmatrix}
        """
        n = theta.shape[-1]
        size = _size(change)
        both = _log_unit_lower(_blocks(theta, change / size))
        return to_triangle(both[..., n:, :n] * size, diagonal=False)

    def enter_tangent(self, theta: Array, dy: Array) -> Array:
        """Return the lower left block of the exponential of such a matrix."""
        n = theta.shape[-1]
        change = from_triangle(dy, n, diagonal=False)
        size = _size(change)
        return _exp_strict_lower(_blocks(_log_unit_lower(theta), change / size))[..., n:, :n] * size


def _theta(C: Array) -> Array:
    """Return Θ, the Cholesky factor with each row divided by its diagonal entry."""
    L = cholesky(C)
    return L / namespace_of(C).linalg.diagonal(L)[..., None]


def _below(rows: Array) -> Array:
    """Return an n × n matrix with the (n−1) × (n−1) matrix ``rows`` in its lower left corner."""
    xp = namespace_of(rows)
    n = rows.shape[-1] + 1
    flat = xp.reshape(rows, (*rows.shape[:-2], (n - 1) ** 2))
    entries = backend_of(rows).take(flat, constant(_corner_places, rows, n))
    return xp.reshape(entries, (*rows.shape[:-2], n, n)) * constant(_corner, rows, n)


def _corner_places(n: int) -> "np.ndarray[Any, Any]":
    """Return where the entries of the n × n matrix are in its flat lower left corner."""
    i, j = np.indices((n, n))
    return (np.maximum(i - 1, 0) * (n - 1) + np.minimum(j, n - 2)).reshape(-1).astype(np.int32)


def _corner(n: int) -> "np.ndarray[Any, Any]":
    return np.tril(np.ones((n, n)), -1)


def _blocks(A: Array, E: Array) -> Array:
    """Return the matrices with A on the block diagonal and E below."""
    xp = namespace_of(A, E)
    A, E = xp.broadcast_arrays(A, E)
    top = xp.concat([A, xp.zeros_like(A)], axis=-1)
    return xp.concat([top, xp.concat([E, A], axis=-1)], axis=-2)


def _size(A: Array) -> Array:
    """Return the largest entry, 1 for none."""
    xp = namespace_of(A)
    size = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
    return xp.where(size > 0, size, 1.0)


_ROOTS = 2
"""Square roots before the series of the logarithm: on smooth covariances it would lose digits."""


def _log_unit_lower(theta: Array) -> Array:
    r"""Return log Θ by a series that ends, since it is one of a nilpotent matrix.

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
    """Return (I + M)^½ − I by Newton steps, each of which doubles the order that is right."""
    xp = namespace_of(M)
    Y = 0.5 * M
    for _ in range(math.ceil(math.log2(M.shape[-1])) - 1):
        rest = M - 2.0 * Y - matmul(Y, Y)
        Y = Y + 0.5 * xp.tril(xp.linalg.solve(eye(M) + Y, rest), k=-1)
    return Y


def _exp_strict_lower(X: Array) -> Array:
    """Return exp X, by the series of a nilpotent matrix, for X/4, and squaring without the ones."""
    M, one = X / 2.0**_ROOTS, eye(X)
    total = one + 0.0 * M
    for k in range(X.shape[-1] - 1, 1, -1):
        total = one + matmul(M, total) / k
    M = matmul(M, total)
    for _ in range(_ROOTS):
        M = 2.0 * M + matmul(M, M)
    return one + M
