r"""The maps from correlation matrices to the spaces in which their five metrics are simple.

Three of them go by the Cholesky factor, :math:`C = LL^\top` and
:math:`\Theta = \operatorname{diag}(L)^{-1}L`, a lower triangular matrix with ones on the diagonal.
Its rows have no constraint, and C comes back by giving the rows of Θ the length one.
"""

import math
from abc import ABC, abstractmethod

import numpy as np

from gyrobn.backends import Array, backend_of, dot, namespace_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.linalg import (
    EXP,
    LOG,
    eye,
    from_triangle,
    matmul,
    symmetric,
    symmetric_functions,
    to_triangle,
    transpose,
)
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.poly_hyperboloid import PolyHyperboloid

__all__ = ["CHARTS", "Chart", "to_unit_diagonal", "with_diagonal"]

ROOT2 = 2.0**0.5


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


# ---------------------------------------------------------------------- by the Cholesky factor


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
        L = theta / xp.sqrt(dot(theta, theta))[..., None]
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
        return PolyHyperboloid(n - 1)

    def leave(self, theta: Array) -> Array:
        """Cut the rows out of Θ and put their time in front."""
        xp = namespace_of(theta)
        space = xp.tril(theta[..., 1:, :-1])
        time = xp.sqrt(1.0 + dot(space, space))
        return xp.concat([time[..., None], space], axis=-1)

    def enter(self, y: Array, n: int) -> Array:
        """Put the rows below the diagonal of ones."""
        return _below(y[..., 1:]) + eye(y, n)

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
        return from_triangle(y, n, diagonal=False) + eye(y, n)


class LogEuclideanCholesky(CholeskyChart):
    """The logarithm of Θ, which is strictly lower triangular."""

    def leave(self, theta: Array) -> Array:
        """Return the entries of log Θ."""
        return to_triangle(_log_unit_lower(theta), diagonal=False)

    def enter(self, y: Array, n: int) -> Array:
        """Return the exponential."""
        return _exp_strict_lower(from_triangle(y, n, diagonal=False))

    def leave_tangent(self, theta: Array, change: Array) -> Array:
        r"""Return the lower left block of :math:`\log\begin{pmatrix}\Theta\\d\Theta&\Theta\end{pmatrix}`."""
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
    """Return Θ, NaN for a matrix that has one: LAPACK would raise for the whole batch."""
    xp = namespace_of(C)
    finite = _finite(C)
    L = xp.linalg.cholesky(xp.where(finite, symmetric(C), eye(C)))
    return xp.where(finite, L / xp.linalg.diagonal(L)[..., None], xp.nan)


def _below(rows: Array) -> Array:
    """Return an n × n matrix with the (n−1) × (n−1) matrix ``rows`` in its lower left corner."""
    xp = namespace_of(rows)
    wide = xp.concat([rows, xp.zeros_like(rows[..., :1])], axis=-1)
    return xp.concat([xp.zeros_like(wide[..., :1, :]), wide], axis=-2)


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
    """Return (I + M)^½ − I by Newton steps, each of which doubles the powers of M that are right."""
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


# ---------------------------------------------------------------------- by the logarithm


