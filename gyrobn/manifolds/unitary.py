"""Unitary matrices: quantum gates, precoders and beams of several antennas."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.manifolds.hpd import hermitian_basis
from gyrobn.manifolds.rotations import SpecialOrthogonal
from gyrobn.manifolds.subspace import SquareComplexMatrices


@dataclass(frozen=True)
class Realified(SpecialOrthogonal):
    """Rotations that are real forms of unitary matrices; half turns are products with i."""

    imaginary: ClassVar[bool] = True


@dataclass(frozen=True)
class Unitary(SquareComplexMatrices):
    r"""Unitary n × n matrices, at the distance :math:`\|\operatorname{mlog}(U^* V)\|`.

    They are a group: :math:`U \oplus V = UV`, :math:`\ominus U = U^*`. Half of the digits away from
    -1, an eigenvalue counts as -1, and its phase may be just beyond π.

    Parameters
    ----------
    n
        Number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import Unitary
    >>> M = Unitary(2)
    >>> bool(np.isclose(M.norm(np.diag([1j, -1.0])), np.pi * np.hypot(0.5, 1.0)))
    True
    """

    @property
    def dim(self) -> int:
        """Dimension n²."""
        return self.n**2

    @property
    def whole(self) -> SpecialOrthogonal:
        """The rotations of twice the size."""
        return Realified(2 * self.n)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return matrices of two and three rows."""
        return cls(2), cls(3)

    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return i times that of the Hermitian matrices."""
        return 1j * hermitian_basis(self.n)
