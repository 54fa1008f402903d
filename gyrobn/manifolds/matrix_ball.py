r"""The ball of matrices: the noncompact dual of the Grassmannian, with complex balls inside.

With :math:`S = \begin{pmatrix} 0 & Z^\top \\ Z & 0 \end{pmatrix}`, whose eigenvalues are the
singular values of Z and their negatives, odd functions of S are functions of singular values.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from gyrobn.backends import Array, namespace_of
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.numerics.arrays import check_coordinates, eps_of, zeros
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, eye, finite_or_identity, matmul
from gyrobn.numerics.matrix_functions import (
    INVERSE_ROOT,
    LOG,
    ROOT,
    Eigen,
    Spectral,
    eigh,
    matrix_function,
)
from gyrobn.numerics.orthogonal import hessian_in_frames, polar


def _end(x: Array) -> float:
    """Return the largest singular value of a point: the ball ends a few digits before 1."""
    return 1.0 - 8.0 * eps_of(x)


def _inside(values: Array, U: Array) -> Eigen:
    """Return the decomposition of a gap between a point and the boundary, which is never 0."""
    return Eigen(namespace_of(values).clip(values, min=8.0 * eps_of(values)), U)


def _gap(A: Array, f: Spectral) -> Array:
    """Return a function of I - AAᵀ."""
    G = eye(A, A.shape[-2]) - matmul(A, adjoint(A))
    return matrix_function(G, f, _inside(*eigh(G)))


def _gyrator(A: Array, B: Array) -> Array:
    r"""Return L of :math:`\operatorname{gyr}[A, B] Z = L Z R`; that of transposes is Rᵀ."""
    divisor, _ = finite_or_identity(eye(A, A.shape[-2]) + matmul(B, adjoint(A)))
    middle = namespace_of(A).linalg.solve(divisor, _gap(B, ROOT))
    return polar(matmul(_gap(A, ROOT), middle))


def _tanh(x: Array) -> Array:
    return namespace_of(x).clip(namespace_of(x).tanh(x), min=-_end(x), max=_end(x))


def _difference(x: Array, y: Array) -> Array:
    r"""Return the divided difference :math:`\sinh(h)/(h \cosh x \cosh y)`, h = x - y."""
    xp = namespace_of(x)
    x, y = (xp.clip(a, min=-40.0, max=40.0) for a in (x, y))  # so that cosh does not overflow
    h = xp.abs(x - y) + eps_of(x) ** 2
    return xp.sinh(h) / h / (xp.cosh(x) * xp.cosh(y))


def _slope(x: Array) -> Array:
    return _difference(x, x)


def _curvature(x: Array) -> Array:
    return -2.0 * _tanh(x) * _slope(x)


TANH = Spectral((_tanh, _slope, _curvature), (_difference,), relative=False)


class CentredInBall(Centred):
    """The view of matrices from the mean."""

    def resolutions(self, weights: Array) -> Array:
        """Return how far rounding moves the mean: to its neighbours, or by samples far out."""
        xp, size = namespace_of(self.x), self.space.resolution(self.x)
        return (
            super().resolutions(weights) + xp.linalg.vector_norm(weights * size, axis=0)[..., None]
        )


@dataclass(frozen=True)
class MatrixBall(GyroSpace):
    r"""Real p × q matrices with singular values σ below 1, at the distance ‖artanh σ‖ from 0.

    .. math:: A \oplus Z = (I - AA^\top)^{-1/2} (A + Z) (I + A^\top Z)^{-1} (I - A^\top A)^{1/2}

    Vectors (q = 1) are hyperbolic space, as :class:`Klein` with K = -1.

    Parameters
    ----------
    p, q
        Numbers of rows and columns.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import MatrixBall
    >>> Z = np.diag([0.5, -0.5])
    >>> bool(np.isclose(MatrixBall(2, 2).norm(Z), np.arctanh(0.5) * 2**0.5))
    True
    """

    p: int
    q: int
    _view: ClassVar[type[Centred]] = CentredInBall

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(p, q)``."""
        return self.p, self.q

    @property
    def dim(self) -> int:
        """Dimension pq."""
        return self.p * self.q

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the ball of matrices of the last two axes of ``shape``."""
        p, q = shape[-2:]
        return cls(p, q)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a ball of square and one of other matrices."""
        return cls(2, 2), cls(3, 2)

    def origin(self, like: Array) -> Array:
        """Return the zero matrix."""
        return namespace_of(like).reshape(zeros(self.dim, like), self.point_shape)

    def _both(self, Z: Array) -> Array:
        """Return S."""
        xp, Zt = namespace_of(Z), adjoint(Z)
        upper = xp.concat([0.0 * matmul(Zt, Z), Zt], axis=-1)
        return xp.concat([upper, xp.concat([Z, 0.0 * matmul(Z, Zt)], axis=-1)], axis=-2)

    def _matrix(self, c: Array) -> Array:
        return namespace_of(c).reshape(c, (*c.shape[:-1], *self.point_shape))

    def _flat(self, Z: Array) -> Array:
        return namespace_of(Z).reshape(Z, (*Z.shape[:-2], self.dim))

    # ------------------------------------------------------------------ gyro operations

    def _between(self, x: Array, v: Array, left: Spectral, right: Spectral) -> Array:
        """Return the product of v with functions of I - AAᵀ and I - AᵀA."""
        self._namespace(x, v)
        return matmul(_gap(x, left), v, _gap(adjoint(x), right))

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`A \oplus Z`."""
        xp = self._namespace(x, y)
        divisor, _ = finite_or_identity(eye(x, self.q) + matmul(adjoint(y), x))
        middle = adjoint(xp.linalg.solve(divisor, adjoint(x + y)))
        total = self.project(self._between(x, middle, INVERSE_ROOT, ROOT))
        return self._with_identity(x, y, total)

    def neg(self, x: Array) -> Array:
        """Negative."""
        self._namespace(x)
        return -x

    def to_normal(self, x: Array) -> Array:
        r"""Entries of :math:`U \operatorname{artanh}(\sigma) V^\top`, row by row.

        The logarithm of 1 + S, less that of 1 - S, is twice the artanh of S.
        """
        self._namespace(x)
        S, one = self._both(x), eye(x, self.p + self.q)
        values, U = eigh(S)
        double = matrix_function(one + S, LOG, _inside(1.0 + values, U))
        double = double - matrix_function(one - S, LOG, _inside(1.0 - values, U))
        return 0.5 * self._flat(double[..., self.q :, : self.q])

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`; singular values end a few digits before 1."""
        check_coordinates(self, c)
        return matrix_function(self._both(self._matrix(c)), TANH)[..., self.q :, : self.q]

    def gyration(self, x: Array, y: Array, z: Array) -> Array:
        r"""Gyration, a product with two orthogonal matrices."""
        self._namespace(x, y, z)
        left, right = _gyrator(x, y), _gyrator(adjoint(x), adjoint(y))
        return matmul(left, z, adjoint(right))

    def _gyrate_normal(self, x: Array, y: Array, c: Array) -> Array:
        return self._flat(self.gyration(x, y, self._matrix(c)))

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport :math:`v \mapsto (I - AA^\top)^{1/2}\, v\, (I - A^\top A)^{1/2}`."""
        return self._between(x, self._matrix(c), ROOT, ROOT)

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        return self._flat(self._between(x, v, INVERSE_ROOT, INVERSE_ROOT))

    # ------------------------------------------------------------------ points, good and bad

    def _size(self, x: Array) -> Array:
        """Return the largest singular value, a constant; NaN for what is not finite."""
        return eigh(self._both(x)).values[..., -1]

    def project(self, x: Array) -> Array:
        """Return x, divided by its largest singular value if that is beyond the end of the ball."""
        xp = self._namespace(x)
        return x * (_end(x) / xp.clip(self._size(x), min=_end(x)))[..., None, None]

    def violation(self, x: Array) -> Array:
        """Return by how much the largest singular value is beyond 1; infinity for NaN."""
        xp, size = self._namespace(x), self._size(x)
        off = xp.where(size < 1.0, 0.0, size - 1.0 + 2.0 * eps_of(x) ** 0.5)
        return xp.where(xp.isfinite(off), off, xp.inf)

    def resolution(self, x: Array) -> Array:
        r"""Distance to neighbours in floating point, by the slope :math:`1/(1 - \sigma^2)`."""
        xp, size = self._namespace(x), self._size(x)
        return eps_of(x) * self.dim**0.5 / xp.clip(1.0 - size * size, min=8.0 * eps_of(x))

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian, of eigenvalues :math:`a \coth a`, a sums and differences of artanh σ."""
        return hessian_in_frames(c, weights, None, self._matrix, self._flat, hyperbolic=True)