class OffLog(Chart):
    r"""The entries of log C off the diagonal, :math:`\sqrt2` times those below it.

    Which diagonal belongs to them follows from :math:`\operatorname{diag}(C) = 1` (Archakov and
    Hansen, 2021).
    """

    def to(self, C: Array) -> Array:
        """Return the entries of the logarithm."""
        (S,) = symmetric_functions(C, LOG)
        return to_triangle(S, diagonal=False, weight=ROOT2)

    def back(self, y: Array, n: int) -> Array:
        """Return exp(S + D), D the diagonal that makes its diagonal one."""
        S = from_triangle(y, n, diagonal=False, weight=ROOT2, mirror=1.0)
        (C,) = symmetric_functions(S + _diagonal(_log_diagonal(S)), EXP)
        return with_diagonal(symmetric(C), 1.0)

    def to_tangent(self, C: Array, dC: Array) -> Array:
        """Return the entries of the change of the logarithm."""
        values, U = _eigh(C)
        inner = _turn(transpose(U), dC) * _log_quotients(values)
        return to_triangle(_turn(U, inner), diagonal=False, weight=ROOT2)

    def back_tangent(self, C: Array, dy: Array) -> Array:
        r"""Return :math:`dC = d\exp(dS + dD)`, dD such that its diagonal is zero."""
        xp = namespace_of(C, dy)
        values, U = _eigh(C)
        quotients = 1.0 / _log_quotients(values)
        dS = from_triangle(dy, C.shape[-1], diagonal=False, weight=ROOT2, mirror=1.0)
        dC = _turn(U, _turn(transpose(U), dS) * quotients)
        J = _diagonal_jacobian(U, quotients)
        dD = -_solve(J, xp.linalg.diagonal(dC))
        inner = _turn(transpose(U), dS + _diagonal(dD)) * quotients
        return with_diagonal(_turn(U, inner), 0.0)


def _log_diagonal(S: Array) -> Array:
    r"""Return the d for which :math:`\exp(S + \operatorname{diag} d)` has the diagonal one.

    Newton's method for the minimum of the convex :math:`\operatorname{tr}\exp(S + D) -
    \operatorname{tr} D`. Along a line of speed p the logarithm of its curvature changes no faster
    than :math:`\|p\|_\infty`, so :math:`\log(1 + \|p\|)/\|p\|` times the Newton step leads down
    from anywhere. The last step, with the Jacobian held constant, has the derivative of the limit.
    """
    xp, shim = namespace_of(S), backend_of(S)
    tol = float(xp.finfo(S.dtype).eps) ** 0.5
    fixed = shim.stop_gradient(S)

    def evaluate(d: Array) -> tuple[Array, Array]:
        values, U = _eigh(fixed + _diagonal(d))
        entries = dot(U * U, xp.exp(values)[..., None, :])
        return entries, _diagonal_jacobian(U, EXP.quotient(*_pairs(values), None))

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        d, done = state
        entries, J = evaluate(d)
        p = _solve(J, 1.0 - entries)
        size = xp.max(xp.abs(p), axis=-1)
        some = xp.where(size > 0, size, 1.0)
        damping = xp.where(size > 0, xp.log1p(some) / some, 1.0)
        d = xp.where(done[..., None], d, d + damping[..., None] * p)
        return d, xp.logical_or(done, xp.logical_not(size > tol))

    d = xp.zeros_like(fixed[..., 0])
    for _ in range(2):  # the fixed point iteration of Archakov and Hansen, a contraction
        values, U = _eigh(fixed + _diagonal(d))
        d = d - xp.log(dot(U * U, xp.exp(values)[..., None, :]))
    state = (d, xp.max(xp.abs(d), axis=-1) < 0)
    d, _ = shim.while_loop(lambda s: xp.logical_not(xp.all(s[1])), body, state, 50)
    _, J = evaluate(d)
    (E,) = symmetric_functions(S + _diagonal(d), EXP)
    return d + _solve(J, 1.0 - xp.linalg.diagonal(E))


def _diagonal_jacobian(U: Array, quotients: Array) -> Array:
    r"""Return :math:`\partial\exp(A)_{ii}/\partial A_{jj} = \sum_{kl} U_{ik}U_{jk}W_{kl}U_{il}U_{jl}`."""
    xp = namespace_of(U)
    n = U.shape[-1]
    pairs = xp.reshape(U[..., :, None] * U[..., None, :], (*U.shape[:-1], n * n))
    weighted = pairs * xp.reshape(quotients, (*U.shape[:-2], 1, n * n))
    return matmul(weighted, transpose(pairs))


