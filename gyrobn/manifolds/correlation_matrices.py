"""What the metrics of correlation matrices share: the set of matrices, whatever the map is."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.manifolds.definite import has_factor, regular
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.manifolds.pullback import Pullback
from gyrobn.manifolds.specification import space_of
from gyrobn.numerics.arrays import surely
from gyrobn.numerics.checks import check_square
from gyrobn.numerics.decompositions import finite_or_identity, surely_definite
from gyrobn.numerics.matrices import eye, matmul, symmetric, transpose, with_diagonal


@dataclass(frozen=True)
class CorrelationMatrices(Pullback):
    """Correlation matrices under one metric; a subclass writes the map that defines it.

    Tangent vectors are symmetric matrices with a zero diagonal.
    """

    n: int = field(metadata={"least": 2})
    definite: ClassVar[bool] = True

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of one point: ``(n, n)``."""
        return (self.n, self.n)

    @property
    def inside(self) -> GyroSpace:
        """The vector space of a flat metric."""
        return space_of(Euclidean, self.n * (self.n - 1) // 2)

    @classmethod
    def for_shape(cls, shape: tuple[int, ...]) -> Self:
        """Return the geometry whose points are the last two axes of ``shape``."""
        return cls(check_square("correlation matrices are square, shape (..., n, n)", shape))

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Return the metric on 3 × 3 matrices."""
        return (cls(3),)

    def origin(self, like: Array) -> Array:
        """Return the identity matrix."""
        return eye(like, self.n)

    def project(self, x: Array) -> Array:
        r"""Symmetrize, divide by the roots of the diagonal, and raise low eigenvalues.

        Eigenvalues of a matrix that is not positive definite are raised to
        :math:`\sqrt\epsilon` times the largest one; to a derivative that part is constant.
        """
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        A, finite = finite_or_identity(x)
        large = xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
        A = symmetric(A / xp.where(large > 0, large, 1.0))
        variances = xp.linalg.diagonal(A)
        roots = xp.sqrt(xp.where(variances > eps**4, variances, 1.0))
        A = A / (roots[..., :, None] * roots[..., None, :])
        values, U = xp.linalg.eigh(backend_of(x).stop_gradient(A))
        low, high = values[..., :1], values[..., -1:]
        missing = xp.clip(eps**0.5 * high - values, min=0.0)
        missing = xp.where(low <= 4.0 * self.n * eps * high, missing, 0.0)
        raised = A + matmul(U * missing[..., None, :], transpose(U))
        raised = xp.where(high[..., None] > 0, raised, eye(A))
        bad = xp.logical_and(finite, self.violation(x)[..., None, None] > 0)
        return xp.where(bad, to_unit_diagonal(xp.where(bad, raised, eye(A))), x)

    def from_normal(self, c: Array) -> Array:
        """Exponential map at the identity; matrices that would be singular stay regular."""
        return regular(self, super().from_normal(c), to_unit_diagonal)

    def contains(self, x: Array) -> Array:
        """Return which matrices have a :meth:`violation` of at most √ε.

        If all matrices have a Cholesky factor, no eigenvalue is computed; and none in a compiled
        program, where the factor decides.
        """
        xp, shim = self._namespace(x), backend_of(x)
        some = float(xp.finfo(x.dtype).eps) ** 0.5
        x = shim.stop_gradient(x)
        ones = xp.all(xp.abs(xp.linalg.diagonal(x) - 1.0) <= some, axis=-1)
        if shim.hides_values(x):
            return xp.logical_and(ones, has_factor(x))
        if surely(ones) and bool(xp.all(x == transpose(x))) and surely_definite(x):
            return ones
        return self.violation(x) <= some

    def violation(self, x: Array) -> Array:
        r"""Return the largest of three: the asymmetry, relative to the largest entry; the distance
        of the diagonal from one; and for a matrix that is singular to rounding,
        :math:`2\sqrt\epsilon` and the size of its lowest eigenvalue.
        """
        xp = self._namespace(x)
        eps = float(xp.finfo(x.dtype).eps)
        A, finite = finite_or_identity(x)
        large = xp.clip(xp.max(xp.abs(A), axis=(-2, -1)), min=1.0)
        scaled = A / large[..., None, None]
        asymmetry = xp.max(xp.abs(scaled - transpose(scaled)), axis=(-2, -1))
        off = xp.max(xp.abs(xp.linalg.diagonal(A) - 1.0), axis=-1)
        values = xp.linalg.eigvalsh(symmetric(scaled))
        low, high = values[..., 0], xp.max(xp.abs(values), axis=-1)
        lack = xp.where(low <= self.n * eps * high, 2.0 * eps**0.5 + xp.abs(low), 0.0)
        worst = xp.maximum(asymmetry, xp.maximum(off, lack))
        return xp.where(finite[..., 0, 0], worst, xp.inf)


def to_unit_diagonal(A: Array) -> Array:
    """Divide by the roots of the diagonal, of any size; the diagonal of the result is exactly 1."""
    xp = namespace_of(A)
    roots = xp.sqrt(xp.linalg.diagonal(A))
    return with_diagonal(A / (roots[..., :, None] * roots[..., None, :]), 1.0)
