"""Correlation matrices, under the five metrics of the paper."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.correlation_cholesky import (
    EuclideanCholesky,
    LogEuclideanCholesky,
    PolyHyperbolicCholesky,
)
from gyrobn.manifolds.correlation_log import LogScaled, OffLog
from gyrobn.manifolds.correlation_matrices import CorrelationMatrices, to_unit_diagonal
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.arrays import check_floating
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.matrices import symmetric

CHARTS: dict[str, type[CorrelationMatrices]] = {
    "poly_hyperbolic_cholesky": PolyHyperbolicCholesky,
    "euclidean_cholesky": EuclideanCholesky,
    "log_euclidean_cholesky": LogEuclideanCholesky,
    "off_log": OffLog,
    "log_scaled": LogScaled,
}
"""The metrics by name: each is a geometry, which ``Correlation`` selects by its option."""


@dataclass(frozen=True)
class Correlation(CorrelationMatrices):
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

    metric: str = field(default="poly_hyperbolic_cholesky", metadata={"choices": tuple(CHARTS)})

    @property
    def _chart(self) -> CorrelationMatrices:
        return space_of(CHARTS[self.metric], self.n)

    @property
    def inside(self) -> GyroSpace:
        """The product of hyperboloids, or a vector space if the metric is flat."""
        return self._chart.inside

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return each metric on 3 × 3 matrices."""
        return tuple(cls(3, metric) for metric in CHARTS)

    def to_inside(self, x: Array) -> Array:
        """Carry matrices by the map of the metric."""
        self._namespace(x)
        return self._chart.to_inside(x)

    def from_inside(self, x: Array) -> Array:
        """Return the matrices of points inside."""
        return self._chart.from_inside(x)

    def tangent_to_inside(self, x: Array, v: Array) -> Array:
        """Carry a tangent vector at x, a symmetric matrix with a zero diagonal."""
        self._namespace(x, v)
        return self._chart.tangent_to_inside(x, v)

    def tangent_from_inside(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`tangent_to_inside`."""
        self._namespace(x)
        return self._chart.tangent_from_inside(x, v)


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
