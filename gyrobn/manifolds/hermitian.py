"""Hermitian positive definite matrices: cross-spectra, polarimetric and array radar."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.manifolds.spd import METRICS, SPD
from gyrobn.manifolds.subspace import ComplexMatrices
from gyrobn.numerics.checks import check_square


@dataclass(frozen=True)
class HPD(ComplexMatrices):
    n: int
    metric: str = field(default=METRICS[0], metadata={"choices": METRICS[:3]})
    definite: ClassVar[bool] = True

    @property
    def point_shape(self): return self.n, self.n
    @property
    def dim(self): return self.n**2
    @property
    def whole(self): return SPD(2 * self.n, self.metric)
    @classmethod
    def for_shape(cls, shape): return cls(check_square("a Hermitian matrix is square, shape (n, n)", shape))
    @classmethod
    def examples(cls): return cls(2), cls(3, "log_euclidean")
    def basis(self):
        E = np.eye(self.n)[:, :, None] * np.eye(self.n)[:, None, :]
        return hermitian_basis(self.n)

def hermitian_basis(n):
    """Return an orthonormal basis of the Hermitian matrices, (n², n, n)."""
    units = np.eye(n * n).reshape(n, n, n, n)
    out = []
    for i in range(n):
        for j in range(n):
            A = units[i, j]
            out.append(A + 0j if i == j else (A + A.T) / 2**0.5 + 0j if i < j else 1j * (A - A.T) / 2**0.5)
    return np.stack(out)
