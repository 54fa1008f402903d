"""Unitary matrices: quantum gates, precoders and beams of several antennas."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.hermitian import hermitian_basis
from gyrobn.manifolds.rotations import SpecialOrthogonal
from gyrobn.manifolds.subspace import ComplexMatrices
from gyrobn.numerics.checks import check_square


@dataclass(frozen=True)
class _Realified(SpecialOrthogonal):
    """Rotations of the real and imaginary parts; a half turn is made by the imaginary unit."""

    imaginary: ClassVar[bool] = True


@dataclass(frozen=True)
class Unitary(ComplexMatrices):
    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        return self.n, self.n

    @property
    def dim(self) -> int:
        return self.n**2

    @property
    def whole(self) -> GyroSpace:
        return _Realified(2 * self.n)

    @classmethod
    def for_shape(cls, shape):
        return cls(check_square("a unitary matrix is square, shape (n, n)", shape))

    @classmethod
    def examples(cls):
        return cls(2), cls(3)

    def basis(self):
        return 1j * hermitian_basis(self.n)
