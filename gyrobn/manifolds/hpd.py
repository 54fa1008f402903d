"""Hermitian positive definite matrices: cross-spectra, polarimetric and array radar."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.manifolds.spd import METRICS, SPD
from gyrobn.manifolds.subspace import SquareComplexMatrices


@dataclass(frozen=True)
class HPD(SquareComplexMatrices):
    r"""Hermitian positive definite n × n matrices, at the distance ‖mlog P‖ from the identity.

    The metrics are those of :class:`SPD`, which computes with the real matrices of twice the size:
    :math:`d^2_{HPD}(P, Q) = \tfrac12 d^2_{SPD}(\rho(P), \rho(Q))`.

    Parameters
    ----------
    n
        Number of rows.
    metric
        One of those of :class:`SPD`.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import HPD
    >>> P = np.asarray([[2.0, 1j], [-1j, 2.0]])  # of eigenvalues 1 and 3
    >>> bool(np.isclose(HPD(2).norm(P), np.log(3.0)))
    True
    """

    metric: str = field(default=METRICS[0], metadata={"choices": METRICS})
    definite: ClassVar[bool] = True

    @property
    def dim(self) -> int:
        """Dimension n²."""
        return self.n**2

    @property
    def whole(self) -> SPD:
        """The real matrices of twice the size."""
        return SPD(2 * self.n, self.metric)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small spaces with each metric."""
        return cls(2), cls(3, "log_euclidean"), cls(2, "log_cholesky")

    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return a basis of the Hermitian matrices."""
        return hermitian_basis(self.n)


def hermitian_basis(n: int) -> "np.ndarray[Any, Any]":
    """Return an orthonormal basis of the Hermitian matrices, shape (n², n, n)."""
    units = np.eye(n * n).reshape(n, n, n, n)  # units[i, j] has a one in row i, column j
    swapped = units.transpose(1, 0, 2, 3)
    i, j = np.tril_indices(n, -1)
    pairs = (units + swapped)[i, j], 1j * (units - swapped)[i, j]
    return np.concat([units[range(n), range(n)], *(pair / 2**0.5 for pair in pairs)])
