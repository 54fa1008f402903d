"""Unitary matrices: quantum gates, precoders and beams of several antennas."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.grassmannian import SIGN
from gyrobn.manifolds.hpd import hermitian_basis
from gyrobn.manifolds.rotations import SpecialOrthogonal, coordinates, imaginary_unit, skew_matrix
from gyrobn.manifolds.subspace import ComplexMatrices
from gyrobn.numerics.arrays import weighted_sum
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import Eigen, differential, eigh, matrix_function
from gyrobn.numerics.scalar import cotangent


@dataclass(frozen=True)
class Realified(SpecialOrthogonal):
    """Rotations that are real forms of unitary matrices; half turns are products with i."""

    imaginary: ClassVar[bool] = True


@dataclass(frozen=True)
class Traceless(Realified):
    r"""Real forms of unitary matrices of determinant 1, with logarithms of trace 0.

    The phases of an eigenvalue differ by multiples of 2π. If the principal ones add up to 2πm, the
    m largest ones are reduced by 2π, or the -m smallest ones are raised.
    """

    def _hermitian(self, c: Array) -> Array:
        """Return the real form of H, for the coordinates of that of iH."""
        J = backend_of(c).cached(imaginary_unit, c, self.n)
        return symmetric(matmul(adjoint(J), skew_matrix(c, self.n)))

    def _coordinates(self, S: Array) -> Array:
        return coordinates(matmul(backend_of(S).cached(imaginary_unit, S, self.n), S))

    def _normal(self, x: Array, saved: Arrays) -> Array:
        c = super()._normal(x, saved)
        xp, S, n = namespace_of(x), self._hermitian(c), self.n
        J = backend_of(S).cached(imaginary_unit, S, n)
        ties = backend_of(S).cached(_ladder, S, n) * float(xp.finfo(S.dtype).eps) ** 0.7
        fixed = backend_of(S).stop_gradient(S)
        values, U = eigh(fixed + ties)
        excess = xp.round(xp.sum(values, axis=-1, keepdims=True) / (2.0 * math.pi))
        first = xp.where(excess > 0, n - excess, -excess)  # all above it are reduced
        rank = backend_of(S).cached(np.arange, S, n)
        low = xp.max(xp.where(rank < first, values, -xp.inf), axis=-1, keepdims=True)
        high = xp.min(xp.where(rank < first, xp.inf, values), axis=-1, keepdims=True)
        middle = xp.where(excess == 0, 0.0, 0.5 * (low + high))
        level = middle[..., None] * identity(S)
        sign = matrix_function(S - level, SIGN, Eigen(values - middle, U))
        sign = sign - differential(fixed - level, ties, SIGN, Eigen(values - middle, U))
        sign = 0.5 * (sign + matmul(adjoint(J), sign, J))  # linear over the complex numbers
        for _ in range(2):
            sign = 1.5 * sign - 0.5 * matmul(sign, sign, sign)
        above = 0.5 * (identity(S) + sign)
        raised = xp.astype(excess < 0, x.dtype)[..., None] * identity(S)
        moved = self._coordinates(2.0 * math.pi * (raised - above))
        return xp.where(excess == 0, c, c + moved)

    def hessian(self, c: Array, weights: Array, P: Array | None = None) -> Hessian:
        r"""Mean Hessian, of eigenvalues :math:`a \cot a` with half the differences a of phases."""
        xp, (values, U) = namespace_of(c), eigh(self._hermitian(c))
        a = 0.5 * (values[..., :, None] - values[..., None, :])
        K = xp.clip(cotangent(a * a, 1), min=-1e3)
        Q = U[..., None, :, :]

        def apply(v: Array) -> Array:
            V = matmul(adjoint(Q), self._hermitian(adjoint(v)), Q)
            W = matmul(Q, K[..., None, :, :] * V, adjoint(Q))
            return adjoint(weighted_sum(weights, self._coordinates(W)))

        return Hessian(apply, lambda: weighted_sum(weights, K[..., 0, -1]))


def _ladder(n: int) -> "np.ndarray[Any, Any]":
    """Return a matrix that tells phases apart which are equal."""
    return np.kron(np.diag(np.arange(n / 2)), np.eye(2))


@dataclass(frozen=True)
class Unitary(ComplexMatrices):
    r"""Unitary n × n matrices, at the distance :math:`\|\operatorname{mlog}(U^* V)\|`.

    They are a group: :math:`U \oplus V = UV`, :math:`\ominus U = U^*`.

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

    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one matrix: ``(n, n)``."""
        return self.n, self.n

    @property
    def dim(self) -> int:
        """Dimension n²."""
        return self.n**2

    @property
    def whole(self) -> SpecialOrthogonal:
        """The rotations of twice the size."""
        return Realified(2 * self.n)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the group whose matrices have the last two axes of ``shape``."""
        return cls(check_square("a unitary matrix is square, shape (n, n)", shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return matrices of two and three rows."""
        return cls(2), cls(3)

    def basis(self) -> "np.ndarray[Any, Any]":
        """Return i times that of the Hermitian matrices."""
        return 1j * hermitian_basis(self.n)


@dataclass(frozen=True)
class SpecialUnitary(Unitary):
    n: int = field(metadata={"least": 2})

    @property
    def dim(self) -> int:
        """Dimension n² - 1."""
        return self.n**2 - 1

    @property
    def whole(self) -> SpecialOrthogonal:
        """The rotations of twice the size."""
        return Traceless(2 * self.n)

    def basis(self) -> "np.ndarray[Any, Any]":
        """Return a basis of trace 0."""
        E = hermitian_basis(self.n)
        diagonal = np.linalg.svd(np.ones((1, self.n)))[2][1:]
        flat = np.einsum("ki,ij->kij", diagonal, np.eye(self.n)) + 0j
        off = [A for A in E if A[0, 0] == 0 and not np.diag(A).any()]
        return 1j * np.concat([flat, np.stack(off)])

    def _unit(self, x: Array) -> Array:
        """Return the determinant of unitary matrices."""
        return namespace_of(x).linalg.det(x)

    def project(self, x: Array) -> Array:
        """Return the nearest unitary matrix, divided by a root of its determinant."""
        xp, U = namespace_of(x), super().project(x)
        det = xp.linalg.det(U)
        phase = xp.atan2(xp.imag(det), xp.real(det)) / self.n
        return U * (xp.cos(phase) - 1j * xp.sin(phase))[..., None, None]

    def violation(self, x: Array) -> Array:
        """Return the violation of a unitary matrix, or the distance of the determinant from 1."""
        xp = namespace_of(x)
        return xp.maximum(super().violation(x), xp.abs(xp.linalg.det(x) - 1.0))
