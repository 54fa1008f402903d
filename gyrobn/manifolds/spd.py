"""Symmetric positive definite matrices: covariances, diffusion tensors, kernels."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.affine_invariant import AffineInvariant, contains, nearest, violation
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace, space_of
from gyrobn.manifolds.pullback import Pullback
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.decompositions import cholesky
from gyrobn.numerics.linalg import differential, logarithm, symmetric_functions
from gyrobn.numerics.matrices import (
    congruence,
    eye,
    from_triangle,
    matmul,
    pack,
    symmetric,
    to_triangle,
    transpose,
    unpack,
)
from gyrobn.numerics.spectral import EXP, LOG, power

__all__ = ["SPD"]

METRICS = ("affine_invariant", "log_euclidean", "log_cholesky", "cholesky_affine_invariant")


@dataclass(frozen=True)
class SPD(Pullback):
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
    is LieBN's group: the metric of the first, other translations. The last two are flat.

    Under the first three nothing depends on the unit of the data: covariances of EEG in V², of size
    1e-26, give what they would give in μV². Under the log-Cholesky metric the unit weighs the
    strict lower part against the diagonal.

    Parameters
    ----------
    n
        Number of rows.
    metric
        One of the names above.
    theta
        Power deformation: the metric, over θ², that :math:`P \mapsto P^\theta` carries over. With θ
        to 0 the affine-invariant one tends to the log-Euclidean one, which θ does not change.

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

    n: int
    metric: str = field(default=METRICS[0], metadata={"choices": METRICS})
    theta: float = 1.0
    definite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta == 0.0:
            raise ValueError("theta of SPD must be a finite number other than 0, got 0")

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, n)``."""
        return self.n, self.n

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space of matrices of the last two axes of ``shape``."""
        return cls(_side(shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small spaces with each metric, two of them deformed."""
        return (
            cls(2),
            cls(3, "log_euclidean"),
            cls(3, "log_cholesky"),
            cls(3, "cholesky_affine_invariant"),
            cls(3, theta=0.5),
            cls(2, "log_cholesky", theta=0.5),
        )

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    def project(self, x: Array) -> Array:
        """Return the symmetric part, its eigenvalues raised if it is not positive definite.

        They are raised to half the digits below the largest: to 1e-8 of it in float64.
        """
        self._namespace(x)
        return nearest(x)

    def violation(self, x: Array) -> Array:
        """Return the largest of asymmetry and lack of definiteness, relative to the size."""
        self._namespace(x)
        return violation(x)

    def contains(self, x: Array) -> Array:
        """Tell whether matrices are symmetric and positive definite."""
        self._namespace(x)
        return contains(x)

    # ------------------------------------------------------------------ the map inside

    @property
    def inside(self) -> GyroSpace:
        """The affine-invariant space, or a vector space for the flat metrics."""
        if self.metric.startswith("log"):
            return space_of(Euclidean, self.n * (self.n + 1) // 2)
        cholesky = self.metric.startswith("cholesky")
        return space_of(AffineInvariant, self.n, cholesky, float(self.theta))

    def _power(self, x: Array, exponent: float) -> Array:
        return x if self.theta == 1.0 else symmetric_functions(x, power(exponent))[0]

    def to_inside(self, x: Array) -> Array:
        r"""Carry points by :math:`P^\theta`, :math:`\log P` or :math:`\psi(P^\theta)/\theta`."""
        self._namespace(x)
        if self.metric == "log_euclidean":
            return pack(logarithm(x))
        y = self._power(x, self.theta)
        if self.metric != "log_cholesky":
            return symmetric(y)  # once, and not at each decomposition
        L = cholesky(y)
        xp, diagonal = namespace_of(x), eye(x) > 0
        logs = xp.log(xp.where(diagonal, L, 1.0))
        return to_triangle(xp.where(diagonal, logs, L), diagonal=True) / self.theta

    def from_inside(self, x: Array) -> Array:
        """Carry points back."""
        check_floating(x)
        if self.metric == "log_euclidean":
            return symmetric_functions(unpack(x, self.n), EXP)[0]
        if self.metric == "log_cholesky":
            C = self.theta * from_triangle(x, self.n, diagonal=True)
            xp, diagonal = namespace_of(x), eye(C) > 0
            L = xp.where(diagonal, xp.exp(xp.where(diagonal, C, 0.0)), C)
            x = matmul(L, transpose(L))
        return self._power(x, 1.0 / self.theta)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        r"""Carry a tangent vector at P by the differential of the map.

        That of the Cholesky factor is :math:`dL = L\,\Phi(L^{-1}\,dP\,L^{-\top})`, with Φ the lower
        triangle, its diagonal halved.
        """
        self._namespace(x, v)
        if self.metric == "log_euclidean":
            return pack(differential(LOG, x, v))
        w = v if self.theta == 1.0 else differential(power(self.theta), x, v)
        if self.metric != "log_cholesky":
            return w
        xp = namespace_of(x)
        L = cholesky(self._power(x, self.theta))
        phi = xp.tril(congruence(xp.linalg.inv(L), w)) * (1.0 - 0.5 * eye(x))
        change = xp.where(eye(x) > 0, phi, matmul(L, phi))
        return to_triangle(change, diagonal=True) / self.theta

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        """Carry a tangent vector at φ(P) by the inverse of the differential."""
        if self.metric == "log_euclidean":
            return differential(LOG, x, unpack(v, self.n), inverse=True)
        if self.metric == "log_cholesky":
            xp = namespace_of(x)
            L = cholesky(self._power(x, self.theta))
            change = self.theta * from_triangle(v, self.n, diagonal=True)
            dL = xp.where(eye(x) > 0, L * change, change)
            v = 2.0 * symmetric(matmul(dL, transpose(L)))
        return v if self.theta == 1.0 else differential(power(self.theta), x, v, inverse=True)


def _side(shape: tuple[int, ...]) -> int:
    """Return n of arrays whose last two axes are n × n."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"expected square matrices, shape (..., n, n), got {tuple(shape)}")
    return int(shape[-1])