class LogScaled(Chart):
    r"""The logarithm of :math:`\Delta C\Delta`, Δ the positive diagonal for which its rows sum to 1.

    The vector of ones is then an eigenvector, of eigenvalue 1, and the logarithm takes place in its
    orthogonal complement, with an orthonormal basis Q: :math:`\log(Q^\top\Delta C\Delta Q)`.
    """

    def to(self, C: Array) -> Array:
        """Return the entries of the logarithm in the complement."""
        x = _unit_row_sums(C)
        (S,) = symmetric_functions(_restrict(x[..., :, None] * C * x[..., None, :]), LOG)
        return to_triangle(S, diagonal=True, weight=ROOT2)

    def back(self, y: Array, n: int) -> Array:
        """Return the exponential, and divide it by the roots of its diagonal."""
        S = from_triangle(y, n - 1, diagonal=True, weight=ROOT2, mirror=1.0)
        (E,) = symmetric_functions(S, EXP)
        return to_unit_diagonal(symmetric(_extend(E - eye(E)) + eye(E, n)))

    def to_tangent(self, C: Array, dC: Array) -> Array:
        r"""Return the change of the logarithm, from :math:`d(\Delta C\Delta)` with row sums zero."""
        xp = namespace_of(C, dC)
        x = _unit_row_sums(C)
        M, dM = (x[..., :, None] * A * x[..., None, :] for A in (C, symmetric(dC)))
        u = -_solve(M + eye(M), xp.sum(dM, axis=-1))  # the relative change of Δ
        dM = dM + u[..., :, None] * M + u[..., None, :] * M
        values, U = _eigh(_restrict(M))
        inner = _turn(transpose(U), matmul(transpose(_helmert(C)), dM, _helmert(C)))
        dS = _turn(U, inner * _log_quotients(values))
        return to_triangle(dS, diagonal=True, weight=ROOT2)

    def back_tangent(self, C: Array, dy: Array) -> Array:
        r"""Return the change of the exponential, and of C with it."""
        xp = namespace_of(C, dy)
        n = C.shape[-1]
        x = _unit_row_sums(C)
        values, U = _eigh(_restrict(x[..., :, None] * C * x[..., None, :]))
        dS = from_triangle(dy, n - 1, diagonal=True, weight=ROOT2, mirror=1.0)
        dM = _extend(_turn(U, _turn(transpose(U), dS) / _log_quotients(values)))
        dC = dM / (x[..., :, None] * x[..., None, :])
        half = 0.5 * xp.linalg.diagonal(dC)
        return with_diagonal(dC - (half[..., :, None] + half[..., None, :]) * C, 0.0)


def _unit_row_sums(C: Array) -> Array:
    r"""Return the positive x with :math:`x_i (Cx)_i = 1`: ΔCΔ has row sums one for Δ = diag(x).

    Newton's method for the minimum of :math:`\tfrac12 x^\top Cx - \sum\log x_i`, which is
    self-concordant: where the decrement λ is large, 1/(1 + λ) of the step leads down and keeps x
    positive, and a search along the line leads further. The last step, with the Hessian held
    constant, has the derivative of the limit.
    """
    xp, shim = namespace_of(C), backend_of(C)
    eps = float(xp.finfo(C.dtype).eps)
    fixed = shim.stop_gradient(C)
    finite = _finite(fixed)
    known = xp.where(finite, fixed, eye(fixed))

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        x, done = state
        M = x[..., :, None] * known * x[..., None, :]
        q = _solve(M + eye(M), 1.0 - xp.sum(M, axis=-1))  # the step, relative to x
        turn = matmul(M, q[..., None])[..., 0]
        bend, slope = xp.clip(dot(q, turn), min=0.0), xp.sum(turn, axis=-1)
        decrement = xp.sqrt(dot(q, q) + bend)
        t = 1.0 / (1.0 + decrement)
        for _ in range(6):  # the same method along the line, where it costs next to nothing
            share = q / (1.0 + t[..., None] * q)
            gradient = slope + bend * t - xp.sum(share, axis=-1)
            root = xp.sqrt(bend + dot(share, share))
            root = xp.where(root > 0, root, 1.0)
            t = t - gradient / (root * (root + xp.abs(gradient)))
        t = xp.where(decrement > 0.25, t, 1.0)
        x = xp.where(done[..., None], x, x * (1.0 + t[..., None] * q))
        noise = C.shape[-1] * eps * xp.max(xp.abs(M), axis=(-2, -1))  # of the row sums
        return x, xp.logical_or(done, xp.logical_not(decrement > xp.clip(noise, min=eps**0.5)))

    total = xp.clip(xp.sum(known, axis=(-2, -1)), min=eps)
    x = xp.sqrt(C.shape[-1] / total)[..., None] * xp.ones_like(known[..., 0])
    state = (x, total < 0)
    x, _ = shim.while_loop(lambda s: xp.logical_not(xp.all(s[1])), body, state, 60)
    H = x[..., :, None] * known * x[..., None, :] + eye(known)
    x = x * (1.0 + _solve(H, 1.0 - x * matmul(C, x[..., None])[..., 0]))
    return xp.where(finite[..., 0], x, xp.nan)


