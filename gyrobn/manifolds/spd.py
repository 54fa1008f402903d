"""Symmetric positive definite matrices: covariances, diffusion tensors, kernels."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from gyrobn.backends import Array
from gyrobn.manifolds.definite import Definite
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.pullback import Pullback
from gyrobn.manifolds.spd_charts import CHARTS, Chart
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.linalg import differential, symmetric_functions
from gyrobn.numerics.spectral import power

__all__ = ["SPD"]

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


def _side(shape: tuple[int, ...]) -> int:
    """Return n of arrays whose last two axes are n × n."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"expected square matrices, shape (..., n, n), got {tuple(shape)}")
    return int(shape[-1])
