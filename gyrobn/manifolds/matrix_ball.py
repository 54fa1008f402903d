r"""The ball of matrices: the noncompact dual of the Grassmannian, with complex balls inside.

With :math:`S = \begin{pmatrix} 0 & Z^\top \\ Z & 0 \end{pmatrix}`, whose eigenvalues are the
singular values of Z and their negatives, odd functions of S are functions of singular values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gyrobn.backends import Array, Arrays, namespace_of
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.subspace import ComplexMatrices
from gyrobn.numerics.arrays import check_coordinates, zeros
from gyrobn.numerics.hessian import Hessian
from gyrobn.numerics.matrices import adjoint, eye, finite_or_identity, is_finite, matmul
from gyrobn.numerics.matrix_functions import (
    INVERSE_ROOT,
    LOG,
    ROOT,
    Eigen,
    Spectral,
    eigh,
    matrix_function,
)
from gyrobn.numerics.orthogonal import hessian_in_frames


def _end(x: Array) -> float:
    """Return the largest singular value of a point: the ball ends a few digits before 1."""
    return 1.0 - 8.0 * float(namespace_of(x).finfo(x.dtype).eps)


def _tanh(x: Array) -> Array:
    end = _end(x)
    return namespace_of(x).clip(namespace_of(x).tanh(x), min=-end, max=end)


def _slope(x: Array) -> Array:
    """Return 1/cosh², of a number whose cosh cannot overflow."""
    return namespace_of(x).cosh(namespace_of(x).clip(x, min=-40.0, max=40.0)) ** -2


def _tanh_difference(x: Array, y: Array) -> Array:
    xp = namespace_of(x)
    x, y = (xp.clip(a, min=-40.0, max=40.0) for a in (x, y))
    h = xp.abs(x - y) + float(xp.finfo(x.dtype).eps) ** 2
    return xp.sinh(h) / h / (xp.cosh(x) * xp.cosh(y))


TANH = Spectral(
    (_tanh, _slope, lambda x: -2.0 * _tanh(x) * _slope(x)),
    relative=False,
    closed=(_tanh_difference,),
)
CLAMPED = Spectral(
    (
        lambda x: namespace_of(x).clip(x, min=-_end(x), max=_end(x)),
        lambda x: namespace_of(x).astype(namespace_of(x).abs(x) < _end(x), x.dtype),
        lambda x: 0.0 * x,
    )
)


def _artanh(S: Array, eigen: Eigen) -> Array:
    """Return artanh S, half the logarithm of 1 + S less that of 1 - S."""
    values, U = eigen
    above = matrix_function(eye(S) + S, LOG, Eigen(1.0 + values, U))
    return 0.5 * (above - matrix_function(eye(S) - S, LOG, Eigen(1.0 - values, U)))


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
        return cls(*shape[-2:])

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return a ball of square and one of other matrices."""
        return cls(2, 2), cls(3, 2)

    def origin(self, like: Array) -> Array:
        """Return the zero matrix."""
        return namespace_of(like).reshape(zeros(self.dim, like), self.point_shape)

    def _odd(self, c: Array, function: Callable[[Array, Eigen], Array]) -> Array:
        """Return an odd function of the singular values of matrices, from that of S."""
        xp, p, q = namespace_of(c), self.p, self.q
        corner = 0.0 * matmul(c, adjoint(c)), 0.0 * matmul(adjoint(c), c)
        S = xp.concat(
            [xp.concat([corner[1], adjoint(c)], axis=-1), xp.concat([c, corner[0]], axis=-1)],
            axis=-2,
        )
        return function(S, eigh(S))[..., q:, :q]

    # ------------------------------------------------------------------ gyro operations

    def _sides(self, x: Array, v: Array, left: Spectral, right: Spectral) -> Arrays:
        """Return v between functions of I - AAᵀ and I - AᵀA, as factors of a product."""
        xt = adjoint(x)
        first = matrix_function(eye(x, self.p) - matmul(x, xt), left)
        return first, v, matrix_function(eye(x, self.q) - matmul(xt, x), right)

    def add(self, x: Array, y: Array) -> Array:
        r"""Gyroaddition :math:`A \oplus Z`."""
        xp = self._namespace(x, y)
        divisor, _ = finite_or_identity(eye(x, self.q) + matmul(adjoint(y), x))
        middle = adjoint(xp.linalg.solve(divisor, adjoint(x + y)))
        total = matmul(*self._sides(x, middle, INVERSE_ROOT, ROOT))
        return self._with_identity(x, y, total)

    def neg(self, x: Array) -> Array:
        """Negative."""
        self._namespace(x)
        return -x

    def to_normal(self, x: Array) -> Array:
        r"""Entries of :math:`U \operatorname{artanh}(\sigma) V^\top`, row by row."""
        self._namespace(x)
        half = self._odd(x, _artanh)
        return namespace_of(x).reshape(half, (*x.shape[:-2], self.dim))

    def from_normal(self, c: Array) -> Array:
        """Inverse of :meth:`to_normal`; singular values end a few digits before 1."""
        xp = check_coordinates(self, c)
        C = xp.reshape(c, (*c.shape[:-1], *self.point_shape))
        return self._odd(C, lambda S, eigen: matrix_function(S, TANH, eigen))

    # ------------------------------------------------------------------ tangent vectors

    def push(self, x: Array, c: Array) -> Array:
        r"""Transport :math:`v \mapsto (I - AA^\top)^{1/2}\, v\, (I - A^\top A)^{1/2}`."""
        v = namespace_of(c).reshape(c, (*c.shape[:-1], *self.point_shape))
        return matmul(*self._sides(x, v, ROOT, ROOT))

    def pull(self, x: Array, v: Array) -> Array:
        """Inverse of :meth:`push`."""
        c = matmul(*self._sides(x, v, INVERSE_ROOT, INVERSE_ROOT))
        return namespace_of(c).reshape(c, (*c.shape[:-2], self.dim))

    # ------------------------------------------------------------------ points, good and bad

    def project(self, x: Array) -> Array:
        """Return x with singular values that lie in the ball."""
        self._namespace(x)
        inside = (self.violation(x) == 0)[..., None, None]
        clamped = self._odd(x, lambda S, eigen: matrix_function(S, CLAMPED, eigen))
        return namespace_of(x).where(inside, x, clamped)

    def violation(self, x: Array) -> Array:
        """Return how far the largest singular value is from 1, if it is not below."""
        xp = self._namespace(x)
        finite = is_finite(x)
        size = xp.max(xp.linalg.svdvals(xp.where(finite, x, 0.0)), axis=-1)
        root = float(xp.finfo(x.dtype).eps) ** 0.5
        off = xp.where(size < 1.0, 0.0, size - 1.0 + 2.0 * root)
        return xp.where(finite[..., 0, 0], off, xp.inf)

    def hessian(self, c: Array, weights: Array) -> Hessian:
        r"""Mean Hessian, of eigenvalues :math:`a \coth a`, a sums and differences of artanh σ."""
        reshape = namespace_of(c).reshape
        return hessian_in_frames(
            c,
            weights,
            None,
            lambda c: reshape(c, (*c.shape[:-1], *self.point_shape)),
            lambda v: reshape(v, (*v.shape[:-2], self.dim)),
            hyperbolic=True,
        )


