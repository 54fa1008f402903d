"""Correlation matrices, under the five metrics of the paper.

Each metric is a map onto a vector space, or onto a product of hyperboloids. Tangent vectors are
symmetric matrices with a zero diagonal.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.definite import Definite, change_of_factor, clamped
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.poly_hyperboloid import PolyHyperboloid
from gyrobn.numerics.arrays import check_floating, dot, eps_of
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.matrices import (
    adjoint,
    cholesky,
    congruence,
    diagonal_matrix,
    finite_or_identity,
    from_triangle,
    identity,
    matmul,
    pack,
    solve,
    symmetric,
    to_triangle,
    unpack,
    with_diagonal,
)
from gyrobn.numerics.matrix_functions import (
    EXP,
    LOG,
    Eigen,
    change,
    differential,
    eigh,
    matrix_function,
)

ROOT2 = 2.0**0.5


class CorrelationMap(Diffeomorphism):
    """A map of correlation matrices onto a vector space, or another one of its dimension."""

    def __init__(self, n: int, inside: GyroSpace | None = None) -> None:
        self.n, self.inside = n, inside or Euclidean(n * (n - 1) // 2)

    def exponential(self, c: Array) -> Array:
        """Return the matrix, clamped before it is singular."""
        return to_unit_diagonal(clamped(super().exponential(c)))


def to_unit_diagonal(A: Array) -> Array:
    """Divide by the roots of the diagonal, where they are positive; and make the diagonal 1."""
    xp = namespace_of(A)
    variances = xp.linalg.diagonal(A)
    roots = xp.sqrt(xp.where(variances > 0, variances, 1.0))
    return with_diagonal(A / (roots[..., :, None] * roots[..., None, :]), 1.0)


def _along_unit_diagonal(C: Array, E: Array) -> Array:
    """Return the derivative of :func:`to_unit_diagonal` at C along E."""
    return with_diagonal(E - 0.5 * _sums(namespace_of(E).linalg.diagonal(E)) * C, 0.0)


def _sums(u: Array) -> Array:
    """Return the matrix of all sums of two entries."""
    return u[..., :, None] + u[..., None, :]


# ---------------------------------------------------------------------- by the Cholesky factor


class Cholesky(CorrelationMap):
    r"""The strict lower part of :math:`\Theta = \operatorname{diag}(L)^{-1}L`, :math:`C = LL^\top`.

    Its entries are free. The rows of Θ, divided by their lengths, are those of L.
    """

    def forward(self, x: Array) -> Array:
        """Return the entries of Θ, row by row."""
        return to_triangle(self._log(_theta(cholesky(x))), diagonal=False)

    def inverse(self, y: Array) -> Array:
        """Return C."""
        theta = self._exp(from_triangle(y, self.n, diagonal=False))
        return to_unit_diagonal(matmul(theta, adjoint(theta)))

    def differential(self, x: Array, v: Array) -> Array:
        r"""Return :math:`\Theta\Phi - \operatorname{diag}(\Phi)\Theta`, for :math:`L\Phi = dL`."""
        L = cholesky(x)
        theta, phi = _theta(L), change_of_factor(L, v)
        dT = matmul(theta, phi) - namespace_of(x).linalg.diagonal(phi)[..., None] * theta
        return to_triangle(_derivative(self._log, theta, dT), diagonal=False)

    def inverse_differential(self, x: Array, u: Array) -> Array:
        r"""Return the derivative of :math:`\Theta\Theta^\top`, scaled to a unit diagonal."""
        L, dX = cholesky(x), from_triangle(u, self.n, diagonal=False)
        dT = _derivative(self._exp, self._log(_theta(L)), dX)
        dL = namespace_of(x).linalg.diagonal(L)[..., None] * dT
        return _along_unit_diagonal(x, 2.0 * symmetric(matmul(dL, adjoint(L))))

    # ------------------------------------------------------------------ from Θ to X and back

    def _log(self, theta: Array) -> Array:
        """Return a matrix X whose strict lower part are the coordinates."""
        return theta

    def _exp(self, X: Array) -> Array:
        """Return the Θ of a strictly lower triangular X."""
        return X + identity(X)


def _theta(L: Array) -> Array:
    return L / namespace_of(L).linalg.diagonal(L)[..., None]


def _derivative(f: Callable[[Array], Array], A: Array, E: Array) -> Array:
    r"""Return the derivative of an analytic function of matrices along E, the corner of a block:

    .. math:: f\begin{pmatrix} A & E \\ 0 & A \end{pmatrix}
              = \begin{pmatrix} f(A) & df_A(E) \\ 0 & f(A) \end{pmatrix} .
    """
    xp, n = namespace_of(A), A.shape[-1]
    A, E = xp.broadcast_arrays(A, E)
    rows = xp.concat([A, E], axis=-1), xp.concat([0.0 * E, A], axis=-1)
    return f(xp.concat(rows, axis=-2))[..., :n, n:]


class LogCholesky(Cholesky):
    r"""The logarithm X of Θ.

    With the strictly lower triangular :math:`N = \Theta - I`,

    .. math:: X = \int_0^1 (I + sN)^{-1} N\,ds .

    Products of n such matrices are zero, so the integrand is a polynomial of s, and Gauss's rule is
    exact. (The power series of the logarithm alternates, and has no digit left at n = 28.)
    """

    def _log(self, theta: Array) -> Array:
        rule = backend_of(theta).cached(_gauss, theta, self.n)
        one, N = identity(theta), (theta - identity(theta))[..., None, :, :]
        integrand = matmul(namespace_of(N).linalg.inv(one + rule[0, ...] * N), N)
        return namespace_of(N).sum(rule[1, ...] * integrand, axis=-3)

    def _exp(self, X: Array) -> Array:
        E = one = identity(X)
        for k in range(self.n - 1, 0, -1):  # the power series, which ends
            E = one + matmul(X, E) / k
        return E


def _gauss(n: int) -> "np.ndarray[Any, Any]":
    """Return nodes and weights of Gauss's rule, exact for polynomials of degree n − 2."""
    x, w = np.polynomial.legendre.leggauss(n // 2)
    return np.stack([0.5 + 0.5 * x, 0.5 * w])[..., None, None]


# ---------------------------------------------------------------------- by a matrix logarithm


class Scaling(CorrelationMap):
    """A map that needs a diagonal matrix; an equation determines the logarithms d of it."""

    @abstractmethod
    def _equation(self, A: Array, d: Array) -> tuple[Array, Array]:
        """Return minus the derivative of the residual by d, exact at the solution; and it."""

    @abstractmethod
    def _damped(self, step: Array) -> Array:
        """Return the part of a Newton step that goes downhill from anywhere."""

    def _solution(self, A: Array, start: Array) -> Array:
        """Return d for symmetric matrices A, by Newton's method; NaN if that does not converge."""
        xp, stop = namespace_of(A), backend_of(A).stop_gradient
        constant, least = finite_or_identity(stop(A))[0], eps_of(A) ** 0.5

        def body(constants: Arrays, state: Arrays) -> Arrays:
            (A,), (d, size) = constants, state
            step = solve(*self._equation(A, d))
            new = xp.max(xp.abs(step), axis=-1, keepdims=True)
            return xp.where(size > least, d + self._damped(step), d), xp.minimum(size, new)

        def going(state: Arrays) -> Array:
            return xp.any(state[1] > least)

        def function(order: int, constants: Arrays, A: Array) -> Arrays:
            """Return d, with derivatives of one more order by each step."""
            (d,) = constants
            for _ in range(order):
                J, residual = self._equation(A, d)
                d = d + solve(stop(J), change(residual))
            return (d,)

        state = stop(start), xp.full_like(start[..., :1], xp.inf)
        key = type(self), least
        d, size = backend_of(A).while_loop(key, going, body, (constant,), state, 60)
        d = xp.where(size <= least, d, xp.nan)
        return backend_of(A).differentiate(function, (d,), A)[0]


def _logarithm(A: Array) -> tuple[Array, Eigen]:
    """Return log A and its decomposition."""
    values, U = eigen = eigh(symmetric(A))
    return matrix_function(A, LOG, eigen), Eigen(LOG.value(values), U)


class OffLog(Scaling):
    r"""The entries of log C off the diagonal, :math:`\sqrt2` times those below it.

    They determine the diagonal d of log C, since :math:`\operatorname{diag}(C) = 1` (Archakov and
    Hansen, 2021). Newton's method minimizes the convex :math:`\operatorname{tr}\exp(S + D) -
    \operatorname{tr} D`. Along a line of speed p the logarithm of its curvature changes no faster
    than :math:`\|p\|_\infty`, so :math:`1/(1 + \|p\|_\infty)` of the Newton step goes downhill.
    """

    def forward(self, x: Array) -> Array:
        """Return the entries of the logarithm."""
        return to_triangle(matrix_function(x, LOG), diagonal=False, weight=ROOT2)

    def inverse(self, y: Array) -> Array:
        """Return exp(S + D), with the diagonal matrix D for which its diagonal is one.

        The first guess is a fixed point iteration of Archakov and Hansen, a contraction.
        """
        xp, S = namespace_of(y), self._symmetric(y)
        values, U = eigh(S)
        top = values[..., -1:]
        start = -top - xp.log(dot(U * U, xp.exp(values - top)[..., None, :]))
        C = matrix_function(S + diagonal_matrix(self._solution(S, start)), EXP)
        return with_diagonal(symmetric(C), 1.0)

    def differential(self, x: Array, v: Array) -> Array:
        """Return the entries of the change of the logarithm."""
        return to_triangle(differential(x, v, LOG), diagonal=False, weight=ROOT2)

    def inverse_differential(self, x: Array, u: Array) -> Array:
        r"""Return :math:`dC = d\exp(dS + dD)`, with dD such that its diagonal is zero."""
        S, eigen = _logarithm(x)
        J, dS = _diagonal_jacobian(eigen), self._symmetric(u)
        for _ in range(3):  # J is a constant: the first step is right, the others its derivatives
            diagonal = namespace_of(x).linalg.diagonal(differential(S, dS, EXP, eigen))
            dS = dS - diagonal_matrix(solve(J, diagonal))
        return with_diagonal(differential(S, dS, EXP, eigen), 0.0)

    def _symmetric(self, y: Array) -> Array:
        return from_triangle(y, self.n, diagonal=False, weight=ROOT2, mirror=1.0)

    def _equation(self, A: Array, d: Array) -> tuple[Array, Array]:
        """Compare the diagonal of exp(S + D) with one."""
        A = A + diagonal_matrix(d)
        eigen = eigh(A)
        diagonal = namespace_of(A).linalg.diagonal(matrix_function(A, EXP, eigen))
        return _diagonal_jacobian(eigen), 1.0 - diagonal

    def _damped(self, step: Array) -> Array:
        xp = namespace_of(step)
        return step / (1.0 + xp.max(xp.abs(step), axis=-1, keepdims=True))


def _diagonal_jacobian(eigen: Eigen) -> Array:
    r"""Return the derivative of diag(exp A) with respect to diag(A), from eigenvalues and vectors.

    .. math:: J_{ij} = \sum_{kl} U_{ik}U_{jk}\, \exp[\lambda_k, \lambda_l]\, U_{il}U_{jl}
    """
    values, U = eigen
    xp, n = namespace_of(U), U.shape[-1]
    table = EXP.difference(values[..., :, None], values[..., None, :])
    pairs = xp.reshape(U[..., :, None] * U[..., None, :], (*U.shape[:-1], n * n))
    return matmul(pairs * xp.reshape(table, (*U.shape[:-2], 1, n * n)), adjoint(pairs))


class LogScaled(Scaling):
    r"""The logarithm of :math:`\Delta C\Delta`, whose positive diagonal Δ makes row sums 1.

    The vector of ones is then an eigenvector of eigenvalue 1. With an orthonormal basis Q of its
    orthogonal complement, the coordinates are :math:`Q^\top\log(\Delta C\Delta)Q`.

    Newton's method minimizes :math:`f(x) = \tfrac12 x^\top Cx - \sum\log x_i`, Δ = diag(x). With
    :math:`M = \Delta C\Delta` the step is :math:`\Delta q`, :math:`(M + I)q = 1 - M 1`. Along it,
    :math:`f'' \le q^\top(M + I)q/(1 - tm)^2` with :math:`m = \max_i(0, -q_i)`, so the part
    :math:`t = 1/(1 + m)` of it goes downhill, and keeps x positive.
    """

    def forward(self, x: Array) -> Array:
        """Return the entries of the logarithm in the complement."""
        _, M = self._scaled(x)
        return pack(congruence(adjoint(self._basis(x)), matrix_function(M, LOG)))

    def inverse(self, y: Array) -> Array:
        """Return the exponential, divided by the roots of its diagonal."""
        return to_unit_diagonal(symmetric(matrix_function(self._symmetric(y), EXP)))

    def differential(self, x: Array, v: Array) -> Array:
        r"""Return the change of the logarithm, from that of :math:`\Delta C\Delta`."""
        d, M = self._scaled(x)
        dM = _scaled(symmetric(v), d)
        u = solve(M + identity(M), namespace_of(x).sum(dM, axis=-1))  # minus the change of d
        dM = differential(M, dM - _sums(u) * M, LOG)
        return pack(congruence(adjoint(self._basis(x)), dM))

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the change of C, from that of the exponential."""
        d, M = self._scaled(x)
        S, eigen = _logarithm(M)
        return _along_unit_diagonal(
            symmetric(x), _scaled(differential(S, self._symmetric(u), EXP, eigen), -d)
        )

    def _scaled(self, x: Array) -> tuple[Array, Array]:
        """Return d and ΔCΔ."""
        x = symmetric(x)
        d = self._solution(x, 0.0 * x[..., 0])
        return d, _scaled(x, d)

    def _basis(self, like: Array) -> Array:
        """Return Q."""
        return backend_of(like).cached(_helmert, like, self.n)

    def _symmetric(self, y: Array) -> Array:
        """Return the logarithm, which is zero on the vector of ones."""
        return congruence(self._basis(y), unpack(y, self.n - 1))

    def _equation(self, A: Array, d: Array) -> tuple[Array, Array]:
        """Compare the row sums with one."""
        M = _scaled(A, d)
        return M + identity(M), 1.0 - namespace_of(A).sum(M, axis=-1)

    def _damped(self, step: Array) -> Array:
        xp = namespace_of(step)
        m = xp.clip(-xp.min(step, axis=-1, keepdims=True), min=0.0)
        return xp.log1p(step / (1.0 + m))


def _scaled(A: Array, d: Array) -> Array:
    """Return ΔAΔ, Δ = diag(exp d)."""
    return namespace_of(d).exp(_sums(d)) * A


def _helmert(n: int) -> "np.ndarray[Any, Any]":
    """Return n × (n − 1): its columns are an orthonormal basis of the vectors of sum 0."""
    k = np.arange(1, n)
    Q = np.triu(np.ones((n, n - 1)))
    Q[k, k - 1] = -k
    return Q / np.sqrt(k * (k + 1.0))


# ---------------------------------------------------------------------- the geometry

CHARTS: dict[str, Callable[[int], CorrelationMap]] = {
    "poly_hyperbolic_cholesky": lambda n: Cholesky(n, PolyHyperboloid(n - 1)),
    "euclidean_cholesky": Cholesky,
    "log_euclidean_cholesky": LogCholesky,
    "off_log": OffLog,
    "log_scaled": LogScaled,
}
"""The metrics by name."""


@dataclass(frozen=True)
class Correlation(Definite, Chart):
    r"""Positive definite n × n matrices with ones on the diagonal.

    With the Cholesky factor :math:`C = LL^\top` and :math:`\Theta = \operatorname{diag}(L)^{-1}L`:

    ==============================  =============================================================
    ``"poly_hyperbolic_cholesky"``  row i of the strict lower part of Θ is the spatial part of a
                                    point of the hyperboloid :math:`\mathbb H^i`; n − 1 blocks,
                                    each with its own variance and scale
    ``"euclidean_cholesky"``        flat: the strict lower part of Θ
    ``"log_euclidean_cholesky"``    flat: log Θ
    ``"off_log"``                   flat: the entries of log C off the diagonal
    ``"log_scaled"``                flat: :math:`\log(\Delta C\Delta)`, with the positive diagonal Δ
                                    for which the rows of :math:`\Delta C\Delta` sum to one
    ==============================  =============================================================

    The identity matrix is the identity of each. The last two metrics do not depend on the order of
    the variables; the first three do.

    Parameters
    ----------
    n
        Number of variables, at least 2.
    metric
        One of the names above.

    Examples
    --------
    >>> import numpy as np
    >>> M = Correlation(3)
    >>> M.dim, M.blocks
    (3, (1, 2))
    >>> C = np.asarray([[1.0, 0.8, 0.3], [0.8, 1.0, 0.5], [0.3, 0.5, 1.0]])
    >>> M.scale(0.5, C).round(3)
    array([[1.   , 0.5  , 0.162],
           [0.5  , 1.   , 0.284],
           [0.162, 0.284, 1.   ]])
    >>> M.scale(np.asarray([0.0, 1.0]), C).round(3)[0]  # a factor for each row
    array([1. , 0. , 0.3])
    """

    n: int = field(metadata={"least": 2})
    metric: str = field(default="poly_hyperbolic_cholesky", metadata={"choices": tuple(CHARTS)})

    @cached_property
    def chart(self) -> CorrelationMap:
        """The map of the metric."""
        return CHARTS[self.metric](self.n)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return each metric on 3 × 3 matrices."""
        return tuple(cls(3, metric) for metric in CHARTS)

    def project(self, x: Array) -> Array:
        r"""Symmetrize, divide by the roots of the diagonal, and raise low eigenvalues.

        Eigenvalues of a matrix that is not positive definite are raised to
        :math:`\sqrt\epsilon` times the largest one.
        """
        xp = self._namespace(x)
        A, finite = finite_or_identity(x)
        A = super().project(to_unit_diagonal(symmetric(A)))
        return xp.where(finite, to_unit_diagonal(A), x)

    def _asymmetry(self, x: Array) -> tuple[Array, Array]:
        """Return the asymmetry, or the distance of the diagonal from one; and the size."""
        xp, (asymmetry, size) = namespace_of(x), super()._asymmetry(x)
        off = xp.max(xp.abs(xp.linalg.diagonal(x) - 1.0), axis=-1)
        return xp.where(off > asymmetry, off, asymmetry), size


def covariance_to_correlation(covariance: Array) -> Array:
    r"""Return the correlation matrices :math:`C_{ij} = \Sigma_{ij}/\sqrt{\Sigma_{ii}\Sigma_{jj}}`.

    Parameters
    ----------
    covariance
        Covariance matrices, shape ``(..., n, n)``, in any unit: a trace of 1e-26, as of EEG in
        volts, loses no digits.

    Raises
    ------
    ValueError
        If a variance is not positive; NaN instead if values cannot be seen (JAX under jit).

    Examples
    --------
    >>> import numpy as np
    >>> covariance_to_correlation(1e-26 * np.asarray([[4.0, 1.0], [1.0, 1.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    xp = namespace_of(covariance)
    check_square("covariance matrices are square, shape (..., n, n)", covariance.shape)
    check_floating(covariance)
    variances = xp.linalg.diagonal(covariance)
    bad = variances <= 0
    backend = backend_of(covariance)
    if not backend.traced(covariance) and bool(xp.any(bad)):
        *sample, variable = (int(i) for i in np.argwhere(backend.to_numpy(bad))[0])
        where = f"sample {sample[0] if len(sample) == 1 else tuple(sample)}, " if sample else ""
        value = float(variances[(*sample, variable)])
        raise ValueError(
            f"{where}variable {variable} has the variance {value}: a variable that is constant "
            "has no correlations, leave it out"
        )
    large = xp.where(bad, xp.nan, variances)
    return to_unit_diagonal(symmetric(covariance + 0.0 * large[..., None]))
