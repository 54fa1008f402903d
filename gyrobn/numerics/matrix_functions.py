r"""Functions of symmetric matrices, with first and second derivatives.

With the eigendecomposition :math:`A = U \Lambda U^\top` and a change :math:`E = U^\top dA\,U`,

.. math:: f(A + dA) = U \Bigl(f(\Lambda) + f[\lambda_i, \lambda_j] E_{ij}
          + \sum_k f[\lambda_i, \lambda_k, \lambda_j] E_{ik} E_{kj}\Bigr) U^\top + O(E^3),

where :math:`f[\cdot]` are divided differences. The right-hand side is a polynomial in E with
constant coefficients: with :math:`dA = A - \mathrm{stop}(A)`, whose value is zero, every library
differentiates it to the second order, exactly and also at repeated eigenvalues.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.numerics.matrices import (
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
    """A function f of an eigenvalue."""

    derivatives: tuple[Callable[[Array], Array], ...]
    """f, f' and f''; and the third one, for second derivatives of :func:`differential`."""
    relative: bool = True
    """Whether numbers count as close by their ratio, or else by their difference."""
    closed: tuple[Callable[[Array, Array], Array], ...] = ()
    """Formulas of f[x, y], f'[x, y], ... that do not cancel, as far as there are any."""

    @property
    def value(self) -> Callable[[Array], Array]:
        """The function itself."""
        return self.derivatives[0]

    def difference(self, *points: Array) -> Array:
        r"""Return the divided difference of two to four points, in ascending or descending order.

        .. math:: f[x_0, \dots, x_k]
                  = \frac{f[x_1, \dots, x_k] - f[x_0, \dots, x_{k-1}]}{x_k - x_0}
                  = \int_0^1 s^{k-1} f'[x_0 + s(x_1 - x_0), \dots, x_0 + s(x_k - x_0)]\,ds

        By the integral where the points are close, and else by the quotient: neither cancels.
        """
        return _divided(self, 0, points)


def _divided(f: Spectral, order: int, points: Sequence[Array]) -> Array:
    """Return the divided difference of a derivative of f."""
    first, *rest = points
    if not rest:
        return f.derivatives[order](first)
    if len(rest) == 1 and order < len(f.closed):
        return f.closed[order](*points)
    xp, last = namespace_of(first), rest[-1]
    gap = last - first
    reach = 0.2 * xp.maximum(xp.abs(first), xp.abs(last)) if f.relative else 0.8
    close = xp.abs(gap) <= reach
    far = _divided(f, order, rest) - _divided(f, order, points[:-1])
    near = sum(
        w * s ** (len(rest) - 1) * _divided(f, order + 1, [first + s * (x - first) for x in rest])
        for s, w in GAUSS
    )
    return xp.where(close, near, far / xp.where(close, 1.0, gap))


# ---------------------------------------------------------------------- functions


def _xp(function: str) -> Callable[[Array], Array]:
    return lambda x: getattr(namespace_of(x), function)(x)


def _tiny(x: Array) -> float:
    """Return a small number: x + tiny is not zero, and multiples of it are not subnormal."""
    return 1e8 * float(namespace_of(x).finfo(x.dtype).smallest_normal)


def _exp_difference(x: Array, y: Array) -> Array:
    r"""Return :math:`e^{(x + y)/2} \sinh(h)/h`, h half the difference."""
    xp = namespace_of(x)
    h = 0.5 * xp.abs(x - y) + _tiny(x)
    return xp.exp(0.5 * (x + y)) * (xp.sinh(h) / h)


def _log_difference(x: Array, y: Array) -> Array:
    """Return log(1 + t)/(t x), t = y/x - 1 for the larger y."""
    xp = namespace_of(x)
    low = xp.minimum(x, y)
    t = xp.abs(y - x) / low + _tiny(x)
    return xp.log1p(t) / t / low


def _minus_inverse_difference(x: Array, y: Array) -> Array:
    return (-1.0 / x) * (1.0 / y)


