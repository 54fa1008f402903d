r"""Functions of symmetric matrices and the polar factor, with first and second derivatives.

With the eigendecomposition :math:`A = U \Lambda U^\top` and a change :math:`E = U^\top dA\,U`,

.. math:: f(A + dA) = U \Bigl(f(\Lambda) + f[\lambda_i, \lambda_j] E_{ij}
          + \sum_k f[\lambda_i, \lambda_k, \lambda_j] E_{ik} E_{kj}\Bigr) U^\top + O(E^3),

where :math:`f[\cdot]` are divided differences. The right-hand side is a polynomial in E with
constant coefficients: with :math:`dA = A - \mathrm{stop}(A)`, whose value is zero, every library
differentiates it to the second order, exactly and also at repeated eigenvalues.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gyrobn.core.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.core.numerics.hessian import identity
from gyrobn.core.numerics.matrices import (
    adjoint,
    diagonal_matrix,
    finite_or_identity,
    is_finite,
    matmul,
    symmetric,
)

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(7)
GAUSS = [(float(0.5 + 0.5 * x), float(0.5 * w)) for x, w in zip(_NODES, _WEIGHTS, strict=True)]
"""Nodes and weights of Gauss's rule on [0, 1]: 14 digits for what is called close below."""


class Spectral(NamedTuple):
    """A function of an eigenvalue, with two derivatives."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    second: Callable[[Array], Array]
    relative: bool = True
    """Whether numbers count as close by their ratio, or else by their difference."""

    def difference(self, x: Array, y: Array) -> Array:
        r"""Return :math:`f[x, y] = (f(x) - f(y))/(x - y) = \int_0^1 f'(x + s(y - x))\,ds`.

        By the integral where x and y are close, and else by the quotient: neither cancels.
        """
        return _joined(self, self.value, self.slope, x, y)

    def second_difference(self, x: Array, y: Array, z: Array) -> Array:
        r"""Return :math:`f[x, y, z] = (f[x, y] - f[y, z])/(x - z)`, for :math:`x \le y \le z`.

        Where all are close, it is
        :math:`\int_0^1 s\,f'[(1-s)x + sy, (1-s)x + sz]\,ds`.
        """
        xp = namespace_of(x)
        close = _close(self, x, z)
        gap = xp.where(close, 1.0, z - x)
        far = (self.difference(y, z) - self.difference(x, y)) / gap
        near = sum(
            w * s * _joined(self, self.slope, self.second, x + s * (y - x), x + s * (z - x))
            for s, w in GAUSS
        )
        return xp.where(close, near, far)


def _close(f: Spectral, x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    size = xp.maximum(xp.abs(x), xp.abs(y)) if f.relative else 2.0
    return xp.abs(y - x) <= 0.4 * size


def _joined(f: Spectral, value: Any, slope: Any, x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    close = _close(f, x, y)
    near = sum(w * slope(x + s * (y - x)) for s, w in GAUSS)
    return xp.where(close, near, (value(y) - value(x)) / xp.where(close, 1.0, y - x))


# ---------------------------------------------------------------------- functions


def _xp(function: str) -> Callable[[Array], Array]:
    return lambda x: getattr(namespace_of(x), function)(x)


EXP = Spectral(_xp("exp"), _xp("exp"), _xp("exp"), relative=False)
LOG = Spectral(_xp("log"), lambda x: 1.0 / x, lambda x: -1.0 / (x * x))


def power(t: float) -> Spectral:
    """Return the function x ↦ xᵗ."""
    return Spectral(
        lambda x: x**t, lambda x: t * x ** (t - 1.0), lambda x: t * (t - 1.0) * x ** (t - 2.0)
    )


ROOT, INVERSE_ROOT, INVERSE = power(0.5), power(-0.5), power(-1.0)


# ---------------------------------------------------------------------- matrices


class Eigen(NamedTuple):
    """What :func:`eigh` returns."""

    values: Array
    vectors: Array


def eigh(A: Array) -> Eigen:
    """Return eigenvalues and eigenvectors as constants, the values NaN for a matrix with NaN.

    LAPACK would raise for the whole batch, or not return.
    """
    xp, A = namespace_of(A), backend_of(A).stop_gradient(A)
    finite = is_finite(A)
    values, U = xp.linalg.eigh(xp.where(finite, A, 0.0))
    return Eigen(xp.where(finite[..., 0], values, xp.nan), U)


def svd(A: Array) -> tuple[Array, Array, Array]:
    """Return P, c, Tᵀ of A = P c Tᵀ as constants, c and Tᵀ NaN for a matrix with NaN."""
    xp = namespace_of(A)
    A, finite = finite_or_identity(backend_of(A).stop_gradient(A))
    P, c, Th = xp.linalg.svd(A, full_matrices=False)
    return P, xp.where(finite[..., 0], c, xp.nan), xp.where(finite, Th, xp.nan)


def change(A: Array) -> Array:
    """Return A − stop(A): zero, with the derivatives of A."""
    return A - backend_of(A).stop_gradient(A)


def inner_function(f: Spectral, values: Array, E: Array, order: int) -> Array:
    """Return f(diag(values) + E) up to the order in E, in the eigenbasis."""
    xp = namespace_of(values)
    out = diagonal_matrix(f.value(values))
    if order > 0:
        out = out + f.difference(values[..., :, None], values[..., None, :]) * E
    if order > 1:
        i, k, j = values[..., :, None, None], values[..., None, :, None], values[..., None, None, :]
        low, high = xp.minimum(xp.minimum(i, k), j), xp.maximum(xp.maximum(i, k), j)
        table = f.second_difference(low, i + k + j - low - high, high)
        out = out + xp.sum(table * E[..., :, :, None] * E[..., None, :, :], axis=-2)
    return out


def matrix_function(A: Array, f: Spectral, eigen: Eigen | None = None) -> Array:
    """Return f(A) of symmetric matrices A, with derivatives of first and second order.

    ``eigen`` is the decomposition of A, if it is known.
    """
    A = symmetric(A)

    def function(order: int, eigen: Arrays, A: Array) -> Arrays:
        values, U = eigen
        if order == 0:
            return (matmul(U * f.value(values)[..., None, :], adjoint(U)),)
        E = matmul(adjoint(U), change(A), U)
        return (matmul(U, inner_function(f, values, E, order), adjoint(U)),)

    return backend_of(A).differentiate(function, eigh(A) if eigen is None else eigen, A)[0]


def polar(A: Array, singular: Arrays | None = None) -> Array:
    r"""Return the orthogonal factor W of square matrices A = C W, C symmetric and semidefinite.

    With :math:`A = P c T^\top`, :math:`E = P^\top dA\,T` and W = P exp(Ω) Tᵀ, the symmetry of C
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
        inner = identity(c) + Omega
        if order > 1:
            square = matmul(Omega, Omega)
            N = 0.5 * c[..., :, None] * square - matmul(E, Omega)
            inner = inner + (N - adjoint(N)) / sums + 0.5 * square
        return (matmul(P, inner, Th),)

    return backend_of(A).differentiate(function, svd(A) if singular is None else singular, A)[0]
