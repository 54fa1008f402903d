"""Symmetric positive definite matrices: covariances, diffusion tensors, kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.affine_invariant import AffineInvariant
from gyrobn.manifolds.chart import Chart, Diffeomorphism
from gyrobn.manifolds.definite import Definite, change_of_factor, clamped, exponential
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.numerics.matrices import (
    adjoint,
    cholesky,
    eye,
    from_triangle,
    matmul,
    symmetric,
    to_triangle,
    unpack,
)
from gyrobn.numerics.matrix_functions import (
    EXP,
    LOG,
    Eigen,
    differential,
    eigh,
    matrix_function,
    power,
    svd,
)


class Power(Diffeomorphism):
    r"""The power :math:`P^\theta`, onto matrices with an affine-invariant metric over θ²."""

    inside: AffineInvariant

    def __init__(
        self,
        n: int,
        theta: float,
        alpha: float = 1.0,
        beta: float = 0.0,
        cholesky: bool = False,
    ) -> None:
        self.n, self.theta = n, theta
        self.inside = AffineInvariant(n, cholesky, theta, alpha, beta)

    def forward(self, x: Array) -> Array:
        """Return the power."""
        return _power(x, self.theta)

    def inverse(self, y: Array) -> Array:
        """Return the power by 1/θ."""
        return _power(y, 1.0 / self.theta)

    def differential(self, x: Array, v: Array) -> Array:
        """Return the derivative of the power."""
        return _differential(x, v, self.theta)

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the derivative of the power by 1/θ."""
        return _differential(self.forward(x), u, 1.0 / self.theta)

    def exponential(self, c: Array) -> Array:
        """Return exp C, whatever θ is."""
        return exponential(self.inside._weighted(unpack(c, self.n), inverse=True))


def _power(P: Array, t: float) -> Array:
    """Return the power of the symmetric part; for t = 1 it takes no decomposition."""
    return symmetric(P) if t == 1.0 else matrix_function(P, power(t))


def _differential(P: Array, V: Array, t: float) -> Array:
    return V if t == 1.0 else differential(P, V, power(t))


