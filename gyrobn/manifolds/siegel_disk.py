"""The Siegel disk: complex symmetric matrices, for autoregressive models and cross-spectra."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array
from gyrobn.manifolds.matrix_ball import MatrixBall
from gyrobn.manifolds.subspace import SquareComplexMatrices
from gyrobn.numerics.matrices import adjoint, symmetric


@dataclass(frozen=True)
class SiegelDisk(SquareComplexMatrices):
    r"""Complex symmetric n × n matrices with singular values σ below 1, at ‖artanh σ‖ from 0.

    Parameters
    ----------
    n
        Number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SiegelDisk
    >>> Z = np.asarray([[0.0, 0.5j], [0.5j, 0.0]])
    >>> bool(np.isclose(SiegelDisk(2).norm(Z), np.arctanh(0.5) * 2**0.5))
    True
    """

    @property
    def dim(self) -> int:
        """Dimension n(n + 1), that of the real numbers."""
        return self.n * (self.n + 1)

    @property
    def whole(self) -> MatrixBall:
        """The ball of real matrices of twice the size."""
        return MatrixBall(2 * self.n, 2 * self.n)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small instances."""
        return (cls(2),)

    def violation(self, x: Array) -> Array:
        """Return the violation of the ball, or the asymmetry."""
        xp = self._namespace(x)
        off = xp.maximum(super().violation(x), xp.max(xp.abs(x - adjoint(x)), axis=(-2, -1)))
        return xp.where(xp.isfinite(off), off, xp.inf)

    def project(self, x: Array) -> Array:
        """Return the symmetric part, reduced to the ball."""
        self._namespace(x)
        return super().project(symmetric(x))

    def _drop(self, y: Array) -> Array:
        """Undo :meth:`_lift`, with rounding errors symmetric, too: others grow from sum to sum."""
        return symmetric(super()._drop(y))

    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return the real symmetric matrices with one or two entries, and i times them."""
        i, j = np.tril_indices(self.n)
        E, k = np.zeros((len(i), self.n, self.n)), np.arange(len(i))
        E[k, i, j] = E[k, j, i] = 1.0
        return np.concat([E, 1j * E])
