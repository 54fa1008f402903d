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
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.numerics.arrays import tiny_of
from gyrobn.numerics.matrices import (
    adjoint,
    diagonal_matrix,
    finite_or_identity,
    matmul,
    symmetric,
)


class Spectral(NamedTuple):
    """A function f of an eigenvalue."""

    derivatives: tuple[Callable[[Array], Array], ...]
    """f, f' and f''; and the third one, for second derivatives of :func:`differential`."""
    closed: tuple[Callable[[Array, Array], Array], ...] = ()
    """Formulas of f[x, y], f'[x, y], ... that do not cancel, as far as there are any."""
    relative: bool = True
    """Whether numbers count as close by their ratio, or else by their difference."""

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
    xp, gap = namespace_of(first), rest[-1] - first
    reach = 0.2 * xp.maximum(xp.abs(first), xp.abs(rest[-1])) if f.relative else 0.8
    close = xp.abs(gap) <= reach
    far = _divided(f, order, rest) - _divided(f, order, points[:-1])
    s, weights = gauss(first, 7)
    between = [first[..., None] + s * (x - first)[..., None] for x in rest]
    near = weights * s ** (len(rest) - 1) * _divided(f, order + 1, between)
    return xp.where(close, xp.sum(near, axis=-1), far / xp.where(close, 1.0, gap))


def gauss(like: Array, count: int) -> tuple[Array, Array]:
    """Return nodes and weights of Gauss's rule on [0, 1].

    Seven have 14 digits for what is called close above, and 14 have 15 for angles up to π/2.
    """
    rule = backend_of(like).cached(_gauss, like, count)
    return rule[0, ...], rule[1, ...]


def _gauss(count: int) -> "np.ndarray[Any, Any]":
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return 0.5 * np.stack([1.0 + nodes, weights])


# ---------------------------------------------------------------------- functions


def _xp(function: str) -> Callable[[Array], Array]:
    return lambda x: getattr(namespace_of(x), function)(x)


def _exp_difference(x: Array, y: Array) -> Array:
    r"""Return :math:`e^{(x + y)/2} \sinh(h)/h`, h half the difference."""
    xp = namespace_of(x)
    h = 0.5 * xp.abs(x - y) + 1e8 * tiny_of(x)  # multiples of it are not subnormal
    return xp.exp(0.5 * (x + y)) * (xp.sinh(h) / h)


def _ratio(t: float, x: Array, y: Array) -> Array:
    r"""Return :math:`\sinh(th)/\sinh(h)\,(xy)^{(t - 1)/2}`, 2h = log y/x; or its slope at t = 0.

    It is the divided difference of :math:`x^t`, or of log x.
    """
    xp = namespace_of(x)
    h = 0.5 * xp.log1p(xp.abs(y - x) / xp.minimum(x, y)) + 1e8 * tiny_of(x)
    sides = x ** (0.5 * (t - 1.0)) * y ** (0.5 * (t - 1.0))
    return (xp.sinh(t * h) if t else h) / xp.sinh(h) * sides


def power(t: float) -> Spectral:
    """Return the function x ↦ xᵗ."""

    def derivative(k: int) -> tuple[Any, Any]:
        factor = math.prod(t - i for i in range(k))
        return lambda x: factor * x ** (t - k), lambda x, y: factor * _ratio(t - k, x, y)

    derivatives, closed = zip(*map(derivative, range(4)), strict=True)
    return Spectral(derivatives, closed)


EXP = Spectral(4 * (_xp("exp"),), relative=False, closed=4 * (_exp_difference,))
EXPM1 = EXP._replace(derivatives=(_xp("expm1"), *EXP.derivatives[1:]))
ROOT, INVERSE_ROOT, INVERSE = power(0.5), power(-0.5), power(-1.0)
LOG = Spectral(
    (_xp("log"), *INVERSE.derivatives[:3]),
    closed=(partial(_ratio, 0.0), *INVERSE.closed[:2]),
)


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
    A, finite = finite_or_identity(A)
    values, U = xp.linalg.eigh(A)
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
