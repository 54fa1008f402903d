"""Correlation matrices, under the five metrics of the paper."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.correlation_cholesky import (
    Chart,
    EuclideanCholesky,
    LogEuclideanCholesky,
    PolyHyperbolicCholesky,
)
from gyrobn.manifolds.correlation_log import LogScaled, OffLog, to_unit_diagonal
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.pullback import Pullback
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.decompositions import finite_or_identity
from gyrobn.numerics.matrices import eye, matmul, symmetric, transpose

__all__ = ["CHARTS", "Correlation", "covariance_to_correlation"]

CHARTS: dict[str, Chart] = {
    "poly_hyperbolic_cholesky": PolyHyperbolicCholesky(),
    "euclidean_cholesky": EuclideanCholesky(),
    "log_euclidean_cholesky": LogEuclideanCholesky(),
    "off_log": OffLog(),
    "log_scaled": LogScaled(),
}
"""For each metric, the map to the space in which it is simple."""


@dataclass(frozen=True)
class Correlation(Pullback):
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
    the variables; those by the Cholesky factor do.

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
    definite: ClassVar[bool] = True

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, n)``."""
        return (self.n, self.n)

    @property
    def inside(self) -> GyroSpace:
        """The product of hyperboloids, or the vector space where the metric is flat."""
        return self._chart.space(self.n)

    @property
    def _chart(self) -> Chart:
        return CHARTS[self.metric]

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the geometry whose points are the last two axes of ``shape``."""
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(
                f"correlation matrices are square, shape (..., n, n), got {tuple(shape)}"
            )
        return cls(shape[-1])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return each metric on 3 × 3 matrices."""
        return tuple(cls(3, metric) for metric in CHARTS)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    # ------------------------------------------------------------------ the map

    def to_inside(self, x: Array) -> Array:
        """Carry matrices to the space in which the metric is simple."""
        self._namespace(x)
        return self._chart.to(x)

    def from_inside(self, x: Array) -> Array:
        """Return the matrices of its points."""
        return self._chart.back(x, self.n)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        """Carry a symmetric matrix v with diagonal zero, a tangent vector at x."""
        self._namespace(x, v)
        return self._chart.to_tangent(x, v)

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`tangent_to_inside`."""
        self._namespace(x)
        return self._chart.back_tangent(x, v)

    # ------------------------------------------------------------------ on the manifold or off it

    def project(self, x: Array) -> Array:
        r"""Symmetrize, divide by the roots of the diagonal, and raise low eigenvalues.

        Eigenvalues of a matrix that is not positive definite are raised to
        :math:`\sqrt\epsilon` times the largest one; to a derivative that part is constant.
        """
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        A, finite = finite_or_identity(x)
        large = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
        A = symmetric(A / xp.where(large > 0, large, 1.0))
        variances = xp.linalg.diagonal(A)
        roots = xp.sqrt(xp.where(variances > eps**4, variances, 1.0))
        A = A / (roots[..., :, None] * roots[..., None, :])
        values, U = xp.linalg.eigh(backend_of(x).stop_gradient(A))
        low, high = values[..., :1], values[..., -1:]
        missing = xp.clip(eps**0.5 * high - values, min=0.0)
        missing = xp.where(low <= 4.0 * self.n * eps * high, missing, 0.0)
        raised = A + matmul(U * missing[..., None, :], transpose(U))
        raised = xp.where(high[..., None] > 0, raised, eye(A))
        bad = xp.logical_and(finite, self.violation(x)[..., None, None] > 0)
        return xp.where(bad, to_unit_diagonal(xp.where(bad, raised, eye(A))), x)

    def violation(self, x: Array) -> Array:
        r"""Return the largest of three: the asymmetry, relative to the largest entry; the distance
        of the diagonal from one; and for a matrix that is singular to rounding,
        :math:`2\sqrt\epsilon` and the size of its lowest eigenvalue.
        """
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        A, finite = finite_or_identity(x)
        large = xp.clip(xp.max(xp.abs(A), axis=(-2, -1)), min=1.0)
        scaled = A / large[..., None, None]
        asymmetry = xp.max(xp.abs(scaled - transpose(scaled)), axis=(-2, -1))
        off = xp.max(xp.abs(xp.linalg.diagonal(A) - 1.0), axis=-1)
        values = xp.linalg.eigvalsh(symmetric(scaled))
        low, high = values[..., 0], xp.max(xp.abs(values), axis=-1)
        lack = xp.where(low <= self.n * eps * high, 2.0 * eps**0.5 + xp.abs(low), 0.0)
        worst = xp.maximum(asymmetry, xp.maximum(off, lack))
        return xp.where(finite[..., 0, 0], worst, xp.inf)


def covariance_to_correlation(covariance: Array) -> Array:
    r"""Return the correlation matrices :math:`C_{ij} = \Sigma_{ij}/\sqrt{\Sigma_{ii}\Sigma_{jj}}`.

    Parameters
    ----------
    covariance
        Covariance matrices, shape ``(..., n, n)``, in any unit: a trace of 1e-26, as EEG has in
        volts, is as good as one of 1.

    Raises
    ------
    ValueError
        Where a variance is not positive; NaN instead where values cannot be seen (JAX under jit).

    Examples
    --------
    >>> import numpy as np
    >>> covariance_to_correlation(1e-26 * np.asarray([[4.0, 1.0], [1.0, 1.0]]))
    array([[1. , 0.5],
           [0.5, 1. ]])
    """
    xp = namespace_of(covariance)
    shape = tuple(covariance.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"covariance matrices are square, shape (..., n, n), got {shape}")
    check_floating(covariance)
    variances = xp.linalg.diagonal(covariance)
    bad = variances <= 0
    shim = backend_of(covariance)
    if not shim.hides_values(covariance) and bool(xp.any(bad)):
        *sample, variable = (int(i) for i in np.argwhere(shim.to_numpy(bad))[0])
        where = f"sample {sample[0] if len(sample) == 1 else tuple(sample)}, " if sample else ""
        value = float(variances[(*sample, variable)])
        raise ValueError(
            f"{where}variable {variable} has the variance {value}: a variable that is constant "
            "has no correlations, leave it out"
        )
    large = xp.where(bad, xp.nan, variances)
    return to_unit_diagonal(symmetric(covariance + 0.0 * large[..., None]))
