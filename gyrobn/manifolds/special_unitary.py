"""Unitary matrices of determinant 1: quantum gates up to their phase."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gyrobn.backends import Array, Arrays, backend_of, namespace_of
from gyrobn.manifolds.grassmannian import STEP
from gyrobn.manifolds.hpd import hermitian_basis
from gyrobn.manifolds.rotations import coordinates, imaginary_unit, skew_matrix
from gyrobn.manifolds.unitary import Realified, Unitary
from gyrobn.numerics.arrays import weighted_sum
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, finite_or_identity, identity, matmul, symmetric
from gyrobn.numerics.matrix_functions import Eigen, differential, eigh, matrix_function
from gyrobn.numerics.scalar import cotangent


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
        rank = backend_of(S).cached(_ranks, S, n)
        low = xp.max(xp.where(rank < first, values, -xp.inf), axis=-1, keepdims=True)
        high = xp.min(xp.where(rank < first, xp.inf, values), axis=-1, keepdims=True)
        middle = xp.where(excess == 0, 0.0, 0.5 * (low + high))
        level = middle[..., None] * identity(S)
        step = matrix_function(S - level, STEP, Eigen(values - middle, U))
        step = step - differential(fixed - level, ties, STEP, Eigen(values - middle, U))
        sign = 2.0 * step - identity(S)
        sign = 0.5 * (sign + matmul(adjoint(J), sign, J))  # linear over the complex numbers
        for _ in range(2):
            sign = 1.5 * sign - 0.5 * matmul(sign, sign, sign)
        above = 0.5 * (identity(S) + sign)
        raised = xp.astype(excess < 0, x.dtype)[..., None] * identity(S)
        moved = self._coordinates(2.0 * math.pi * (raised - above))
        return xp.where(excess == 0, c, c + moved)

    def cut_locus_angle(self, x: Array) -> Array:
        """π less half of the largest difference of phases, whose logarithm has trace 0."""
        values = eigh(self._hermitian(self.to_normal(x))).values
        return math.pi - 0.5 * (values[..., -1] - values[..., 0])

    def hessian(self, c: Array, weights: Array, *, frames: Sequence[Array] = ()) -> Hessian:
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


def _ranks(n: int) -> "np.ndarray[Any, Any]":
    return np.arange(n, dtype=float)


def _ladder(n: int) -> "np.ndarray[Any, Any]":
    """Return a matrix that tells phases apart which are equal."""
    return np.kron(np.diag(np.arange(n / 2)), np.eye(2))


@dataclass(frozen=True)
class SpecialUnitary(Unitary):
    r"""Unitary n × n matrices of determinant 1, with the metric of :class:`Unitary`.

    Geodesics stay in the group: :math:`\operatorname{mlog}` has trace 0. So distances are at least
    those of :class:`Unitary`, and larger for some matrices that are far apart.

    Parameters
    ----------
    n
        Number of rows, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import SpecialUnitary
    >>> bool(np.isclose(SpecialUnitary(2).norm(np.diag([1j, -1j])), np.pi / 2**0.5))
    True
    """

    n: int = field(metadata={"least": 2})

    @property
    def dim(self) -> int:
        """Dimension n² - 1."""
        return self.n**2 - 1

    @property
    def whole(self) -> Traceless:
        """The rotations of twice the size."""
        return Traceless(2 * self.n)

    def _basis(self) -> "np.ndarray[Any, Any]":
        """Return a basis of trace 0."""
        diagonal = np.linalg.svd(np.ones((1, self.n)))[2][1:, :, None] * np.eye(self.n)
        return 1j * np.concat([diagonal, hermitian_basis(self.n)[self.n :]])

    def project(self, x: Array) -> Array:
        """Return the nearest unitary matrix, divided by a root of its determinant."""
        xp, U = namespace_of(x), super().project(x)
        det = xp.linalg.det(U)
        phase = xp.atan2(xp.imag(det), xp.real(det)) / self.n
        return U * (xp.cos(phase) - 1j * xp.sin(phase))[..., None, None]

    def violation(self, x: Array) -> Array:
        """Return the violation of a unitary matrix, or the distance of the determinant from 1."""
        xp, off = namespace_of(x), super().violation(x)
        det = xp.linalg.det(finite_or_identity(x)[0])
        return xp.maximum(off, xp.abs(det - 1.0))