# ---------------------------------------------------------------------- complex balls


@dataclass(frozen=True)
class ComplexBall(ComplexMatrices):
    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def dim(self) -> int:
        return 2 * self.n

    @property
    def whole(self) -> GyroSpace:
        return MatrixBall(2 * self.n, 2)

    @classmethod
    def for_shape(cls, shape):
        return cls(shape[-1])

    @classmethod
    def examples(cls):
        return cls(1), cls(2)

    def lift(self, x: Array) -> Array:
        return super().lift(x[..., None])

    def drop(self, y: Array) -> Array:
        return super().drop(y)[..., 0]

    def basis(self):
        return np.concat([np.eye(self.n), 1j * np.eye(self.n)])


@dataclass(frozen=True)
class SiegelDisk(ComplexMatrices):
    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        return self.n, self.n

    @property
    def dim(self) -> int:
        return self.n * (self.n + 1)

    @property
    def whole(self) -> GyroSpace:
        return MatrixBall(2 * self.n, 2 * self.n)

    @classmethod
    def for_shape(cls, shape):
        return cls(shape[-1])

    @classmethod
    def examples(cls):
        return (cls(2),)

    def basis(self):
        rows, columns = np.tril_indices(self.n)
        E = np.zeros((len(rows), self.n, self.n), dtype=complex)
        k = np.arange(len(rows))
        E[k, rows, columns] = E[k, columns, rows] = np.where(rows == columns, 1.0, 0.5**0.5)
        return np.concat([E, 1j * E])