def _helmert(like: Array, n: int | None = None) -> Array:
    """Return an orthonormal basis of the vectors of sum zero, as the columns of n × (n−1)."""
    n = like.shape[-1] if n is None else n
    k = np.arange(1, n)
    Q = np.triu(np.ones((n, n - 1)))
    Q[k, k - 1] = -k
    return backend_of(like).from_numpy(Q / np.sqrt(k * (k + 1.0)), like)


def _restrict(M: Array) -> Array:
    """Return QᵀMQ; exactly the identity for the identity."""
    Q = _helmert(M)
    return eye(M, M.shape[-1] - 1) + matmul(transpose(Q), M - eye(M), Q)


def _extend(A: Array) -> Array:
    """Return QAQᵀ."""
    Q = _helmert(A, A.shape[-1] + 1)
    return matmul(Q, A, transpose(Q))


# ---------------------------------------------------------------------- helpers


def to_unit_diagonal(A: Array) -> Array:
    """Divide by the roots of the diagonal, of any size; the diagonal of the result is exactly 1."""
    xp = namespace_of(A)
    roots = xp.sqrt(xp.linalg.diagonal(A))
    return with_diagonal(A / (roots[..., :, None] * roots[..., None, :]), 1.0)


def with_diagonal(A: Array, value: float) -> Array:
    """Return A with ``value`` on the diagonal."""
    return namespace_of(A).where(eye(A) > 0, value, A)


def _diagonal(d: Array) -> Array:
    return d[..., None] * eye(d)


def _finite(A: Array) -> Array:
    xp = namespace_of(A)
    return xp.all(xp.isfinite(A), axis=(-2, -1), keepdims=True)


def _eigh(A: Array) -> tuple[Array, Array]:
    """Return eigenvalues and eigenvectors; NaN for a matrix that has one."""
    xp = namespace_of(A)
    finite = _finite(A)
    values, U = xp.linalg.eigh(symmetric(xp.where(finite, A, eye(A))))
    return xp.where(finite[..., 0], values, xp.nan), U


def _turn(U: Array, A: Array) -> Array:
    """Return U A Uᵀ, of the symmetric part of A."""
    return matmul(U, symmetric(A), transpose(U))


def _pairs(values: Array) -> tuple[Array, Array]:
    return values[..., :, None], values[..., None, :]


def _log_quotients(values: Array) -> Array:
    return LOG.quotient(*_pairs(values), None)


def _solve(A: Array, b: Array) -> Array:
    """Return A⁻¹b for vectors b."""
    return namespace_of(A, b).linalg.solve(A, b[..., None])[..., 0]


CHARTS: dict[str, Chart] = {
    "poly_hyperbolic_cholesky": PolyHyperbolicCholesky(),
    "euclidean_cholesky": EuclideanCholesky(),
    "log_euclidean_cholesky": LogEuclideanCholesky(),
    "off_log": OffLog(),
    "log_scaled": LogScaled(),
}
