"""The ball of complex vectors: complex hyperbolic space."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array
from gyrobn.manifolds.matrix_ball import MatrixBall
from gyrobn.manifolds.subspace import ComplexMatrices


@dataclass(frozen=True)
class ComplexBall(ComplexMatrices):
    r"""Complex vectors of length below 1, at the distance artanh ‖z‖ from 0.

    This is the Bergman metric, with curvatures between -4 and -1; :math:`n = 1` is the Poincaré
    disk of curvature -4.

    Parameters
    ----------
    n
        Number of complex coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import ComplexBall
    >>> bool(np.isclose(ComplexBall(2).norm(np.asarray([0.3j, 0.4])), np.arctanh(0.5)))
    True
    """

    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n,)``."""
        return (self.n,)

    @property
    def dim(self) -> int:
        """Dimension 2n, that of the real numbers."""
        return 2 * self.n

    @property
    def whole(self) -> MatrixBall:
        """The ball of real matrices of twice the size."""
        return MatrixBall(2 * self.n, 2)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the ball of vectors of the last axis of ``shape``."""
        return cls(shape[-1])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return small instances."""
        return cls(1), cls(2)

    def _lift(self, x: Array) -> Array:
        """Return the real matrix of a column."""
        return super()._lift(x[..., None])

    def _drop(self, y: Array) -> Array:
        """Undo :meth:`_lift`."""
        return super()._drop(y)[..., 0]

    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return the coordinate vectors, and i times them."""
        return np.concat([np.eye(self.n), 1j * np.eye(self.n)])