class Logarithm(Diffeomorphism):
    """The coordinates of the affine-invariant metric, for the log-Euclidean one, without θ."""

    def __init__(self, n: int, theta: float, alpha: float, beta: float) -> None:
        self.n, self.inside = n, Euclidean(n * (n + 1) // 2)
        self.at_identity = AffineInvariant(n, alpha=alpha, beta=beta)

    def forward(self, x: Array) -> Array:
        """Return log P."""
        return self.at_identity.to_normal(x)

    def inverse(self, y: Array) -> Array:
        """Return the exponential."""
        return matrix_function(self.at_identity._matrix(y), EXP)

    def differential(self, x: Array, v: Array) -> Array:
        """Return the derivative of the logarithm."""
        return self.at_identity._coordinates(differential(x, v, LOG))

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the derivative of the exponential at log P."""
        values, U = eigen = eigh(symmetric(x))
        known = Eigen(LOG.value(values), U)
        V = self.at_identity._matrix(u)
        return differential(matrix_function(x, LOG, eigen), V, EXP, known)

    def exponential(self, c: Array) -> Array:
        """Return exp C."""
        return self.at_identity.from_normal(c)


class LogCholesky(Diffeomorphism):
    r"""The Cholesky factor L of :math:`P^\theta`, with the logarithm of its diagonal, over θ.

    Of the differential :math:`dL = L\Phi` of the factor, Φ is the :func:`change_of_factor`.
    """

    def __init__(self, n: int, theta: float, *weights: float) -> None:
        self.n, self.theta, self.power = n, theta, Power(n, theta)
        self.inside = Euclidean(n * (n + 1) // 2)

    def forward(self, x: Array) -> Array:
        """Return the factor."""
        L = cholesky(self.power.forward(x))
        xp, diagonal = namespace_of(x), eye(x) > 0
        logs = xp.log(xp.where(diagonal, L, 1.0))
        return to_triangle(xp.where(diagonal, logs, L), diagonal=True) / self.theta

    def inverse(self, y: Array) -> Array:
        """Return the matrix; its power by the singular values of L, which are never negative."""
        C = self.theta * from_triangle(y, self.n, diagonal=True)
        xp, diagonal = namespace_of(y), eye(C) > 0
        L = xp.where(diagonal, xp.exp(xp.where(diagonal, C, 0.0)), C)
        P = matmul(L, adjoint(L))
        if self.theta == 1.0:
            return P
        U, values, _ = svd(L)
        return matrix_function(P, power(1.0 / self.theta), Eigen(values * values, U))

    def differential(self, x: Array, v: Array) -> Array:
        """Return the change of the factor."""
        L = cholesky(self.power.forward(x))
        phi = change_of_factor(L, self.power.differential(x, v))
        change = namespace_of(x).where(eye(x) > 0, phi, matmul(L, phi))
        return to_triangle(change, diagonal=True) / self.theta

    def inverse_differential(self, x: Array, u: Array) -> Array:
        """Return the change of the matrix."""
        xp, L = namespace_of(x), cholesky(self.power.forward(x))
        change = self.theta * from_triangle(u, self.n, diagonal=True)
        dL = xp.where(eye(x) > 0, L * change, change)
        return self.power.inverse_differential(x, 2.0 * symmetric(matmul(dL, adjoint(L))))

    def exponential(self, c: Array) -> Array:
        """Return the matrix, clamped before it is singular."""
        return clamped(self.inverse(c))


CHARTS: dict[str, Callable[[int, float, float, float], Diffeomorphism]] = {
    "affine_invariant": Power,
    "log_euclidean": Logarithm,
    "log_cholesky": LogCholesky,
    "cholesky_affine_invariant": partial(Power, cholesky=True),
}
METRICS = tuple(CHARTS)
ALIASES = {
    "riemann": "affine_invariant",
    "logeuclid": "log_euclidean",
    "logchol": "log_cholesky",
}
"""Names that pyRiemann has for the metrics."""


@dataclass(frozen=True)
class SPD(Definite, Chart):
    r"""Symmetric positive definite n × n matrices.

    ============================= ============================================= ==================
    ``metric``                    :math:`P \oplus Q`                            :math:`d(I, P)`
    ============================= ============================================= ==================
    ``affine_invariant``          :math:`P^{1/2} Q P^{1/2}`                     ‖log P‖
    ``cholesky_affine_invariant`` :math:`L Q L^\top`, :math:`P = L L^\top`      ‖log P‖
    ``log_euclidean``             :math:`\exp(\log P + \log Q)`                 ‖log P‖
    ``log_cholesky``              :math:`\psi^{-1}(\psi(P) + \psi(Q))`          :math:`\|\psi(P)\|`
    ============================= ============================================= ==================

    where ψ(P) is the strict lower part of L together with the logarithm of its diagonal. The second
    is the group of LieBN: it has the metric of the first, and other translations. The last two are
    flat.

    With the first three metrics nothing depends on the unit of the data: EEG covariances in V², of
    size 1e-26, give the same result as in μV². With the log-Cholesky metric, the unit decides how
    much the strict lower part counts beside the diagonal.

    Parameters
    ----------
    n
        Number of rows.
    metric
        One of the names above, or pyRiemann's ``"riemann"``, ``"logeuclid"``, ``"logchol"`` for the
        first and the last two.
    theta
        Power deformation: distances are those between the :math:`P^\theta`, divided by \|θ\|. As
        θ tends to 0, the affine-invariant metric tends to the log-Euclidean one, which does not
        depend on θ.
    alpha, beta
        Weights of the shape and of the size: :math:`\|X\|^2` of a logarithm X becomes
        :math:`\alpha\|X\|^2 + \beta\operatorname{tr}^2 X`, with α > 0 and α + nβ > 0. They
        change distances and variances, and neither ⊕ nor means. The log-Cholesky metric has none.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SPD
    >>> M = SPD(2)
    >>> P, Q = np.diag([1.0, 4.0]), np.asarray([[2.0, 1.0], [1.0, 2.0]])
    >>> M.add(P, Q)
    array([[2., 2.],
           [2., 8.]])
    >>> bool(np.isclose(M.norm(P), np.log(4.0)))
    True
    """

    metric: str = field(default=METRICS[0], metadata={"choices": METRICS, "aliases": ALIASES})
    theta: float = 1.0
    alpha: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta == 0.0:
            raise ValueError("theta of SPD must be a finite number other than 0, got 0")
        alpha, beta = self.alpha, self.beta
        if not (alpha > 0.0 and alpha + self.n * beta > 0.0):
            raise ValueError(
                f"SPD({self.n}) needs alpha > 0 and alpha + {self.n} * beta > 0, "
                f"got alpha={alpha!r} and beta={beta!r}"
            )
        if self.metric == "log_cholesky" and (alpha, beta) != (1.0, 0.0):
            raise ValueError(
                "the log_cholesky metric of SPD has no alpha and beta: leave them at 1 and 0, got "
                f"alpha={alpha!r} and beta={beta!r}"
            )

    @cached_property
    def chart(self) -> Diffeomorphism:
        r"""The map :math:`P^\theta`, :math:`\log P` or :math:`\psi(P^\theta)/\theta`."""
        return CHARTS[self.metric](self.n, self.theta, self.alpha, self.beta)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small spaces with each metric, some of them deformed or of other weights."""
        return (
            cls(2),
            cls(3, "log_euclidean"),
            cls(3, "log_cholesky"),
            cls(3, "cholesky_affine_invariant"),
            cls(3, theta=0.5, alpha=2.0, beta=-0.25),
            cls(2, "log_cholesky", theta=0.5),
            cls(2, "log_euclidean", alpha=0.5, beta=1.0),
        )