def _root_difference(x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    return 1.0 / (xp.sqrt(x) + xp.sqrt(y))


def _inverse_root_difference(x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    a, b = xp.sqrt(x), xp.sqrt(y)
    return -1.0 / a / b / (a + b)


def power(t: float, *closed: Callable[[Array, Array], Array]) -> Spectral:
    """Return the function x ↦ xᵗ."""

    def derivative(k: int) -> Callable[[Array], Array]:
        factor = math.prod(t - i for i in range(k))
        return lambda x: factor * x ** (t - k)

    return Spectral((lambda x: x**t, *map(derivative, (1, 2, 3))), closed=closed)


EXP = Spectral(4 * (_xp("exp"),), relative=False, closed=4 * (_exp_difference,))
EXPM1 = EXP._replace(derivatives=(_xp("expm1"), *EXP.derivatives[1:]))
LOG = Spectral(
    (_xp("log"), *power(-1.0).derivatives[:3]),
    closed=(_log_difference, _minus_inverse_difference),
)
ROOT = power(0.5, _root_difference)
INVERSE_ROOT = power(-0.5, _inverse_root_difference)
INVERSE = power(-1.0, _minus_inverse_difference)


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
    """Return f(diag(values) + E) up to the order in E, in the eigenbasis.

    The values ascend or descend.
    """
    out = diagonal_matrix(f.value(values))
    for k in range(order):
        out = out + _multilinear(f, values, *((k + 1) * [E]))
    return out


def _multilinear(f: Spectral, values: Array, *factors: Array) -> Array:
    r"""Return :math:`\sum f[\lambda_i, \lambda_k, \dots, \lambda_j]\,A_{ik} \cdots Z_{lj}`."""
    xp, n, count = namespace_of(values), values.shape[-1], len(factors)
    if count == 1:
        return f.difference(values[..., :, None], values[..., None, :]) * factors[0]
    flat = [
        xp.take(values, backend_of(values).cached(_ordered, values, n, count + 1, k), axis=-1)
        for k in range(count + 1)
    ]
    table = xp.reshape(f.difference(*flat), (*values.shape[:-1], *((count + 1) * (n,))))
    for k, factor in enumerate(factors):
        places = (None,) * k, (slice(None),) * 2, (None,) * (count - 1 - k)
        table = table * factor[(..., *places[0], *places[1], *places[2])]
    return xp.sum(table, axis=tuple(range(-count, -1)))


def _ordered(n: int, count: int, k: int) -> "np.ndarray[Any, Any]":
    """Return the k-th smallest of each combination of ``count`` indices."""
    indices = np.indices(count * (n,)).reshape(count, -1)
    return np.asarray(np.sort(indices, axis=0)[k], dtype=np.int32)


def matrix_functions(
    A: Array, functions: Sequence[Spectral], eigen: Eigen | None = None, frame: bool = False
) -> Arrays:
    r"""Return functions f(A) of symmetric matrices A, with derivatives of first and second order.

    ``eigen`` is the decomposition of A, if it is known. If ``frame``, return :math:`f(A)\,U` with
    the eigenvectors U of A, as constants. Its columns are :math:`f(\lambda_k)\,u_k`: even the
    smallest has all its digits, where :math:`U f(\Lambda) U^\top` would round all of them to the
    largest.
    """
    A = symmetric(A)

    def function(order: int, eigen: Arrays, A: Array) -> Arrays:
        values, U = eigen
        if order == 0:
            frames = [U * f.value(values)[..., None, :] for f in functions]
        else:
            E = matmul(adjoint(U), change(A), U)
            frames = [matmul(U, inner_function(f, values, E, order)) for f in functions]
        return tuple(F if frame else matmul(F, adjoint(U)) for F in frames)

    return backend_of(A).differentiate(function, eigh(A) if eigen is None else eigen, A)


def matrix_function(A: Array, f: Spectral, eigen: Eigen | None = None) -> Array:
    """Return f(A), see :func:`matrix_functions`."""
    return matrix_functions(A, (f,), eigen)[0]


def matrix_frame(A: Array, f: Spectral, eigen: Eigen) -> Array:
    """Return the frame f(A) U, see :func:`matrix_functions`."""
    return matrix_functions(A, (f,), eigen, frame=True)[0]


def differential(A: Array, V: Array, f: Spectral, eigen: Eigen | None = None) -> Array:
    r"""Return the derivative of f(A) along V; all are symmetric.

    In the eigenbasis it is :math:`f[\lambda_i, \lambda_j] V_{ij}` (Daleckii and Krein), which a
    change E of A changes by the terms of f(A + E + V) that are linear in V.
    """
    A, V = symmetric(A), symmetric(V)

    def function(order: int, eigen: Arrays, A: Array, V: Array) -> Arrays:
        values, U = eigen
        S = matmul(adjoint(U), V, U)
        out = _multilinear(f, values, S)
        E = matmul(adjoint(U), change(A), U) if order else S
        for k in range(order):
            for place in range(k + 2):
                factors = (k + 1) * [E]
                factors.insert(place, S)
                out = out + _multilinear(f, values, *factors)
        return (matmul(U, out, adjoint(U)),)

    return backend_of(A).differentiate(function, eigh(A) if eigen is None else eigen, A, V)[0]


def matrix_power(A: Array, t: Array | float) -> Array:
    """Return Aᵗ of positive definite A, differentiable by t, too: one number per matrix."""
    if isinstance(t, float):
        return matrix_function(A, power(t))
    values, U = eigen = eigh(symmetric(A))
    logs = backend_of(t).stop_gradient(t)[..., None] * LOG.value(values)
    log = matrix_function(A, LOG, eigen)
    return matrix_function(t[..., None, None] * log, EXP, Eigen(logs, U))
