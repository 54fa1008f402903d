"""Symmetric positive definite matrices: covariances, diffusion tensors, kernels."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.affine_invariant import AffineInvariant
from gyrobn.manifolds.definite import Definite, regular
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.pullback import Pullback
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_square
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


class Chart:
    r"""The map of a metric to a space in which it is simple; here the identity.

    It serves the affine-invariant metrics, and the other charts derive from it. If θ deforms the
    metric, points are :math:`P^\theta` and not P.
    """

    deformed = True

    def __init__(self, by_cholesky: bool = False) -> None:
        self.by_cholesky = by_cholesky

    def inside(self, n: int, theta: float) -> GyroSpace:
        """Return the space to which the chart leads."""
        return space_of(AffineInvariant, n, self.by_cholesky, theta)

    def to(self, x: Array, theta: float) -> Array:
        """Carry points."""
        return symmetric(x)  # once, so that no decomposition has to

    def back(self, x: Array, n: int, theta: float) -> Array:
        """Carry points back, to n × n matrices."""
        return x

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        """Carry a tangent vector at x by the differential."""
        return v

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        """Carry a tangent vector back to x."""
        return v


class _Logarithm(Chart):
    """The packed logarithm, for the log-Euclidean metric; it does not depend on θ."""

    deformed = False

    def inside(self, n: int, theta: float) -> GyroSpace:
        return space_of(Euclidean, n * (n + 1) // 2)

    def to(self, x: Array, theta: float) -> Array:
        return pack(logarithm(x))

    def back(self, x: Array, n: int, theta: float) -> Array:
        return symmetric_functions(unpack(x, n), EXP)[0]

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        return pack(differential(LOG, x, v))

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        return differential(LOG, x, unpack(v, x.shape[-1]), inverse=True)


class _LogCholesky(_Logarithm):
    r"""The Cholesky factor with the logarithm of its diagonal, divided by θ.

    The differential of the factor is :math:`dL = L\,\Phi(L^{-1}\,dP\,L^{-\top})`, with Φ the lower
    triangle, its diagonal halved.
    """

    deformed = True

    def to(self, x: Array, theta: float) -> Array:
        L = cholesky(x)
        xp, diagonal = namespace_of(x), eye(x) > 0
        logs = xp.log(xp.where(diagonal, L, 1.0))
        return to_triangle(xp.where(diagonal, logs, L), diagonal=True) / theta

    def back(self, x: Array, n: int, theta: float) -> Array:
        C = theta * from_triangle(x, n, diagonal=True)
        xp, diagonal = namespace_of(x), eye(C) > 0
        L = xp.where(diagonal, xp.exp(xp.where(diagonal, C, 0.0)), C)
        return matmul(L, transpose(L))

    def tangent_to(self, x: Array, v: Array, theta: float) -> Array:
        xp, L = namespace_of(x), cholesky(x)
        phi = xp.tril(congruence(xp.linalg.inv(L), v)) * (1.0 - 0.5 * eye(x))
        change = xp.where(eye(x) > 0, phi, matmul(L, phi))
        return to_triangle(change, diagonal=True) / theta

    def tangent_back(self, x: Array, v: Array, theta: float) -> Array:
        xp, L = namespace_of(x), cholesky(x)
        change = theta * from_triangle(v, x.shape[-1], diagonal=True)
        dL = xp.where(eye(x) > 0, L * change, change)
        return 2.0 * symmetric(matmul(dL, transpose(L)))


CHARTS: dict[str, Chart] = {
    "affine_invariant": Chart(),
    "log_euclidean": _Logarithm(),
    "log_cholesky": _LogCholesky(),
    "cholesky_affine_invariant": Chart(by_cholesky=True),
}
METRICS = tuple(CHARTS)


@dataclass(frozen=True)
class SPD(Definite, Pullback):
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
        One of the names above.
    theta
        Power deformation: distances are those between the :math:`P^\theta`, divided by \|θ\|. As
        θ tends to 0, the affine-invariant metric tends to the log-Euclidean one, which does not
        depend on θ.

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

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the space of matrices of the last two axes of ``shape``."""
        return cls(check_square("expected square matrices, shape (..., n, n)", shape))

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

    # ------------------------------------------------------------------ the map inside

    @property
    def _chart(self) -> Chart:
        return CHARTS[self.metric]

    @property
    def _exponent(self) -> float:
        """The power to take before the chart: θ, or 1 if the metric does not depend on θ."""
        return self.theta if self._chart.deformed else 1.0

    @property
    def inside(self) -> GyroSpace:
        """The affine-invariant space, or a vector space for the flat metrics."""
        return self._chart.inside(self.n, float(self.theta))

    def from_normal(self, c: Array) -> Array:
        r"""Exponential map at the identity: :math:`\exp C`, whatever θ is, or :math:`\psi^{-1}(C)`.

        Matrices that would be singular in their dtype stay regular.
        """
        if self._exponent == 1.0:
            return regular(self, super().from_normal(c))
        plain = replace(self, theta=1.0)
        if self.metric != "log_cholesky":
            return plain.from_normal(c)
        return regular(self, _power(plain.from_normal(self.theta * c), 1.0 / self.theta))

    def to_inside(self, x: Array) -> Array:
        r"""Carry points by :math:`P^\theta`, :math:`\log P` or :math:`\psi(P^\theta)/\theta`."""
        self._namespace(x)
        return self._chart.to(_power(x, self._exponent), self.theta)

    def from_inside(self, x: Array) -> Array:
        """Carry points back."""
        check_floating(x)
        return _power(self._chart.back(x, self.n, self.theta), 1.0 / self._exponent)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        """Carry a tangent vector at P by the differential of the map."""
        self._namespace(x, v)
        t = self._exponent
        w = v if t == 1.0 else differential(power(t), x, v)
        return self._chart.tangent_to(_power(x, t), w, self.theta)

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        """Carry a tangent vector at φ(P) by the inverse of the differential."""
        t = self._exponent
        w = self._chart.tangent_back(_power(x, t), v, self.theta)
        return w if t == 1.0 else differential(power(t), x, w, inverse=True)


def _power(x: Array, exponent: float) -> Array:
    return x if exponent == 1.0 else symmetric_functions(x, power(exponent))[0]
